"""All samplers through the engine: those that keep an interval by nodes, xtc without."""

from typing import Any

import numpy as np
import pytest
from made_up import made

import jaxsppl
from jaxsppl.errors import ConfigError

DRAWS = {"alpha": [0.7, 1.6], "beta": [1.0]}


@pytest.mark.parametrize(
    "grid",
    [
        {"top_k": [6, 16], "typical_p": [0.5, 1.0], "temperature": [0.8, 1.4]},
        {"top_k": [9], "dynatemp_range": [0.0, 0.6], "dynatemp_exponent": [2.0], "min_p": [0, 0.1]},
        {"epsilon_cutoff": [0.0, 0.02], "p_less": [0.0, 2.0], "skew": [-0.4, 0.3]},
        {"top_k": [12], "smoothing_factor": [0.0, 0.3], "top_n_sigma": [0.0], "tfs": [0.9, 1.0]},
    ],
    ids=lambda grid: "-".join(grid),
)
def test_intervals_go_through_the_nodes(grid: dict[str, Any]) -> None:
    result = jaxsppl.sweep(made(), {**grid, **DRAWS}, level="binned", audit_points=8)
    assert result.attrs["level"] == "binned"
    assert result.attrs["audit_nll"] < 1e-4
    shape = [len(axis) for axis in (*grid.values(), *DRAWS.values())]
    assert result.nll.shape == (1, 1, *shape)
    # Every axis of two values does something.
    for name, axis in grid.items():
        if len(axis) > 1:
            assert np.ptp(result.nll.values, axis=result.nll.dims.index(name)).max() > 1e-4


def test_the_mixture_of_xtc_does_not() -> None:
    grid = {
        "xtc_probability": [0.0, 0.4],
        "xtc_threshold": [0.1, 0.2],
        "temperature": [0.7],
        **DRAWS,
    }
    result = jaxsppl.sweep(made(), grid, audit_points=8)
    assert result.attrs["level"] == "factored"
    assert result.attrs["audit_nll"] < 1e-10
    with pytest.raises(ConfigError, match="xtc mixes two"):
        jaxsppl.sweep(made(), grid, level="binned")
    # Where it is not used it stands in nobody's way.
    chain = ("xtc", "temperature")
    plain = jaxsppl.explain(made(), {"temperature": [0.7], **DRAWS}, chain=chain, level="binned")
    assert plain.level == "binned"


def test_an_optimum_with_a_coin_is_the_definitions() -> None:
    """Its own audit compares with the definition; enumerated values come from the parameter."""
    fixed = {"xtc_threshold": 0.1, "top_k": 12.0}
    found = jaxsppl.optimize(
        made(), over=("temperature", "xtc_probability"), fixed=fixed, starts=4, max_steps=60
    )
    assert found.parameter.values.tolist() == ["temperature", "xtc_probability"]
    assert found.best_nll.item() <= found.nll.min().item() + 1e-9
