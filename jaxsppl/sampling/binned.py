"""Level `binned`: tokens spread over nodes once, then a matrix product for all draws at once.

Rows are the combinations of all parameters but alpha, beta and epsilon; columns are the draws.
Intervals and their logits are float64; weights, node values and the product are float32.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.nodes import WINDOW, Layout, Spread, node_values, spread
from jaxsppl.sampling.rows import rows

# Nodes that are multiplied at once: a product of longer rows falls out of a processor's caches.
BATCH = 512
_SCATTER = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
)


@partial(jax.jit, static_argnames=("chain", "names", "nodes"))
def spread_rows(
    block: Candidates,
    axes: tuple[Array, ...],
    fixed: Mapping[str, Array],
    *,
    chain: tuple[str, ...],
    names: tuple[str, ...],
    nodes: Layout,
) -> tuple[Spread, Array]:
    """Spread a block's tokens over the nodes, once for each distinct cut.

    Parameters
    ----------
    block : Candidates
        The positions.
    axes : tuple of Array
        Values of each row axis.
    fixed : mapping of str to Array
        () parameters of the chain that are no axis.
    chain : tuple of str
        Names of stages, first applied first.
    names : tuple of str
        Parameter of each row axis; those that `rows.split` finds come last.
    nodes : Layout
        The nodes.

    Returns
    -------
    tuple
        The spread intervals, (outer, cut, scenario, token), weights of padding 0; and
        (outer, row, scenario, token) the cut that holds in each row.
    """
    found = rows(block, chain, names, axes, fixed)
    where = spread(found.place, nodes)
    real = block.weight.astype(jnp.float32)
    where = where._replace(weight=where.weight * real[:, None, None], cut=where.cut * real)
    return where, found.which


# Not one program with `spread_rows`: the compiler would spread anew for each row that takes a cut.
@partial(jax.jit, static_argnames="n_node", donate_argnames=("total", "cut"))
def accumulate(
    total: Array, cut: Array, where: Spread, which: Array, *, n_node: int
) -> tuple[Array, Array]:
    """Add a block's tokens to the node sums of every row.

    Parameters
    ----------
    total : Array
        (row * scenario * node,) float32 node sums so far; the buffer is reused.
    cut : Array
        (row, scenario) float32 tokens below epsilon whatever the draw; likewise.
    where : Spread
        Intervals of the distinct cuts, as `spread_rows` gives them.
    which : Array
        (outer, row, scenario, token) the cut that holds in each row.
    n_node : int
        Number of nodes.

    Returns
    -------
    tuple of Array
        `total` and `cut` with the block added.
    """
    n_scenario, n_token = which.shape[-2:]
    n_row = which.size // (n_scenario * n_token)
    chosen = _chosen(which, where.cut.shape)
    first = jnp.arange(n_row * n_scenario, dtype=jnp.int32)[:, None, None] * n_node
    node = where.node.reshape(-1, WINDOW)[chosen].reshape(n_row * n_scenario, n_token, WINDOW)
    total = lax.scatter_add(
        total,
        (first + node).reshape(-1, 1),
        where.weight.reshape(-1, WINDOW * WINDOW)[chosen].reshape(-1, WINDOW),
        _SCATTER,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    lost = where.cut.reshape(-1)[chosen].reshape(n_row, n_scenario, n_token).sum(axis=-1)
    return total, cut + lost


def _chosen(which: Array, shape: tuple[int, ...]) -> Array:
    """Return (row * scenario * token,) places in (outer, cut, scenario, token) values, flat."""
    n_outer, n_cut, n_scenario, n_token = shape
    outer = jnp.arange(n_outer, dtype=jnp.int32)[:, None, None, None]
    scenario = jnp.arange(n_scenario, dtype=jnp.int32)[:, None]
    place = (outer * n_cut + which) * n_scenario + scenario
    return (place * n_token + jnp.arange(n_token, dtype=jnp.int32)).reshape(-1)


class NodeValues(NamedTuple):
    """What the nodes contribute under a grid of draws, of alpha by beta by epsilon.

    Attributes
    ----------
    log_mass : Array
        (node, alpha point, beta point) float32 log Beta mass [nat], by `collocation`.
    alpha, beta : Array
        (value, point) float32 weights that interpolate between these.
    log_epsilon : Array
        (epsilon,) float32 clips of the objective [nat].
    is_clipped : Array
        (node,) whether the mass is below epsilon under some draw.
    """

    log_mass: Array
    alpha: Array
    beta: Array
    log_epsilon: Array
    is_clipped: Array


@partial(jax.jit, static_argnames="nodes")
def log_masses(alpha: Array, beta: Array, *, nodes: Layout) -> Array:
    """Return the log-probability that draws give each node's interval.

    Parameters
    ----------
    alpha, beta : Array
        (draw,) shapes of the draws.
    nodes : Layout
        The nodes.

    Returns
    -------
    Array
        (draw, node) float32 log Beta mass [nat].
    """
    return lax.map(lambda draw: node_values(nodes, *draw).astype(jnp.float32), (alpha, beta))


@jax.jit
def with_clipped(values: NodeValues) -> NodeValues:
    """Find the nodes that some draw clips.

    Parameters
    ----------
    values : NodeValues
        Its `is_clipped` is not read.

    Returns
    -------
    NodeValues
        With `is_clipped` set.
    """

    def least(log_mass: Array) -> Array:
        return _between(log_mass[None], values).min()

    lowest = lax.map(least, values.log_mass, batch_size=BATCH)
    return values._replace(is_clipped=lowest < values.log_epsilon.max())


@partial(jax.jit, static_argnames=("n_row", "n_scenario"))
def products(
    total: Array, cut: Array, values: NodeValues, *, n_row: int, n_scenario: int
) -> tuple[Array, Array]:
    """Multiply node sums with node values.

    A node that no draw clips takes part at the few points; its sum over rows is interpolated. Only
    the others need their value under every draw.

    Parameters
    ----------
    total, cut : Array
        Node sums and tokens below epsilon whatever the draw, as `accumulate` gives them.
    values : NodeValues
        What the nodes contribute.
    n_row, n_scenario : int
        Shape of the sums.

    Returns
    -------
    tuple of Array
        (row, scenario, draw) summed loss [nat], and (row, draw) tokens below epsilon by the
        estimate; draws in row-major order of alpha, beta, epsilon.
    """
    sums = total.reshape(n_row * n_scenario, -1)
    n_epsilon = values.log_epsilon.size
    n_draw = values.alpha.shape[0] * values.beta.shape[0] * n_epsilon
    is_reached = (sums != 0).any(axis=0)

    def add_smooth(so_far: Array, own: Array, log_mass: Array) -> Array:
        return so_far + _matmul(own, log_mass.reshape(BATCH, -1))

    def add_clipped(
        so_far: tuple[Array, Array], own: Array, log_mass: Array
    ) -> tuple[Array, Array]:
        every = _between(log_mass, values)[..., None]
        loss = -jnp.maximum(every, values.log_epsilon).reshape(BATCH, n_draw)
        below = (every < values.log_epsilon).astype(jnp.float32).reshape(BATCH, n_draw)
        estimate = own.reshape(n_row, n_scenario, BATCH)[:, 0]
        return so_far[0] + _matmul(own, loss), so_far[1] + _matmul(estimate, below)

    start = jnp.zeros((sums.shape[0], values.log_mass[0].size), jnp.float32)
    smooth = _over_nodes(add_smooth, start, sums, values, is_reached & ~values.is_clipped)
    smooth = _between(smooth.reshape(-1, *values.log_mass.shape[1:]), values)
    summed = -jnp.broadcast_to(smooth[..., None], (*smooth.shape, n_epsilon))
    # What is cut is below epsilon under every draw.
    summed = summed - cut.reshape(-1, 1, 1, 1) * values.log_epsilon
    below = jnp.broadcast_to(cut[:, :1], (n_row, n_draw))
    summed, below = _over_nodes(
        add_clipped,
        (summed.reshape(-1, n_draw), below),
        sums,
        values,
        is_reached & values.is_clipped,
    )
    return summed.reshape(n_row, n_scenario, n_draw), below


T = TypeVar("T")


def _over_nodes(
    add: Callable[[T, Array, Array], T], start: T, sums: Array, values: NodeValues, some: Array
) -> T:
    """Add up over some of the nodes, a batch at a time: what fits the processor's caches."""
    length = -(-some.size // BATCH) * BATCH
    (at,) = jnp.nonzero(some, size=length, fill_value=some.size)

    def body(batch: Array, so_far: T) -> T:
        now = lax.dynamic_slice_in_dim(at, batch * BATCH, BATCH)
        own = jnp.take(sums, now, axis=1, mode="fill", fill_value=0)
        return add(so_far, own, jnp.take(values.log_mass, now, axis=0, mode="clip"))

    return lax.fori_loop(0, -(-some.sum() // BATCH), body, start)


def _between(at_points: Array, values: NodeValues) -> Array:
    """Return (..., alpha, beta) values from those at the (..., alpha point, beta point)."""
    # In this order of indices neither product has to turn its result around.
    exact = lax.Precision.HIGHEST
    along = jnp.einsum("...pq,ap->...qa", at_points, values.alpha, precision=exact)
    return jnp.einsum("...qa,bq->...ab", along, values.beta, precision=exact)


def _matmul(one: Array, other: Array) -> Array:
    """Return a product in the device's full precision."""
    return jnp.matmul(one, other, precision=lax.Precision.HIGHEST)
