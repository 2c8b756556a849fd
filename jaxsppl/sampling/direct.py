"""Level `direct`: the definition itself, one point at a time, in float64, without tricks.

It is the reference of the audit. It shares with the fast levels the law of the unseen tail and the
Beta mass, which have their own tests, and nothing of how they cut and sum.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import ABSENT, TIE, Candidates
from jaxsppl.sampling.draw import Interval, probability


def probabilities(block: Candidates, chain: Sequence[str], values: Mapping[str, Array]) -> Array:
    """Return what the sampling pipeline gives each actual token.

    Parameters
    ----------
    block : Candidates
        The positions, in float64.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter, `alpha` and `beta` included; missing ones are neutral.

    Returns
    -------
    Array
        (scenario, token) probability; scenarios are one without a tail, else estimate, lower and
        upper bracket of the unseen tail.
    """

    def one(scenario: Array) -> Array:
        return _one(block, chain, values, scenario)

    return jax.vmap(one)(jnp.arange(block.scenarios))


def _one(
    block: Candidates, chain: Sequence[str], values: Mapping[str, Array], scenario: Array
) -> Array:
    """Return (token,) probabilities under one scenario of the tail."""
    listed = block.logprob > ABSENT / 2
    # The kept unseen tokens are those of at least `floor`; the actual one outside is one of them.
    state = _State(block, block.logprob, listed, jnp.full(block.actual.shape, tails.ALL), 1.0)
    for name in chain:
        if name in values:
            state = _STEPS[name](state, values[name], scenario)
    logits, top = _kept_logits(state)
    weight = jnp.exp(logits - top[:, None])
    outside, unseen = _unseen(state, top, scenario)
    rank = jnp.arange(weight.shape[-1])
    is_own = rank == block.rank[:, None]
    own = jnp.where(is_own, weight, 0.0).sum(axis=-1) + outside
    before = jnp.where(rank < block.rank[:, None], weight, 0.0).sum(axis=-1)
    after = jnp.where(rank > block.rank[:, None], weight, 0.0).sum(axis=-1) + unseen
    if block.tail is not None:
        inverse = jnp.broadcast_to(jnp.asarray(state.inverse), block.actual.shape)
        # The place of an unlisted token among the unseen ones is the estimate's in every scenario.
        floor = _floor_of_estimate(block, chain, values)
        share = tails.share_above(block.tail, inverse, floor, block.actual)
        likelier = jnp.where(outside > 0, jnp.maximum(unseen, 0.0) * share, 0.0)
        before, after = before + likelier, after - likelier
    total = jnp.where(own > 0, before + own + after, 1.0)
    # Listed probabilities that sum to more than 1 leave less than nothing after the last ones.
    before = jnp.maximum(before + jnp.minimum(after, 0.0), 0.0)
    after = jnp.maximum(after, 0.0)
    place = Interval(*(part[None] / total for part in (before, own, after)))
    return probability(place, values.get("alpha"), values.get("beta"))[0]


def _floor_of_estimate(
    block: Candidates, chain: Sequence[str], values: Mapping[str, Array]
) -> Array:
    """Return the floor at which the chain leaves the estimate's scenario."""
    listed = block.logprob > ABSENT / 2
    state = _State(block, block.logprob, listed, jnp.full(block.actual.shape, tails.ALL), 1.0)
    for name in chain:
        if name in values:
            state = _STEPS[name](state, values[name], jnp.asarray(tails.ESTIMATE))
    return state.floor


class _State:
    """Current logits, which listed tokens are kept, the floor of the unseen ones, 1 / T so far."""

    def __init__(
        self, block: Candidates, logits: Array, keep: Array, floor: Array, inverse: Array | float
    ) -> None:
        self.block, self.logits, self.keep = block, logits, keep
        self.floor, self.inverse = floor, inverse


