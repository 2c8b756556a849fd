"""The unseen tail: what the tokens outside the alternatives add to a partition function.

A server lists the K likeliest of V tokens. The rest holds the mass m = 1 - sum exp(logprob). Its
contribution at inverse temperature b, sum p^b, is bounded by the two extreme ways to spread m over
V - K tokens of at most p_K each, and estimated in between.

Estimate. Over a whole vocabulary the logits are close to normal, so the log-probability at rank j
falls from the edge as ``logprob_K - spread * (z(K) - z(j))``, z(j) being the normal quantile that j
of V tokens exceed. The one unknown, `spread`, follows from m; where m is below the rounding error
of the server's float32 sums, from the slope over the listed ranks. Against the full vocabulary
(`scripts/tail.py`) its error at T > 1 is about half that of a power law for K = 20 and 100.

Brackets. By concavity or convexity of p^b, equal shares and the fewest tokens at p_K are the two
extremes; which is the upper one flips at b = 1. A cut at p >= t confines the kept part further.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from jaxsppl.sampling.candidates import Candidates, Tail
from jaxsppl.sampling.measured import measured_sum

# Floors that keep every unseen token, and none.
ALL = -1e30
NONE = 1e30
CELLS = 48
ESTIMATE, LOWER, UPPER = 0, 1, 2

# The float32 sum over the vocabulary is off by up to 2.2e-4 for 49,152 tokens and 5.6e-4 for
# 262,144 (measured on llama.cpp); it grows like the square root.
_SLACK = 1.13e-6
# What rounding the listed log-probabilities to float32 may add to their sum.
_NOISE = 5e-7
# Above this the mass is known to a few percent in spite of that error.
_RESOLVED = 4.0


def with_tail(block: Candidates, n_vocab: int) -> Candidates:
    """Attach the model of the unseen tail to a block.

    Parameters
    ----------
    block : Candidates
        Positions with K ranks.
    n_vocab : int
        Size V of the vocabulary.

    Returns
    -------
    Candidates
        With `tail` set.
    """
    n_rank = block.logprob.shape[-1]
    outside = ~block.inside
    last = jnp.maximum(block.listed - 1, 0)
    edge = jnp.take_along_axis(block.logprob, last[:, None], axis=-1).squeeze(-1)
    mass = 1.0 - jnp.exp(block.logprob).sum(axis=-1)
    mass = mass - jnp.where(outside, jnp.exp(block.actual), 0.0)
    number = (n_vocab - block.listed - outside).astype(edge.dtype)
    slack = jnp.asarray(_SLACK * n_vocab**0.5)
    cell_count, cell_drop, cell_end = _cells(n_rank, n_vocab)
    slope = _slope(block.logprob, edge, n_vocab)
    tail = Tail(mass, slack, number, edge, slope, cell_count, cell_drop, cell_end)
    by_slope = _model_mass(tail, slope)
    held = _held(tail)
    target = jnp.where(
        held > _RESOLVED * slack, held + 0.5 * slack, jnp.minimum(by_slope, held + slack)
    )
    spread = _solve(tail, jnp.maximum(target, 1e-12 * jnp.exp(edge)))
    return block._replace(tail=tail._replace(spread=spread))


def _held(tail: Tail) -> Array:
    """Return the mass that unseen tokens can hold, each at most the edge's."""
    return jnp.minimum(tail.mass, tail.number * jnp.exp(tail.edge))


def _quantile(rank: Array, n_vocab: int) -> Array:
    """Return the normal quantile that `rank` of `n_vocab` tokens exceed."""
    return -ndtri((rank - 0.5) / n_vocab)


def _cells(n_rank: int, n_vocab: int) -> tuple[Array, Array, Array]:
    """Cut the unseen ranks into cells, even in the logarithm of the rank."""
    stop = max(n_vocab, n_rank + 1)
    ends = jnp.exp(jnp.linspace(jnp.log(n_rank + 0.5), jnp.log(stop + 0.5), CELLS + 1))
    middle = jnp.minimum(jnp.sqrt(ends[1:] * ends[:-1]), stop)
    start = _quantile(jnp.asarray(float(n_rank)), stop)
    far = jnp.minimum(ends[1:], stop)
    return ends[1:] - ends[:-1], start - _quantile(middle, stop), start - _quantile(far, stop)


