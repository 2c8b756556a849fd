"""From coarse to exact: a sample first, then all tokens; a soft kink first, then the real one.

Every token whose probability crosses epsilon puts a kink into the objective, concave, so that along
a flat valley (temperature against beta) there are many local minima some 1e-4 nat deep. Descent
from many starts finds many of them and seldom the best. Therefore:

1. From every start, descent on a stratified sample with a soft kink, whose objective is smooth.
2. From every place that was reached, descent on all tokens with a kink less soft. Starts that end a
   level at one place are the same search from there on: it is run once for all of them.
3. From every minimum of that, descent on the objective itself.
4. Around the best, and any other minimum in reach of it, the valley is looked through: points along
   the flattest axis of the curvature, moved to its floor; the lowest of them, and descent from
   these. All starts in the valley end at its lowest point.

What a start is credited with is always the objective itself, on all tokens.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jaxsppl import schema
from jaxsppl.sweep import descent, search
from jaxsppl.sweep.resident import Resident
from jaxsppl.sweep.search import Ends, Problem


class _Level(NamedTuple):
    """A level before the last, and how near two ends are that count as one."""

    n_block: int | None  # None = all
    softness: float  # [nat]
    tolerance: float  # of the gradient [nat/token]
    same_place: float  # in each coordinate
    same_value: float  # [nat/token]


# What the tolerance leaves open, where the curvature is 0.01, is one place.
_LEVELS = (_Level(1, 1.0, 1e-3, 0.3, 1e-4), _Level(None, 0.25, 1e-4, 0.03, 1e-6))
# A start where hardly a token's probability depends on the parameters, all being clipped, comes
# down from there with a kink so soft that it is hardly one.
_FLAT = _Level(1, 64.0, 1e-2, 0.0, 0.0)
_FLAT_SLOPE = 1e-2
# Softness at which the curvature is taken, and half the step of its differences.
SOFTNESS, _STEP = 0.25, 0.02
# How far the valley is looked through: until it has risen by this much [nat/token], or this far in
# the logarithm of a parameter; and the least curvature that is believed.
_RISE, _FAR, _LEAST = 1e-3, 1.0, 5e-4
_POINTS, _DESCENTS = 24, 3
# How many valleys, and how deep the minima are that kinks make, at most [nat/token].
_VALLEYS, _DEPTH = 4, 3e-4


@dataclass(frozen=True)
class Curvature:
    """Second derivatives of the softened objective at a place.

    Attributes
    ----------
    free : array
        (smooth,) bool: coordinates inside the limits, which the rest is about.
    matrix : array
        (free, free), symmetric.
    """

    free: schema.Array
    matrix: schema.Array

    @property
    def axes(self) -> tuple[schema.Array, schema.Array]:
        """Return (axis,) curvatures, ascending and positive, and (axis, smooth) directions."""
        curves, vectors = np.linalg.eigh(self.matrix)
        directions = np.zeros((len(curves), len(self.free)))
        directions[:, self.free] = vectors.T
        return np.maximum(np.abs(curves), _LEAST), directions


def curvature_at(
    problem: Problem, resident: Resident, place: schema.Array, chosen: schema.Array
) -> Curvature | None:
    """Measure the curvature by differences of the softened gradient.

    Parameters
    ----------
    problem : Problem
    resident : Resident
        The tokens.
    place : array
        (smooth,) coordinates.
    chosen : array
        (listed,) values of the enumerated parameters.

    Returns
    -------
    Curvature or None
        None when it is not finite or no coordinate is inside the limits.
    """
    free = (place - _STEP > problem.lower) & (place + _STEP < problem.upper)
    number = int(free.sum())
    if number == 0:
        return None
    steps = _STEP * np.eye(len(place))[free]
    places = place + np.concatenate([steps, -steps])
    around = search.run(
        problem, resident, places, _rows(chosen, places), max_steps=1, softness=SOFTNESS
    )
    slopes = around.slope[:, free]
    matrix = (slopes[:number] - slopes[number:]) / (2 * _STEP)
    matrix = 0.5 * (matrix + matrix.T)
    return Curvature(free, matrix) if np.isfinite(matrix).all() else None


def climb(problem: Problem, resident: Resident, places: schema.Array, chosen: schema.Array) -> Ends:
    """Search from every start.

    Parameters
    ----------
    problem : Problem
    resident : Resident
        The tokens.
    places : array
        (start, smooth) coordinates.
    chosen : array
        (start, listed) values of the enumerated parameters.

    Returns
    -------
    Ends
        Of every start, by the objective itself.
    """
    if problem.method == "adam":
        return search.run(problem, resident, places, chosen)
    steps = np.zeros(len(places), np.int64)
    group = np.arange(len(places))
    memory = None
    for level in _LEVELS:
        ends = _descend(problem, resident, places, chosen, level, memory)
        if memory is None:
            ends = _off_the_flat(problem, resident, ends, chosen, level)
        steps = steps + ends.n_step[group]
        first, member = search.same_place(
            ends.place, ends.value, chosen, level.same_place, level.same_value
        )
        group = member[group]
        places, chosen, memory = ends.place[first], chosen[first], ends.take(first).memory
    ends = search.run(problem, resident, places, chosen, memory=memory)
    steps = steps + ends.n_step[group]
    ends, extra = _through_valley(problem, resident, ends, chosen)
    return replace(ends.take(group), n_step=steps + extra[group])


def _descend(
    problem: Problem,
    resident: Resident,
    places: schema.Array,
    chosen: schema.Array,
    level: _Level,
    memory: descent.Memory | None,
) -> Ends:
    """Search at one level."""
    return search.run(
        problem,
        resident,
        places,
        chosen,
        n_block=level.n_block,
        softness=level.softness,
        tolerance=level.tolerance,
        memory=memory,
    )


def _off_the_flat(
    problem: Problem, resident: Resident, ends: Ends, chosen: schema.Array, level: _Level
) -> Ends:
    """Search once more from where almost no token has a slope."""
    flat = np.flatnonzero(np.isfinite(ends.value) & (ends.square < _FLAT_SLOPE))
    if not flat.size:
        return ends
    softer = _descend(problem, resident, ends.place[flat], chosen[flat], _FLAT, None)
    again = _descend(problem, resident, softer.place, chosen[flat], level, None)
    again = replace(again, n_step=again.n_step + softer.n_step + ends.n_step[flat])
    for at, index in enumerate(flat):
        if again.value[at] < ends.value[index]:
            ends = ends.replaced(int(index), again, at)
    return ends


def _through_valley(
    problem: Problem, resident: Resident, ends: Ends, chosen: schema.Array
) -> tuple[Ends, schema.Array]:
    """Move the ends in a valley to its lowest point, best first; count the evaluations of each."""
    extra = np.zeros(len(ends.value), np.int64)
    is_seen = ~np.isfinite(ends.value)
    for _ in range(_VALLEYS):
        if is_seen.all() or problem.max_steps < _POINTS:
            break
        best = int(np.argmin(np.where(is_seen, np.inf, ends.value)))
        # A valley whose end is higher by more than the kinks are deep cannot win.
        if ends.value[best] > np.nanmin(ends.value) + _DEPTH:
            break
        is_seen[best] = True
        curvature = curvature_at(problem, resident, ends.place[best], chosen[best])
        if curvature is None:
            continue
        curves, directions = curvature.axes
        found = _scan(problem, resident, ends.place[best], chosen[best], curves, directions)
        lowest = int(np.argmin(np.where(np.isfinite(found.value), found.value, np.inf)))
        away = ends.place - ends.place[best]
        rise = 0.5 * (curves * (away @ directions.T) ** 2).sum(axis=1)
        apart = np.abs(away[:, ~curvature.free]).max(axis=1, initial=0.0)
        inside = (rise <= _RISE) & (apart < 1e-9) & (chosen == chosen[best]).all(axis=1)
        inside &= np.isfinite(ends.value)
        extra[inside] += 2 * _POINTS + int(found.n_step.sum())
        is_seen |= inside
        for index in np.flatnonzero(inside & (ends.value > found.value[lowest])):
            ends = ends.replaced(int(index), found, lowest)
    return ends, extra


def _scan(
    problem: Problem,
    resident: Resident,
    place: schema.Array,
    chosen: schema.Array,
    curves: schema.Array,
    directions: schema.Array,
) -> Ends:
    """Look along the flattest axis, and descend from the most promising points."""
    reach = min(_FAR, float(np.sqrt(2 * _RISE / curves[0])))
    line = place + np.linspace(-reach, reach, _POINTS)[:, None] * directions[0]
    line = np.clip(line, problem.lower, problem.upper)
    rows = _rows(chosen, line)
    promise = np.full(_POINTS, np.inf)
    for _ in range(2):
        seen = search.run(problem, resident, line, rows, max_steps=1)
        across = seen.slope @ directions[1:].T
        promise = seen.value - 0.5 * (across**2 / curves[1:]).sum(axis=1)
        # To the floor of the valley, no further than the curvature can be trusted.
        shift = np.clip(-(across / curves[1:]), -0.3, 0.3) @ directions[1:]
        line = np.clip(line + shift, problem.lower, problem.upper)
    promise = np.where(np.isfinite(promise), promise, np.inf)
    padded = np.pad(promise, 1, constant_values=np.inf)
    is_lowest = (promise <= padded[:-2]) & (promise <= padded[2:])
    order = np.argsort(np.where(is_lowest, promise, np.inf), kind="stable")
    chosen_points = order[: min(_DESCENTS, int(is_lowest.sum()))]
    places = line[chosen_points]
    memory = descent.memory_of(directions, curves)
    return search.run(
        problem,
        resident,
        places,
        _rows(chosen, places),
        memory=search.repeated(memory, len(places)),
    )


def _rows(chosen: schema.Array, places: schema.Array) -> schema.Array:
    """Return one combination for each of several places."""
    return np.repeat(chosen[None], len(places), axis=0)
