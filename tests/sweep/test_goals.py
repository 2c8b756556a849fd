"""Every smooth parameter, and goals that count ood, against searches of the direct definition."""

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize
from small import harvest

import jaxsppl
from jaxsppl import parameters, schema, store
from jaxsppl.choice import Choice
from jaxsppl.errors import ConfigError
from jaxsppl.sweep.optimize import optimize

DATA = harvest(n_token=250, n_rank=12, n_vocab=60, seed=3)
EPSILON = 1e-3


def scores(point: dict[str, float], epsilon: float = EPSILON) -> tuple[float, float]:
    """The nll and the share of a setting by the direct definition; only alternatives exist."""
    p = jaxsppl.token_probabilities(DATA, tail="drop", **point).values
    return float(-np.log(np.maximum(p, epsilon)).mean()), float((p < epsilon).mean())


@pytest.mark.parametrize(
    ("over", "fixed"),
    [
        (("temperature", "dynatemp_range", "xtc_probability", "skew"), {"xtc_threshold": 0.2}),
        (("temperature", "smoothing_factor", "smoothing_curve"), {"top_k": 12}),
    ],
)
def test_no_smooth_parameter_can_be_bettered(over: Any, fixed: dict[str, float]) -> None:
    found = optimize(DATA, over=over, fixed=fixed, tail="drop", epsilon=EPSILON, starts=32)
    found = found.isel(model=0, dataset=0)
    best = found.best_value.values
    box = [parameters.PARAMETERS[name].search or (0.0, 0.0) for name in over]

    def at(place: Any) -> float:
        inside = [np.clip(x, *limits) for x, limits in zip(place, box, strict=True)]
        return scores({**fixed, **dict(zip(over, map(float, inside), strict=True))})[0]

    assert at(best) == pytest.approx(float(found.best_nll), abs=1e-9)
    rng = np.random.default_rng(0)
    starts = [best, *(rng.uniform(*np.transpose(box)) for _ in range(2))]
    options = {"maxfev": 150, "xatol": 1e-7, "fatol": 1e-9}
    for start in starts:
        other = minimize(at, start, method="Nelder-Mead", options=options)
        assert float(found.best_nll) <= other.fun + 1e-6


@pytest.fixture(scope="module")
def grid() -> xr.Dataset:
    """A dense grid over temperature, alpha and beta."""
    shapes = np.geomspace(0.3, 12, 36).tolist()
    axes = {"temperature": np.geomspace(0.1, 5, 36).tolist(), "alpha": shapes, "beta": shapes}
    swept = jaxsppl.sweep(DATA, axes, tail="drop", epsilon=0.05, audit_points=1)
    return swept.isel(model=0, dataset=0)


@pytest.mark.parametrize(
    "choice",
    [
        Choice(ood_weight=1.0),
        Choice(ood_weight=30.0),
        Choice(ood_max=0.3),
        Choice(ood_max=0.28, ood_weight=0.5),
        Choice(nll_max=2.4),
    ],
    ids=lambda choice: choice.words(),
)
def test_goals_are_those_of_a_dense_grid_or_better(grid: xr.Dataset, choice: Choice) -> None:
    found = optimize(DATA, tail="drop", epsilon=0.05, choice=choice, starts=8)
    assert Choice(**json.loads(found.attrs["choice_json"])) == choice
    found = found.isel(model=0, dataset=0)
    nll, ood = float(found.best_nll), float(found.best_ood)
    place = choice.index(grid.nll.values, grid.ood.values)
    best = grid.nll.values.ravel()[place], grid.ood.values.ravel()[place]
    if choice.nll_max is not None:
        assert nll <= choice.nll_max
        assert ood <= best[1] + 1e-12
    else:
        assert ood <= (choice.ood_max or 1.0)
        assert nll + choice.ood_weight * ood <= best[0] + choice.ood_weight * best[1] + 1e-3
    point = dict(zip(found.parameter.values.tolist(), found.best_value.values, strict=True))
    assert scores(point, 0.05) == pytest.approx((nll, ood), abs=1e-9)
    goals = found.goal.values
    assert float(np.nanmin(goals)) == pytest.approx(
        ood if choice.nll_max else nll + choice.ood_weight * ood, abs=1e-9
    )
    assert int(found.n_at_best) == (np.abs(goals - np.nanmin(goals)) <= 1e-6).sum()
    schema.check_optimum(store.contents_of(found.expand_dims(("model", "dataset"))), "found")


def test_a_limit_that_nothing_keeps_is_said() -> None:
    with pytest.raises(ConfigError, match=r"least nll with ood <= 0\.0001.*smallest.*is 0\.0[1-9]"):
        optimize(DATA, tail="drop", epsilon=0.05, choice=Choice(ood_max=1e-4), starts=8)
    with pytest.raises(ConfigError, match="nll_max"):
        optimize(DATA, choice=Choice(ood_max=0.1, nll_max=2.0))
