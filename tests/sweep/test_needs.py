"""Stages that need the whole vocabulary: exact from statistics, else refused with a way out."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from law_rows import Array
from made_up import SIZE, K, V, made, rows

import jaxsppl
from jaxsppl.errors import PlanError


def with_statistics(seed: int = 0) -> xr.Dataset:
    """A harvest of 16 of 200 tokens that carries statistics of all of them."""
    logprob, _ = rows(seed)
    p = np.exp(logprob)
    p /= p.sum(axis=1, keepdims=True)
    values = {
        "entropy": -(p * np.log(p)).sum(axis=1),
        "logit_std": logprob.std(axis=1),
        "min_logprob": logprob.min(axis=1),
    }
    return made(seed=seed).assign({k: ("token", v.astype("f4")) for k, v in values.items()})


def probabilities(harvest: xr.Dataset, chain: tuple[str, ...], **values: float) -> Array:
    return jaxsppl.token_probabilities(harvest, chain=chain, **values).values


@pytest.mark.parametrize(
    ("chain", "values"),
    [
        (("top_n_sigma", "temperature"), {"top_n_sigma": 1.0, "temperature": 0.7}),
        (("temperature", "top_n_sigma"), {"top_n_sigma": 0.7, "temperature": 1.5}),
        (("eta_cutoff",), {"eta_cutoff": 0.05}),
        (("min_k",), {"min_k": 3.0}),
        (("temperature", "min_k"), {"min_k": 20.0, "temperature": 2.0}),
        (("temperature",), {"temperature": 0.9, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0}),
        (("top_n_sigma", "top_k", "temperature"), {"top_n_sigma": 1.5, "dynatemp_range": 0.4}),
        (("p_less_norm",), {"p_less_norm": 1.0}),
    ],
)
def test_statistics_stand_for_the_whole_vocabulary(
    chain: tuple[str, ...], values: dict[str, float]
) -> None:
    """16 alternatives with statistics give what all 200 give."""
    chain, values = (*chain, "top_k"), {**values, "top_k": K}
    some = with_statistics()
    # min_k is decided where the steepest fall is above any that the rest can have.
    top = some["top_logprob"].values
    steepest = (-np.diff(top, axis=1) / np.arange(1, K)).max(axis=1)
    decided = steepest >= (top[:, -1] - some["min_logprob"].values) / K
    decided &= some["token_rank"].values > 0
    whole = probabilities(made(n_rank=V).isel(token=decided), chain, **values)
    found = probabilities(some.isel(token=decided), chain, **values)
    assert (whole > 0).any()
    # Statistics are stored in single precision.
    assert np.abs(found - whole).max() < 2e-6


def refused(harvest: xr.Dataset, chain: tuple[str, ...], grid: dict[str, Any]) -> str:
    """The message with which a sweep, an optimum and single probabilities are refused alike."""
    with pytest.raises(PlanError) as swept:
        jaxsppl.sweep(harvest, grid, chain=chain, audit_points=2)
    first = {name: axis[-1] for name, axis in grid.items()}
    with pytest.raises(PlanError) as single:
        jaxsppl.token_probabilities(harvest, chain=chain, **first)
    with pytest.raises(PlanError) as best:
        jaxsppl.optimize(harvest, over=("alpha",), fixed=first, chain=chain, starts=1)
    assert str(swept.value) == str(single.value) == str(best.value)
    assert "\n" not in str(swept.value)
    return str(swept.value)


@pytest.mark.parametrize(
    ("chain", "grid", "what"),
    [
        (("typical_p",), {"typical_p": [1.0, 0.9]}, "each token"),
        (("smoothing",), {"smoothing_factor": [0.0, 0.2]}, "each token"),
        (("tfs", "top_k"), {"tfs": [0.95], "top_k": [8]}, "each token"),
        (("top_n_sigma",), {"top_n_sigma": [0.0, 1.0]}, "the deviation of the logits"),
        (("eta_cutoff",), {"eta_cutoff": [0.01]}, "the entropy"),
        (("temperature",), {"dynatemp_range": [0.0, 0.5]}, "the entropy"),
        (("min_k",), {"min_k": [3.0]}, "the smallest logit"),
        (("top_h",), {"top_h": [0.5]}, "the 100 likeliest tokens"),
        (("min_p", "p_less_norm"), {"min_p": [0.1], "p_less_norm": [1]}, "the number"),
        (("xtc",), {"xtc_probability": [0.5], "xtc_threshold": [0.3, 0.01]}, "at least 0.01"),
        # A top_k that is off at one point leaves the rest there.
        (("top_k", "typical_p"), {"typical_p": [0.9], "top_k": [8, 0]}, "each token"),
    ],
)
def test_what_a_harvest_cannot_tell_is_refused(
    chain: tuple[str, ...], grid: dict[str, Any], what: str
) -> None:
    message = refused(made(), chain, grid)
    assert what in message
    assert f"lists {K} of {V}" in message
    assert "--alternatives" in message
    # Statistics are named where they would serve.
    by_statistics = ("top_n_sigma", "eta_cutoff", "min_k", "dynatemp_range")
    assert ("--statistics" in message) == any(name in grid for name in by_statistics)


@pytest.mark.parametrize(
    ("chain", "point"),
    [
        (("typical_p",), {"typical_p": 0.9}),
        (("temperature", "top_h"), {"dynatemp_range": 0.5, "top_h": 0.5}),
    ],
)
def test_each_way_out_is_one(chain: tuple[str, ...], point: dict[str, float]) -> None:
    """All alternatives, a top_k before, or these alone."""
    for harvest, order, more, tail in (
        (made(n_rank=V), chain, {}, "bound"),
        (made(), ("top_k", *chain), {"top_k": K}, "bound"),
        (made(), chain, {}, "drop"),
    ):
        found = jaxsppl.token_probabilities(harvest, chain=order, tail=tail, **point, **more)
        assert np.isfinite(found.values).all()
        assert (found.values > 0).any()


@pytest.mark.parametrize(
    ("chain", "grid", "why"),
    [
        (
            ("min_p", "top_n_sigma"),
            {"min_p": [0.01], "top_n_sigma": [1]},
            "before anything was cut",
        ),
        (("temperature", "eta_cutoff"), {"temperature": [1.2], "eta_cutoff": [0.1]}, "temperature"),
        (
            ("temperature", "temperature"),
            {"temperature": [1.2], "dynatemp_range": [0.5]},
            "divided by a temperature",
        ),
        (("typical_p",), {"typical_p": [0.9]}, "each token"),
    ],
)
def test_statistics_of_the_whole_are_not_those_of_a_part(
    chain: tuple[str, ...], grid: dict[str, Any], why: str
) -> None:
    assert why in refused(with_statistics(), chain, grid)


def test_the_steepest_fall_must_be_among_the_listed() -> None:
    harvest = with_statistics()
    lower = harvest.assign(min_logprob=harvest.min_logprob - 1e4)
    assert f"({SIZE} token(s))" in refused(lower, ("min_k",), {"min_k": [3.0]})
    # tau over the range of the logits may ask for more than are listed.
    assert f"({SIZE} token(s))" in refused(harvest, ("min_k",), {"min_k": [3.0, 1e4]})


def test_values_that_are_off_need_nothing() -> None:
    grid = {"typical_p": [1.0], "top_n_sigma": [0.0, -1.0], "top_h": [1.0], "tfs": [1.0]}
    result = jaxsppl.sweep(made(), grid, audit_points=2)
    plain = jaxsppl.sweep(made(), {"top_k": [0]}, audit_points=2)
    assert np.abs(result.nll.values - plain.nll.values.item()).max() < 1e-12


def test_pooled_harvests_keep_their_statistics() -> None:
    pair = [
        with_statistics(0).assign_coords(dataset="a"),
        with_statistics(1).assign_coords(dataset="b"),
    ]
    chain, fixed = ("top_n_sigma", "temperature"), {"top_n_sigma": 1.0}
    found = jaxsppl.optimize(
        pair, over=("temperature",), fixed=fixed, chain=chain, starts=2, pooled=True
    )
    assert np.isfinite(found.best_nll.sel(dataset="pooled").values).all()
    pair[1] = pair[1].drop_vars("logit_std")
    with pytest.raises(PlanError, match="the deviation of the logits"):
        jaxsppl.optimize(pair, over=("temperature",), fixed=fixed, chain=chain, starts=2)
