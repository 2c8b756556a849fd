"""Stages that change probabilities and keep all tokens (but for temperature 0) and their order.

Sources: llama.cpp `src/llama-sampler.cpp` (temperature and its dynamic form); smoothing:
text-generation-webui `modules/sampler_hijack.py`; skew: exllamav2.
"""

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import ABSENT, Candidates
from jaxsppl.sampling.kept import Kept, entries, entropy, logits, scaled, top_logprob


def temperature(
    kept: Kept,
    block: Candidates,
    temperature: Array | float = 1.0,
    dynatemp_range: Array | None = None,
    dynatemp_exponent: Array | float = 1.0,
) -> Kept:
    """Divide the logits; at 0 keep the likeliest token, exact ties sharing equally.

    Parameters
    ----------
    kept : Kept
    block : Candidates
    temperature : Array
        () T; the middle of the range where there is one.
    dynatemp_range : Array, optional
        () how far the entropy moves the temperature down and up; 0 is off.
    dynatemp_exponent : Array
        () exponent of the entropy's share of its maximum.

    Returns
    -------
    Kept
    """
    if dynatemp_range is not None:
        temperature = _dynamic(kept, block, temperature, dynatemp_range, dynatemp_exponent)
    divisor = jnp.asarray(temperature, block.actual.dtype)
    greedy = divisor <= 0
    rank = jnp.arange(block.logprob.shape[-1])
    equal = logits(kept, block) == top_logprob(kept, block)[..., None]
    ties = (equal & (rank >= kept.start[..., None])).sum(axis=-1)
    return kept._replace(
        stop=jnp.where(greedy, jnp.minimum(kept.stop, kept.start + ties), kept.stop),
        floor=jnp.where(greedy, tails.NONE, kept.floor),
        inverse=jnp.where(greedy, 1.0, kept.inverse / jnp.where(greedy, 1.0, divisor)),
    )


def _dynamic(
    kept: Kept, block: Candidates, middle: Array | float, span: Array, exponent: Array | float
) -> Array:
    """Return (token,) the temperature that the entropy of the candidates sets."""
    number = entries(kept, block)
    share = entropy(kept, block) / jnp.log(jnp.maximum(number, 2.0))
    # Powers of 0 by their logarithm, whose derivative is finite.
    power = jnp.exp(exponent * jnp.log(jnp.where(share > 0, share, 1.0)))
    power = jnp.where(share > 0, power, jnp.where(jnp.asarray(exponent) > 0, 0.0, 1.0))
    low = jnp.maximum(middle - span, 0.0)
    moved = low + (middle + span - low) * jnp.where(jnp.isnan(share), share, power)
    return jnp.where((span > 0) & (number > 1), moved, middle)


def smoothing(
    kept: Kept,
    block: Candidates,
    smoothing_factor: Array,
    smoothing_curve: Array | float = 1.0,
) -> Kept:
    """Let logits fall with square and cube of their distance from the largest; 0 is off.

    Parameters
    ----------
    kept : Kept
    block : Candidates
    smoothing_factor : Array
        () f of -f (k d^2 - s d^3), k = (3 - c) / 2, s = (c - 1) / 2.
    smoothing_curve : Array
        () c, from 1 (square) to 3 (cube).

    Returns
    -------
    Kept
    """
    on = smoothing_factor > 0
    distance = scaled(kept, block)
    square, cube = (3.0 - smoothing_curve) / 2.0, (smoothing_curve - 1.0) / 2.0
    shaped = -smoothing_factor * distance**2 * (square - cube * distance)
    rows = logits(kept, block)
    shaped = jnp.where(rows > ABSENT / 2, shaped, ABSENT)
    return kept._replace(
        floor=jnp.where(on, tails.NONE, kept.floor),
        logit=jnp.where(on, shaped, rows),
        inverse=jnp.where(on, 1.0, kept.inverse),
    )


def skew(kept: Kept, block: Candidates, skew: Array) -> Kept:
    """Raise the drawn point to the power exp(-s); 0 changes nothing."""
    del block
    return kept._replace(skew=skew)
