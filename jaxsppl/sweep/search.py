"""Many searches on one harvest in one compiled program.

The program takes a batch of starts, one after another: each stops when it is done, and none can
touch another. How many blocks of tokens are used, how soft the kink at epsilon is, and the goal are
inputs, so that every level of `jaxsppl.sweep.levels` runs the same program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsppl import parameters, schema
from jaxsppl.choice import Choice
from jaxsppl.sampling import smooth, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sweep import descent
from jaxsppl.sweep.descent import Memory, Outcome, Value
from jaxsppl.sweep.goals import Goal, goals_of
from jaxsppl.sweep.resident import Resident

# Starts in a call of the program.
BATCH = 8
# Width of the edge at epsilon where ood is searched by gradient [nat].
EDGE = 0.05


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
        Limits of the coordinates: the smooth parameters or, by `parameters.by_log`, their
        logarithms.
    choice : Choice
        What is best.
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
    choice: Choice
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
    value : array
        (start,) what was minimised: the goal, softened as the search was.
    nll, ood : array
        (start,) as softened [nat/token], and the share itself.
    square : array
        (start,) mean over tokens of the squared gradient of the loss.
    status, n_step : array
        (start,) index into `descent.STATUS`, and evaluations.
    memory : Memory
        For further searches.
    """

    place: schema.Array
    slope: schema.Array
    value: schema.Array
    nll: schema.Array
    ood: schema.Array
    square: schema.Array
    status: schema.Array
    n_step: schema.Array
    memory: Memory

    def take(self, index: schema.Array) -> "Ends":
        """Return the ends at some indices."""
        return _map(lambda leaf: leaf[index], self)

    def where(self, mask: schema.Array, other: "Ends") -> "Ends":
        """Return these ends, and others where a (start,) mask says so."""

        def choose(mine: schema.Array, theirs: schema.Array) -> schema.Array:
            return np.where(mask.reshape(-1, *[1] * (mine.ndim - 1)), theirs, mine)

        return _map(choose, self, other)

    def replaced(self, index: int, other: "Ends", at: int) -> "Ends":
        """Return these ends with one of them taken from others."""
        return self.where(np.arange(len(self.nll)) == index, other.take(np.asarray([at])))


def _map(function: Callable[..., Any], *ends: Ends) -> Ends:
    """Apply a function to each array of some ends."""
    return Ends(
        **{
            field.name: jax.tree.map(function, *(getattr(one, field.name) for one in ends))
            for field in fields(Ends)
        }
    )


def _objective(
    data: Candidates,
    n_block: Array,
    values: Mapping[str, Array],
    goal: Goal,
    chain: tuple[str, ...],
    over: tuple[str, ...],
    with_ood: bool,
) -> Any:
    """Return the function that a search minimises: coordinates -> value and gradient."""
    is_log = np.asarray(parameters.by_log(over), bool)
    ahead, rest = smooth.split_chain(chain, over)

    def block_at(index: Array) -> Candidates:
        block = jax.tree.map(lambda leaf: leaf[index], data)
        return block._replace(logprob=block.logprob.astype(block.actual.dtype))

    def over_blocks(function: Callable[[Array], Any]) -> Any:
        """Return what a function gives for each of the blocks, stacked."""
        total = data.weight.shape[0]
        empty = jax.tree.map(
            lambda leaf: jnp.zeros((total, *leaf.shape), leaf.dtype),
            jax.eval_shape(function, jnp.asarray(0)),
        )

        def put(index: Array, into: Any) -> Any:
            one = function(index)
            return jax.tree.map(lambda leaf, part: leaf.at[index].set(part), into, one)

        return lax.fori_loop(0, n_block, put, empty)

    def prepare(index: Array) -> Any:
        block = block_at(index)
        return smooth.apply_stages(stages.everything(block), block, ahead, values)

    # The stages that no smooth parameter changes: once a search.
    kept = over_blocks(prepare)

    def at(place: Array) -> Value:
        numbers = jnp.where(is_log, jnp.exp(place), place)
        # Derivatives of the parameters in the coordinates.
        scale = jnp.where(is_log, numbers, 1.0)[:, None]
        point = {**values, **{name: numbers[i] for i, name in enumerate(over)}}

        def along(index: Array) -> Any:
            left = jax.tree.map(lambda leaf: leaf[index], kept)
            return smooth.masses_along(left, block_at(index), rest, point, over)

        # Each step is kept as arrays before the next: in one loop the compiler would repeat the
        # sums over ranks and the Beta masses for every use of them, at three times the cost.
        masses = over_blocks(along)

        def draw(index: Array) -> Any:
            own, change = jax.tree.map(lambda leaf: leaf[index], masses)
            return smooth.log_probabilities(own, change, point, over)

        chances = over_blocks(draw)

        def add(index: Array, sums: Any) -> Any:
            chance = jax.tree.map(lambda leaf: leaf[index], chances)
            part = smooth.losses(chance, point)
            slope, share = part.slope * scale, jnp.zeros_like(part.loss)
            square = (slope**2).sum(axis=0)
            if with_ood:
                blurred = smooth.blurred_shares(chance, point, point["edge"])
                slope, share = jnp.concatenate([slope, blurred.slope * scale]), blurred.share
            weight = data.weight[index]
            new = (
                (part.loss * weight).sum(),
                (share * weight).sum(),
                (part.is_ood * weight).sum(),
                slope @ weight,
                (square * weight).sum(),
                weight.sum(),
            )
            return jax.tree.map(jnp.add, sums, new)

        zero, n_slope = jnp.zeros(()), len(over) * (2 if with_ood else 1)
        start = (zero, zero, zero, jnp.zeros(n_slope), zero, zero)
        *sums, weight = lax.fori_loop(0, n_block, add, start)
        nll, share, ood, slope, square = (leaf / weight for leaf in sums)
        if not with_ood:
            return Value(nll, slope, (nll, ood, square))
        value, by_nll, by_ood = goal.combined(nll, share)
        of_nll, of_ood = slope[: len(over)], slope[len(over) :]
        return Value(value, by_nll * of_nll + by_ood * of_ood, (nll, ood, square))

    return at


