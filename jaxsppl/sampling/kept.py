"""What a chain has left of each position, and the sums over it that stages and draw need.

Every stage keeps the order of the tokens, so what is left is an interval of ranks, a floor for the
unseen tokens, and an inverse temperature. Arrays over tokens may have a leading scenario axis where
the unseen tail decides: estimate, lower and upper bracket.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import Candidates


class Kept(NamedTuple):
    """What a chain has left of each position so far.

    Attributes
    ----------
    start, stop : Array
        (token,) the kept ranks are start, ..., stop - 1.
    floor : Array
        (token,) unseen tokens of at least this log-probability are kept [nat].
    inverse : Array
        () the inverse temperature so far; (token,) where it depends on the position.
    logit : Array or None
        (token, rank) what stands for the log-probabilities once a stage has reshaped them [nat].
    length : Array or None
        (token,) where llama.cpp's array of candidates ends, unseen ones included, when a stage has
        masked some without removing them; None = with the kept ones.
    skew : Array or None
        () exponent's logarithm by which the drawn point is bent.
    """

    start: Array
    stop: Array
    floor: Array
    inverse: Array
    logit: Array | None = None
    length: Array | None = None
    skew: Array | None = None


def everything(block: Candidates) -> Kept:
    """Return the state before the first stage: all tokens, at temperature 1.

    Parameters
    ----------
    block : Candidates

    Returns
    -------
    Kept
    """
    start = jnp.zeros_like(block.listed)
    floor = jnp.full(block.actual.shape, tails.ALL, block.actual.dtype)
    return Kept(start, block.listed, floor, jnp.ones((), block.actual.dtype))


def one_scenario(kept: Kept, scenario: int) -> Kept:
    """Return what is left under one scenario of the unseen tail, without scenario axes.

    Parameters
    ----------
    kept : Kept
    scenario : int
        `tails.ESTIMATE`, `tails.LOWER` or `tails.UPPER`.

    Returns
    -------
    Kept
    """
    chosen = {
        name: leaf[scenario]
        for name, leaf in kept._asdict().items()
        if leaf is not None and leaf.ndim > (2 if name == "logit" else 1)
    }
    return kept._replace(**chosen)


def gather(values: Array, place: Array) -> Array:
    """Return values[token, place[token]].

    Parameters
    ----------
    values : Array
        (token, column), or with a leading scenario axis.
    place : Array
        (token,) column of each token, or with a leading scenario axis.

    Returns
    -------
    Array
        (token,), with a scenario axis where either has one.
    """
    if values.ndim == 3:
        shape = jnp.broadcast_shapes(values.shape[:-1], place.shape)
        place = jnp.broadcast_to(place, shape)[..., None]
        return jnp.take_along_axis(values, place, axis=-1).squeeze(-1)
    if place.ndim == 1:
        return jnp.take_along_axis(values, place[:, None], axis=-1).squeeze(-1)
    return jnp.take_along_axis(values, place.T, axis=-1).T


def logits(kept: Kept, block: Candidates) -> Array:
    """Return (token, rank) log-probabilities, or what stands for them, before 1/T [nat]."""
    return block.logprob if kept.logit is None else kept.logit


def top_logprob(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the log-probability of the likeliest kept token [nat]."""
    return gather(logits(kept, block), kept.start)


def scaled(kept: Kept, block: Candidates) -> Array:
    """Return (token, rank) logits relative to the likeliest kept token's, divided by T [nat].

    Parameters
    ----------
    kept : Kept
        Gives the reference and the inverse temperature.
    block : Candidates

    Returns
    -------
    Array
        0 for the ranks before the first kept one.
    """
    relative = logits(kept, block) - top_logprob(kept, block)[..., None]
    return jnp.minimum(kept.inverse[..., None] * relative, 0.0)


def weights(kept: Kept, block: Candidates) -> Array:
    """Return (token, rank) weights of the listed tokens relative to the likeliest kept one."""
    return jnp.exp(scaled(kept, block))


def is_listed(kept: Kept, block: Candidates) -> Array:
    """Return (token, rank) whether a listed token is kept."""
    rank = jnp.arange(block.logprob.shape[-1])
    return (rank >= kept.start[..., None]) & (rank < kept.stop[..., None])


def sums_before(weight: Array) -> Array:
    """Return (token, rank + 1) sums of the weights before each rank."""
    # Rank by rank: the tree of partial sums that `cumsum` becomes costs a CPU three times as much.
    ranks = jnp.moveaxis(weight, -1, 0)
    total, sums = lax.scan(
        lambda before, own: (before + own, before), jnp.zeros_like(ranks[0]), ranks
    )
    return jnp.moveaxis(jnp.concatenate([sums, total[None]]), 0, -1)


def sums_from(weight: Array) -> Array:
    """Return (token, rank + 1) sums of the weights from each rank on."""
    return sums_before(weight[..., ::-1])[..., ::-1]


def kept_sum(kept: Kept, values: Array) -> Array:
    """Return (token,) the sum of (token, rank) values over the kept ranks."""
    sums = sums_before(values)
    return gather(sums, kept.stop) - gather(sums, kept.start)


