"""The public sweep: the exact form of its result, labels, odd harvests, and refusals in words."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr
from law_rows import harvest_of
from made_up import SIZE, K, V, made, rows

import jaxsppl
from jaxsppl.errors import ConfigError, JaxspplError, PlanError, SchemaError

GRID = {"min_p": [0.0, 0.1], "temperature": [0.5, 1.0, 1.5]}


def test_the_form_of_the_result() -> None:
    result = jaxsppl.sweep(made("m", "d"), GRID)
    dims = ("model", "dataset", "min_p", "temperature")
    base = ("model", "dataset", "baseline")
    forms = {
        **dict.fromkeys(("nll", "ood", "nll_lower", "nll_upper"), dims),
        **dict.fromkeys(("n_token", "n_byte", "plain_nll", "best_nll", "best_ood"), dims[:2]),
        "best_value": (*dims[:2], "parameter"),
        **dict.fromkeys(
            ("baseline_nll", "baseline_nll_lower", "baseline_nll_upper", "baseline_ood"), base
        ),
    }
    assert {str(name): one.dims for name, one in result.data_vars.items()} == forms
    kinds = {str(name): one.dtype.kind for name, one in result.data_vars.items()}
    assert kinds == {name: "i" if name in ("n_token", "n_byte") else "f" for name in forms}
    assert all(one.dtype.itemsize == 8 for one in result.data_vars.values())
    for name, values in GRID.items():
        assert result[name].dtype == np.float64
        assert result[name].values.tolist() == values
    assert result.parameter.values.tolist() == ["min_p", "temperature"]
    assert result.baseline.values.tolist() == ["neutral", "llama.cpp default"]
    assert all(result[name].attrs["long_name"] for name in forms)
    attrs = result.attrs
    assert {type(value) for value in attrs.values()} <= {str, int, float}
    assert attrs["schema"] == "jaxsppl-sweep/1"
    assert attrs["chain"] == "min_p,temperature"
    assert (attrs["epsilon"], attrs["tail"], attrs["level"]) == (0.01, "bound", "factored")
    assert attrs["audit_points"] >= 6
    assert 0 <= attrs["audit_nll"] < attrs["tolerance"] == 1e-4
    source = json.loads(attrs["harvests_json"])
    assert [(one["model"], one["dataset"]) for one in source] == [("m", "d")]
    assert len(source[0]["fingerprint"]) > 8


def test_what_the_best_point_says() -> None:
    result = jaxsppl.sweep(made(), GRID).squeeze()
    best = dict(zip(result.parameter.values.tolist(), result.best_value.values, strict=True))
    assert float(result.nll.sel(best)) == float(result.nll.min())
    assert float(result.best_nll) == pytest.approx(float(result.nll.min()), abs=1e-12)
    assert float(result.best_ood) == pytest.approx(float(result.ood.sel(best)), abs=1e-12)


@pytest.mark.parametrize("tail", ["bound", "drop"])
def test_a_file_of_it_opens_again(tail: str, tmp_path: Any) -> None:
    result = jaxsppl.sweep([made("a", "x"), made("b", "y", seed=1)], GRID, tail=tail)
    again = jaxsppl.open_sweep(jaxsppl.save(result, tmp_path / "made.sweep.nc"))
    assert {"nll_lower", "baseline_nll_lower"} <= set(again) or tail == "drop"
    for name in result.variables:
        assert again[name].dims == result[name].dims
        assert np.array_equal(again[name], result[name], equal_nan=result[name].dtype.kind == "f")
    assert again.sel(model="a", dataset="x").nll.notnull().all()


def test_models_and_datasets_with_a_missing_pair() -> None:
    harvests = [
        made("big/a:7b", "prose"),
        made("big/a:7b", "code", seed=1, n_rank=12),
        made("b", "prose", seed=2, n_rank=8),
    ]
    result = jaxsppl.sweep(harvests, GRID, tail="drop")
    assert result.model.values.tolist() == ["big/a:7b", "b"]
    assert result.dataset.values.tolist() == ["prose", "code"]
    missing = result.sel(model="b", dataset="code")
    assert int(missing.n_token) == int(missing.n_byte) == 0
    for name in ("nll", "ood", "plain_nll", "best_nll", "best_value", "baseline_nll"):
        assert missing[name].isnull().all()
    for harvest in harvests:
        at = {"model": str(harvest.model.values), "dataset": str(harvest.dataset.values)}
        alone = jaxsppl.sweep(harvest, GRID, tail="drop")
        assert np.abs(result.sel(at).nll - alone.sel(at).nll).max() < 1e-13
        assert int(result.sel(at).n_token) == SIZE
        assert float(result.sel(at).plain_nll) == pytest.approx(
            -float(harvest.token_logprob.astype(float).mean())
        )
    assert len(json.loads(result.attrs["harvests_json"])) == 3


def odd() -> dict[str, xr.Dataset]:
    """Harvests at the edge of the schema."""
    logprob, _ = rows(0)
    one = np.zeros(1, int)
    tied = np.full((SIZE, K), -np.log(K))
    return {
        "one token": harvest_of(logprob[:1], one, K),
        "one alternative": harvest_of(logprob, np.arange(SIZE) % 3, 1),
        "one of each": harvest_of(logprob[:1], one, 1),
        "all tied": harvest_of(tied, np.arange(SIZE) % K),
        "all outside": harvest_of(logprob, np.arange(SIZE) + K, K),
        "all listed": harvest_of(*rows(0, K)),
        "certain": harvest_of(
            np.log(np.full((4, K), [1 - 1e-7, *[1e-7 / 15] * 15])), np.zeros(4, int)
        ),
    }


@pytest.mark.parametrize("name", list(odd()))
def test_odd_harvests(name: str) -> None:
    harvest = odd()[name]
    grid = {"temperature": [0.0, 0.7, 1.0, 1.8], "min_p": [0.0, 0.2]}
    for tail in ("drop", "bound"):
        result = jaxsppl.sweep(harvest, grid, tail=tail)
        assert ((result.nll >= 0) & (result.nll <= -np.log(0.01) + 1e-12)).all()
        assert ((result.ood >= 0) & (result.ood <= 1)).all()
        if tail == "bound":
            assert (result.nll_lower <= result.nll + 1e-12).all()
            assert (result.nll_upper >= result.nll - 1e-12).all()
        if name == "all outside":
            assert (result.ood.sel(temperature=0.0) == 1).all()
            assert tail == "bound" or (result.ood == 1).all()
        if name == "all tied":
            assert np.abs(result.nll - np.log(K)).max() < 1e-6
        if name == "certain":
            assert np.abs(result.nll.sel(temperature=[0.0, 0.7, 1.0])).max() < 1e-6
        if name == "all listed" and tail == "drop":
            listed = result
        elif name == "all listed":
            # The float32 rounding of the listed sum, which only `bound` takes into account.
            assert np.abs(result.nll - listed.nll).max() < 1e-6


def test_at_temperature_1_the_perplexity_is_the_models() -> None:
    harvests = [made(), made(dataset="all", n_vocab=K)]
    grid = {"temperature": [1.0], "alpha": [1.0], "beta": [1.0]}
    result = jaxsppl.sweep(harvests, grid, epsilon=1e-300, level="factored")
    for harvest in harvests:
        found = result.sel(dataset=str(harvest.dataset.values)).squeeze()
        plain = -harvest.token_logprob.values.astype(np.float64).mean()
        assert float(found.plain_nll) == pytest.approx(plain, abs=1e-14)
        assert abs(np.exp(float(found.nll)) / np.exp(plain) - 1) < 1e-9
        assert float(found.baseline_nll.sel(baseline="neutral")) == pytest.approx(plain, abs=1e-9)


def test_epsilon_as_an_axis() -> None:
    grid = {"epsilon": [1e-3, 0.01, 0.3], "temperature": [0.7, 1.0]}
    result = jaxsppl.sweep(made(), grid, tail="drop", epsilon=0.05)
    assert result.nll.dims[2:] == ("epsilon", "temperature")
    for epsilon in grid["epsilon"]:
        alone = jaxsppl.sweep(made(), {"temperature": [0.7, 1.0]}, tail="drop", epsilon=epsilon)
        assert np.abs(result.nll.sel(epsilon=epsilon) - alone.nll).max() < 1e-13
        assert np.array_equal(result.ood.sel(epsilon=epsilon), alone.ood)
    assert np.isnan(result.attrs.get("epsilon", np.nan))


def test_top_k_beyond_the_alternatives() -> None:
    for k in (K + 1, V - 1):
        with pytest.raises(PlanError, match=f"top_k {k} is above the {K} harvested alternatives"):
            jaxsppl.sweep(made(), {"top_k": [0, k]})
    dropped = jaxsppl.sweep(made(), {"top_k": [0, K + 1]}, tail="drop")
    assert np.array_equal(dropped.nll.sel(top_k=0), dropped.nll.sel(top_k=K + 1))
    whole = jaxsppl.sweep(made(), {"top_k": [0, V, 10 * V]})
    assert whole.top_k.values.tolist() == [0, V, 10 * V]
    assert np.ptp(whole.nll.values) == 0


def test_values_may_come_in_any_form() -> None:
    expected = jaxsppl.sweep(made(), {"temperature": [0.5, 1.0]}, tail="drop").nll
    for values in ((0.5, 1.0), np.array([0.5, 1.0], "f4"), xr.DataArray([0.5, 1.0]), [0.5, 1]):
        grid: Any = {"temperature": values}
        assert np.array_equal(jaxsppl.sweep(made(), grid, tail="drop").nll, expected)


def test_progress_ends_at_the_total() -> None:
    told: list[tuple[int, int]] = []
    harvests = [made(), made(dataset="e", seed=1)]
    jaxsppl.sweep(harvests, GRID, tail="drop", progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (6 * 2 * SIZE, 6 * 2 * SIZE)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"temprature": [1.0]}, {}, "no parameter 'temprature'; did you mean 'temperature'"),
    ({"min-p": [0.1]}, {}, "did you mean 'min_p'"),
    ({}, {}, "grid is empty"),
    ({"temperature": []}, {}, r"grid\.temperature: the axis is empty"),
    ({"temperature": [0.5, float("nan")]}, {}, r"grid\.temperature: nan is not allowed"),
    ({"temperature": [float("inf")]}, {}, "inf is not allowed"),
    ({"temperature": [-0.1]}, {}, r"-0\.1 is not allowed; .* at least 0"),
    ({"temperature": [0.5, 1, 0.5]}, {}, r"0\.5 is given twice"),
    ({"temperature": ["warm"]}, {}, "'warm' is not a number"),
    ({"temperature": None}, {}, "None is not a number"),
    ({"temperature": [[0.5], [0.6, 0.7]]}, {}, r"\[0\.5\] is not a number"),
    ({"temperature": [True]}, {}, "True is not a number"),
    ({"temperature": [10**400]}, {}, "inf is not allowed"),
    ({"top_k": [2.5]}, {}, r"2\.5 is not allowed; 'top_k' is a whole number"),
    ({"top_p": [1.1]}, {}, "at most 1"),
    ({"alpha": [0.0]}, {}, "above 0"),
    ({"temperature": [1.0]}, {"chain": ["min_p"]}, "'temperature' is set, but its stage"),
    ({"temperature": [1.0]}, {"chain": "temperature"}, "chain: 'temperature' is no list"),
    ({"temperature": [1.0]}, {"chain": 5}, "chain: 5 is no list"),
    ({"temperature": [1.0]}, {"chain": [5]}, "no stage '5'"),
    ([0.5, 1.0], {}, "grid: .* is no mapping"),
    ({1: [1.0]}, {}, "no parameter '1'"),
    ({"temperature": [1.0]}, {"memory_mib": float("nan")}, "memory_mib: nan is not allowed"),
    ({"temperature": [1.0]}, {"memory_mib": "5"}, "memory_mib: '5' is not allowed"),
    ({"temperature": [1.0]}, {"chain": ["temperature", "topk"]}, "no stage 'topk'.*'top_k'"),
    ({"temperature": [1.0]}, {"level": "quick"}, "no level 'quick'"),
    ({"temperature": [1.0]}, {"tail": "cut"}, "tail: 'cut' is not allowed"),
    ({"temperature": [1.0]}, {"epsilon": 0.0}, "epsilon: 0.0 is not allowed"),
    ({"temperature": [1.0]}, {"epsilon": float("nan")}, "epsilon: nan is not allowed"),
    ({"temperature": [1.0]}, {"tolerance": 0.0}, "tolerance: 0.0 is not allowed"),
    ({"temperature": [1.0]}, {"seed": -1}, "seed: -1 is not allowed"),
    ({"temperature": [1.0]}, {"audit_points": -1}, "audit_points: -1 is not allowed"),
    ({"temperature": [1.0]}, {"memory_mib": 0}, "memory_mib: 0 is not allowed"),
]


@pytest.mark.parametrize(("grid", "options", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_is_refused_and_how(grid: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        jaxsppl.sweep(made(), grid, **options)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, JaxspplError)


def test_harvests_that_are_none() -> None:
    with pytest.raises(ConfigError, match="two harvests are of model 'm' on dataset 'd'"):
        jaxsppl.sweep([made(), made(seed=1)], GRID)
    with pytest.raises(ConfigError, match="no harvest was given"):
        jaxsppl.sweep([], GRID)
    with pytest.raises(SchemaError, match="token_rank"):
        jaxsppl.sweep(made().isel(rank=slice(0, 4)), GRID)
    with pytest.raises(SchemaError, match="does not descend"):
        turned = made().top_logprob.values[:, ::-1]
        jaxsppl.sweep(made().assign(top_logprob=(("token", "rank"), turned)), GRID)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"minp": 0.1}, "did you mean 'min_p'"),
        ({"temperature": -1.0}, "temperature: -1.0 is not allowed"),
        ({"temperature": [0.5, 1.0]}, "is not a number"),
        ({"top_k": 5, "chain": ("min_p",)}, "'top_k' is set, but its stage"),
        ({"epsilon": 0.1}, "epsilon: a probability has none"),
        ({"top_k": 50}, "top_k 50 is above the 16 harvested"),
    ],
)
def test_token_probabilities_refuse_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jaxsppl.token_probabilities(made(), **values)


def test_token_probabilities_take_one_harvest() -> None:
    with pytest.raises(ConfigError, match="2 harvests were given; give one"):
        jaxsppl.token_probabilities([made(), made("b")], temperature=0.5)


def test_importing_leaves_the_precision_of_the_process_alone() -> None:
    code = (
        "import jax, jaxsppl, jaxsppl.sweep.api; "
        "assert not jax.config.jax_enable_x64; print(jax.numpy.asarray(1.0).dtype)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "float32", run.stderr
