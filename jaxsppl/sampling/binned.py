"""Level `binned`: tokens spread over nodes once, then a matrix product for all draws at once.

Rows are the combinations of all parameters but alpha, beta and epsilon; columns are the draws.
Intervals and their logits are float64; weights, node values and the product are float32.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.nodes import WINDOW, Layout, Spread, node_values, spread
from jaxsppl.sampling.rows import rows

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


@partial(jax.jit, static_argnames="nodes")
def tables(alpha: Array, beta: Array, epsilon: Array, *, nodes: Layout) -> tuple[Array, Array]:
    """Return what each node contributes under each draw.

    Parameters
    ----------
    alpha, beta, epsilon : Array
        (draw,) shapes of the draw and clip of the objective.
    nodes : Layout
        The nodes.

    Returns
    -------
    tuple of Array
        (node, draw) float32: loss -log max(mass, epsilon) [nat], and whether mass < epsilon.
    """

    def one(draws: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        a, b, clip = draws
        log_mass = node_values(nodes, a, b)
        low = jnp.log(clip)
        loss = -jnp.maximum(log_mass, low)
        return loss.astype(jnp.float32), (log_mass < low).astype(jnp.float32)

    loss, below = lax.map(one, (alpha, beta, epsilon))
    return loss.T, below.T


@jax.jit
def touched(total: Array, loss: Array) -> Array:
    """Return (node,) which nodes any row has put weight on.

    Parameters
    ----------
    total : Array
        (row * scenario * node,) node sums.
    loss : Array
        (node, draw); only its shape counts.

    Returns
    -------
    Array
        Booleans.
    """
    return (total.reshape(-1, loss.shape[0]) != 0).any(axis=0)


@partial(jax.jit, static_argnames=("n_row", "n_scenario"))
def products(
    total: Array, loss: Array, below: Array, active: Array, *, n_row: int, n_scenario: int
) -> tuple[Array, Array]:
    """Multiply node sums with node values.

    Parameters
    ----------
    total : Array
        (row * scenario * node,) node sums.
    loss, below : Array
        (node, draw) as `tables` gives them.
    active : Array
        (some,) the nodes to take; all with weight must be among them, the rest is filled up with
        the number of nodes.
    n_row, n_scenario : int
        Shape of the sums.

    Returns
    -------
    tuple of Array
        (row, scenario, draw) summed loss [nat], and (row, draw) tokens below epsilon by the
        estimate, without those that `accumulate` counts as cut.
    """
    sums = jnp.take(
        total.reshape(n_row * n_scenario, -1), active, axis=1, mode="fill", fill_value=0
    )
    loss, below = (jnp.take(part, active, axis=0, mode="clip") for part in (loss, below))
    exact = lax.Precision.HIGHEST
    summed = jnp.matmul(sums, loss, precision=exact).reshape(n_row, n_scenario, -1)
    estimate = sums.reshape(n_row, n_scenario, -1)[:, 0]
    return summed, jnp.matmul(estimate, below, precision=exact)
