"""The engine: the same numbers by every level, block, memory and precision of the process."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from law_rows import harvest_of
from made_up import SIZE, K, by_hand, made, rows, scored

import jaxsppl
from jaxsppl.sampling import factored
from jaxsppl.sweep import engine
from jaxsppl.sweep.binning import shared_tables
from jaxsppl.sweep.data import token_arrays
from jaxsppl.sweep.engine import grid_means

ORDER = ("top_k", "top_p", "min_p", "temperature")
AXES = {
    "temperature": [0.0, 0.6, 1.0, 1.7],
    "min_p": [0.0, 0.07],
    "top_k": [0.0, 3.0],
}
BETA_AXES = {
    "beta": [0.45, 1.0, 2.2],
    "temperature": [0.0, 0.6, 1.0, 1.7],
    "epsilon": [0.002, 0.05],
    "alpha": [0.5, 1.0, 3.0],
}


def points(result: xr.Dataset) -> list[tuple[dict[str, float], dict[str, int]]]:
    """Every grid point with its place."""
    names = [str(name) for name in result.nll.dims[2:]]
    axes = [result[name].values.tolist() for name in names]
    return [
        (
            dict(zip(names, (axis[at] for axis, at in zip(axes, place, strict=True)), strict=True)),
            dict(zip(names, place, strict=True)),
        )
        for place in itertools.product(*(range(len(axis)) for axis in axes))
    ]


@pytest.mark.parametrize("order", [ORDER, tuple(reversed(ORDER))], ids=["last", "first"])
def test_a_golden_grid_over_the_chain(order: tuple[str, ...]) -> None:
    logprob, actual = rows(0)
    result = jaxsppl.sweep(made(), AXES, chain=order, tail="drop", level="factored")
    assert result.attrs["chain"] == ",".join(order)
    for point, place in points(result):
        nll, ood = scored(logprob[:, :K], actual, point, order)
        found = result.isel(place).squeeze()
        assert abs(float(found.nll) - nll) < 1e-11, point
        assert abs(float(found.ood) - ood) < 1e-12, point


def test_a_golden_grid_over_the_draw() -> None:
    logprob, actual = rows(0)
    result = jaxsppl.sweep(made(), BETA_AXES, tail="drop", level="factored")
    assert result.nll.dims == ("model", "dataset", *BETA_AXES)
    for point, place in points(result):
        nll, ood = scored(logprob[:, :K], actual, point, ("temperature",))
        found = result.isel(place).squeeze()
        assert abs(float(found.nll) - nll) < 1e-9, point
        assert abs(float(found.ood) - ood) < 1e-12, point


def test_every_level_gives_the_same_numbers() -> None:
    harvest = made()
    before = factored.grid._cache_size()
    direct = jaxsppl.sweep(harvest, BETA_AXES, level="direct", tail="drop")
    # "direct" is not a label on another level's numbers.
    assert factored.grid._cache_size() == before
    exact = jaxsppl.sweep(harvest, BETA_AXES, level="factored", tail="drop")
    binned = jaxsppl.sweep(harvest, BETA_AXES, level="binned", tail="drop")
    assert np.abs(exact.nll - direct.nll).max() < 1e-11
    assert np.abs(exact.ood - direct.ood).max() < 1e-12
    assert np.abs(binned.nll - direct.nll).max() < 1e-4
    levels = [result.attrs["level"] for result in (direct, exact, binned)]
    assert levels[:2] == ["direct", "factored"]
    assert levels[2] in ("binned", "factored")  # what the audit lets pass
    assert all(result.attrs["audit_nll"] <= 1e-4 for result in (direct, exact, binned))


def test_memory_and_blocks_change_nothing() -> None:
    logprob, actual = rows(4, n_token=150)
    harvest = harvest_of(logprob, actual, K)
    grid = {"temperature": np.linspace(0, 2, 41), "min_p": [0.0, 0.1]}
    plans = [jaxsppl.explain(harvest, grid, memory_mib=mib) for mib in (2, 1024)]
    assert plans[0].block < plans[1].block
    assert plans[0].n_chunk > 1
    small, large = (jaxsppl.sweep(harvest, grid, memory_mib=mib) for mib in (2, 1024))
    for name in ("nll", "nll_lower", "nll_upper", "ood"):
        assert np.abs(small[name] - large[name]).max() < 1e-12
    assert (small.nll_lower <= small.nll + 1e-12).all()
    assert (small.nll <= small.nll_upper + 1e-12).all()
    # Greedy and a cut that the alternatives hold leave nothing unseen.
    known = small.sel(temperature=0.0)
    assert np.abs(known.nll_upper - known.nll_lower).max() < 1e-12


def test_one_program_for_harvests_and_values_of_one_shape() -> None:
    grid = {"temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1]}
    jaxsppl.sweep(made(), grid)
    sizes = [f._cache_size() for f in (factored.grid, engine._direct_score)]
    jaxsppl.sweep([made(seed=1), made(dataset="e", seed=2)], grid)
    jaxsppl.sweep(made(), {"temperature": [0.1, 0.2, 0.3], "min_p": [0.5, 0.9]}, epsilon=0.2)
    assert [f._cache_size() for f in (factored.grid, engine._direct_score)] == sizes


def test_it_is_deterministic() -> None:
    grid = {"temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1]}
    one, two = jaxsppl.sweep(made(), grid, seed=3), jaxsppl.sweep(made(), grid, seed=3)
    xr.testing.assert_identical(one, two)


SCRIPT = """
import sys, json
import jax
jax.config.update("jax_enable_x64", {flag})
import jaxsppl
assert jax.config.jax_enable_x64 is {flag}
harvest = jaxsppl.open_harvest(sys.argv[1])
result = jaxsppl.sweep(harvest, {{"temperature": [0.0, 0.7, 1.3]}}, tail="drop")
p = jaxsppl.token_probabilities(harvest, temperature=0.7, tail="drop")
assert jax.config.jax_enable_x64 is {flag}
assert jax.numpy.asarray(1.0).dtype == ("float64" if {flag} else "float32")
print(json.dumps([result.nll.values.tolist(), p.values.tolist()]))
"""


def test_the_precision_of_the_process_is_neither_used_nor_changed(tmp_path: Path) -> None:
    path = jaxsppl.save(made(), tmp_path / "made.harvest.nc")
    found = []
    for flag in (True, False):
        script = SCRIPT.format(flag=flag)
        run = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        found.append(json.loads(run.stdout))
    assert found[0] == found[1]
    assert not jax.config.jax_enable_x64


def test_token_probabilities_are_the_laws() -> None:
    logprob, actual = rows(0)
    point = {"temperature": 0.8, "min_p": 0.02, "top_k": 9.0, "alpha": 0.6, "beta": 1.7}
    found = jaxsppl.token_probabilities(made(), tail="drop", **point)
    order = [(name, point[name]) for name in ("top_k", "min_p", "temperature")]
    expected = by_hand(logprob[:, :K], actual, order, 0.6, 1.7)
    assert np.abs(found.values - expected).max() < 1e-10
    assert found.dims == ("token",)
    assert found.dtype == np.float64
    assert found.sizes["token"] == SIZE
    assert found.attrs["chain"] == "top_k,min_p,temperature"
    assert not {"lower", "upper"} & set(found.coords)


def test_token_probabilities_bracket_the_whole_vocabulary() -> None:
    logprob, actual = rows(0)
    for chain in (("min_p", "temperature"), ("temperature", "min_p")):
        found = jaxsppl.token_probabilities(made(), chain=chain, temperature=1.6, min_p=0.004)
        point = {"temperature": 1.6, "min_p": 0.004}
        truth = by_hand(logprob, actual, [(name, point[name]) for name in chain])
        assert (found.lower.values <= truth + 1e-6).all()
        assert (found.upper.values >= truth - 1e-6).all()
        assert ((found.lower <= found) & (found <= found.upper)).all()
        assert np.array_equal(found.values > 0, truth > 0)


def test_arrays_carry_the_labels() -> None:
    harvest = made("model x", "set y")
    tokens = token_arrays(harvest)
    assert (tokens.n_token, tokens.n_rank) == (SIZE, K)
    assert tokens.label == "model 'model x' on dataset 'set y'"
    assert tokens.plain_nll == pytest.approx(-harvest.token_logprob.values.astype(float).mean())
    assert tokens.n_byte == int(harvest.token_bytes.sum())


def test_more_draws_than_the_memory_holds_at_once() -> None:
    grid = {
        "temperature": [0.7, 1.3],
        "alpha": np.geomspace(0.3, 4, 9).tolist(),
        "beta": np.geomspace(0.3, 4, 8).tolist(),
        "epsilon": [0.01, 0.1],
    }
    order = ("temperature",)
    plan = jaxsppl.explain(made(), grid, chain=order, level="binned", memory_mib=64)
    assert 1 < plan.draws < plan.n_draw == 144
    assert plan.n_draw % plan.draws  # the last part is padded
    small = jaxsppl.sweep(made(), grid, chain=order, level="binned", memory_mib=64)
    large = jaxsppl.sweep(made(), grid, chain=order, level="binned", memory_mib=2048)
    np.testing.assert_allclose(small.nll.values, large.nll.values, rtol=1e-6)
    np.testing.assert_allclose(small.ood.values, large.ood.values, atol=1e-6)
    exact = jaxsppl.sweep(made(), grid, chain=order, level="factored")
    assert float(abs(small.nll - exact.nll).max()) < 1e-3  # a text of a few tokens


def test_many_draws_are_interpolated_between_few() -> None:
    grid = {"temperature": [0.7, 1.3], "alpha": np.geomspace(0.3, 4, 40), "beta": [0.5, 1.0, 3.0]}
    plan = jaxsppl.explain(made(), grid, level="binned")
    assert plan.nodes is not None
    tables = shared_tables(plan)
    assert tables is not None
    assert tables[0].values.log_mass.shape == (plan.nodes.n_node, 13, 3)
    every = replace(plan, nodes=plan.nodes._replace(point_step=0.01))
    found, exact = (grid_means(one, token_arrays(made()), lambda _: None) for one in (plan, every))
    np.testing.assert_allclose(found.nll, exact.nll, atol=2e-6)
    np.testing.assert_allclose(found.ood, exact.ood, atol=1e-3)
