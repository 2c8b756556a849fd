"""The stages of a sampling chain: each narrows the interval of kept ranks or rescales the logits.

Every stage here keeps an interval of ranks, so the whole chain reduces a position to its bounds,
a floor for the unseen tokens, and one inverse temperature. A neutral value changes nothing.

Sources: llama.cpp `src/llama-sampler.cpp` (order and comparisons); top_p: Holtzman et al. 2019,
arXiv:1904.09751; min_p: Nguyen et al. 2024, arXiv:2407.01082.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling import tail as tails
from jaxsppl.sampling.candidates import TIE, Candidates


class Kept(NamedTuple):
    """What a chain has left of each position so far.

    Attributes
    ----------
    start, stop : Array
        (token,) the kept ranks are start, ..., stop - 1; `stop` may have a leading scenario axis.
    floor : Array
        (token,) unseen tokens of at least this log-probability are kept [nat]; likewise.
    inverse : Array
        () the inverse temperature so far.
    """

    start: Array
    stop: Array
    floor: Array
    inverse: Array


class Stage(NamedTuple):
    """A stage of the chain.

    Attributes
    ----------
    parameters : tuple of str
        The parameters that it takes, in order.
    apply : callable
        (kept, block, *values) -> kept.
    independent : bool
        Whether it cuts at a rank and a floor that do not depend on what other stages have cut
        off the end (only on `start`, `inverse` and the logits); of several such cuts the
        shortest holds, which lets the engine compute each value of each of them once.
    """

    parameters: tuple[str, ...]
    apply: Callable[..., Kept]
    independent: bool = False


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


def gather(values: Array, place: Array) -> Array:
    """Return values[token, place[token]]; `place` may have a leading scenario axis.

    Parameters
    ----------
    values : Array
        (token, column).
    place : Array
        (token,) or (scenario, token) column of each token.

    Returns
    -------
    Array
        Of the shape of `place`.
    """
    if place.ndim == 1:
        return jnp.take_along_axis(values, place[:, None], axis=-1).squeeze(-1)
    return jnp.take_along_axis(values, place.T, axis=-1).T


def top_logprob(kept: Kept, block: Candidates) -> Array:
    """Return (token,) the log-probability of the likeliest kept token [nat]."""
    return gather(block.logprob, kept.start)


def weights(kept: Kept, block: Candidates) -> Array:
    """Return (token, rank) weights of the listed tokens relative to the likeliest kept one.

    Parameters
    ----------
    kept : Kept
        Gives the reference and the inverse temperature.
    block : Candidates

    Returns
    -------
    Array
        (token, rank) exp(b * (logprob - top)).
    """
    scaled = kept.inverse * (block.logprob - top_logprob(kept, block)[:, None])
    return jnp.exp(jnp.minimum(scaled, 0.0))


def sums_before(weight: Array) -> Array:
    """Return (token, rank + 1) sums of the weights before each rank."""
    sums = jnp.cumsum(weight, axis=-1)
    return jnp.concatenate([jnp.zeros_like(sums[:, :1]), sums], axis=-1)


def sums_from(weight: Array) -> Array:
    """Return (token, rank + 1) sums of the weights from each rank on."""
    return sums_before(weight[:, ::-1])[:, ::-1]


def temperature(kept: Kept, block: Candidates, temperature: Array) -> Kept:
    """Divide the logits; at 0 keep the likeliest token, exact ties sharing equally."""
    greedy = temperature <= 0
    rank = jnp.arange(block.logprob.shape[-1])
    equal = block.logprob == top_logprob(kept, block)[:, None]
    ties = (equal & (rank >= kept.start[:, None])).sum(axis=-1)
    return kept._replace(
        stop=jnp.where(greedy, jnp.minimum(kept.stop, kept.start + ties), kept.stop),
        floor=jnp.where(greedy, tails.NONE, kept.floor),
        inverse=jnp.where(greedy, 1.0, kept.inverse / jnp.where(greedy, 1.0, temperature)),
    )


def top_k(kept: Kept, block: Candidates, top_k: Array) -> Kept:
    """Keep the k likeliest tokens; k <= 0 is off."""
    on = top_k > 0
    last = kept.start + jnp.minimum(top_k, block.logprob.shape[-1]).astype(kept.start.dtype)
    return kept._replace(
        stop=jnp.where(on, jnp.minimum(kept.stop, last), kept.stop),
        floor=jnp.where(on, tails.NONE, kept.floor),
    )


def min_p(kept: Kept, block: Candidates, min_p: Array) -> Kept:
    """Keep tokens of at least p times the likeliest one's probability; p <= 0 is off."""
    on = min_p > 0
    threshold = top_logprob(kept, block) + jnp.log(jnp.where(on, min_p, 1.0)) / kept.inverse - TIE
    count = (block.logprob >= threshold[:, None]).sum(axis=-1)
    last = jnp.maximum(count, kept.start + 1)
    return kept._replace(
        stop=jnp.where(on, jnp.minimum(kept.stop, last), kept.stop),
        floor=jnp.where(on, jnp.maximum(kept.floor, threshold), kept.floor),
    )


