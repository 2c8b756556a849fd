"""Level `direct`: the definition itself, one point at a time, in float64, without tricks.

It is the reference of the audit. It shares with the fast levels the law of the unseen tail and the
Beta mass, which have their own tests, and nothing of how they cut and sum.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.direct_steps import COINS, STEPS, State, taken, unseen, weigh
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
        # The place of an unlisted token among the unseen ones is the estimate's in every scenario.
        pairs = zip(
            outcomes(block, chain, values, scenario),
            outcomes(block, chain, values, jnp.asarray(tails.ESTIMATE)),
            strict=True,
        )
        return sum(
            (share * _one(state, middle, values) for (share, state), (_, middle) in pairs),
            start=jnp.zeros_like(block.actual),
        )

    return jax.vmap(one)(jnp.arange(block.scenarios))


def outcomes(
    block: Candidates, chain: Sequence[str], values: Mapping[str, Array], scenario: Array
) -> list[tuple[Array, State]]:
    """Return what the chain leaves, with its probability, for each outcome of its coins.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter.
    scenario : Array
        () index of the scenario of the tail.

    Returns
    -------
    list of (Array, State)
    """
    states = [(jnp.ones(()), State.before_all(block, scenario))]
    for name in chain:
        given = taken(name, values)
        if not given:
            continue
        if name in COINS:
            states = [
                (share * side, after)
                for share, state in states
                for side, after in COINS[name](state, **given)
            ]
        else:
            states = [(share, STEPS[name](state, **given)) for share, state in states]
    return states


def _one(state: State, middle: State, values: Mapping[str, Array]) -> Array:
    """Return (token,) probabilities under one scenario of the tail and one outcome of the coins.

    `middle` is the estimate's state, which alone says how much of the tail is likelier.
    """
    block = state.block
    weight, top = weigh(state)
    outside, others = unseen(state, top)
    rank = jnp.arange(weight.shape[-1])
    own = jnp.where(rank == block.rank[:, None], weight, 0.0).sum(axis=-1) + outside
    before = jnp.where(rank < block.rank[:, None], weight, 0.0).sum(axis=-1)
    after = jnp.where(rank > block.rank[:, None], weight, 0.0).sum(axis=-1) + others
    if block.tail is not None:
        inverse = jnp.broadcast_to(jnp.asarray(middle.inverse), block.actual.shape)
        share = tails.share_above(block.tail, inverse, middle.floor, block.actual)
        likelier = jnp.where(outside > 0, jnp.maximum(others, 0.0) * share, 0.0)
        before, after = before + likelier, after - likelier
    total = jnp.where(own > 0, before + own + after, 1.0)
    # Listed probabilities that sum to more than 1 leave less than nothing after the last ones.
    before = jnp.maximum(before + jnp.minimum(after, 0.0), 0.0) / total
    after = jnp.maximum(after, 0.0) / total
    own = own / total
    if state.power is not None:
        # In plain powers of the two ends; what is after the upper one from its own side, since a
        # small `beta` would show the rounding of a difference from 1.
        low, high = before**state.power, (1.0 - after) ** state.power
        before, own = low, jnp.where(own > 0, high - low, 0.0)
        after = -jnp.expm1(state.power * jnp.log1p(-after))
    place = Interval(before[None], own[None], after[None])
    return probability(place, values.get("alpha"), values.get("beta"))[0]