def _slope(logprob: Array, edge: Array, n_vocab: int) -> Array:
    """Return the spread that the lower half of the listed ranks shows, by least squares."""
    n_rank = logprob.shape[-1]
    first = max(n_rank // 2, 1)
    rank = jnp.arange(first, n_rank + 1, dtype=logprob.dtype)
    stop = max(n_vocab, n_rank + 1)
    rise = _quantile(rank, stop) - _quantile(jnp.asarray(float(n_rank)), stop)
    above = jnp.clip(logprob[:, first - 1 :] - edge[:, None], 0.0, 1e3)
    scale = jnp.maximum((rise * rise).sum(), 1e-12)
    return (above * rise).sum(axis=-1) / scale


def _model_mass(tail: Tail, spread: Array) -> Array:
    """Return the mass that a spread implies."""
    cells = tail.cell_count * jnp.exp(-spread[:, None] * tail.cell_drop)
    return jnp.exp(tail.edge) * cells.sum(axis=-1)


def _solve(tail: Tail, target: Array) -> Array:
    """Return the spread whose mass is the target, by bisection of a falling function."""

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        above = _model_mass(tail, middle) > target
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low = jnp.zeros_like(target)
    low, high = jax.lax.fori_loop(0, 50, halve, (low, low + 1e3))
    return 0.5 * (low + high)


def _cell_sums(tail: Tail, inverse: Array, top: Array) -> Array:
    """Return (token, cell) sums of exp(b * (logprob - top)) by the model."""
    edge = (inverse * (tail.edge - top))[:, None]
    return tail.cell_count * jnp.exp(edge - (inverse * tail.spread)[:, None] * tail.cell_drop)


def _sums_above(tail: Tail, sums: Array, floor: Array) -> Array:
    """Return (token,) the part of (token, cell) sums whose log-probability is at least the floor.

    A cell that the floor cuts counts in proportion. Prefix sums and one gather keep the floor's
    axes apart from the cells'.
    """
    drop = (tail.edge - floor) / jnp.maximum(tail.spread, 1e-9)
    cell = jnp.minimum((tail.cell_end <= drop[:, None]).sum(axis=-1), CELLS - 1)
    start = jnp.where(cell > 0, tail.cell_end[jnp.maximum(cell - 1, 0)], 0.0)
    part = jnp.clip((drop - start) / (tail.cell_end[cell] - start), 0.0, 1.0)
    total = jnp.cumsum(sums, axis=-1)
    inside = _at(sums, cell)
    return _at(total, cell) - (1.0 - part) * inside


def _at(values: Array, cell: Array) -> Array:
    """Return values[token, cell[token]]."""
    return jnp.take_along_axis(values, cell[:, None], axis=-1).squeeze(-1)


def share_above(tail: Tail, inverse: Array, floor: Array, level: Array) -> Array:
    """Return which share of the kept unseen tokens' sum lies above a log-probability.

    Parameters
    ----------
    tail : Tail
        The unseen tokens.
    inverse : Array
        (token,) inverse temperature.
    floor : Array
        (token,) lowest log-probability that is kept [nat].
    level : Array
        (token,) the log-probability asked about [nat].

    Returns
    -------
    Array
        (token,) number in 0 .. 1, by the model.
    """
    sums = _cell_sums(tail, inverse, tail.edge)
    kept = _sums_above(tail, sums, floor)
    above = jnp.minimum(_sums_above(tail, sums, level), kept)
    return jnp.where(kept > 0, above / jnp.where(kept > 0, kept, 1.0), 0.0)


def floor_at_share(tail: Tail, inverse: Array, floor: Array, share: Array) -> Array:
    """Return the log-probability above which a share of the kept unseen tokens' sum lies.

    Parameters
    ----------
    tail : Tail
        The unseen tokens.
    inverse : Array
        (token,) inverse temperature.
    floor : Array
        (token,) lowest log-probability that is kept [nat].
    share : Array
        (token,) number in 0 .. 1.

    Returns
    -------
    Array
        (token,) log-probability [nat], by the model.
    """
    sums = _cell_sums(tail, inverse, tail.edge)
    total = jnp.cumsum(sums, axis=-1)
    target = share * _sums_above(tail, sums, floor)
    cell = jnp.minimum((total < target[:, None]).sum(axis=-1), CELLS - 1)
    inside = _at(sums, cell)
    before = _at(total, cell) - inside
    start = jnp.where(cell > 0, tail.cell_end[jnp.maximum(cell - 1, 0)], 0.0)
    part = jnp.clip((target - before) / jnp.where(inside > 0, inside, 1.0), 0.0, 1.0)
    return tail.edge - tail.spread * (start + part * (tail.cell_end[cell] - start))


def tail_sum(tail: Tail, inverse: Array, floor: Array, top: Array) -> Array:
    """Return what the kept unseen tokens add to the partition function.

    Parameters
    ----------
    tail : Tail
        The unseen tokens.
    inverse : Array
        Inverse temperature b, () or (token,).
    floor : Array
        (token,) lowest log-probability that is kept [nat]; `ALL` and `NONE` stand for the
        infinities.
    top : Array
        (token,) log-probability that weights are relative to [nat].

    Returns
    -------
    Array
        (scenario, token) sum of exp(b * (logprob - top)): estimate, lower and upper bracket.
    """
    inverse = jnp.broadcast_to(inverse, tail.edge.shape)
    some, held = tail.number > 0, _held(tail)
    least = jnp.where(some, jnp.maximum(held - _NOISE, 0.0), 0.0)
    most = jnp.where(some, jnp.maximum(held + tail.slack, 0.0), 0.0)
    lower, _ = _brackets(tail, inverse, floor, top, least)
    _, upper = _brackets(tail, inverse, floor, top, most)
    model = _sums_above(tail, _cell_sums(tail, inverse, top), floor)
    estimate = jnp.clip(model, lower, upper)
    # The model's own mass differs from m by the rounding of the server's sum. The difference
    # counts as a token at the top, so that at T = 1 the plain probabilities come out as harvested;
    # below T = 1 it fades at least as fast as any listed token, so that none exceeds 1.
    modelled = jnp.clip(_model_mass(tail, tail.spread), least, most)
    fading = jnp.maximum(inverse - 1.0, 0.0) * jnp.maximum(top - tail.edge, 1.0)
    rest = (tail.mass - modelled) * jnp.exp(-top - fading)
    estimate = estimate + jnp.where(floor <= ALL, rest, 0.0)
    if tail.log_sum is not None:
        low, high = measured_sum(tail, inverse, top)
        # Where all unseen tokens are left, and not at T = 1, where their sum is the mass itself.
        warm = (inverse != 1.0) & (floor <= ALL)
        middle_of_both = jnp.clip(0.5 * (low + jnp.minimum(high, 1e300)), lower, upper)
        estimate = jnp.where(warm & jnp.isfinite(high), middle_of_both, estimate)
        lower = jnp.where(warm, jnp.maximum(lower, low), lower)
        upper = jnp.where(warm, jnp.minimum(upper, high), upper)
    return jnp.stack([estimate, jnp.minimum(lower, estimate), jnp.maximum(upper, estimate)])


def _brackets(
    tail: Tail, inverse: Array, floor: Array, top: Array, mass: Array
) -> tuple[Array, Array]:
    """Return the least and the greatest (token,) sum of exp(b * (logprob - top)) for a mass."""
    count = jnp.maximum(tail.number, 1.0)
    some = (mass > 0) & (tail.number > 0)
    log_mass = jnp.log(jnp.where(some, mass, 1.0))
    equal = count * jnp.exp(inverse * (log_mass - jnp.log(count) - top))
    at_edge = jnp.exp(log_mass - tail.edge + inverse * (tail.edge - top))
    least, greatest = jnp.minimum(equal, at_edge), jnp.maximum(equal, at_edge)
    cut = floor > ALL
    level = jnp.where(cut, jnp.minimum(floor, tail.edge), tail.edge)
    at_floor = jnp.exp(log_mass - level + inverse * (level - top))
    # What lies below the floor can hold at most count * p_floor of the mass.
    above = jnp.maximum(1.0 - jnp.exp(jnp.log(count) + level - log_mass), 0.0)
    least = jnp.where(cut, above * jnp.minimum(at_floor, at_edge), least)
    greatest = jnp.where(cut, jnp.minimum(jnp.maximum(at_floor, at_edge), greatest), greatest)
    none = ~some | (floor > tail.edge)
    return jnp.where(none, 0.0, least), jnp.where(none, 0.0, greatest)
