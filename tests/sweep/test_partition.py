"""A harvest with the partition function of the whole vocabulary needs no model of the tail."""

import numpy as np
import pytest
import xarray as xr
from law_rows import Array
from made_up import K, V, made, rows

import jaxsppl

NODES = np.arange(0, 33) / 16


def measured(nodes: Array = NODES) -> xr.Dataset:
    """16 of 200 alternatives, with log_partition at some inverse temperatures."""
    logprob, _ = rows(0)
    sums = np.exp(nodes[:, None, None] * logprob).sum(axis=-1).T
    return (
        made()
        .assign(
            log_partition=(("token", "inverse_temperature"), np.log(sums)),
        )
        .assign_coords(inverse_temperature=nodes)
    )


@pytest.mark.parametrize("inverse", [0.25, 0.5, 0.8125, 1.25, 2.0])
def test_at_a_node_the_tail_is_known(inverse: float) -> None:
    whole = jaxsppl.token_probabilities(made(n_rank=V), temperature=1 / inverse, tail="drop")
    found = jaxsppl.token_probabilities(measured(), temperature=1 / inverse)
    assert np.abs(found.values / whole.values - 1).max() < 2e-6
    assert (found.upper / found.lower - 1).max() < 2e-6


@pytest.mark.parametrize("temperature", [0.53, 0.9, 1.37, 2.2, 9.0])
def test_between_nodes_the_brackets_hold_and_are_narrow(temperature: float) -> None:
    whole = jaxsppl.token_probabilities(made(n_rank=V), temperature=temperature, tail="drop")
    found = jaxsppl.token_probabilities(measured(), temperature=temperature)
    modelled = jaxsppl.token_probabilities(made(), temperature=temperature)
    assert (found.lower <= whole.values * (1 + 1e-6)).all()
    assert (found.upper >= whole.values * (1 - 1e-6)).all()
    assert (found.upper / found.lower - 1).max() < 0.05
    # Far less is open than with the model, which must allow for any shape of the tail.
    assert (found.upper - found.lower).sum() < 0.3 * (modelled.upper - modelled.lower).sum()


def test_beyond_the_nodes_the_model_serves() -> None:
    near_one = measured(np.array([0.875, 1.0, 1.125]))
    for temperature in (0.4, 3.0):
        found = jaxsppl.token_probabilities(near_one, temperature=temperature)
        modelled = jaxsppl.token_probabilities(made(), temperature=temperature)
        assert np.array_equal(found.values, modelled.values)


def test_a_cut_tail_and_temperature_1_are_as_before() -> None:
    for values in ({"temperature": 1.0}, {"min_p": 0.05, "temperature": 1.6}, {"top_k": K}):
        found = jaxsppl.token_probabilities(measured(), **values)
        modelled = jaxsppl.token_probabilities(made(), **values)
        assert np.abs(found.values - modelled.values).max() < 1e-12


def test_a_sweep_passes_its_audit_and_an_optimum_its_own() -> None:
    result = jaxsppl.sweep(
        measured(), {"temperature": [0.7, 1.0, 1.5], "alpha": [0.8, 1.0]}, audit_points=4
    )
    assert (result.nll_upper - result.nll_lower).max() < 5e-3
    found = jaxsppl.optimize(measured(), over=("temperature",), starts=2)
    assert np.isfinite(found.best_nll.values).all()
