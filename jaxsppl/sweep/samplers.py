"""Samplers that are compared: parts of a grid, each with the same number of tried points."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxsppl import parameters
from jaxsppl.errors import ConfigError, suggest
from jaxsppl.schema import Array

_DRAW = ("alpha", "beta")


def default_samplers(axes: Mapping[str, Sequence[float]]) -> dict[str, tuple[str, ...]]:
    """Return the samplers that a grid can compare: each truncation with temperature, and the draw.

    Parameters
    ----------
    axes : mapping of str to sequence of float
        Values of each swept parameter.

    Returns
    -------
    dict of str to tuple of str
        The parameters that each may move; all others are neutral. Fewer than two compare nothing:
        then it is empty.
    """
    swept = [name for name, values in axes.items() if len(values) > 1]
    shared = tuple(name for name in swept if name == "temperature")
    groups: dict[str, tuple[str, ...]] = {}
    for name in swept:
        if name in _DRAW:
            groups["Beta draw"] = (*groups.get("Beta draw", shared), name)
        elif name not in (*shared, "epsilon"):
            stage = parameters.parameter(name).stage
            groups[stage] = (*groups.get(stage, shared), name)
    possible = {
        sampler: moved
        for sampler, moved in groups.items()
        if all(_neutral_place(name, axes) is not None for name in axes if name not in moved)
    }
    return possible if len(possible) > 1 else {}


def tried_points(
    axes: Mapping[str, Sequence[float]], samplers: Mapping[str, Sequence[str]], seed: int
) -> dict[str, Array]:
    """Return the grid points that each sampler tries, equally many for all.

    Parameters
    ----------
    axes : mapping of str to sequence of float
        Values of each axis, epsilon not among them.
    samplers : mapping of str to sequence of str
        The parameters that each may move.
    seed : int
        Draws the points of the samplers that have more than the smallest.

    Returns
    -------
    dict of str to array
        Places in row-major order of the grid.

    Raises
    ------
    ConfigError
        For a parameter that is no axis, or an axis without its neutral value.
    """
    shape = [len(values) for values in axes.values()]
    everything = np.arange(math.prod(shape)).reshape(shape)
    found: dict[str, Array] = {}
    for sampler, moved in samplers.items():
        for name in moved:
            if name not in axes:
                raise ConfigError(
                    f"decide.samplers.{sampler}: the grid has no axis '{name}'; "
                    f"{suggest(name, axes)}"
                )
        cut: list[slice | int] = []
        for name in axes:
            place = slice(None) if name in moved else _neutral_place(name, axes)
            if place is None:
                neutral = parameters.parameter(name).neutral
                raise ConfigError(
                    f"decide.samplers.{sampler}: '{name}' is held neutral, and its axis lacks the "
                    f"neutral value {neutral:g}; add it to grid.{name}"
                )
            cut.append(place)
        found[sampler] = np.ravel(everything[tuple(cut)])
    least = min((len(places) for places in found.values()), default=0)
    rng = np.random.default_rng(seed)
    return {
        sampler: np.sort(rng.choice(places, least, replace=False, shuffle=False))
        for sampler, places in found.items()
    }


def _neutral_place(name: str, axes: Mapping[str, Sequence[float]]) -> int | slice | None:
    """Return where an axis is neutral, None when it never is."""
    if name == "epsilon":  # how one scores is no part of a sampler
        return slice(None)
    known = parameters.parameter(name)
    if known.switch:  # it says how a stage acts, like xtc_threshold, and is idle while that is off
        return 0
    for place, value in enumerate(axes[name]):
        if value == known.neutral:
            return place
    return None
