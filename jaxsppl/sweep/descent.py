"""Minimise one smooth function of a few parameters in a box, as one loop that JAX can compile.

L-BFGS (optax keeps the pairs and applies them), projected on the box, with an Armijo line search
that evaluates once an iteration: a trial is either accepted or shortened. No curvature condition is
asked for, since the objective has a kink wherever a token's probability crosses epsilon; a pair of
negative curvature enters with its absolute value instead. The memory can be handed on, so that a
search on a sample of the tokens teaches the search on all of them its curvature.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from jaxsppl import schema

METHODS = ("lbfgs", "adam")
STATUS = ("converged", "at a bound", "out of steps", "not finite", "beyond the limit")
CONVERGED, AT_BOUND, OUT_OF_STEPS, NOT_FINITE, BEYOND = range(5)
_RUNNING = -1

_MEMORY = 8
_ARMIJO = 1e-4
# Of a coordinate in one step; coordinates are logarithms of parameters.
_LONGEST, _SHORTEST = 1.0, 1e-11
# Where Adam starts; it falls to 0 by a cosine over the steps.
_RATE = 0.1


class Value(NamedTuple):
    """The function at a place: value, (parameter,) gradient, and anything that goes with it."""

    value: Array
    slope: Array
    extra: Any


Objective = Callable[[Array], Value]


class Memory(NamedTuple):
    """What L-BFGS knows of the curvature: optax's pairs, and the last of them."""

    pairs: Any
    step: Array
    rise: Array


class Outcome(NamedTuple):
    """Where a search ended: the best place that it saw.

    Attributes
    ----------
    place : Array
        (parameter,) coordinates.
    best : Value
        The function there.
    status : Array
        () index into `STATUS`.
    n_step : Array
        () evaluations of the function.
    memory : Memory
        For a search on a similar function.
    """

    place: Array
    best: Value
    status: Array
    n_step: Array
    memory: Memory


class _State(NamedTuple):
    """State of the loop."""

    place: Array
    now: Value
    direction: Array
    length: Array
    memory: Memory
    adam: Any
    status: Array
    n_step: Array
    failures: Array


def fresh_memory(n_parameter: int) -> Memory:
    """Return the memory of a search that knows nothing.

    Parameters
    ----------
    n_parameter : int

    Returns
    -------
    Memory
    """
    zero = jnp.zeros(n_parameter)
    return Memory(optax.scale_by_lbfgs(_MEMORY).init(zero), zero, zero)


def memory_of(axes: schema.Array, curves: schema.Array) -> Memory:
    """Return the memory of a search that knows the curvature.

    Parameters
    ----------
    axes : array
        (axis, parameter) orthonormal directions, fewer than the memory has places.
    curves : array
        (axis,) second derivative along each, above 0.

    Returns
    -------
    Memory
    """
    number, n_parameter = axes.shape
    empty = np.zeros((_MEMORY, n_parameter))
    steps, rises, weights = empty.copy(), empty.copy(), np.zeros(_MEMORY)
    steps[:number], rises[:number] = axes, axes * curves[:, None]
    weights[:number] = 1 / curves
    fresh = jax.tree.map(np.asarray, fresh_memory(n_parameter))
    pairs = fresh.pairs._replace(
        count=np.asarray(_MEMORY, fresh.pairs.count.dtype),
        diff_params_memory=steps,
        diff_updates_memory=rises,
        weights_memory=weights,
    )
    return Memory(pairs, jnp.asarray(steps[number - 1]), jnp.asarray(rises[number - 1]))


def free_coordinates(place: Array, slope: Array, lower: Array, upper: Array) -> Array:
    """Return which coordinates can move: not at a limit that the descent points beyond.

    Parameters
    ----------
    place, slope, lower, upper : Array
        (parameter,) coordinates, gradient, limits.

    Returns
    -------
    Array
        (parameter,) bool.
    """
    return ~(((place <= lower) & (slope > 0)) | ((place >= upper) & (slope < 0)))


