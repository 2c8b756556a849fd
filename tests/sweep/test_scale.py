"""A sweep through Dask: a real scheduler and real worker processes, one of which is killed."""

import os
import signal
from collections.abc import Generator

import numpy as np
import pytest
from distributed import LocalCluster
from made_up import made

import jaxsppl
from jaxsppl.errors import ConfigError

GRID = {
    "temperature": np.linspace(0.5, 1.5, 12).tolist(),
    "min_p": [0.0, 0.1],
    "beta": [0.7, 1.0, 2.0],
}


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as one:
        yield one


@pytest.mark.parametrize("level", ["binned", "factored"])
def test_the_numbers_are_those_of_one_process(cluster: LocalCluster, level: str) -> None:
    harvests = [made("m", "d"), made("m", "e", seed=1)]
    here = jaxsppl.sweep(harvests, GRID, level=level)
    seen: list[int] = []
    there = jaxsppl.sweep(
        harvests,
        GRID,
        level=level,
        dask=cluster.scheduler_address,
        progress=lambda done, total: seen.append(done / total),
    )
    for name in ("nll", "nll_lower", "nll_upper", "ood"):
        np.testing.assert_allclose(there[name].values, here[name].values, atol=1e-6)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) > 8


@pytest.mark.parametrize("lost", [1, 2])
def test_killed_workers_cost_nothing_but_time(cluster: LocalCluster, lost: int) -> None:
    here = jaxsppl.sweep(made(), GRID, level="factored")
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        """Kill workers when the first part is done; both, and the tokens are nowhere else."""
        if not killed:
            for worker in [*cluster.workers.values()][:lost]:
                os.kill(worker.pid, signal.SIGKILL)
            killed.append(done / total)

    there = jaxsppl.sweep(
        made(), GRID, level="factored", dask=cluster.scheduler_address, progress=kill_one
    )
    assert killed[0] < 1
    np.testing.assert_allclose(there.nll.values, here.nll.values, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("local:none", "local:4"),
        ("nowhere.json", "scheduler file"),
        ("tcp://127.0.0.1:9", "dask scheduler"),
    ],
)
def test_an_address_that_is_none(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        jaxsppl.sweep(made(), GRID, dask=given)
