"""Each ready sweep config: loaded, explained, and run on the small real harvests that ship."""

import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from jaxsppl import config, parameters, results, store
from jaxsppl.check import check
from jaxsppl.demo import ready_config, shipped_harvests
from jaxsppl.errors import ConfigError

SWEEPS = Path(__file__).parent.parent / "sweeps"
NAMES = sorted(file.stem for file in SWEEPS.glob("*.toml"))


def test_the_promised_configs_are_there() -> None:
    assert {"demo", "temperature", "dense", "order", "shootout"} <= set(NAMES)


def test_the_shipped_harvests_are_whole_real_and_small() -> None:
    files = shipped_harvests()
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 1_000_000
    for file in files:
        assert "SmolLM2" in check(file)
        harvest = store.read_harvest(file)
        assert harvest.attrs["method"] == "token-grammar"
        # A model that reads text well: far better than chance, far worse than certain.
        assert 3 < float(np.exp(-harvest["token_logprob"].mean())) < 20


def test_a_ready_config_is_found_by_name_or_the_near_names_are_told() -> None:
    for name in NAMES:
        assert ready_config(name).name == f"{name}.toml"
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        ready_config("temprature")


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_config_is_explained_and_run(tmp_path: Path, name: str) -> None:
    settings = config.load(ready_config(name), [f"run.out={tmp_path.as_posix()}"], {})
    assert settings.texts.datasets == {"prose": "python:prose", "code": "python:code"}
    assert check(ready_config(name)).startswith(f"config '{name}'")
    files = shipped_harvests()
    plans = results.plan(settings, files)
    paths = results.sweep_paths(settings)
    assert set(plans) == set(paths)
    for order, path in paths.items():
        results.sweep_to(path, settings, settings.orders()[order], files)
        sweep = store.read_sweep(path)
        axes = settings.axes(settings.orders()[order])
        shape = tuple(len(values) for values in axes.values())
        assert sweep["nll"].shape == (1, 2, *shape)
        assert sweep["nll"].size == 2 * plans[order].n_point
        assert sweep.attrs["audit_nll"] <= settings.run.tolerance
        assert sweep.attrs["chain"] == ",".join(settings.orders()[order])
        # The best of a grid is no worse than each of its points.
        least = sweep["nll"].min(dim=list(axes))
        assert (np.abs(sweep["best_nll"] - least) <= settings.run.tolerance).all()
        assert results.sweep_is_current(path, settings, settings.orders()[order], files)


def test_the_shootout_gives_every_sampler_as_many_points() -> None:
    settings = config.load(ready_config("shootout"), (), {})
    orders = settings.orders()
    stages = {stage for order in orders.values() for stage in order}
    # Of a plain install: those of users, and variants of dialects, are not among them.
    assert stages == set(parameters.DEFAULT_ORDER) - {"p_less_norm"}
    points = {
        name: math.prod(map(len, settings.axes(order).values())) for name, order in orders.items()
    }
    assert points.pop("temperature") == len(settings.grid["temperature"])
    assert set(points.values()) == {28}
    assert 1.0 in settings.grid["temperature"]
    # Every one can also be off, so that each tries temperature alone too.
    for name, values in settings.grid.items():
        assert parameters.parameter(name).neutral in values


def test_the_two_orders_agree_at_temperature_1_and_differ_elsewhere(tmp_path: Path) -> None:
    settings = config.load(
        ready_config("order"),
        [f"run.out={tmp_path.as_posix()}", "grid.temperature=[0.5, 1, 2]"],
        {},
    )
    nll: dict[str, xr.DataArray] = {}
    for order, path in results.sweep_paths(settings).items():
        results.sweep_to(path, settings, settings.orders()[order], shipped_harvests())
        nll[order] = store.read_sweep(path)["nll"]
    difference = np.abs(nll["first"] - nll["last"])
    assert float(difference.sel(temperature=1).max()) < 1e-9
    assert float(difference.sel(temperature=[0.5, 2]).min()) > 1e-3
