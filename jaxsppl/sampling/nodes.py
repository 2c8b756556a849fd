"""Fixed nodes for a token's interval: the whole (alpha, beta) plane becomes a matrix product.

alpha, beta and epsilon enter the objective only through G(lo, hi) = log max(I_hi - I_lo, epsilon).
Every interval is spread over fixed nodes with interpolation weights that do not depend on them.
Three families of intervals:

- first: the likeliest kept token with more behind it; lo = 0, coordinate logit(hi);
- last: the least likely kept token; hi = 1, coordinate logit(lo);
- between: coordinates logit(lo) and log(logit(hi) - logit(lo)).

A token that is the only one kept contributes log 1 = 0; one that was cut, log epsilon.

The logit enters as its asinh: where the objective has its kink (mass = epsilon), its slope in the
logit is about log(1/epsilon) / |logit|, so steps that grow with |logit| keep slope times step
even. A logarithm of the width makes the clipped mass linear for narrow intervals. Since
alternatives are sorted, the mass before a token is at least its own; so a wide interval reaches to
the right, and logit(lo) is the better anchor than the middle. Weights are cubic (Lagrange) in each
coordinate: unlike linear ones they have no bias where the objective curves.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import betaincinv

from jaxsppl.sampling.beta import log_beta, log_beta_mass
from jaxsppl.sampling.draw import Interval

# Beyond these logits the Beta mass of alpha, beta >= 0.05 no longer changes the objective.
LEFT, RIGHT = -16.0, 160.0
# What may be neglected of the mass behind a token, far below the tolerance of the objective.
_NEGLIGIBLE = 1e-8
WINDOW = 4
_TINY = float(np.finfo(np.float32).tiny)


class Layout(NamedTuple):
    """Where the nodes lie; hashable, so that it can be static under jit.

    Attributes
    ----------
    edge_step : float
        Step of the first and last family in asinh(logit).
    n_edge : int
        Nodes of each of these.
    start_last : float
        Largest logit(lo); a token that begins later has less than epsilon under every draw.
    stop_last : float
        Largest logit(hi); no draw has a mass worth counting behind it.
    start_step : float
        Step of the family between in asinh(logit(lo)).
    n_start : int
        Its nodes along that.
    width_step : float
        Step in log(logit(hi) - logit(lo)).
    width_first : float
        Smallest such coordinate; below it no mass reaches epsilon.
    n_width : int
        Its nodes along that.
    point_step : float
        Step in log alpha and log beta of the draws under which nodes are evaluated.
    """

    edge_step: float
    n_edge: int
    start_last: float
    stop_last: float
    start_step: float
    n_start: int
    width_step: float
    width_first: float
    n_width: int
    point_step: float

    @property
    def n_node(self) -> int:
        """All nodes."""
        return 2 * self.n_edge + self.n_start * self.n_width


def layout(alpha: np.ndarray, beta: np.ndarray, epsilon: np.ndarray, refine: float) -> Layout:
    """Return the nodes for a set of draws.

    Parameters
    ----------
    alpha, beta : array
        (value,) shapes of the draws, each with each.
    epsilon : array
        (value,) clips of the objective.
    refine : float
        1 by default; the steps are divided by it.

    Returns
    -------
    Layout
    """
    edge_step, start_step, width_step = 0.0025 / refine, 0.02 / refine, 0.06 / refine
    first = np.arcsinh(LEFT)
    alpha, beta = (axis.ravel() for axis in np.meshgrid(alpha, beta))
    # In the logit the density of the draw is at most this, so a narrower interval is clipped.
    total = alpha + beta
    peak = alpha * np.log(alpha / total) + beta * np.log(beta / total)
    peak = peak - np.asarray(log_beta(jnp.asarray(alpha), jnp.asarray(beta)))
    width_first = float(np.log(epsilon.min()) - peak.max()) - 2 * width_step
    start_last = _logit_above(alpha, beta, 0.999 * epsilon.min())
    stop_last = _logit_above(alpha, beta, _NEGLIGIBLE * epsilon.min())
    width_last = float(np.log(stop_last - LEFT))

    def count(length: float, step: float) -> int:
        # An odd number of nodes would cost several times as much: XLA then makes no vector code.
        return 16 * int(np.ceil((max(length, step) / step + WINDOW) / 16))

    return Layout(
        edge_step=edge_step,
        n_edge=count(np.arcsinh(stop_last) - first, edge_step),
        start_last=start_last,
        stop_last=stop_last,
        start_step=start_step,
        n_start=count(np.arcsinh(start_last) - first, start_step),
        width_step=width_step,
        width_first=width_first,
        n_width=count(width_last - width_first, width_step),
        point_step=0.25 / refine,
    )


def _logit_above(alpha: np.ndarray, beta: np.ndarray, mass: float) -> float:
    """Return the largest logit over the draws above which one has this mass, at most `RIGHT`."""
    # The distance from 1, which is what a double can hold.
    rest = np.maximum(betaincinv(beta, alpha, mass), np.exp(-2 * RIGHT))
    return float(np.clip((np.log1p(-rest) - np.log(rest)).max(), 1.0, RIGHT))


def node_intervals(nodes: Layout) -> Interval:
    """Return the interval that each node stands for.

    Parameters
    ----------
    nodes : Layout

    Returns
    -------
    Interval
        (node,) masses, in the floating type in force.
    """
    first = np.arcsinh(LEFT)
    edge = jnp.sinh(first + nodes.edge_step * (jnp.arange(nodes.n_edge) - 1.0))
    below, above = _sigmoid(edge), _sigmoid(-edge)
    none = jnp.zeros_like(edge)
    start = jnp.sinh(first + nodes.start_step * (jnp.arange(nodes.n_start) - 1.0))
    width = nodes.width_first + nodes.width_step * (jnp.arange(nodes.n_width) - 1.0)
    start, width = start[:, None], jnp.exp(width)[None, :]
    stop = start + width
    # sigmoid(stop) - sigmoid(start) without cancellation
    own = _sigmoid(stop) * _sigmoid(-start) * -jnp.expm1(-width)
    before = jnp.broadcast_to(_sigmoid(start), own.shape)
    return Interval(
        before=jnp.concatenate([none, below, before.ravel()]),
        own=jnp.concatenate([below, above, own.ravel()]),
        after=jnp.concatenate([above, none, _sigmoid(-stop).ravel()]),
    )


def node_values(nodes: Layout, alpha: Array, beta: Array) -> Array:
    """Return the log-probability that one draw gives each node's interval.

    Parameters
    ----------
    nodes : Layout
    alpha, beta : Array
        () shapes of the draw.

    Returns
    -------
    Array
        (node,) log Beta mass [nat].
    """
    return log_beta_mass(*node_intervals(nodes), alpha, beta)


class Spread(NamedTuple):
    """How intervals are spread over nodes.

    Attributes
    ----------
    node : Array
        (..., window) first node of each window of `WINDOW` neighbours; int32.
    weight : Array
        (..., window, WINDOW) weights; float32.
    cut : Array
        (...) 1 where the token's mass is below epsilon whatever the draw, else 0.
    """

    node: Array
    weight: Array
    cut: Array


def spread(place: Interval, nodes: Layout) -> Spread:
    """Spread intervals over the nodes.

    Parameters
    ----------
    place : Interval
        Masses of any one shape; `own` is 0 where a token was cut.
    nodes : Layout

    Returns
    -------
    Spread
        With `WINDOW` windows an interval; for the families with one coordinate all but one are 0.
    """
    tiny = jnp.finfo(place.own.dtype).tiny
    kept = place.own > 0
    is_first, is_last = place.before <= 0, place.after <= 0
    only = is_first & is_last
    between = ~is_first & ~is_last
    # The mass behind may be far below float32. The rest is at least a token's share of the kept
    # ones, and a coordinate in float32 is a thousand times finer than a step.
    log_after = jnp.log(jnp.maximum(place.after, tiny)).astype(jnp.float32)
    single = Interval(*(part.astype(jnp.float32) for part in place))
    own = jnp.where(kept, single.own, 1.0)
    log_before = jnp.log(jnp.maximum(single.before, _TINY))
    start = jnp.maximum(log_before - jnp.log(own + single.after), LEFT)
    stop = jnp.clip(jnp.log(single.before + own) - log_after, LEFT, nodes.stop_last)
    # stop - start = log(1 + own / (before * after)) without cancellation, the masses summing to 1
    ratio = jnp.log(own) - log_before - log_after
    gap = jnp.where(ratio > 20.0, ratio, jnp.log1p(jnp.exp(jnp.minimum(ratio, 20.0))))
    width = jnp.log(jnp.clip(gap, _TINY, nodes.stop_last - LEFT))
    narrow = between & (width < nodes.width_first)
    late = ~is_first & (start > nodes.start_last)
    cut = ~kept | narrow | late
    first = float(np.arcsinh(LEFT))
    edge = (jnp.arcsinh(jnp.where(is_first, stop, start)) - first) / nodes.edge_step + 1.0
    row = (jnp.arcsinh(start) - first) / nodes.start_step + 1.0
    column = (width - nodes.width_first) / nodes.width_step + 1.0
    edge_at, edge_weight = _cubic(edge, nodes.n_edge)
    row_at, row_weight = _cubic(row, nodes.n_start)
    column_at, column_weight = _cubic(column, nodes.n_width)
    base = 2 * nodes.n_edge + row_at * nodes.n_width + column_at
    steps = jnp.arange(WINDOW) * nodes.n_width
    alone = jnp.where(is_first, edge_at, nodes.n_edge + edge_at)
    index = jnp.where(between[..., None], base[..., None] + steps, alone[..., None])
    inner = row_weight[..., :, None] * column_weight[..., None, :]
    only_window = (jnp.arange(WINDOW) == 0)[:, None] * edge_weight[..., None, :]
    weight = jnp.where(between[..., None, None], inner, only_window)
    live = (kept & ~only & ~narrow & ~late)[..., None, None]
    return Spread(
        index.astype(jnp.int32),
        jnp.where(live, weight, 0.0).astype(jnp.float32),
        cut.astype(jnp.float32),
    )


def _cubic(position: Array, count: int) -> tuple[Array, Array]:
    """Return the first of four neighbours and their Lagrange weights."""
    at = jnp.clip(jnp.floor(position).astype(jnp.int32) - 1, 0, count - WINDOW)
    x = position - at - 1.0
    below, above = x + 1.0, x - 1.0
    beyond = x - 2.0
    weight = jnp.stack(
        [
            -x * above * beyond / 6.0,
            below * above * beyond / 2.0,
            -below * x * beyond / 2.0,
            below * x * above / 6.0,
        ],
        axis=-1,
    )
    return at, weight


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), accurate in relative terms far to the left."""
    return jnp.exp(jnp.minimum(x, 0.0)) / (1.0 + jnp.exp(-jnp.abs(x)))