def _kept_logits(state: _State) -> tuple[Array, Array]:
    """Return the logits, -inf where cut, and (token,) the largest."""
    # Not ABSENT: a temperature of 1e-40 takes real logits below it.
    logits = jnp.where(state.keep, state.logits, -jnp.inf)
    return logits, logits.max(axis=-1)


def _unseen(state: _State, top: Array, scenario: Array) -> tuple[Array, Array]:
    """Return the weights of the actual token outside the list and of the other unseen ones."""
    block = state.block
    if block.tail is None:
        return jnp.zeros_like(top), jnp.zeros_like(top)
    kept = ~block.inside & (block.actual >= state.floor)
    outside = jnp.where(kept, jnp.exp(block.actual * state.inverse - top), 0.0)
    reference = top / state.inverse
    rest = tails.tail_sum(block.tail, jnp.asarray(state.inverse), state.floor, reference)
    return outside, rest[scenario]


def _temperature(state: _State, value: Array, scenario: Array) -> _State:
    """Divide the logits; at 0 keep the tokens that equal the likeliest."""
    del scenario
    greedy = value == 0
    divided = state.logits / jnp.where(greedy, 1.0, value)
    _, top = _kept_logits(state)
    keep = state.keep & (~greedy | (state.logits == top[:, None]))
    floor = jnp.where(greedy, tails.NONE, state.floor)
    # All kept logits are equal after the greedy cut: neither they nor 1 / T matter any more.
    logits = jnp.where(greedy, jnp.where(keep, state.logits / state.inverse, ABSENT), divided)
    inverse = jnp.where(greedy, 1.0, state.inverse / jnp.where(greedy, 1.0, value))
    return _State(state.block, logits, keep, floor, inverse)


def _top_k(state: _State, value: Array, scenario: Array) -> _State:
    """Keep the first k of the kept tokens."""
    del scenario
    on = value > 0
    keep = state.keep & (~on | (jnp.cumsum(state.keep, axis=-1) <= value))
    return _State(
        state.block, state.logits, keep, jnp.where(on, tails.NONE, state.floor), state.inverse
    )


def _min_p(state: _State, value: Array, scenario: Array) -> _State:
    """Keep tokens of at least p times the likeliest one's probability."""
    del scenario
    on = value > 0
    _, top = _kept_logits(state)
    threshold = top + jnp.log(jnp.where(on, value, 1.0)) - TIE * state.inverse
    keep = state.keep & (~on | (state.logits >= threshold[:, None]))
    raised = jnp.maximum(state.floor, threshold / state.inverse)
    return _State(
        state.block, state.logits, keep, jnp.where(on, raised, state.floor), state.inverse
    )


def _top_p(state: _State, value: Array, scenario: Array) -> _State:
    """Keep the likeliest tokens, each as long as the mass before it is below p."""
    block = state.block
    on = value < 1
    logits, top = _kept_logits(state)
    weight = jnp.exp(logits - top[:, None])
    seen = weight.sum(axis=-1)
    outside, rest = _unseen(state, top, scenario)
    total = seen + outside + rest
    value = value * (1.0 - TIE)
    before = jnp.cumsum(weight, axis=-1) - weight
    below = before < jnp.maximum(value * total, jnp.finfo(total.dtype).tiny)[:, None]
    keep = state.keep & (~on | below)
    floor = state.floor
    if block.tail is not None:
        share = jnp.clip(
            (value * total - seen) / jnp.where(total > seen, total - seen, 1.0), 0.0, 1.0
        )
        inverse = jnp.broadcast_to(jnp.asarray(state.inverse), top.shape)
        cut = tails.floor_at_share(block.tail, inverse, floor, share)
        cut = jnp.where(value * total > seen, jnp.maximum(floor, cut), tails.NONE)
        floor = jnp.where(on, cut, floor)
    return _State(block, state.logits, keep, floor, state.inverse)


_STEPS = {"temperature": _temperature, "top_k": _top_k, "min_p": _min_p, "top_p": _top_p}