def tail_power(kept: Kept, block: Candidates, order: Array | float = 1.0) -> Array:
    """Return what the kept unseen tokens add to the sum of weight^order.

    Parameters
    ----------
    kept : Kept
        Gives floor, reference and inverse temperature.
    block : Candidates
    order : Array
        () exponent.

    Returns
    -------
    Array
        (scenario, token) without the actual token; (token,) zeros where no unseen one is kept.
    """
    if block.tail is None:
        return jnp.zeros_like(block.actual)
    top, inverse = top_logprob(kept, block), kept.inverse * order
    if top.ndim == 1 and inverse.ndim < 2 and kept.floor.ndim == 1:
        return tails.tail_sum(block.tail, inverse, kept.floor, top)
    parts: list[Array] = []
    for scenario in (tails.ESTIMATE, tails.LOWER, tails.UPPER):
        one = one_scenario(kept, scenario)
        top = top_logprob(one, block)
        parts.append(tails.tail_sum(block.tail, one.inverse * order, one.floor, top)[scenario])
    return jnp.stack(parts)


def actual_outside(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the weight of an actual token that is kept though not listed, else 0."""
    own = jnp.exp(jnp.minimum(kept.inverse * (block.actual - top_logprob(kept, block)), 0.0))
    return jnp.where(~block.inside & (block.actual >= kept.floor), own, 0.0)


def unseen_sum(kept: Kept, block: Candidates) -> Array:
    """Return the kept unseen tokens' weight, the actual one outside the alternatives included.

    Parameters
    ----------
    kept : Kept
        Gives floor, reference and inverse temperature.
    block : Candidates

    Returns
    -------
    Array
        (scenario, token), or (token,) zeros where only the alternatives exist.
    """
    if block.tail is None:
        return jnp.zeros_like(block.actual)
    return tail_power(kept, block) + actual_outside(kept, block)


def total_sum(kept: Kept, block: Candidates) -> Array:
    """Return the weight of all kept tokens, (scenario, token) or (token,)."""
    return kept_sum(kept, weights(kept, block)) + unseen_sum(kept, block)


def is_open(kept: Kept, block: Candidates) -> Array:
    """Return (token,) whether tokens that are not listed may be left, so that sums need them."""
    if block.tail is None:
        return jnp.zeros(block.actual.shape, bool)
    return (block.tail.number > 0) & (kept.floor <= block.tail.edge)


def or_statistic(kept: Kept, block: Candidates, listed: Array, whole: Array | None) -> Array:
    """Return a statistic of the kept tokens where the listed ones are all, else the harvest's.

    Parameters
    ----------
    kept : Kept
    block : Candidates
    listed : Array
        (token,) the statistic over the kept listed tokens.
    whole : Array or None
        (token,) the harvest's over the whole vocabulary.

    Returns
    -------
    Array
        (token,), NaN where neither holds: unseen tokens are left, but not all of them.
    """
    if block.tail is None:
        return listed
    if whole is None:
        return jnp.where(is_open(kept, block), jnp.nan, listed)
    untouched = (kept.floor <= tails.ALL) & (kept.start == 0)
    return jnp.where(is_open(kept, block), jnp.where(untouched, whole, jnp.nan), listed)


def entropy(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the entropy of the kept tokens [nat]."""
    scale = scaled(kept, block)
    weight = jnp.exp(scale)
    total = kept_sum(kept, weight)
    listed = jnp.log(total) - kept_sum(kept, weight * scale) / total
    whole = block.entropy
    if whole is not None:
        whole = jnp.where(kept.inverse == 1.0, whole, jnp.nan)
    # A sum of rounded terms may end below 0.
    return jnp.maximum(or_statistic(kept, block, listed, whole), 0.0)


def deviation(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the population standard deviation of the kept logits, before 1/T [nat]."""
    is_kept = is_listed(kept, block)
    count = jnp.maximum(kept.stop - kept.start, 1)[..., None]
    relative = jnp.where(is_kept, logits(kept, block) - top_logprob(kept, block)[..., None], 0.0)
    mean = relative.sum(axis=-1, keepdims=True) / count
    square = jnp.where(is_kept, (relative - mean) ** 2, 0.0)
    listed = jnp.sqrt((square / count).sum(axis=-1))
    return or_statistic(kept, block, listed, block.logit_std)


def lowest(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the least log-probability of the kept tokens [nat]."""
    listed = gather(logits(kept, block), kept.stop - 1)
    return or_statistic(kept, block, listed, block.min_logprob)


def entries(kept: Kept, block: Candidates) -> Array:
    """Return (token,) how many candidates there are, masked ones that llama.cpp counts included."""
    if kept.length is not None:
        return kept.length - kept.start
    number = (kept.stop - kept.start).astype(block.actual.dtype)
    if block.tail is None:
        return number
    unseen = block.tail.number + ~block.inside
    return number + or_statistic(kept, block, jnp.zeros_like(unseen), unseen)
