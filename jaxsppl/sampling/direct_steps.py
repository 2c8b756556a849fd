"""The stages of level `direct`: masks over the listed tokens, for one scenario of the tail.

Each is written from its definition, and not from what `jaxsppl.sampling.cuts` and its neighbours
make of it: whatever is kept is a mask here, and probabilities are divided by their sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import ABSENT, TIE, Candidates


@dataclass(frozen=True)
class State:
    """What is left of each position.

    Attributes
    ----------
    block : Candidates
    scenario : Array
        () index of the scenario of the tail.
    logits : Array
        (token, rank) current logits, 1/T included [nat].
    keep : Array
        (token, rank) which listed tokens are kept.
    floor : Array
        (token,) unseen tokens of at least this log-probability are kept [nat]; the actual one
        outside the list is one of them.
    inverse : Array
        () or (token,) 1/T so far.
    entries : Array or None
        (token,) size of llama.cpp's array where it holds masked tokens too.
    power : Array or None
        () exponent of the drawn point's distribution.
    reshaped : bool
        Whether the logits may be more than log-probabilities divided by T.
    """

    block: Candidates
    scenario: Array
    logits: Array
    keep: Array
    floor: Array
    inverse: Array
    entries: Array | None = None
    power: Array | None = None
    reshaped: bool = False

    @classmethod
    def before_all(cls, block: Candidates, scenario: Array) -> "State":
        """Return the state before the first stage."""
        floor = jnp.full(block.actual.shape, tails.ALL)
        return cls(block, scenario, block.logprob, block.logprob > ABSENT / 2, floor, jnp.ones(()))


def weigh(state: State) -> tuple[Array, Array]:
    """Return the weights relative to the likeliest, 0 where cut, and (token,) its logit."""
    # Not ABSENT: a temperature of 1e-40 takes real logits below it.
    logits = jnp.where(state.keep, state.logits, -jnp.inf)
    top = logits.max(axis=-1)
    return jnp.exp(logits - top[:, None]), top


def unseen(state: State, top: Array, order: Array | float = 1.0) -> tuple[Array, Array]:
    """Return the weights, to a power, of the actual token outside the list and of the others."""
    block = state.block
    if block.tail is None:
        return jnp.zeros_like(top), jnp.zeros_like(top)
    kept = ~block.inside & (block.actual >= state.floor)
    outside = jnp.where(kept, jnp.exp(order * (block.actual * state.inverse - top)), 0.0)
    rest = tails.tail_sum(block.tail, order * state.inverse, state.floor, top / state.inverse)
    return outside, rest[state.scenario]


def _shares(state: State) -> tuple[Array, Array]:
    """Return (token, rank) probabilities of what is left, and (token,) the total weight."""
    weight, top = weigh(state)
    total = weight.sum(axis=-1) + sum(unseen(state, top))
    return weight / total[:, None], total


def _number(state: State) -> Array:
    """Return (token,) how many tokens are left, unseen ones included; NaN if that is unknown."""
    number = state.keep.sum(axis=-1).astype(state.logits.dtype)
    if state.block.tail is None:
        return number
    return number + _whole(state, 0.0, state.block.tail.number + ~state.block.inside)


def _whole(state: State, listed: Any, whole: Array | None) -> Array:
    """Return a statistic: of the listed tokens where no other is left, of all where all are."""
    tail = state.block.tail
    if tail is None:
        return jnp.asarray(listed)
    others = (tail.number > 0) & (state.floor <= tail.edge)
    all_left = (state.floor <= tails.ALL) & state.keep[:, 0]
    known = jnp.nan if whole is None else jnp.where(all_left, whole, jnp.nan)
    return jnp.where(others, known, listed)


def _entropy(state: State) -> Array:
    """Return (token,) the entropy of what is left [nat]."""
    weight, _ = weigh(state)
    share = weight / weight.sum(axis=-1, keepdims=True)
    terms = jnp.where(share > 0, -share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0)
    whole = state.block.entropy
    if whole is not None:
        whole = jnp.where(state.inverse == 1.0, whole, jnp.nan)
    return jnp.maximum(_whole(state, terms.sum(axis=-1), whole), 0.0)


def after_cut(state: State, keep: Array, floor: Array | float, on: Array) -> State:
    """Return the state after a cut; the likeliest token that was left stays."""
    first = state.keep & (jnp.cumsum(state.keep, axis=-1) == 1)
    keep = (state.keep & keep) | first
    after = jnp.where(on, jnp.maximum(state.floor, floor), state.floor)
    return replace(
        state,
        keep=jnp.where(on, keep, state.keep),
        floor=after,
        entries=None if state.entries is None else jnp.where(on, keep.sum(axis=-1), state.entries),
    )


def _at_least(state: State, log_share: Array, on: Array) -> State:
    """Keep tokens whose logarithm of the probability relative to the likeliest is that or more."""
    _, top = weigh(state)
    threshold = top + log_share - TIE * state.inverse
    return after_cut(state, state.logits >= threshold[:, None], threshold / state.inverse, on)


def _log(value: Array, on: Array) -> Array:
    """Return a logarithm where the stage is on."""
    return jnp.log(jnp.where(on, value, 1.0))


def _temperature(
    state: State,
    temperature: Array | float = 1.0,
    dynatemp_range: Array | None = None,
    dynatemp_exponent: Array | float = 1.0,
) -> State:
    """Divide the logits; at 0 keep the tokens that equal the likeliest."""
    value = jnp.asarray(temperature, state.logits.dtype)
    if dynatemp_range is not None:
        number = _number(state) if state.entries is None else state.entries
        share = _entropy(state) / jnp.log(jnp.where(number > 1, number, jnp.e))
        low = jnp.where(value > dynatemp_range, value - dynatemp_range, 0.0)
        high = value + dynatemp_range
        moved = low + (high - low) * share**dynatemp_exponent
        value = jnp.where((dynatemp_range == 0) | (number <= 1), value, moved)
    greedy = value <= 0
    divisor = jnp.where(greedy, 1.0, value)
    _, top = weigh(state)
    keep = state.keep & (~greedy | (top == state.logits.T)).T
    # All kept logits are equal after the greedy cut: neither they nor 1 / T matter any more.
    plain = jnp.where(keep.T, state.logits.T / state.inverse, ABSENT)
    return replace(
        state,
        logits=jnp.where(greedy, plain, state.logits.T / divisor).T,
        keep=keep,
        floor=jnp.where(greedy, tails.NONE, state.floor),
        inverse=jnp.where(greedy, 1.0, state.inverse / divisor),
    )


def _smoothing(
    state: State, smoothing_factor: Array, smoothing_curve: Array | float = 1.0
) -> State:
    """Replace the logits by a polynomial of their distance from the largest."""
    on = smoothing_factor > 0
    _, top = weigh(state)
    d = jnp.where(state.keep, state.logits - top[:, None], 0.0)
    k, s = (3 - smoothing_curve) / 2, (smoothing_curve - 1) / 2
    new = top[:, None] - k * smoothing_factor * d * d + s * smoothing_factor * d * d * d
    return replace(
        state,
        logits=jnp.where(on, new, state.logits),
        floor=jnp.where(on, tails.NONE, state.floor),
        inverse=jnp.where(on, 1.0, state.inverse),
        reshaped=True,
    )


def _skew(state: State, skew: Array) -> State:
    """Bend the draw."""
    return replace(state, power=jnp.exp(skew))


def _top_k(state: State, top_k: Array) -> State:
    """Keep the first k of the kept tokens."""
    before = state.entries
    state = after_cut(state, jnp.cumsum(state.keep, axis=-1) <= top_k, tails.NONE, top_k > 0)
    if before is None:
        return state
    return replace(state, entries=jnp.where(top_k > 0, jnp.minimum(before, top_k), before))


def _top_k_with_ties(state: State, top_k: Array) -> State:
    """Keep the first k of the kept tokens and what equals the last of them."""
    inside = state.keep & (jnp.cumsum(state.keep, axis=-1) <= top_k)
    least = jnp.where(inside, state.logits, jnp.inf).min(axis=-1, keepdims=True)
    return after_cut(state, state.logits >= least, tails.NONE, top_k > 0)


def _min_p(state: State, min_p: Array) -> State:
    """Keep tokens of at least p times the likeliest one's probability."""
    on = min_p > 0
    return _at_least(state, _log(min_p, on), on)