def minimise(
    objective: Objective,
    start: Array,
    lower: Array,
    upper: Array,
    *,
    memory: Memory,
    like: Any,
    tolerance: Array,
    max_steps: Array,
    method: str,
) -> Outcome:
    """Search a minimum from one start.

    Parameters
    ----------
    objective : callable
        Place -> `Value`.
    start, lower, upper : Array
        (parameter,) coordinates and limits.
    memory : Memory
        `fresh_memory`, or that of an earlier search.
    like : pytree of Array
        Of the shape of the objective's `extra`.
    tolerance : Array
        () the largest component of the projected gradient at convergence.
    max_steps : Array
        () most evaluations; 0 does nothing, 1 evaluates the start.
    method : {"lbfgs", "adam"}

    Returns
    -------
    Outcome
        Of the start itself, "not finite", when the function is not finite there.
    """
    adam = optax.scale_by_adam()
    # The first evaluation is a trial of length 0, so that the function is compiled once.
    first = _State(
        place=jnp.clip(start, lower, upper),
        now=Value(jnp.asarray(jnp.inf), jnp.zeros_like(start), like),
        direction=jnp.zeros_like(start),
        length=jnp.asarray(0.0),
        memory=memory,
        adam=(adam.init(start), jnp.clip(start, lower, upper)),
        status=jnp.asarray(_RUNNING),
        n_step=jnp.asarray(0),
        failures=jnp.asarray(0),
    )

    def lbfgs(state: _State) -> _State:
        trial = jnp.clip(state.place + state.length * state.direction, lower, upper)
        new = objective(trial)
        is_finite = jnp.isfinite(new.value) & jnp.isfinite(new.slope).all()
        moved = trial - state.place
        promised = _ARMIJO * (state.now.slope * moved).sum()
        accepted = is_finite & (new.value <= state.now.value + promised)
        free = free_coordinates(trial, new.slope, lower, upper)
        memory, direction = _precondition(state, new, moved, free)
        size = jnp.abs(direction).max(initial=0.0)
        direction = direction * jnp.minimum(1.0, _LONGEST / jnp.where(size > 0, size, 1.0))
        shorter = state.length * _shrink(state, new, moved, is_finite)
        is_stuck = shorter * jnp.abs(state.direction).max(initial=0.0) < _SHORTEST
        fallen = state._replace(length=shorter, failures=state.failures + 1)
        risen = state._replace(
            place=trial,
            now=new,
            direction=direction,
            length=jnp.ones_like(state.length),
            memory=memory,
            failures=jnp.zeros_like(state.failures),
        )
        # Where the memory leads nowhere, it is dropped once and the gradient is tried.
        uphill = free_coordinates(state.place, state.now.slope, lower, upper)
        forgetful = fallen._replace(
            direction=-state.now.slope * uphill,
            length=1e-2 / jnp.maximum(jnp.abs(state.now.slope).max(initial=0.0), 1e-2),
            memory=fresh_memory(start.size),
            failures=jnp.asarray(1000),
        )
        lost = jnp.isinf(state.now.value) | (is_stuck & (state.failures >= 1000))
        missed = _select(is_stuck & (state.failures < 1000), forgetful, fallen)
        missed = missed._replace(
            status=jnp.where(
                lost,
                jnp.where(jnp.isfinite(state.now.value) & is_finite, OUT_OF_STEPS, NOT_FINITE),
                _RUNNING,
            )
        )
        return _finish(_select(accepted, risen, missed), accepted, free)

    def by_adam(state: _State) -> _State:
        kept, place = state.adam
        new = objective(place)
        is_finite = jnp.isfinite(new.value) & jnp.isfinite(new.slope).all()
        free = free_coordinates(place, new.slope, lower, upper)
        ahead, kept = adam.update(new.slope * free, kept)
        update: Any = ahead
        part = jnp.minimum(state.n_step / jnp.maximum(max_steps, 1), 1.0)
        rate = _RATE * 0.5 * (1 + jnp.cos(jnp.pi * part))
        following = jnp.clip(place - rate * update, lower, upper)
        better = is_finite & (new.value <= state.now.value)
        state = state._replace(
            place=jnp.where(better, place, state.place),
            now=_select(better, new, state.now),
            adam=(kept, following),
            status=jnp.where(is_finite, _RUNNING, NOT_FINITE),
        )
        return _finish(state, better, free)

    def _finish(state: _State, accepted: Array, free: Array) -> _State:
        """Count the evaluation and see whether the search is over."""
        flat = accepted & (jnp.abs(state.now.slope * free).max(initial=0.0) <= tolerance)
        done = jnp.where(free.all(), CONVERGED, AT_BOUND)
        return state._replace(status=jnp.where(flat, done, state.status), n_step=state.n_step + 1)

    def running(state: _State) -> Array:
        return (state.status == _RUNNING) & (state.n_step < max_steps)

    last = lax.while_loop(running, lbfgs if method == "lbfgs" else by_adam, first)
    status = jnp.where(last.status == _RUNNING, OUT_OF_STEPS, last.status)
    return Outcome(last.place, last.now, status, last.n_step, last.memory)


def _select(condition: Array, yes: Any, no: Any) -> Any:
    """Choose between two trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _shrink(state: _State, new: Value, moved: Array, is_finite: Array) -> Array:
    """Return the factor by which a rejected step is shortened: a parabola's minimum, in bounds."""
    rise = (state.now.slope * moved).sum()
    bend = new.value - state.now.value - rise
    factor = -rise / jnp.where(is_finite & (bend > 0), 2 * bend, 1.0)
    return jnp.where(is_finite & (bend > 0), jnp.clip(factor, 0.1, 0.5), 0.1)


def _precondition(state: _State, new: Value, moved: Array, free: Array) -> tuple[Memory, Array]:
    """Return the memory after a step, and the direction of the next one."""
    old = state.memory
    is_first = jnp.isinf(state.now.value)
    step = moved * free
    rise = (new.slope - state.now.slope) * free
    square = (step * step).sum()
    bend = (step * rise).sum() / jnp.where(square > 0, square, 1.0)
    rise = jnp.where(bend > 1e-12, rise, jnp.maximum(jnp.abs(bend), 1e-8) * step)
    # A search that starts with a memory repeats its last pair, from which the scale is taken.
    step, rise = jnp.where(is_first, old.step, step), jnp.where(is_first, old.rise, rise)
    slope = jnp.where(jnp.isfinite(new.slope), new.slope, 0.0) * free
    rise = jnp.where(jnp.isfinite(rise), rise, 0.0)
    place = state.place + moved
    before = old.pairs._replace(params=place - step, updates=slope - rise)
    ahead, pairs = optax.scale_by_lbfgs(_MEMORY).update(slope, before, place)
    direction = -cast(Any, ahead) * free
    is_descent = (direction * slope).sum() < 0
    direction = jnp.where(is_descent & jnp.isfinite(direction).all(), direction, -slope)
    return Memory(pairs, step, rise), direction
