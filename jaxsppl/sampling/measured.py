"""The unseen tail where a harvest carries the partition function of the whole vocabulary.

``log_partition`` holds log sum_j exp(b logprob_j) at some inverse temperatures b. Less the listed
tokens it is the sum over the unseen ones, whose logarithm is a convex function of b: between two
nodes it lies below the chord, and above the chords on either side, continued. At a node it is
known but for rounding.
"""

import jax.numpy as jnp
from jax import Array

from jaxsppl.sampling.candidates import Candidates, Tail

# Relative error of the listed sums: they are rounded to float32.
_ROUNDING = 2e-7


def with_partition(
    block: Candidates, inverse: Array, log_partition: Array, error: float
) -> Candidates:
    """Attach the measured sums over the unseen tokens to a block.

    Parameters
    ----------
    block : Candidates
        With a tail.
    inverse : Array
        (node,) ascending inverse temperatures.
    log_partition : Array
        (token, node) log sum_j exp(logprob_j * inverse) over the whole vocabulary [nat].
    error : float
        What it may be off by [nat].

    Returns
    -------
    Candidates
    """
    if block.tail is None:
        return block
    listed = jnp.exp(inverse[:, None, None] * block.logprob).sum(axis=-1).T
    # At inverse temperature 0 an absent alternative counts as none.
    listed = jnp.where(inverse == 0, block.listed[:, None].astype(listed.dtype), listed)
    outside = jnp.where(block.inside[:, None], 0.0, jnp.exp(inverse * block.actual[:, None]))
    seen, total = listed + outside, jnp.exp(log_partition)
    doubt = error * total + _ROUNDING * jnp.maximum(inverse, 1.0) * seen
    tiny = jnp.finfo(total.dtype).tiny
    ends = jnp.stack([total - seen - doubt, total - seen + doubt])
    tail = block.tail._replace(inverse=inverse, log_sum=jnp.log(jnp.maximum(ends, tiny)))
    return block._replace(tail=tail)


def measured_sum(tail: Tail, inverse: Array, top: Array) -> tuple[Array, Array]:
    """Return the least and the greatest sum over all unseen tokens.

    Parameters
    ----------
    tail : Tail
        With nodes.
    inverse : Array
        (token,) inverse temperature b.
    top : Array
        (token,) log-probability that weights are relative to [nat].

    Returns
    -------
    tuple of Array
        (token,) of exp(b * (logprob - top)); 0 and infinity beyond the nodes.
    """
    nodes, sums = tail.inverse, tail.log_sum
    if nodes is None or sums is None or nodes.size < 2:
        return jnp.zeros_like(top), jnp.full_like(top, jnp.inf)
    least, most = sums
    after = jnp.clip(jnp.searchsorted(nodes, inverse, side="right"), 1, nodes.size - 1)
    before = after - 1

    def at(values: Array, node: Array) -> Array:
        return jnp.take_along_axis(values, node[:, None], axis=-1).squeeze(-1)

    def line(first: Array, second: Array, low: Array, high: Array) -> Array:
        """Return the line through two nodes at b."""
        here, there = at(low, first), at(high, second)
        return here + (there - here) * (inverse - nodes[first]) / (nodes[second] - nodes[first])

    upper = line(before, after, most, most)
    # Continued chords: from below through the node that is nearer.
    left = line(before, jnp.maximum(before - 1, 0), least, most)
    right = line(after, jnp.minimum(after + 1, nodes.size - 1), least, most)
    lower = jnp.maximum(
        jnp.where(before > 0, left, -jnp.inf), jnp.where(after < nodes.size - 1, right, -jnp.inf)
    )
    is_node = inverse == nodes[before]
    lower = jnp.where(is_node, at(least, before), lower)
    last = inverse == nodes[-1]
    lower = jnp.where(last, least[:, -1], lower)
    inside = (inverse >= nodes[0]) & (inverse <= nodes[-1])
    return (
        jnp.where(inside, jnp.exp(lower - inverse * top), 0.0),
        jnp.where(inside, jnp.exp(upper - inverse * top), jnp.inf),
    )
