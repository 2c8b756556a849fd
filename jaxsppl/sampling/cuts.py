"""Stages that keep the likeliest tokens down to a threshold, or a number of them.

A neutral value changes nothing, and the likeliest token always stays.

Sources: llama.cpp `src/llama-sampler.cpp` (order and comparisons); transformers
`generation/logits_process.py` (epsilon, eta, top_h, ties of top_k); SGLang (joint top_p); top_p:
Holtzman et al. 2019, arXiv:1904.09751; min_p: Nguyen et al. 2024, arXiv:2407.01082; epsilon and
eta: Hewitt et al. 2022, arXiv:2210.15191; top_n_sigma: Tang et al. 2024, arXiv:2411.07641; top_h:
arXiv:2509.02510; p_less: arXiv:2509.23234; min_k: arXiv:2604.11012.
"""

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import TIE, Candidates
from jaxsppl.sampling.kept import (
    Kept,
    actual_outside,
    deviation,
    entries,
    entropy,
    everything,
    gather,
    is_listed,
    kept_sum,
    logits,
    lowest,
    scaled,
    sums_before,
    tail_power,
    top_logprob,
    total_sum,
    unseen_sum,
    weights,
)

# transformers' top_h looks at no more tokens than this.
TOP_H = 100


def cut_below(kept: Kept, block: Candidates, threshold: Array, on: Array) -> Kept:
    """Keep tokens of at least a threshold, listed or not; the likeliest one always.

    Parameters
    ----------
    kept : Kept
    block : Candidates
    threshold : Array
        (token,) log-probability, before 1/T [nat].
    on : Array
        () whether the stage cuts at all.

    Returns
    -------
    Kept
    """
    count = (logits(kept, block) >= threshold[..., None]).sum(axis=-1)
    last = jnp.maximum(count, kept.start + 1)
    stop = jnp.where(on, jnp.minimum(kept.stop, last), kept.stop)
    return kept._replace(
        stop=stop,
        floor=jnp.where(on, jnp.maximum(kept.floor, threshold), kept.floor),
        length=None if kept.length is None else jnp.where(on, stop, kept.length),
    )


def cut_after(kept: Kept, number: Array, on: Array) -> Kept:
    """Keep the first few of the kept tokens, at least one, and no unseen one.

    Parameters
    ----------
    kept : Kept
    number : Array
        (token,) how many.
    on : Array
        () whether the stage cuts at all.

    Returns
    -------
    Kept
    """
    last = kept.start + jnp.maximum(number, 1).astype(kept.start.dtype)
    length = kept.length
    if length is not None:
        length = jnp.where(on, jnp.minimum(length, last), length)
    return kept._replace(
        stop=jnp.where(on, jnp.minimum(kept.stop, last), kept.stop),
        floor=jnp.where(on, tails.NONE, kept.floor),
        length=length,
    )


def _share(kept: Kept, block: Candidates, log_weight: Array) -> Array:
    """Return the log-probability at which a token has so much weight relative to the likeliest."""
    return top_logprob(kept, block) + log_weight / kept.inverse - TIE


def _log(value: Array, on: Array) -> Array:
    """Return the logarithm of a value where the stage is on."""
    return jnp.log(jnp.where(on, value, 1.0))


def top_k(kept: Kept, block: Candidates, top_k: Array) -> Kept:
    """Keep the k likeliest tokens; k <= 0 is off."""
    return cut_after(kept, jnp.minimum(top_k, block.logprob.shape[-1]), top_k > 0)


def top_k_with_ties(kept: Kept, block: Candidates, top_k: Array) -> Kept:
    """Keep the k likeliest tokens and all that equal the last of them; k <= 0 is off."""
    number = jnp.clip(top_k, 1, block.logprob.shape[-1]).astype(kept.start.dtype)
    last = jnp.minimum(kept.start + number, kept.stop) - 1
    rows = logits(kept, block)
    count = (rows >= gather(rows, last)[..., None]).sum(axis=-1)
    return cut_after(kept, count - kept.start, top_k > 0)


def min_p(kept: Kept, block: Candidates, min_p: Array) -> Kept:
    """Keep tokens of at least p times the likeliest one's probability; p <= 0 is off."""
    on = min_p > 0
    return cut_below(kept, block, _share(kept, block, _log(min_p, on)), on)