def _top_a(state: State, top_a: Array) -> State:
    """Keep tokens of at least a times the square of the likeliest one's probability."""
    on = top_a > 0
    share, _ = _shares(state)
    return _at_least(state, _log(top_a * share.max(axis=-1), on), on)


def _epsilon_cutoff(state: State, epsilon_cutoff: Array) -> State:
    """Keep tokens of at least that probability."""
    on = epsilon_cutoff > 0
    share, _ = _shares(state)
    return _at_least(state, _log(epsilon_cutoff / share.max(axis=-1), on), on)


def _eta_cutoff(state: State, eta_cutoff: Array) -> State:
    """Keep tokens of at least min(eta, sqrt(eta) exp(-entropy))."""
    on = eta_cutoff > 0
    share, _ = _shares(state)
    limit = jnp.minimum(eta_cutoff, jnp.sqrt(eta_cutoff) * jnp.exp(-_entropy(state)))
    return _at_least(state, _log(limit / share.max(axis=-1), on), on)


def _p_less(state: State, p_less: Array) -> State:
    """Keep tokens of at least the k-th power mean of the probabilities."""
    on = p_less > 0
    order = jnp.where(on, p_less, 2.0)
    weight, top = weigh(state)
    powers = (weight**order).sum(axis=-1) + sum(unseen(state, top, order))
    share, total = _shares(state)
    limit = (powers / total**order) ** (1 / (order - 1))
    return _at_least(state, jnp.log(limit / share.max(axis=-1)), on)