@partial(jax.jit, static_argnames=("chain", "over", "listed", "with_ood", "method"))
def _program(
    data: Candidates,
    n_block: Array,
    places: Array,
    listed_values: Array,
    goals: Goal,
    memory: Memory,
    max_steps: Array,
    fixed: Mapping[str, Array],
    limits: tuple[Array, Array],
    tolerance: Array,
    *,
    chain: tuple[str, ...],
    over: tuple[str, ...],
    listed: tuple[str, ...],
    with_ood: bool,
    method: str,
) -> Outcome:
    """Search from each start of a batch; `max_steps` is one a start, 0 for padding."""
    like = (jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def one(start: tuple[Array, Array, Goal, Memory, Array]) -> Outcome:
        place, chosen, goal, known, most = start
        values = {**fixed, **{name: chosen[i] for i, name in enumerate(listed)}}
        return descent.minimise(
            _objective(data, jnp.where(most > 0, n_block, 0), values, goal, chain, over, with_ood),
            place,
            *limits,
            memory=known,
            like=like,
            tolerance=tolerance,
            max_steps=most,
            method=method,
        )

    return lax.map(one, (places, listed_values, goals, memory, max_steps))


def compiled_programs() -> int:
    """Return how many programs have been compiled so far in this process."""
    return int(cast("Any", _program)._cache_size())


def repeated(memory: Memory, n_start: int) -> Memory:
    """Return a memory for each of several starts."""
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n_start, *np.shape(leaf))), memory)


def run(
    problem: Problem,
    resident: Resident,
    places: schema.Array,
    chosen: schema.Array,
    *,
    n_block: int | None = None,
    max_steps: int | None = None,
    tolerance: float | None = None,
    softness: float = 0.0,
    edge: float = EDGE,
    goals: Goal | None = None,
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
    softness : float
        Rounds the kink at epsilon [nat]; see `jaxsppl.sampling.smooth.losses`.
    edge : float
        Blurs the share [nat], by at least `softness`; see `jaxsppl.sampling.smooth.blurred_shares`.
    goals : Goal, optional
        (start,) what is minimised; by default the problem's choice, no limit having been learned.
    memory : Memory, optional
        (start, ...) what earlier searches learned.

    Returns
    -------
    Ends
    """
    n_start, n_parameter = places.shape
    if memory is None:
        memory = repeated(descent.fresh_memory(n_parameter), n_start)
    most = problem.max_steps if max_steps is None else max_steps
    goals = goals_of(problem.choice, n_start) if goals is None else goals
    fixed = {**problem.fixed, "softness": softness, "edge": max(softness, edge)}

    ends: list[Outcome] = []
    for first in range(0, n_start, BATCH):
        part = np.arange(first, first + BATCH)
        inside = np.minimum(part, n_start - 1)

        def batch_of(leaf: schema.Array, inside: schema.Array = inside) -> Array:
            """Cut a batch out; the last is filled up with starts that do nothing."""
            return jnp.asarray(np.asarray(leaf)[inside])

        outcome = _program(
            resident.data,
            jnp.asarray(resident.n_block if n_block is None else n_block),
            batch_of(places),
            batch_of(chosen.astype(np.float64)),
            jax.tree.map(batch_of, goals),
            jax.tree.map(batch_of, memory),
            jnp.asarray(np.where(part < n_start, most, 0)),
            {name: jnp.asarray(float(value)) for name, value in fixed.items()},
            (jnp.asarray(problem.lower), jnp.asarray(problem.upper)),
            jnp.asarray(problem.tolerance if tolerance is None else tolerance),
            chain=problem.chain,
            over=problem.smooth,
            listed=problem.listed,
            with_ood=not problem.choice.is_plain,
            method=problem.method,
        )
        ends.append(jax.tree.map(np.asarray, outcome))
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n_start], *ends)
    nll, ood, square = whole.best.extra
    return Ends(
        place=whole.place,
        slope=whole.best.slope,
        value=whole.best.value,
        nll=nll,
        ood=ood,
        square=square,
        status=whole.status,
        n_step=whole.n_step,
        memory=whole.memory,
    )


def same_place(
    places: schema.Array,
    value: schema.Array,
    chosen: schema.Array,
    near: float,
    close: float,
) -> tuple[schema.Array, schema.Array]:
    """Find the ends that are one place.

    Parameters
    ----------
    places : array
        (start, smooth) coordinates.
    value : array
        (start,) what was minimised.
    chosen : array
        (start, listed) values.
    near : float
        Largest difference of a coordinate.
    close : float
        Largest difference of the objective [nat/token].

    Returns
    -------
    tuple of array
        The index of each place's best end, and (start,) which place each belongs to. An end that
        is not finite is a place of its own.
    """
    order = np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable")
    first: list[int] = []
    member = np.zeros(len(places), np.int64)
    for index in order:
        for number, other in enumerate(first):
            if (
                np.abs(places[index] - places[other]).max(initial=0.0) <= near
                and abs(value[index] - value[other]) <= close
                and (chosen[index] == chosen[other]).all()
            ):
                member[index] = number
                break
        else:
            member[index] = len(first)
            first.append(int(index))
    return np.asarray(first), member