def top_a(kept: Kept, block: Candidates, top_a: Array) -> Kept:
    """Keep tokens of at least a times the square of the likeliest probability; a <= 0 is off."""
    on = top_a > 0
    level = _log(top_a, on) - jnp.log(total_sum(kept, block))
    return cut_below(kept, block, _share(kept, block, level), on)


def epsilon_cutoff(kept: Kept, block: Candidates, epsilon_cutoff: Array) -> Kept:
    """Keep tokens of at least this probability; 0 is off."""
    on = epsilon_cutoff > 0
    level = _log(epsilon_cutoff, on) + jnp.log(total_sum(kept, block))
    return cut_below(kept, block, _share(kept, block, level), on)


def eta_cutoff(kept: Kept, block: Candidates, eta_cutoff: Array) -> Kept:
    """Keep tokens of at least min(eta, sqrt(eta) exp(-entropy)); 0 is off."""
    on = eta_cutoff > 0
    value = _log(eta_cutoff, on)
    level = jnp.minimum(value, 0.5 * value - entropy(kept, block))
    return cut_below(kept, block, _share(kept, block, level + jnp.log(total_sum(kept, block))), on)


def top_n_sigma(kept: Kept, block: Candidates, top_n_sigma: Array) -> Kept:
    """Mask logits more than n population standard deviations below the largest; n <= 0 is off."""
    on = top_n_sigma > 0
    # The logits' deviation and their distance from the top scale alike with 1/T.
    threshold = top_logprob(kept, block) - top_n_sigma * deviation(kept, block) - TIE
    cut = cut_below(kept, block, threshold, on)
    # llama.cpp leaves what is masked in its array.
    return cut._replace(length=kept.start + entries(kept, block))


def p_less(kept: Kept, block: Candidates, p_less: Array) -> Kept:
    """Keep tokens of at least (sum p^k)^(1/(k-1)), k being the parameter; 0 is off."""
    on = p_less > 0
    order = jnp.where(on, p_less, 2.0)
    powers = kept_sum(kept, jnp.exp(order * scaled(kept, block)))
    if block.tail is not None:
        own = actual_outside(kept, block)
        powers = powers + tail_power(kept, block, order)
        powers = powers + jnp.where(own > 0, jnp.where(own > 0, own, 1.0) ** order, 0.0)
    level = (jnp.log(powers) - jnp.log(total_sum(kept, block))) / (order - 1.0)
    return cut_below(kept, block, _share(kept, block, level), on)


def p_less_norm(kept: Kept, block: Candidates, p_less_norm: Array) -> Kept:
    """Keep tokens of at least (n sum p^2 - 1) / (n - 1), n being their number; 0 is off."""
    on = p_less_norm > 0
    weight = weights(kept, block)
    powers = kept_sum(kept, weight * weight)
    if block.tail is not None:
        powers = powers + tail_power(kept, block, 2.0) + actual_outside(kept, block) ** 2
    total = total_sum(kept, block)
    number = jnp.maximum(entries(kept._replace(length=None), block), 2.0)
    # For the uniform distribution the threshold is 0 but for rounding.
    value = jnp.maximum((number * powers / total**2 - 1.0) / (number - 1.0), TIE)
    return cut_below(kept, block, _share(kept, block, jnp.log(value * total)), on)


def top_p(kept: Kept, block: Candidates, top_p: Array) -> Kept:
    """Keep the likeliest tokens, each as long as the mass before it is below p; p >= 1 is off."""
    return _top_p(kept, kept, block, top_p, strict=True)


def top_p_joint(kept: Kept, block: Candidates, top_p: Array) -> Kept:
    """Keep tokens with at most p before them, counted before anything was cut; p >= 1 is off."""
    whole = everything(block)._replace(inverse=kept.inverse, logit=kept.logit)
    if kept.logit is not None:
        whole = whole._replace(floor=kept.floor)
    return _top_p(kept, whole, block, top_p, strict=False)


