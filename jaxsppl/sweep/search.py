"""Many searches on one harvest in one compiled program: sample first, then all tokens.

The program takes a batch of starts, one after another (each stops when it is done, and none can
touch another), and the number of blocks to use. A search runs on the first blocks, a stratified
sample of the tokens, and goes on with more from where that ended, with the curvature learned so
far. Starts that end a level at one place are the same search from there on: it is run once for all
of them. What a start is credited with is always the objective on all tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsppl import schema
from jaxsppl.sampling import smooth, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sweep import descent
from jaxsppl.sweep.descent import Memory, Outcome, Value
from jaxsppl.sweep.resident import Resident

# Starts in a call of the program.
BATCH = 32
# Two ends of searches are one place when they differ by no more than this in any coordinate
# (logarithms of parameters) and in the objective [nat/token].
_SAME_PLACE, _SAME_VALUE = 1e-3, 1e-7


@dataclass(frozen=True)
class Problem:
    """What is minimised, apart from the data.

    Attributes
    ----------
    chain : tuple of str
        Stages, first applied first.
    smooth, listed : tuple of str
        Parameters searched by gradient, and enumerated ones.
    fixed : mapping of str to float
        The others, `epsilon` among them.
    lower, upper : array
        Limits of the coordinates, which are logarithms of the smooth parameters.
    method : str
        One of `descent.METHODS`.
    max_steps : int
        Most evaluations of a start on all tokens.
    tolerance : float
        Largest component of the projected gradient at convergence [nat/token].
    """

    chain: tuple[str, ...]
    smooth: tuple[str, ...]
    listed: tuple[str, ...]
    fixed: Mapping[str, float]
    lower: schema.Array
    upper: schema.Array
    method: str
    max_steps: int
    tolerance: float


@dataclass(frozen=True)
class Ends:
    """Where searches ended; arrays with a leading start axis.

    Attributes
    ----------
    place, slope : array
        (start, smooth) coordinates and gradient.
    nll, ood : array
        (start,) objective [nat/token] and out-of-distribution share.
    outer : array
        (start, smooth, smooth) mean over tokens of the gradient's outer product.
    status, n_step : array
        (start,) index into `descent.STATUS`, and evaluations.
    memory : Memory
        For further searches.
    """

    place: schema.Array
    slope: schema.Array
    nll: schema.Array
    ood: schema.Array
    outer: schema.Array
    status: schema.Array
    n_step: schema.Array
    memory: Memory

    def take(self, index: schema.Array) -> "Ends":
        """Return the ends at some indices."""
        return Ends(
            *(
                jax.tree.map(lambda leaf: leaf[index], getattr(self, name))
                for name in self.__dataclass_fields__
            )
        )


def _objective(
    data: Candidates,
    n_block: Array,
    values: Mapping[str, Array],
    chain: tuple[str, ...],
    over: tuple[str, ...],
) -> Any:
    """Return the function that a search minimises: coordinates -> value and gradient."""
    ahead, rest = smooth.split_chain(chain, over)
    n_parameter = len(over)

    def block_at(index: Array) -> Candidates:
        block = jax.tree.map(lambda leaf: leaf[index], data)
        return block._replace(logprob=block.logprob.astype(block.actual.dtype))

    def prepare(index: Array) -> Any:
        """Apply the stages that no smooth parameter changes: once a search."""
        block = block_at(index)
        return smooth.apply_stages(stages.everything(block), block, ahead, values)

    shape = jax.eval_shape(prepare, jnp.asarray(0))
    total = data.weight.shape[0]
    empty = jax.tree.map(lambda leaf: jnp.zeros((total, *leaf.shape), leaf.dtype), shape)
    kept = lax.fori_loop(
        0,
        n_block,
        lambda i, all_: jax.tree.map(lambda into, one: into.at[i].set(one), all_, prepare(i)),
        empty,
    )

    def add(index: Array, place: Array, sums: Any) -> Any:
        block = block_at(index)
        point = {**values, **{name: jnp.exp(place[i]) for i, name in enumerate(over)}}
        part = smooth.losses(jax.tree.map(lambda leaf: leaf[index], kept), block, rest, point, over)
        # Derivatives in the logarithms of the parameters.
        slope = part.slope * jnp.exp(place)[:, None]
        weighted = slope * block.weight
        new = (
            (part.loss * block.weight).sum(),
            weighted.sum(axis=-1),
            (part.is_ood * block.weight).sum(),
            weighted @ slope.T,
            block.weight.sum(),
        )
        return jax.tree.map(jnp.add, sums, new)

    def at(place: Array) -> Value:
        zero = jnp.zeros(())
        start = (zero, jnp.zeros(n_parameter), zero, jnp.zeros((n_parameter, n_parameter)), zero)
        sums = lax.fori_loop(0, n_block, lambda i, sums: add(i, place, sums), start)
        loss, slope, ood, outer, weight = sums
        return Value(loss / weight, slope / weight, (ood / weight, outer / weight))

    return at


@partial(jax.jit, static_argnames=("chain", "over", "listed", "method"))
def _program(
    data: Candidates,
    n_block: Array,
    places: Array,
    listed_values: Array,
    memory: Memory,
    max_steps: Array,
    fixed: Mapping[str, Array],
    limits: tuple[Array, Array],
    tolerance: Array,
    *,
    chain: tuple[str, ...],
    over: tuple[str, ...],
    listed: tuple[str, ...],
    method: str,
) -> Outcome:
    """Search from each start of a batch; `max_steps` is one a start, 0 for padding."""
    n_parameter = len(over)
    like = (jnp.zeros(()), jnp.zeros((n_parameter, n_parameter)))

    def one(start: tuple[Array, Array, Memory, Array]) -> Outcome:
        place, chosen, known, most = start
        values = {**fixed, **{name: chosen[i] for i, name in enumerate(listed)}}
        return descent.minimise(
            _objective(data, jnp.where(most > 0, n_block, 0), values, chain, over),
            place,
            *limits,
            memory=known,
            like=like,
            tolerance=tolerance,
            max_steps=most,
            method=method,
        )

    return lax.map(one, (places, listed_values, memory, max_steps))


def compiled_programs() -> int:
    """Return how many programs have been compiled so far in this process."""
    return int(_program._cache_size())


def run(
    problem: Problem,
    resident: Resident,
    places: schema.Array,
    chosen: schema.Array,
    *,
    n_block: int | None = None,
    max_steps: int | None = None,
    tolerance: float | None = None,
    memory: Memory | None = None,
) -> Ends:
    """Search from places, in batches of one shape.

    Parameters
    ----------
    problem : Problem
    resident : Resident
        The tokens.
    places : array
        (start, smooth) coordinates.
    chosen : array
        (start, listed) values of the enumerated parameters.
    n_block : int, optional
        Blocks to use; all by default.
    max_steps : int, optional
        Most evaluations; 1 evaluates the places.
    tolerance : float, optional
        Instead of the problem's.
    memory : Memory, optional
        (start, ...) what earlier searches learned.

    Returns
    -------
    Ends
    """
    n_start, n_parameter = places.shape
    if memory is None:
        memory = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (n_start, *np.shape(leaf))),
            descent.fresh_memory(n_parameter),
        )
    most = problem.max_steps if max_steps is None else max_steps
    ends: list[Outcome] = []
    for first in range(0, n_start, BATCH):
        part = np.arange(first, first + BATCH)
        inside = np.minimum(part, n_start - 1)
        outcome = _program(
            resident.data,
            jnp.asarray(resident.n_block if n_block is None else n_block),
            jnp.asarray(places[inside]),
            jnp.asarray(chosen[inside], float),
            jax.tree.map(lambda leaf, inside=inside: jnp.asarray(np.asarray(leaf)[inside]), memory),
            jnp.asarray(np.where(part < n_start, most, 0)),
            {name: jnp.asarray(float(value)) for name, value in problem.fixed.items()},
            (jnp.asarray(problem.lower), jnp.asarray(problem.upper)),
            jnp.asarray(problem.tolerance if tolerance is None else tolerance),
            chain=problem.chain,
            over=problem.smooth,
            listed=problem.listed,
            method=problem.method,
        )
        ends.append(jax.tree.map(np.asarray, outcome))
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n_start], *ends)
    ood, outer = whole.best.extra
    return Ends(
        place=whole.place,
        slope=whole.best.slope,
        nll=whole.best.value,
        ood=ood,
        outer=outer,
        status=whole.status,
        n_step=whole.n_step,
        memory=whole.memory,
    )


def climb(problem: Problem, resident: Resident, places: schema.Array, chosen: schema.Array) -> Ends:
    """Search from every start: on a sample, then on all tokens.

    Parameters
    ----------
    problem, resident, places, chosen
        As for `run`.

    Returns
    -------
    Ends
        Of every start.
    """
    levels = [1, 4] if resident.n_block >= 12 else [1] if resident.n_block >= 3 else []
    steps = np.zeros(len(places), np.int64)
    group = np.arange(len(places))
    memory: Memory | None = None
    for n_block in [*levels, resident.n_block]:
        is_last = n_block == resident.n_block
        ends = run(
            problem,
            resident,
            places,
            chosen,
            n_block=n_block,
            memory=memory,
            tolerance=None if is_last else max(problem.tolerance, 1e-4),
        )
        steps = steps + ends.n_step[group]
        if is_last:
            break
        first, member = same_place(ends.place, ends.nll, chosen)
        group = member[group]
        places, chosen, memory = ends.place[first], chosen[first], ends.take(first).memory
    whole = ends.take(group)
    return Ends(**{**vars(whole), "n_step": steps})


def same_place(
    places: schema.Array, nll: schema.Array, chosen: schema.Array
) -> tuple[schema.Array, schema.Array]:
    """Find the ends that are one place.

    Parameters
    ----------
    places : array
        (start, smooth) coordinates.
    nll : array
        (start,) objective.
    chosen : array
        (start, listed) values.

    Returns
    -------
    tuple of array
        The index of each place's best end, and (start,) which place each belongs to. An end that
        is not finite is a place of its own.
    """
    order = np.argsort(np.where(np.isfinite(nll), nll, np.inf), kind="stable")
    first: list[int] = []
    member = np.zeros(len(places), np.int64)
    for index in order:
        for number, other in enumerate(first):
            near = np.abs(places[index] - places[other]).max(initial=0.0) <= _SAME_PLACE
            if (
                near
                and abs(nll[index] - nll[other]) <= _SAME_VALUE
                and (chosen[index] == chosen[other]).all()
            ):
                member[index] = number
                break
        else:
            member[index] = len(first)
            first.append(int(index))
    return np.asarray(first), member
