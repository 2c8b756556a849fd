"""Stages that may cut the likeliest tokens too: what is left is an interval within the ranks.

Sources: llama.cpp `src/llama-sampler.cpp`; typical_p: Meister et al. 2022, arXiv:2202.00666, its
inclusive form as in transformers; xtc: llama.cpp pull request 9742.
"""

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import TIE, Candidates
from jaxsppl.sampling.kept import (
    Kept,
    entropy,
    is_listed,
    kept_sum,
    logits,
    scaled,
    top_logprob,
    total_sum,
)


def typical_p(kept: Kept, block: Candidates, typical_p: Array) -> Kept:
    """Keep the tokens with a surprise nearest the entropy until their mass exceeds p; 1 is off."""
    return _typical(kept, block, typical_p, strict=True)


def typical_p_with_ties(kept: Kept, block: Candidates, typical_p: Array) -> Kept:
    """Keep such tokens until their mass reaches p, and what is as near as the last; 1 is off."""
    return _typical(kept, block, typical_p, strict=False)


def _typical(kept: Kept, block: Candidates, typical_p: Array, *, strict: bool) -> Kept:
    """Keep the interval of ranks around the entropy."""
    on = typical_p < 1
    scale = scaled(kept, block)
    weight = jnp.exp(scale)
    total = kept_sum(kept, weight)
    # The surprise above the entropy ascends with the rank.
    excess = jnp.log(total)[..., None] - scale - entropy(kept, block)[..., None]
    # A surprise that is the entropy itself, as of equal tokens, is so but for rounding.
    excess = jnp.where(jnp.abs(excess) < TIE, 0.0, excess)
    is_kept = is_listed(kept, block)
    score = jnp.where(is_kept, jnp.abs(excess), jnp.inf)
    rank = jnp.broadcast_to(jnp.arange(score.shape[-1]), score.shape)
    # Among equals the one nearer to the entropy in rank comes first, so no rank is left out.
    order = jnp.lexsort((jnp.where(excess < 0, -rank, rank), score), axis=-1)
    share = jnp.where(is_kept, weight, 0.0) / total[..., None]
    mass = jnp.cumsum(jnp.take_along_axis(share, order, axis=-1), axis=-1)
    if strict:
        number = (mass <= typical_p + TIE).sum(axis=-1) + 1
    else:
        last = jnp.minimum((mass < typical_p - TIE).sum(axis=-1), kept.stop - kept.start - 1)
        ranked = jnp.take_along_axis(score, order, axis=-1)
        farthest = jnp.take_along_axis(ranked, last[..., None], axis=-1)
        number = (ranked <= farthest + TIE).sum(axis=-1)
    number = jnp.minimum(number, kept.stop - kept.start)
    is_in = jnp.arange(score.shape[-1]) < number[..., None]
    first = jnp.where(is_in, order, score.shape[-1]).min(axis=-1)
    stop = jnp.where(on, first + number, kept.stop)
    return kept._replace(
        start=jnp.where(on, first, kept.start),
        stop=stop,
        floor=jnp.where(on, tails.NONE, kept.floor),
        length=None if kept.length is None else jnp.where(on, stop, kept.length),
    )


def xtc(
    kept: Kept, block: Candidates, xtc_probability: Array, xtc_threshold: Array | float = 0.1
) -> list[tuple[Array, Kept]]:
    """Leave out, by a coin, all but the least of the tokens of at least the threshold.

    Parameters
    ----------
    kept : Kept
    block : Candidates
    xtc_probability : Array
        () how often; 0 is off.
    xtc_threshold : Array
        () probability; above 0.5 no two tokens reach it.

    Returns
    -------
    list of tuple
        The weight of each side of the coin, and what it leaves.
    """
    level = jnp.log(jnp.maximum(xtc_threshold, jnp.finfo(block.actual.dtype).tiny))
    level = (level + jnp.log(total_sum(kept, block))) / kept.inverse
    threshold = top_logprob(kept, block) + level - TIE
    count = (logits(kept, block) >= threshold[..., None]).sum(axis=-1)
    last = jnp.maximum(jnp.minimum(count, kept.stop) - 1, kept.start)
    return [(1.0 - xtc_probability, kept), (xtc_probability, kept._replace(start=last))]
