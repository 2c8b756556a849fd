"""Executes a plan: blocks of tokens times chunks of the grid, summed into the whole grid."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsppl import schema
from jaxsppl.sampling import direct, factored
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.objective import Score, score
from jaxsppl.sampling.precision import float64
from jaxsppl.sweep.data import TokenArrays, blocks, usable_top_k
from jaxsppl.sweep.plan import Plan

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Means:
    """Means over tokens, each an array of one shape.

    Attributes
    ----------
    nll, lower, upper : array
        Epsilon-clipped negative log-likelihood and its brackets [nat/token].
    ood : array
        Out-of-distribution share.
    """

    nll: schema.Array
    lower: schema.Array
    upper: schema.Array
    ood: schema.Array


def grid_means(plan: Plan, tokens: TokenArrays, advance: Callable[[int], None]) -> Means:
    """Evaluate a plan's grid on one harvest.

    Parameters
    ----------
    plan : Plan
        What to do.
    tokens : TokenArrays
        One harvest.
    advance : callable
        Told the number of (token, point) pairs after each step.

    Returns
    -------
    Means
        Arrays of the shape of the plan's axes.
    """
    names = [axis.name for axis in plan.axes]
    values = usable_top_k(tokens, {axis.name: axis.values for axis in plan.axes}, plan.tail)
    shape = tuple(len(values[name]) for name in plan.order)
    sums = np.zeros((4, *shape))
    with float64():
        fixed = {} if "epsilon" in names else {"epsilon": jnp.asarray(plan.epsilon)}
        for block in blocks(tokens, plan.block, plan.tail):
            for where, axes in _chunks([values[name] for name in plan.order], plan.chunk):
                part = factored.grid(
                    block,
                    tuple(jnp.asarray(axis) for axis in axes),
                    fixed,
                    chain=plan.chain,
                    names=plan.order,
                )
                inner = tuple(slice(0, place.stop - place.start) for place in where)
                for index, piece in enumerate(part):
                    sums[index][where] += np.asarray(piece)[inner]
                n_point = math.prod(place.stop - place.start for place in where)
                advance(n_point * min(plan.block, tokens.n_token))
    back = [plan.order.index(name) for name in names]
    means = [np.transpose(total, back) / tokens.n_token for total in sums]
    return Means(*means)


def _chunks(
    axes: Sequence[Sequence[float]], chunk: Sequence[int]
) -> Iterator[tuple[tuple[slice, ...], list[schema.Array]]]:
    """Yield where each chunk lies and its axes, all of one shape: short ends repeat their last."""
    starts = [range(0, len(axis), step) for axis, step in zip(axes, chunk, strict=True)]
    for corner in itertools.product(*starts):
        where: list[slice] = []
        parts: list[schema.Array] = []
        for axis, first, step in zip(axes, corner, chunk, strict=True):
            stop = min(first + step, len(axis))
            where.append(slice(first, stop))
            part = np.asarray(axis[first:stop], np.float64)
            parts.append(np.concatenate([part, np.repeat(part[-1:], step - part.size)]))
        yield tuple(where), parts


@partial(jax.jit, static_argnames="chain")
def _direct_score(
    block: Candidates, values: Mapping[str, jax.Array], chain: tuple[str, ...]
) -> Score:
    """Score one point on a block by the definition."""
    return score(direct.probabilities(block, chain, values), block.weight, values["epsilon"])


@partial(jax.jit, static_argnames="chain")
def _direct_probabilities(
    block: Candidates, values: Mapping[str, jax.Array], chain: tuple[str, ...]
) -> jax.Array:
    """Return (scenario, token) probabilities of one point on a block by the definition."""
    return direct.probabilities(block, chain, values)


def direct_means(
    tokens: TokenArrays,
    points: Sequence[Mapping[str, float]],
    *,
    chain: Sequence[str],
    tail: str,
    block: int,
) -> list[Means]:
    """Evaluate single points by the definition.

    Parameters
    ----------
    tokens : TokenArrays
        One harvest.
    points : sequence of mapping of str to float
        Parameters of each point, `epsilon` among them; all name the same parameters.
    chain : sequence of str
        Order of the stages.
    tail : str
        "bound" or "drop".
    block : int
        Tokens that are computed at once.

    Returns
    -------
    list of Means
        Of scalars, one a point.
    """
    sums = np.zeros((len(points), 4))
    usable = [usable_point(tokens, point, tail) for point in points]
    with float64():
        for part in blocks(tokens, block, tail):
            for index, point in enumerate(usable):
                arrays = {name: jnp.asarray(value) for name, value in point.items()}
                sums[index] += np.asarray(_direct_score(part, arrays, tuple(chain)))
    return [Means(*row) for row in sums / tokens.n_token]


def direct_probabilities(
    tokens: TokenArrays, point: Mapping[str, float], *, chain: Sequence[str], tail: str, block: int
) -> schema.Array:
    """Return what a pipeline gives each actual token, by the definition.

    Parameters
    ----------
    tokens : TokenArrays
        One harvest.
    point : mapping of str to float
        Parameters; missing ones are neutral.
    chain : sequence of str
        Order of the stages.
    tail : str
        "bound" or "drop".
    block : int
        Tokens that are computed at once.

    Returns
    -------
    array
        (scenario, token) float64.
    """
    usable = usable_point(tokens, point, tail)
    with float64():
        arrays = {name: jnp.asarray(value) for name, value in usable.items()}
        parts = [
            np.asarray(_direct_probabilities(part, arrays, tuple(chain)))
            for part in blocks(tokens, block, tail)
        ]
    return np.concatenate(parts, axis=1)[:, : tokens.n_token]


def usable_point(tokens: TokenArrays, point: Mapping[str, float], tail: str) -> dict[str, float]:
    """Return a point as the harvest can serve it; see `usable_top_k`."""
    values = usable_top_k(tokens, {name: [value] for name, value in point.items()}, tail)
    return {name: axis[0] for name, axis in values.items()}