def top_p(kept: Kept, block: Candidates, top_p: Array) -> Kept:
    """Keep the likeliest tokens, each as long as the mass before it is below p; p >= 1 is off."""
    on = top_p < 1
    sums = sums_before(weights(kept, block))
    before = gather(sums, kept.start)
    seen = gather(sums, kept.stop) - before
    unseen = unseen_sum(kept, block)
    target = jnp.maximum(top_p * (1.0 - TIE) * (seen + unseen), jnp.finfo(sums.dtype).tiny)
    below = (sums[None, :, :-1] - before[:, None] < jnp.atleast_2d(target)[..., None]).sum(axis=-1)
    count = below if target.ndim > 1 else below[0]
    floor = kept.floor
    if block.tail is not None:
        share = jnp.clip((target - seen) / jnp.where(unseen > 0, unseen, 1.0), 0.0, 1.0)
        inverse = jnp.broadcast_to(kept.inverse, block.actual.shape)
        old = jnp.broadcast_to(kept.floor, target.shape)
        cut = jnp.stack(
            [
                tails.floor_at_share(block.tail, inverse, old[index], share[index])
                for index in range(target.shape[0])
            ]
        )
        floor = jnp.where(target > seen, jnp.maximum(old, cut), tails.NONE)
        floor = jnp.where(on, floor, old)
    return kept._replace(
        stop=jnp.where(on, jnp.minimum(kept.stop, jnp.maximum(count, kept.start + 1)), kept.stop),
        floor=floor,
    )


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
    top = top_logprob(kept, block)
    rest = tails.tail_sum(block.tail, kept.inverse, kept.floor, top)
    return rest + actual_outside(kept, block)


def actual_outside(kept: Kept, block: Candidates) -> Array:
    """Return the weight of an actual token that is kept though not listed, else 0."""
    own = jnp.exp(jnp.minimum(kept.inverse * (block.actual - top_logprob(kept, block)), 0.0))
    return jnp.where(~block.inside & (block.actual >= kept.floor), own, 0.0)


STAGES: dict[str, Stage] = {
    "temperature": Stage(("temperature",), temperature, independent=True),
    "top_k": Stage(("top_k",), top_k, independent=True),
    "top_p": Stage(("top_p",), top_p),
    "min_p": Stage(("min_p",), min_p, independent=True),
}


def run_chain(block: Candidates, chain: Sequence[str], values: Mapping[str, Array]) -> Kept:
    """Apply the stages in order.

    Parameters
    ----------
    block : Candidates
        The positions.
    chain : sequence of str
        Names of stages, first applied first.
    values : mapping of str to Array
        () value of each parameter; one that is missing is neutral and its stage does nothing.

    Returns
    -------
    Kept
    """
    kept = everything(block)
    for name in chain:
        stage = STAGES[name]
        if all(parameter in values for parameter in stage.parameters):
            kept = stage.apply(kept, block, *(values[parameter] for parameter in stage.parameters))
    return kept
