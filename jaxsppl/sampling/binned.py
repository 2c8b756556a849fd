"""Level `binned`: tokens spread over nodes once, then a matrix product for all draws at once.

Rows are the combinations of all parameters but alpha, beta and epsilon; columns are the draws.
Intervals and their logits are float64; weights, node values and the product are float32.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsppl.sampling import draw, stages
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.nodes import WINDOW, Layout, node_values, spread

_SCATTER = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
)


@partial(jax.jit, static_argnames=("chain", "names", "nodes"), donate_argnames=("total", "cut"))
def accumulate(
    total: Array,
    cut: Array,
    block: Candidates,
    axes: tuple[Array, ...],
    fixed: Mapping[str, Array],
    *,
    chain: tuple[str, ...],
    names: tuple[str, ...],
    nodes: Layout,
) -> tuple[Array, Array]:
    """Add a block's tokens to the node sums of every row.

    Parameters
    ----------
    total : Array
        (row * scenario * node,) float32 node sums so far; the buffer is reused.
    cut : Array
        (row, scenario) float32 tokens below epsilon whatever the draw; likewise.
    block : Candidates
        The positions.
    axes : tuple of Array
        Values of each row axis.
    fixed : mapping of str to Array
        () parameters of the chain that are no axis.
    chain : tuple of str
        Names of stages, first applied first.
    names : tuple of str
        Parameter of each row axis.
    nodes : Layout
        The nodes.

    Returns
    -------
    tuple of Array
        `total` and `cut` with the block added.
    """

    def at(*values: Array) -> draw.Interval:
        kept = stages.run_chain(block, chain, {**fixed, **dict(zip(names, values, strict=True))})
        return draw.interval(kept, block)

    function: Callable[..., draw.Interval] = at
    for index in reversed(range(len(names))):
        along = [0 if position == index else None for position in range(len(names))]
        function = jax.vmap(function, in_axes=along)
    n_scenario, n_token = block.scenarios, block.weight.size
    place = jax.tree.map(lambda part: part.reshape(-1, n_token), function(*axes))
    where = spread(place, nodes)
    weight = where.weight * block.weight.astype(jnp.float32)[:, None, None]
    first = jnp.arange(place.own.shape[0], dtype=jnp.int32)[:, None, None] * nodes.n_node
    total = lax.scatter_add(
        total,
        (first + where.node).reshape(-1, 1),
        weight.reshape(-1, WINDOW),
        _SCATTER,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    lost = (where.cut * block.weight.astype(jnp.float32)).sum(axis=-1)
    return total, cut + lost.reshape(-1, n_scenario)


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


@partial(jax.jit, static_argnames=("n_row", "n_scenario"))
def products(
    total: Array, loss: Array, below: Array, *, n_row: int, n_scenario: int
) -> tuple[Array, Array]:
    """Multiply node sums with node values.

    Parameters
    ----------
    total : Array
        (row * scenario * node,) node sums.
    loss, below : Array
        (node, draw) as `tables` gives them.
    n_row, n_scenario : int
        Shape of the sums.

    Returns
    -------
    tuple of Array
        (row, scenario, draw) summed loss [nat], and (row, draw) tokens below epsilon by the
        estimate, without those that `accumulate` counts as cut.
    """
    sums = total.reshape(n_row * n_scenario, -1)
    exact = lax.Precision.HIGHEST
    summed = jnp.matmul(sums, loss, precision=exact).reshape(n_row, n_scenario, -1)
    estimate = total.reshape(n_row, n_scenario, -1)[:, 0]
    return summed, jnp.matmul(estimate, below, precision=exact)