def _p_less_norm(state: State, p_less_norm: Array) -> State:
    """Keep tokens of at least (n sum p^2 - 1) / (n - 1)."""
    weight, top = weigh(state)
    share, total = _shares(state)
    collision = ((weight**2).sum(axis=-1) + sum(unseen(state, top, 2.0))) / total**2
    number = jnp.maximum(_number(state), 2.0)
    limit = jnp.maximum((number * collision - 1) / (number - 1), TIE)
    return _at_least(state, jnp.log(limit / share.max(axis=-1)), p_less_norm > 0)


def _top_n_sigma(state: State, top_n_sigma: Array) -> State:
    """Mask logits more than n standard deviations below the largest."""
    entries = _number(state) if state.entries is None else state.entries
    plain = state.logits / jnp.broadcast_to(state.inverse, state.floor.shape)[:, None]
    number = state.keep.sum(axis=-1)
    _, top = weigh(state)
    # Relative to the largest, so that a common offset costs no digits.
    plain = jnp.where(state.keep, plain - (top / state.inverse)[:, None], 0.0)
    mean = plain.sum(axis=-1) / number
    square = jnp.where(state.keep, (plain - mean[:, None]) ** 2, 0.0).sum(axis=-1) / number
    sigma = _whole(state, jnp.sqrt(square), state.block.logit_std)
    after = _at_least(state, -top_n_sigma * sigma * state.inverse, top_n_sigma > 0)
    return replace(after, entries=entries)


def _top_p(state: State, top_p: Array) -> State:
    """Keep the likeliest tokens, each as long as the mass before it is below p."""
    weight, top = weigh(state)
    outside, rest = unseen(state, top)
    return _up_to(state, weight, outside + rest, state.floor, top_p, strict=True)


def _top_p_joint(state: State, top_p: Array) -> State:
    """Keep tokens with at most p before them, of all there were before any cut."""
    whole = replace(state, keep=state.block.logprob > ABSENT / 2)
    if not state.reshaped:
        whole = replace(whole, floor=jnp.full_like(state.floor, tails.ALL))
    weight, top = weigh(whole)
    outside, rest = unseen(whole, top)
    return _up_to(state, weight, outside + rest, whole.floor, top_p, strict=False)


