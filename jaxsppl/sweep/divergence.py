"""How far two models of one tokenizer are apart, position by position, from their alternatives.

P is the reference, Q the other. Only the listed alternatives are known: what both list is compared
token by token, everything else as one lump, which bounds what the whole vocabularies would give.
"""

from dataclasses import dataclass

import numpy as np

from jaxsppl.schema import Array

# Positions that are matched at once: ids are compared rank by rank.
_BLOCK = 256
_TINY = 1e-12


@dataclass(frozen=True)
class Divergence:
    """Of each position, under plain sampling.

    Attributes
    ----------
    kl_lower : array
        (token,) KL(P || Q) with all that is not listed by both as one lump: the truth is no less
        [nat].
    kl_upper : array
        (token,) the truth is no more, by the smallest log-probability of Q's vocabulary; infinite
        where that is not known [nat].
    same_top : array
        (token,) 1.0 where both find the same token the likeliest.
    unshared : array
        (token,) mass that P gives to what is not listed by both [1].
    """

    kl_lower: Array
    kl_upper: Array
    same_top: Array
    unshared: Array


def places(p_ids: Array, q_ids: Array) -> Array:
    """Return where Q lists each alternative of P.

    Parameters
    ----------
    p_ids, q_ids : array
        (token, rank) ids, -1 = absent.

    Returns
    -------
    array
        (token, rank of P) rank of Q, 0-based; -1 = not listed.
    """
    found = np.full(p_ids.shape, -1)
    for first in range(0, len(p_ids), _BLOCK):
        cut = slice(first, first + _BLOCK)
        same = (p_ids[cut, :, None] == q_ids[cut, None, :]) & (p_ids[cut, :, None] >= 0)
        found[cut] = np.where(same.any(axis=2), same.argmax(axis=2), -1)
    return found


def at_places(values: Array, place: Array, absent: float) -> Array:
    """Return (token, rank of P) values of Q, `absent` where Q does not list the token."""
    taken = np.take_along_axis(values, np.maximum(place, 0), axis=1)
    return np.where(place >= 0, taken, absent)


def plain_divergence(
    p_logprob: Array, q_logprob: Array, place: Array, q_smallest: Array | None
) -> Divergence:
    """Compare the models themselves.

    Parameters
    ----------
    p_logprob, q_logprob : array
        (token, rank) descending log-probabilities [nat]; -inf = absent.
    place : array
        As from `places`.
    q_smallest : array or None
        (token,) smallest log-probability of Q's vocabulary [nat].

    Returns
    -------
    Divergence
    """
    p_logprob, q_logprob = p_logprob.astype(np.float64), q_logprob.astype(np.float64)
    p, shared = np.exp(p_logprob), place >= 0
    q_log = at_places(q_logprob, place, 0.0)
    # Absent places are not shared; 0 stands for their -inf, so that 0 times it is 0.
    p_log = np.where(np.isfinite(p_logprob), p_logprob, 0.0)
    within = (np.where(shared, p, 0.0) * (p_log - q_log)).sum(axis=1)
    p_rest = _rest(np.where(shared, p, 0.0).sum(axis=1))
    q_rest = _rest(np.where(shared, np.exp(q_log), 0.0).sum(axis=1))
    lump = np.where(p_rest > _TINY, p_rest * np.log(np.maximum(p_rest, _TINY) / q_rest), 0.0)
    upper = np.full(len(p), np.inf)
    if q_smallest is not None:
        # Every token that is not shared has at least the smallest probability of Q.
        smallest = q_smallest.astype(np.float64)[:, None]
        alone = np.where(~shared & (p > 0), p * (p_log - smallest), 0.0).sum(axis=1)
        least_listed = np.where(np.isfinite(p_logprob), p_logprob, np.inf).min(axis=1)
        unseen = np.maximum(1.0 - p.sum(axis=1), 0.0)
        upper = within + alone + unseen * np.maximum(least_listed - smallest[:, 0], 0.0)
    lower = np.maximum(within + lump, 0.0)
    same_top = (place[:, 0] == 0).astype(np.float64)
    return Divergence(lower, np.maximum(upper, lower), same_top, p_rest)


def sampler_divergence(p: Array, q: Array, place: Array, epsilon: float) -> tuple[Array, Array]:
    """Compare what a sampler draws from either model.

    Parameters
    ----------
    p, q : array
        (token, rank) probability of each alternative after the sampler.
    place : array
        As from `places`.
    epsilon : float
        Smallest probability that counts as itself.

    Returns
    -------
    clipped_kl : array
        (token,) sum_v p(v) log (max(p(v), epsilon) / max(q(v), epsilon)): how much higher the nll
        of text that P writes is under Q than under P [nat]. Tokens that are not listed count as
        rarer than epsilon, which they are when there are at least 1 / epsilon alternatives.
    overlap : array
        (token,) sum_v min(p(v), q(v)), what is not listed by both as one lump [1].
    """
    other = at_places(q, place, 0.0)
    clipped = p * np.log(np.maximum(p, epsilon) / np.maximum(other, epsilon))
    shared = place >= 0
    lump = np.minimum(
        _rest(np.where(shared, p, 0.0).sum(axis=1)), _rest(np.where(shared, other, 0.0).sum(axis=1))
    )
    overlap = np.where(shared, np.minimum(p, other), 0.0).sum(axis=1) + lump
    return clipped.sum(axis=1), np.minimum(overlap, 1.0)


def _rest(mass: Array) -> Array:
    """Return what is left of 1; servers' sums exceed it by a little."""
    return np.maximum(1.0 - mass, _TINY)
