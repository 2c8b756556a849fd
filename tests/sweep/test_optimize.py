"""The optimum against NumPy and SciPy, the labelled file, and what goes wrong."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from law_reference import chain_law, objective
from scipy.optimize import minimize
from small import harvest

import jaxsppl
from jaxsppl import schema, store
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.sweep import resident, search
from jaxsppl.sweep.data import token_arrays
from jaxsppl.sweep.optimize import optimize

# One shape for all, since each shape compiles its own program.
DATA = harvest(n_token=250, n_rank=12, n_vocab=60, seed=3)
OTHER = harvest(n_token=250, n_rank=12, n_vocab=60, seed=4, dataset="more")
THREE = {"tail": "drop", "epsilon": 1e-3, "starts": 8}


def reference(data: xr.Dataset, chain: Any, epsilon: float, alpha: float, beta: float) -> float:
    """The objective by NumPy and SciPy; only the alternatives exist."""
    rank = data.token_rank.values
    probability = [
        chain_law(row.astype(np.float64), chain, alpha, beta)[place - 1] if place else 0.0
        for row, place in zip(data.top_logprob.values, rank, strict=True)
    ]
    return objective(np.asarray(probability), epsilon)[0]


def best_temperature(data: xr.Dataset, cuts: Any, epsilon: float) -> tuple[float, float]:
    """Temperature and nll of the best of a fine grid, then refined, by NumPy."""

    def at(z: Any) -> float:
        temperature = float(np.exp(np.ravel(z)[0]))
        return reference(data, [*cuts, ("temperature", temperature)], epsilon, 1, 1)

    grid = np.linspace(np.log(0.05), np.log(5), 40)
    values = [at(z) for z in grid]
    refined = [
        minimize(at, grid[i], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
        for i in np.argsort(values)[:3]
    ]
    best = min(refined, key=lambda one: one.fun)
    return float(np.exp(best.x[0])), float(best.fun)


def only(found: xr.Dataset) -> xr.Dataset:
    """The first pair."""
    return found.isel(model=0, dataset=0)


@pytest.fixture(scope="module")
def three() -> xr.Dataset:
    """Temperature, alpha and beta at once, of two datasets and both together."""
    return optimize([DATA, OTHER], pooled=True, **THREE)


def test_the_best_is_what_scipy_finds(three: xr.Dataset) -> None:
    found = three.sel(dataset="noise").isel(model=0)

    def at(z: Any) -> float:
        temperature, alpha, beta = np.exp(z)
        return reference(DATA, [("temperature", temperature)], 1e-3, alpha, beta)

    here = np.log(found.best_value.values)
    assert at(here) == pytest.approx(float(found.best_nll), abs=1e-9)
    limits = [(np.log(0.05), np.log(5)), *[(np.log(0.05), np.log(50))] * 2]
    for start in (np.zeros(3), here):
        other = minimize(at, start, method="L-BFGS-B", bounds=limits, options={"maxiter": 40})
        assert float(found.best_nll) <= other.fun + 1e-7


def test_every_start_that_is_called_converged_reached_the_best(three: xr.Dataset) -> None:
    for name in three.dataset.values:
        found = three.sel(dataset=name).isel(model=0)
        converged = found.status.values == "converged"
        assert converged.sum() >= 6
        assert np.ptp(found.nll.values[converged]) <= 1e-6
        assert found.nll.values.min() == pytest.approx(float(found.best_nll), abs=1e-9)
        assert int(found.n_at_best) == (found.basin.values == 0).sum() >= converged.sum()


def test_the_best_is_the_direct_definitions_and_no_worse_than_neutral(three: xr.Dataset) -> None:
    for data in (DATA, OTHER):
        found = three.sel(dataset=str(data.dataset.values)).isel(model=0)
        point = dict(zip(three.parameter.values.tolist(), found.best_value.values, strict=True))
        p = jaxsppl.token_probabilities(data, tail="drop", **point).values
        assert -np.log(np.maximum(p, 1e-3)).mean() == pytest.approx(float(found.best_nll), abs=1e-9)
        assert (p < 1e-3).mean() == pytest.approx(float(found.best_ood))
        assert float(found.best_nll) < reference(data, [], 1e-3, 1, 1)


def test_pooled_weighs_each_token_the_same(three: xr.Dataset) -> None:
    pooled = three.sel(dataset="pooled").isel(model=0)
    temperature, alpha, beta = pooled.best_value.values
    chain = [("temperature", temperature)]
    each = [reference(data, chain, 1e-3, alpha, beta) for data in (DATA, OTHER)]
    assert np.mean(each) == pytest.approx(float(pooled.best_nll), abs=1e-9)
    assert int(pooled.n_token) == 500
    alone = three.sel(dataset=["noise", "more"]).best_nll.mean()
    assert float(pooled.best_nll) >= float(alone)


def test_errors_come_from_the_curvature(three: xr.Dataset) -> None:
    pooled = three.sel(dataset="pooled").isel(model=0)
    each = three.sel(dataset="noise").isel(model=0)
    assert (pooled.std_error > 0).all()
    correlation = pooled.correlation.values
    np.testing.assert_allclose(np.diag(correlation), 1, rtol=1e-12)
    np.testing.assert_allclose(correlation, correlation.T)
    # Twice the tokens: a spread smaller by about the root of two; with room for chance.
    ratio = np.log(pooled.std_error / each.std_error) + 0.5 * np.log(2)
    assert np.abs(ratio).max() < 1.5


def test_standard_error_of_a_temperature_is_that_of_repeated_draws() -> None:
    """Estimates on independent texts of a known model spread as their standard errors say."""
    texts = [
        harvest(n_token=250, n_rank=60, n_vocab=60, n_document=50, seed=seed, dataset=f"t{seed}")
        for seed in range(24)
    ]
    found = optimize(texts, over=("temperature",), starts=2, tail="drop", epsilon=1e-9)
    away = (found.best_value - 1.0).values.ravel() / found.std_error.values.ravel()
    # The text is drawn at temperature 1. A chi-square of 24 lies in this range but for 1e-6.
    assert 4 < (away**2).sum() < 75


def test_documents_are_what_standard_errors_take_as_independent() -> None:
    one = harvest(n_token=250, n_rank=12, n_vocab=60, n_document=25, seed=3)
    # Every token four times, in its document: nothing new is known.
    four = one.isel(token=np.repeat(np.arange(250), 4)).assign_coords(dataset="four")
    arguments = {"over": ("temperature",), "tail": "drop", "epsilon": 1e-3, "starts": 2}
    found = optimize([one, four], **arguments).isel(model=0, parameter=0)
    assert found.n_document.values.tolist() == [25, 25]
    np.testing.assert_allclose(*found.best_value.values, rtol=1e-5)
    np.testing.assert_allclose(*found.std_error.values, rtol=1e-3)
    lone = harvest(n_token=250, n_rank=12, n_vocab=60, n_document=1, seed=3)
    assert np.isnan(optimize(lone, **arguments).std_error.values).all()


def test_the_same_seed_gives_the_same_file_and_another_the_same_best(three: xr.Dataset) -> None:
    again = optimize([DATA, OTHER], pooled=True, **THREE)
    assert schema.digest(store.contents_of(again)) == schema.digest(store.contents_of(three))
    other = optimize(DATA, seed=1, **THREE)
    other, mine = only(other), only(three)
    assert not np.allclose(other.initial, mine.initial)
    assert float(other.best_nll) == pytest.approx(float(mine.best_nll), abs=1e-6)


def test_one_program_serves_all_starts_seeds_bounds_and_harvests(three: xr.Dataset) -> None:
    del three
    before = search.compiled_programs()
    for seed, starts in ((5, 8), (6, 19)):
        optimize(OTHER, **{**THREE, "seed": seed, "starts": starts})
    optimize(DATA, bounds={"alpha": (0.9, 1.1)}, **THREE)
    # The harvests alone have fewer blocks than pooled: one more shape, whatever is asked of it.
    assert search.compiled_programs() <= before + 1


def test_an_optimum_at_a_limit_is_said_to_be_there() -> None:
    found = optimize(DATA, bounds={"temperature": (1.8, 3.0), "alpha": (0.9, 1.1)}, **THREE)
    here = found.isel(model=0, dataset=0)
    best = int(np.argmin(here.nll.values))
    assert here.status.values[best] == "at a bound"
    assert here.best_value.values[0] == 1.8
    assert np.isnan(here.std_error.values).all()
    assert (here.optimum.values[:, 0] >= 1.8).all()
    assert (here.optimum.values[:, 0] <= 3.0).all()


def test_truncations_are_enumerated_and_each_has_its_own_temperature() -> None:
    values = {"top_k": [0, 4], "min_p": [0.0, 0.1]}
    found = optimize(
        DATA, over=("min_p", "temperature", "top_k"), values=values, starts=8, tail="drop"
    ).isel(model=0, dataset=0)
    assert found.sizes["start"] == 8
    reached = {}
    for start in range(8):
        min_p, _, top_k = found.optimum.values[start]
        np.testing.assert_array_equal(found.initial.values[start, [0, 2]], [min_p, top_k])
        key = (top_k, min_p)
        reached[key] = min(reached.get(key, np.inf), float(found.nll[start]))
    expected = {
        (k, p): best_temperature(DATA, [("top_k", k), ("min_p", p)], 0.01)[1]
        for k, p in itertools.product(*values.values())
    }
    assert reached.keys() == expected.keys()
    for key, value in expected.items():
        assert reached[key] <= value + 1e-4, key
    assert float(found.best_nll) <= min(expected.values()) + 1e-7
    assert np.isnan(found.std_error.values[[0, 2]]).all()


def test_truncations_alone_need_no_gradient() -> None:
    found = optimize(DATA, over=("min_p",), starts=2).isel(model=0, dataset=0)
    scores: dict[float, float] = {}
    for p in (0.0, 0.02, 0.1, 0.3):
        drawn = jaxsppl.token_probabilities(DATA, min_p=p).values
        scores[p] = float(-np.log(np.maximum(drawn, 0.01)).mean())
    assert float(found.best_nll) <= min(scores.values()) + 1e-9
    assert set(found.status.values) == {"converged"}


def test_fixed_parameters_are_held() -> None:
    found = optimize(
        DATA, over=("temperature",), fixed={"min_p": 0.1, "top_k": 5}, tail="drop", starts=4
    )
    temperature, nll = best_temperature(DATA, [("top_k", 5), ("min_p", 0.1)], 0.01)
    assert found.attrs["chain"] == "top_k,min_p,temperature"
    assert json.loads(found.attrs["fixed_json"]) == {"min_p": 0.1, "top_k": 5}
    found = only(found)
    assert float(found.best_nll) <= nll + 1e-7
    # The objective is flat there; its value is what counts.
    assert float(found.best_value[0]) == pytest.approx(temperature, rel=0.1)


def test_order_of_the_chain_is_kept() -> None:
    chain = ("temperature", "min_p")
    found = optimize(
        DATA, over=("temperature",), fixed={"min_p": 0.2}, chain=chain, starts=4, tail="drop"
    )
    assert found.attrs["chain"] == "temperature,min_p"
    temperature, nll = only(found).best_value.values[0], float(only(found).best_nll)
    after, before = ("temperature", temperature), ("min_p", 0.2)
    assert reference(DATA, [after, before], 0.01, 1, 1) == pytest.approx(nll, abs=1e-9)
    assert reference(DATA, [before, after], 0.01, 1, 1) != pytest.approx(nll, abs=1e-4)


def test_unseen_tail_is_modelled_and_bracketed() -> None:
    found = optimize(DATA, over=("temperature",), starts=4).isel(model=0, dataset=0)
    grid = {"temperature": np.geomspace(0.3, 3, 60)}
    swept = jaxsppl.sweep(DATA, grid, level="factored", audit_points=1)
    assert float(found.best_nll) <= float(swept.nll.min()) + 1e-9
    assert float(found.best_nll_lower) <= float(found.best_nll) <= float(found.best_nll_upper)


def test_a_single_token_is_enough() -> None:
    one = harvest(n_token=1, n_document=1)
    found = only(optimize(one, over=("temperature",), tail="drop", starts=3))
    assert np.isfinite(float(found.best_nll))
    assert int(found.n_token) == 1


def test_adam_comes_near(three: xr.Dataset) -> None:
    found = only(optimize(DATA, method="adam", **{**THREE, "starts": 2}, max_steps=150))
    best = float(only(three).best_nll)
    assert best - 1e-6 <= float(found.best_nll) < best + 1e-3
    assert set(found.status.values.ravel()) <= {"converged", "out of steps"}
    assert (found.n_step <= 150).all()


def test_few_steps_are_said_to_be_few() -> None:
    found = optimize(DATA, **{**THREE, "max_steps": 2})
    assert "out of steps" in found.status.values
    assert np.isfinite(found.nll.values).all()


def test_the_file_keeps_its_schema(three: xr.Dataset, tmp_path: Path) -> None:
    path = store.write_dataset(three, tmp_path / "a.optimum.nc")
    contents = store.read_contents(path)
    schema.check_optimum(contents, path.name)
    assert contents.array("status").tolist() == three.status.values.tolist()
    assert [one["dataset"] for one in json.loads(contents.attrs["harvests_json"])] == [
        "noise",
        "more",
        "pooled",
    ]
    assert all(isinstance(v, (str, int, float)) for v in three.attrs.values())


def test_pairs_that_were_not_harvested_are_empty() -> None:
    pair = [
        harvest(n_token=30, model=m, dataset=d) for m, d in (("a", "x"), ("b", "x"), ("a", "y"))
    ]
    found = optimize(pair, over=("temperature",), starts=2)
    missing = found.sel(model="b", dataset="y")
    assert int(missing.n_token) == 0
    assert np.isnan(missing.nll.values).all()
    assert set(missing.status.values) == {""}
    assert int((found.n_token > 0).sum()) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"over": ("temprature",)}, ["over", "temprature", "temperature"]),
        ({"over": ()}, ["over", "empty"]),
        ({"over": ("alpha", "alpha")}, ["alpha", "twice"]),
        ({"over": ("epsilon",)}, ["epsilon", "objective"]),
        ({"fixed": {"alpha": 1.0}}, ["fixed", "alpha", "both"]),
        ({"fixed": {"min-p": 0.1}}, ["fixed", "min-p", "min_p"]),
        ({"fixed": {"min_p": 2.0}}, ["fixed.min_p", "2.0", "at most 1"]),
        ({"fixed": {"epsilon": 0.1}}, ["epsilon=0.1"]),
        ({"bounds": {"min_p": (0, 1)}}, ["bounds", "min_p"]),
        ({"bounds": {"alpha": (2, 1)}}, ["bounds.alpha", "(2, 1)"]),
        ({"bounds": {"temperature": (0.0, 1.0)}}, ["bounds.temperature", "above 0"]),
        ({"values": {"alpha": [1]}}, ["values", "alpha"]),
        ({"over": ("min_p",), "values": {"min_p": [0.1, 0.1]}}, ["values.min_p", "twice"]),
        ({"over": ("min_p",), "values": {"min_p": np.linspace(0, 1, 2000)}}, ["2000", "1024"]),
        ({"chain": ("min_p",)}, ["chain", "temperature"]),
        ({"epsilon": 0.0}, ["epsilon", "above 0"]),
        ({"tail": "cut"}, ["tail", "cut", "bound"]),
        ({"starts": 0}, ["starts", "0"]),
        ({"seed": 2**32}, ["seed", str(2**32)]),
        ({"seed": True}, ["seed", "True"]),
        ({"method": "newton"}, ["method", "newton", "lbfgs"]),
        ({"max_steps": 0}, ["max_steps"]),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        optimize(DATA, **arguments)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_harvest_cannot_serve_is_refused() -> None:
    with pytest.raises(PlanError, match="top_k 30 is above the 12 harvested"):
        optimize(DATA, over=("temperature",), fixed={"top_k": 30})
    with pytest.raises(PlanError, match="can be pooled"):
        optimize([DATA, harvest(n_token=30, dataset="b")], pooled=True)
    with pytest.raises(ConfigError, match="'pooled' already"):
        optimize(harvest(dataset="pooled"), pooled=True)
    with pytest.raises(PlanError, match="raise memory_mib to"):
        resident.block_size([token_arrays(DATA)] * 2, 0)


def test_blocks_are_samples_of_the_whole() -> None:
    data = harvest(n_token=600, n_rank=12, n_vocab=60)
    tokens = token_arrays(data)
    from jaxsppl.sampling.precision import float64

    with float64():
        made = resident.make_resident(tokens, 100, 7, "drop")
    assert made.n_block == 6
    actual = np.asarray(made.data.actual)[:6]
    np.testing.assert_allclose(
        np.sort(actual.ravel()), np.sort(tokens.token_logprob.astype(np.float64))
    )
    # Random samples of 100 would differ by 0.2 from each other; stratified ones do by less.
    assert np.ptp(actual.mean(axis=1)) < 0.2
