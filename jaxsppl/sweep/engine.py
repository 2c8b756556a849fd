"""Executes a plan: blocks of tokens times chunks of the grid, summed into the whole grid."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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
from jaxsppl.sweep.binning import Tables, binned_sums, make_tables
from jaxsppl.sweep.chunks import chunks
from jaxsppl.sweep.data import TokenArrays, blocks, usable_top_k
from jaxsppl.sweep.devices import shared
from jaxsppl.sweep.needs import check_needs
from jaxsppl.sweep.plan import Advance, Plan
from jaxsppl.sweep.workers import in_threads, worker_count


@dataclass(frozen=True)
class Means:
    """Means over tokens, each an array of one shape.

    Attributes
    ----------
    nll, lower, upper : array
        Epsilon-clipped negative log-likelihood by the estimate of the unseen tail, and the least
        and the greatest over its scenarios [nat/token].
    ood : array
        Out-of-distribution share.
    """

    nll: schema.Array
    lower: schema.Array
    upper: schema.Array
    ood: schema.Array


def means_of(loss: schema.Array, ood: schema.Array, n_token: int) -> Means:
    """Return means from sums over tokens.

    Parameters
    ----------
    loss : array
        (scenario, ...) summed losses [nat]; the first scenario is the estimate.
    ood : array
        (...) summed counts.
    n_token : int
        Number of tokens.

    Returns
    -------
    Means
    """
    mean = loss / n_token
    return Means(mean[0], mean.min(axis=0), mean.max(axis=0), ood / n_token)


@dataclass(frozen=True)
class Sums:
    """Sums over tokens, which add up over parts of a text.

    Attributes
    ----------
    loss : array
        (scenario, ...) losses [nat].
    ood : array
        (...) tokens below epsilon.
    """

    loss: schema.Array
    ood: schema.Array

    def __add__(self, other: "Sums") -> "Sums":
        """Return the sums over both texts."""
        return Sums(self.loss + other.loss, self.ood + other.ood)


def grid_sums(
    plan: Plan, tokens: TokenArrays, advance: Advance, tables: Iterable[Tables] | None = None
) -> Sums:
    """Evaluate a plan's grid on one harvest.

    Parameters
    ----------
    plan : Plan
        What to do.
    tokens : TokenArrays
        One harvest, or some of its tokens.
    advance : callable
        Told the number of (token, point) pairs after each step.
    tables : iterable of Tables, optional
        Those of the plan, when it is executed on several harvests.

    Returns
    -------
    Sums
        Arrays of the shape of the plan's axes.
    """
    names = [axis.name for axis in plan.axes]
    values = usable_top_k(tokens, {axis.name: axis.values for axis in plan.axes}, plan.tail)
    axes = [values[name] for name in plan.order]
    with float64():
        if plan.level == "binned":
            loss, ood = binned_sums(plan, tokens, axes, tables or make_tables(plan), advance)
        else:
            level = _factored if plan.level == "factored" else _direct
            loss, ood = level(plan, tokens, axes, advance)
    back = [plan.order.index(name) for name in names]
    return Sums(np.transpose(loss, [0, *(1 + place for place in back)]), np.transpose(ood, back))


def grid_means(
    plan: Plan, tokens: TokenArrays, advance: Advance, tables: Iterable[Tables] | None = None
) -> Means:
    """Evaluate a plan's grid on one harvest, as means over its tokens.

    Parameters
    ----------
    plan, tokens, advance, tables
        As for `grid_sums`.

    Returns
    -------
    Means
        Arrays of the shape of the plan's axes.
    """
    sums = grid_sums(plan, tokens, advance, tables)
    return means_of(sums.loss, sums.ood, tokens.n_token)


def _factored(
    plan: Plan, tokens: TokenArrays, axes: Sequence[Sequence[float]], advance: Advance
) -> tuple[schema.Array, schema.Array]:
    """Return (scenario, grid) summed losses and (grid) counts, the axes in the plan's order."""
    shape = [len(axis) for axis in axes]
    loss, ood = np.zeros((plan.n_scenario, *shape)), np.zeros(shape)
    fixed = {} if "epsilon" in plan.order else {"epsilon": jnp.asarray(plan.epsilon)}
    for block in shared(blocks(tokens, plan.block, plan.tail)):
        for where, parts in chunks(axes, plan.chunk):
            part = factored.grid(
                block,
                tuple(jnp.asarray(axis) for axis in parts),
                fixed,
                chain=plan.chain,
                names=plan.order,
            )
            inner = tuple(slice(0, place.stop - place.start) for place in where)
            loss[(slice(None), *where)] += np.moveaxis(np.asarray(part.loss), -1, 0)[
                (slice(None), *inner)
            ]
            ood[where] += np.asarray(part.ood)[inner]
            n_point = math.prod(place.stop - place.start for place in where)
            advance(n_point * min(plan.block, tokens.n_token))
    return loss, ood


def _direct(
    plan: Plan, tokens: TokenArrays, axes: Sequence[Sequence[float]], advance: Advance
) -> tuple[schema.Array, schema.Array]:
    """Return the sums of every point by the definition, as `_factored` does."""
    points = [
        {"epsilon": plan.epsilon, **dict(zip(plan.order, values, strict=True))}
        for values in itertools.product(*axes)
    ]
    loss, ood = _direct_sums(tokens, points, plan.chain, plan.tail, plan.block)
    advance(len(points) * tokens.n_token)
    shape = [len(axis) for axis in axes]
    return loss.T.reshape(-1, *shape), ood.reshape(shape)


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
    usable = [usable_point(tokens, point, tail, chain) for point in points]
    with float64():
        loss, ood = _direct_sums(tokens, usable, chain, tail, block)
    return [means_of(row, count, tokens.n_token) for row, count in zip(loss, ood, strict=True)]


def _direct_sums(
    tokens: TokenArrays,
    points: Sequence[Mapping[str, float]],
    chain: Sequence[str],
    tail: str,
    block: int,
) -> tuple[schema.Array, schema.Array]:
    """Return (point, scenario) summed losses and (point,) counts by the definition."""
    values = [{name: jnp.asarray(value) for name, value in point.items()} for point in points]
    workers = min(worker_count(), len(points))
    loss, ood = np.zeros((len(points), 3 if tail == "bound" else 1)), np.zeros(len(points))
    # A block for all points before the next one: prepared, a long text would fill the memory.
    for part in blocks(tokens, block, tail):

        def one(at: Mapping[str, jax.Array], part: Candidates = part) -> tuple[schema.Array, float]:
            """Score one point on this block."""
            result = _direct_score(part, at, tuple(chain))
            return np.asarray(result.loss), float(result.ood)

        for place, (losses, count) in enumerate(in_threads(one, ((at,) for at in values), workers)):
            loss[place] += losses
            ood[place] += count
    return loss, ood


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
    usable = usable_point(tokens, point, tail, chain)
    with float64():
        arrays = {name: jnp.asarray(value) for name, value in usable.items()}
        parts = [
            np.asarray(_direct_probabilities(part, arrays, tuple(chain)))
            for part in blocks(tokens, block, tail)
        ]
    return np.concatenate(parts, axis=1)[:, : tokens.n_token]


def usable_point(
    tokens: TokenArrays, point: Mapping[str, float], tail: str, chain: Sequence[str] = ()
) -> dict[str, float]:
    """Return a point as the harvest can serve it; see `usable_top_k` and `check_needs`."""
    values = usable_top_k(tokens, {name: [value] for name, value in point.items()}, tail)
    check_needs(tokens, chain, values, tail)
    return {name: axis[0] for name, axis in values.items()}