def _top_p(kept: Kept, whole: Kept, block: Candidates, top_p: Array, *, strict: bool) -> Kept:
    """Cut where the mass before a token, as a share of `whole`, reaches (or exceeds) p."""
    on = top_p < 1
    sums = sums_before(weights(whole, block))
    before = gather(sums, whole.start)
    seen = gather(sums, whole.stop) - before
    unseen = unseen_sum(whole, block)
    limit = top_p * (1.0 - TIE if strict else 1.0 + TIE)
    target = jnp.maximum(limit * (seen + unseen), jnp.finfo(sums.dtype).tiny)
    mass = sums[..., :-1] - before[..., None]
    below = mass < target[..., None] if strict else mass <= target[..., None]
    stop = jnp.minimum(kept.stop, jnp.maximum(below.sum(axis=-1), kept.start + 1))
    floor = kept.floor
    if block.tail is not None:
        share = jnp.clip((target - seen) / jnp.where(unseen > 0, unseen, 1.0), 0.0, 1.0)
        inverse, old = (jnp.broadcast_to(x, share.shape) for x in (kept.inverse, whole.floor))
        each = zip(inverse, old, share, strict=True)
        reached = jnp.stack([tails.floor_at_share(block.tail, *one) for one in each])
        floor = jnp.where(target > seen, jnp.maximum(floor, reached), tails.NONE)
    return kept._replace(
        stop=jnp.where(on, stop, kept.stop),
        floor=jnp.where(on, floor, kept.floor),
        length=None if kept.length is None else jnp.where(on, stop, kept.length),
    )


def top_h(kept: Kept, block: Candidates, top_h: Array) -> Kept:
    """Keep the likeliest of the top 100 while their part of its entropy is at most h; 1 is off."""
    window = kept._replace(stop=jnp.minimum(kept.stop, kept.start + TOP_H))
    scale = scaled(kept, block)
    weight = jnp.exp(scale)
    total = kept_sum(window, weight)
    share = weight / total[..., None]
    terms = share * (jnp.log(total)[..., None] - scale)
    sums = sums_before(terms)
    running = sums[..., 1:] - gather(sums, kept.start)[..., None]
    budget = top_h * (1.0 + TIE) * kept_sum(window, terms)
    within = is_listed(window, block) & (running <= budget[..., None])
    return cut_after(kept, within.sum(axis=-1), top_h < 1)


def min_k(kept: Kept, block: Candidates, min_k: Array) -> Kept:
    """Keep as many as stand before the steepest relative fall, or tau / range; tau <= 0 is off."""
    rows = logits(kept, block)
    fall = rows - jnp.concatenate([rows[..., 1:], rows[..., -1:]], axis=-1)
    number = jnp.arange(rows.shape[-1]) - kept.start[..., None] + 1
    is_fall = is_listed(kept._replace(stop=kept.stop - 1), block)
    steepness = jnp.where(is_fall, fall / jnp.maximum(number, 1), -1.0)
    cliff = jnp.argmax(steepness, axis=-1) - kept.start + 1
    extent = kept.inverse * (top_logprob(kept, block) - lowest(kept, block))
    # Where all logits are equal, their range is 0 and all are kept.
    most = jnp.where(extent > 0, min_k / jnp.where(extent > 0, extent, 1.0), jnp.inf)
    fallback = jnp.floor(jnp.minimum(most + TIE, rows.shape[-1]))
    return cut_after(kept, jnp.maximum(cliff, fallback), min_k > 0)


def tfs(kept: Kept, block: Candidates, tfs: Array) -> Kept:
    """Keep the likeliest up to a share z of the curvature, never the last; z >= 1 is off."""
    weight = weights(kept, block)
    number = kept.stop - kept.start
    beyond = jnp.concatenate([weight[..., 1:], weight[..., -1:]], axis=-1) - weight
    bend = jnp.abs(jnp.concatenate([beyond[..., 1:], beyond[..., -1:]], axis=-1) - beyond)
    inner = kept._replace(stop=jnp.maximum(kept.stop - 2, kept.start))
    bends = is_listed(inner, block)
    total = kept_sum(inner, bend)
    share = jnp.cumsum(jnp.where(bends, bend, 0.0), axis=-1)
    share = share / jnp.where(total > 0, total, 1.0)[..., None]
    count = (bends & (share <= tfs + TIE)).sum(axis=-1)
    # Two tokens have no curvature.
    return cut_after(kept, jnp.where(number > 2, count + 1, number), tfs < 1)