def _up_to(
    state: State, weight: Array, others: Array, floor: Array, top_p: Array, *, strict: bool
) -> State:
    """Cut where the mass before a token, of these weights and the unseen ones, passes p."""
    on = top_p < 1
    seen = weight.sum(axis=-1)
    total = seen + others
    limit = top_p * (1 - TIE) if strict else top_p * (1 + TIE)
    limit = jnp.maximum(limit * total, jnp.finfo(total.dtype).tiny)[:, None]
    before = jnp.cumsum(weight, axis=-1) - weight
    keep = before < limit if strict else before <= limit
    tail = state.block.tail
    if tail is None:
        return after_cut(state, keep, state.floor, on)
    goal = limit[:, 0] - seen
    share = jnp.clip(goal / jnp.where(others > 0, others, 1.0), 0.0, 1.0)
    inverse = jnp.broadcast_to(state.inverse, seen.shape)
    cut = jnp.where(goal > 0, tails.floor_at_share(tail, inverse, floor, share), tails.NONE)
    return after_cut(state, keep, cut, on)


def _typical_p(state: State, typical_p: Array) -> State:
    """Keep the tokens nearest the entropy, each while the mass of nearer ones is at most p."""
    _, before = _by_typicality(state)
    return _nearest(state, before <= typical_p + TIE, typical_p)


def _typical_p_with_ties(state: State, typical_p: Array) -> State:
    """Keep the nearest until their mass reaches p, and what is as near as the last of them."""
    distance, before = _by_typicality(state)
    # The last one is the first whose inclusive sum reaches p, or the last of all.
    counted = state.keep & ((before < typical_p - TIE) | (before == 0))
    limit = jnp.where(counted, distance, -jnp.inf).max(axis=-1, keepdims=True)
    return _nearest(state, distance <= limit + TIE, typical_p)


def _by_typicality(state: State) -> tuple[Array, Array]:
    """Return each token's distance from the entropy, and the mass of nearer ones."""
    share, _ = _shares(state)
    surprise = -jnp.log(jnp.where(share > 0, share, 1.0))
    excess = surprise - _entropy(state)[:, None]
    excess = jnp.where(jnp.abs(excess) < TIE, 0.0, excess)
    distance = jnp.where(state.keep, jnp.abs(excess), jnp.inf)
    # Equals on the near side of the entropy are taken from its end: sort that side backwards.
    n = share.shape[-1]
    place = jnp.where(excess < 0, n - 1 - jnp.arange(n), n + jnp.arange(n))
    order = jnp.argsort(place, axis=-1)
    by_distance = jnp.argsort(jnp.take_along_axis(distance, order, axis=-1), axis=-1, stable=True)
    order = jnp.take_along_axis(order, by_distance, axis=-1)
    sorted_share = jnp.take_along_axis(jnp.where(state.keep, share, 0.0), order, axis=-1)
    before = jnp.cumsum(sorted_share, axis=-1) - sorted_share
    back = jnp.argsort(order, axis=-1)
    return distance, jnp.take_along_axis(before, back, axis=-1)


def _nearest(state: State, keep: Array, typical_p: Array) -> State:
    """Keep a set that may lack the likeliest token."""
    on = typical_p < 1
    keep = state.keep & keep
    return replace(
        state,
        keep=jnp.where(on, keep, state.keep),
        floor=jnp.where(on, tails.NONE, state.floor),
        entries=None if state.entries is None else jnp.where(on, keep.sum(axis=-1), state.entries),
    )


def _top_h(state: State, top_h: Array) -> State:
    """Keep the likeliest of the first 100 while the sum of -p ln p is within its share."""
    weight, _ = weigh(state)
    first = jnp.where(jnp.cumsum(state.keep, axis=-1) <= 100, weight, 0.0)
    share = first / first.sum(axis=-1, keepdims=True)
    terms = jnp.where(share > 0, -share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0)
    budget = top_h * (1 + TIE) * terms.sum(axis=-1, keepdims=True)
    keep = (first > 0) & (jnp.cumsum(terms, axis=-1) <= budget)
    return after_cut(state, keep, tails.NONE, top_h < 1)


