"""From kept ranks to the actual token's interval, and from the interval to its probability."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.beta import log_beta_mass
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.kept import (
    Kept,
    actual_outside,
    gather,
    one_scenario,
    sums_before,
    sums_from,
    unseen_sum,
    weights,
)


class Interval(NamedTuple):
    """Where the actual token lies among the kept ones, laid on [0, 1] by falling probability.

    Attributes
    ----------
    before, own, after : Array
        (scenario, token) normalised masses; `own` is 0 where the token was cut. They come from
        sums on both sides, so that nothing cancels near 1.
    """

    before: Array
    own: Array
    after: Array


def interval(kept: Kept, block: Candidates) -> Interval:
    """Return the actual token's interval.

    Parameters
    ----------
    kept : Kept
        What the chain has left.
    block : Candidates
        The positions.

    Returns
    -------
    Interval
        With one scenario without a tail, else three: estimate, lower and upper bracket.
    """
    weight = weights(kept, block)
    sums, rest = sums_before(weight), sums_from(weight)
    start = gather(sums, kept.start)
    total = gather(sums, kept.stop) - start
    place = jnp.minimum(block.rank, weight.shape[-1] - 1)
    listed = block.inside & (block.rank >= kept.start) & (block.rank < kept.stop)
    own = jnp.where(listed, gather(weight, place), 0.0)
    before = gather(sums, place) - start
    # Not total - before - own: near 1 that would be rounding noise, and a small `beta` shows it.
    after = gather(rest, place + 1) - gather(rest, kept.stop)
    if block.tail is not None:
        estimate = one_scenario(kept, tails.ESTIMATE)
        inverse = jnp.broadcast_to(estimate.inverse, block.actual.shape)
        outside = actual_outside(kept, block)
        unseen = unseen_sum(kept, block)
        # How much of the tail is likelier than an unlisted actual token, only the model can say.
        others = unseen - outside
        share = tails.share_above(block.tail, inverse, estimate.floor, block.actual)
        likelier = jnp.maximum(others, 0.0) * share
        is_outside = outside > 0
        before = jnp.where(is_outside, total + likelier, before)
        after = jnp.where(is_outside, others - likelier, after + unseen)
        # Listed probabilities that sum to more than 1 leave less than nothing after the last ones.
        before = jnp.maximum(before + jnp.minimum(after, 0.0), 0.0)
        after = jnp.maximum(after, 0.0)
        own = own + outside
        total = total + unseen
    # A token that was cut has no interval; its total is any number above 0.
    total = jnp.where(own > 0, total, 1.0)
    shape = (block.scenarios, *block.actual.shape)
    place = Interval(*(jnp.broadcast_to(part / total, shape) for part in (before, own, after)))
    return place if kept.skew is None else skewed(place, kept.skew)


def skewed(place: Interval, skew: Array) -> Interval:
    """Return where an interval goes when the drawn point is raised to the power exp(-skew).

    Parameters
    ----------
    place : Interval
        Normalised masses; `own` is 0 where the token was cut.
    skew : Array
        () s; a point x of the interval goes to x^exp(s).

    Returns
    -------
    Interval
    """
    power = jnp.exp(skew)
    some = place.own > 0
    first = place.before <= 0
    low = jnp.where(some & ~first, place.before, 1.0)
    # The upper end from the side that is nearer, so that nothing cancels near 1.
    high = jnp.where(some, place.before + place.own, 1.0)
    near = jnp.log1p(-jnp.where(some, jnp.minimum(place.after, 0.5), 0.0))
    log_high = jnp.where(place.after < 0.5, near, jnp.log(high))
    upper = jnp.exp(power * log_high)
    # Of the part up to the upper end, what lies above the lower one.
    part = -jnp.expm1(-power * jnp.log1p(jnp.where(some, place.own, 0.0) / low))
    own = jnp.where(some, upper * jnp.where(first, 1.0, part), 0.0)
    before = jnp.where(some & ~first, jnp.exp(power * jnp.log(low)), 0.0)
    return Interval(before, own, -jnp.expm1(power * log_high))


def probability(place: Interval, alpha: Array | None, beta: Array | None) -> Array:
    """Return what the draw gives the actual token.

    Parameters
    ----------
    place : Interval
        Its interval.
    alpha, beta : Array or None
        () shapes of the Beta distribution of the drawn point; None stands for 1, and both 1 is
        plain sampling.

    Returns
    -------
    Array
        (scenario, token) probability.
    """
    if alpha is None and beta is None:
        return place.own
    one = jnp.ones((), place.own.dtype)
    some = place.own > 0
    log_mass = log_beta_mass(
        jnp.where(some, place.before, 0.0),
        jnp.where(some, place.own, 1.0),
        jnp.where(some, place.after, 0.0),
        one if alpha is None else alpha,
        one if beta is None else beta,
    )
    return jnp.where(some, jnp.exp(log_mass), 0.0)
