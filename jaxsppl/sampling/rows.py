"""The intervals of all rows of level `binned`, each distinct cut computed once.

Truncations add, they do not multiply: where a stage's cut does not depend on what others have cut
off the end, the shortest of the cuts holds. So the last stages of a chain need one interval for
each value of each of them, not for each combination; a row only chooses among these.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import draw, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.stages import STAGES, Kept

# Rescales what all rows share, so an axis of its parameter is never one of cuts.
_SCALING = "temperature"


class Rows(NamedTuple):
    """Intervals of the distinct cuts, and the one that holds in each row.

    Attributes
    ----------
    place : Interval
        (outer, cut, scenario, token).
    which : Array
        (outer, row, scenario, token) index of the row's cut; int32.
    """

    place: draw.Interval
    which: Array


def split(chain: Sequence[str], names: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Find the stages at the end of a chain whose cuts are independent of each other.

    Parameters
    ----------
    chain : sequence of str
        Names of stages, first applied first.
    names : sequence of str
        Parameters that are axes.

    Returns
    -------
    tuple
        Position of the first such stage, and the axes that they own, in the order of `names`.
    """
    first = len(chain)
    while first > 0 and stages.is_independent(chain[first - 1], names):
        first -= 1
    earlier = {name for stage in chain[:first] for name in STAGES[stage].parameters}
    own = {
        name
        for stage in chain[first:]
        for name in STAGES[stage].parameters
        if stage != _SCALING and name not in earlier
    }
    return first, tuple(name for name in names if name in own)


def rows(
    block: Candidates,
    chain: tuple[str, ...],
    names: tuple[str, ...],
    axes: tuple[Array, ...],
    fixed: Mapping[str, Array],
) -> Rows:
    """Return the intervals of every combination of the row axes on a block.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : tuple of str
        Names of stages, first applied first.
    names : tuple of str
        Parameter of each axis; those that `split` finds come last.
    axes : tuple of Array
        Values of each axis.
    fixed : mapping of str to Array
        () parameters of the chain that are no axis.

    Returns
    -------
    Rows
    """
    first, inner = split(chain, names)
    n_outer = len(names) - len(inner)
    cuts = dict(zip(names[n_outer:], axes[n_outer:], strict=True))

    def at(*values: Array) -> Rows:
        given = {**fixed, **dict(zip(names, values, strict=False))}
        return _rows(block, chain, first, cuts, given)

    function: Callable[..., Rows] = at
    for index in reversed(range(n_outer)):
        along = [0 if position == index else None for position in range(n_outer)]
        function = jax.vmap(function, in_axes=along)
    result = function(*axes[:n_outer])
    outer = math.prod(axis.size for axis in axes[:n_outer])
    return jax.tree.map(lambda part: part.reshape(outer, *part.shape[n_outer:]), result)


def _rows(
    block: Candidates,
    chain: tuple[str, ...],
    first: int,
    cuts: Mapping[str, Array],
    values: Mapping[str, Array],
) -> Rows:
    """Return the cuts of one combination of the outer axes, and the rows of the inner ones."""
    kept = stages.run_chain(block, chain[:first], values)
    found: list[tuple[str, Kept]] = []
    for name in chain[first:]:
        stage = STAGES[name]
        if any(parameter in cuts for parameter in stage.parameters):
            (parameter,) = stage.parameters
            cut = jax.vmap(lambda value, stage=stage, kept=kept: stage.apply(kept, block, value))
            found.append((parameter, cut(cuts[parameter])))
        elif all(parameter in values for parameter in stage.parameters):
            kept = stage.apply(kept, block, *(values[each] for each in stage.parameters))
    # Only a cut that came before can differ between the scenarios of the tail.
    shape = jnp.broadcast_shapes(kept.stop.shape, kept.floor.shape)
    one = (1, *shape)
    stops, floors = [jnp.broadcast_to(kept.stop, one)], [jnp.broadcast_to(kept.floor, one)]
    ones = [1] * len(cuts)
    holds = _Cut(
        *(part.reshape(*ones, *shape) for part in (stops[0], floors[0], jnp.zeros(one, jnp.int32)))
    )
    count = 1
    for parameter, cut in found:
        n_value = cuts[parameter].size
        all_values = (n_value, *shape)
        stops.append(jnp.broadcast_to(cut.stop, all_values))
        floors.append(jnp.broadcast_to(cut.floor, all_values))
        index = jnp.arange(count, count + n_value, dtype=jnp.int32)
        index = jnp.broadcast_to(index.reshape(-1, *[1] * len(shape)), all_values)
        count += n_value
        place = [n_value if name == parameter else 1 for name in cuts]
        other = (stops[-1], floors[-1], index)
        holds = _shorter(holds, _Cut(*(part.reshape(*place, *shape) for part in other)))
    full = (*(axis.size for axis in cuts.values()), *shape)
    which = jnp.broadcast_to(holds.place, full).reshape(-1, *shape)
    if len(shape) == 1:
        which = jnp.broadcast_to(which[:, None], (which.shape[0], block.scenarios, *shape))

    def interval(stop: Array, floor: Array) -> draw.Interval:
        return draw.interval(kept._replace(stop=stop, floor=floor), block)

    return Rows(jax.vmap(interval)(jnp.concatenate(stops), jnp.concatenate(floors)), which)


class _Cut(NamedTuple):
    """Where something cuts, and its place in the list of distinct cuts."""

    stop: Array
    floor: Array
    place: Array


def _shorter(one: _Cut, other: _Cut) -> _Cut:
    """Return the shorter of two cuts, broadcast against each other; the first where equal."""
    less = (other.stop < one.stop) | ((other.stop == one.stop) & (other.floor > one.floor))
    return _Cut(*(jnp.where(less, b, a) for a, b in zip(one, other, strict=True)))