def _min_k(state: State, min_k: Array) -> State:
    """Keep down to the steepest fall per rank, or tau over the range of the logits."""
    place = jnp.cumsum(state.keep, axis=-1)
    logits = jnp.where(state.keep, state.logits, jnp.nan)
    fall = logits[:, :-1] - logits[:, 1:]
    steep = jnp.where(jnp.isnan(fall), -1.0, fall / jnp.maximum(place[:, :-1], 1))
    steep = jnp.pad(steep, ((0, 0), (0, 1)), constant_values=-1.0)
    largest = steep.max(axis=-1, keepdims=True)
    cliff = jnp.where((steep == largest) & state.keep, place, place.shape[-1] + 1).min(axis=-1)
    _, top = weigh(state)
    bottom = jnp.where(state.keep, state.logits, jnp.inf).min(axis=-1)
    least = state.block.min_logprob
    whole = None if least is None else top - state.inverse * least
    extent = _whole(state, top - bottom, whole)
    ratio = min_k / jnp.where(extent > 0, extent, 1.0)
    number = jnp.where(extent > 0, jnp.floor(ratio + TIE), place.shape[-1])
    return after_cut(state, place <= jnp.maximum(cliff, number)[:, None], tails.NONE, min_k > 0)


def _tfs(state: State, tfs: Array) -> State:
    """Keep the first token and those up to a share of the curvature, but never the last."""
    share, _ = _shares(state)
    three = state.keep[:, :-2] & state.keep[:, 2:]
    bend = jnp.where(three, jnp.abs(share[:, 2:] - 2 * share[:, 1:-1] + share[:, :-2]), 0.0)
    total = bend.sum(axis=-1, keepdims=True)
    reached = jnp.cumsum(bend, axis=-1) / jnp.where(total > 0, total, 1.0)
    middle = three & (reached <= tfs + TIE)
    keep = jnp.pad(middle, ((0, 0), (1, 1)))[:, : share.shape[-1]] | (
        state.keep.sum(axis=-1, keepdims=True) <= 2
    )
    return after_cut(state, keep, tails.NONE, tfs < 1)


def _xtc(
    state: State, xtc_probability: Array, xtc_threshold: Array | float = 0.1
) -> list[tuple[Array, State]]:
    """Remove, with a probability, every token above the threshold but the least of them."""
    share, _ = _shares(state)
    least = xtc_threshold * (1 - TIE * state.inverse)
    above = state.keep & (share >= jnp.broadcast_to(least, share.shape[:1])[:, None])
    position = jnp.cumsum(above, axis=-1)
    removed = above & (position < position[:, -1:])
    entries = state.entries
    if entries is not None:
        entries = entries - removed.sum(axis=-1)
    after = replace(state, keep=state.keep & ~removed, entries=entries)
    return [(1 - xtc_probability, state), (xtc_probability, after)]


STEPS: dict[str, Callable[..., State]] = {
    "temperature": _temperature,
    "smoothing": _smoothing,
    "skew": _skew,
    "top_k": _top_k,
    "top_k@transformers": _top_k_with_ties,
    "top_p": _top_p,
    "top_p@sglang": _top_p_joint,
    "min_p": _min_p,
    "typical_p": _typical_p,
    "typical_p@transformers": _typical_p_with_ties,
    "top_n_sigma": _top_n_sigma,
    "epsilon_cutoff": _epsilon_cutoff,
    "eta_cutoff": _eta_cutoff,
    "top_h": _top_h,
    "p_less": _p_less,
    "p_less_norm": _p_less_norm,
    "min_k": _min_k,
    "tfs": _tfs,
    "top_a": _top_a,
}
COINS: dict[str, Callable[..., list[tuple[Array, State]]]] = {"xtc": _xtc}
# Every stage takes the parameter of its own name, but for these.
PARAMETERS_OF: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature", "dynatemp_range", "dynatemp_exponent"),
    "smoothing": ("smoothing_factor", "smoothing_curve"),
    "xtc": ("xtc_probability", "xtc_threshold"),
}


def taken(name: str, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values that a stage takes."""
    names = PARAMETERS_OF.get(name, (name.partition("@")[0],))
    return {parameter: values[parameter] for parameter in names if parameter in values}
