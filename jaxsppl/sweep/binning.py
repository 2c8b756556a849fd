"""Executes a plan at level `binned`: node sums of the tokens, then one product a chunk of rows."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxsppl import schema
from jaxsppl.sampling import binned
from jaxsppl.sampling.nodes import Layout
from jaxsppl.sampling.precision import float64
from jaxsppl.sweep.chunks import chunks
from jaxsppl.sweep.data import TokenArrays, blocks
from jaxsppl.sweep.devices import NodeSums, shared
from jaxsppl.sweep.plan import Advance, Plan
from jaxsppl.sweep.workers import in_threads

# Tokens reach a part of the nodes; the product takes only those, in one of so many lengths.
_LENGTHS = 8


@dataclass(frozen=True)
class Tables:
    """What each node contributes under some of the draws; the same for every harvest of a sweep.

    Attributes
    ----------
    first, stop : int
        Which draws, in row-major order of the draw's axes.
    epsilon : array
        (draw,) clips; the last is repeated up to the plan's number of draws at once.
    loss, below : jax.Array
        (node, draw) float32, as `binned.tables` gives them.
    """

    first: int
    stop: int
    epsilon: schema.Array
    loss: jax.Array
    below: jax.Array


def make_tables(plan: Plan) -> Iterator[Tables]:
    """Evaluate the nodes of a plan of level "binned", as many draws at once as it allows.

    Parameters
    ----------
    plan : Plan

    Yields
    ------
    Tables
    """
    if plan.nodes is None:
        raise ValueError(f"a plan of level '{plan.level}' has no nodes")
    values = {axis.name: axis.values for axis in plan.axes}
    names = plan.order[len(plan.order) - plan.n_draw_axis :]
    draws = draw_columns(names, [values[name] for name in names], plan.epsilon)
    for first in range(0, len(draws), plan.draws):
        part = draws[first : first + plan.draws]
        stop = first + len(part)
        part = np.concatenate([part, np.repeat(part[-1:], plan.draws - len(part), axis=0)])
        yield Tables(first, stop, part[:, 2], *_node_values(plan, plan.nodes, part))


def shared_tables(plan: Plan) -> list[Tables] | None:
    """Return the node values where one table holds all draws; it then serves all harvests.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    list of Tables or None
    """
    if plan.level != "binned" or plan.n_draw > plan.draws:
        return None
    with float64():
        return list(make_tables(plan))


def _node_values(plan: Plan, nodes: Layout, draws: schema.Array) -> tuple[jax.Array, jax.Array]:
    """Return (node, draw) values of (draw, 3) alpha, beta and epsilon, a part in each thread."""
    each = -(-len(draws) // plan.workers)
    filled = np.concatenate(
        [draws, np.repeat(draws[-1:], each * plan.workers - len(draws), axis=0)]
    )

    def values(part: schema.Array) -> tuple[jax.Array, jax.Array]:
        """Evaluate some of the draws."""
        return binned.tables(*(jnp.asarray(column) for column in part.T), nodes=nodes)

    parts = in_threads(values, ((part,) for part in np.split(filled, plan.workers)), plan.workers)
    loss, below = (jnp.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return loss[:, : len(draws)], below[:, : len(draws)]


def _active(total: jax.Array, loss: jax.Array) -> jax.Array:
    """Return the nodes with weight, filled up to one of few lengths: each is compiled once."""
    n_node = loss.shape[0]
    used = np.flatnonzero(np.asarray(binned.touched(total, loss)))
    step = -(-n_node // _LENGTHS)
    length = max(1, -(-used.size // step)) * step
    return jnp.asarray(np.concatenate([used, np.full(length - used.size, n_node)]), jnp.int32)


def binned_sums(
    plan: Plan,
    tokens: TokenArrays,
    axes: Sequence[Sequence[float]],
    tables: Iterable[Tables],
    advance: Advance,
) -> tuple[schema.Array, schema.Array]:
    """Return a grid's sums over the tokens of a harvest.

    Parameters
    ----------
    plan : Plan
        Of level "binned"; its `nodes` are set. The axes of the draw come last in its order.
    tokens : TokenArrays
        The harvest.
    axes : sequence of sequence of float
        Values of each axis, in the plan's order.
    tables : iterable of Tables
        As `make_tables` gives them for the plan.
    advance : callable
        Told the number of (token, point) pairs after each step.

    Returns
    -------
    tuple of array
        (scenario, grid) summed losses [nat] and (grid) tokens below epsilon.
    """
    nodes = plan.nodes
    if nodes is None:
        raise ValueError("a plan of level 'binned' has nodes")
    n_row_axis = len(plan.order) - plan.n_draw_axis
    row_axes = axes[:n_row_axis]
    row_chunk = plan.chunk[:n_row_axis]
    n_row = math.prod(row_chunk)
    row_shape = [len(axis) for axis in row_axes]
    n_draw = math.prod(len(axis) for axis in axes[n_row_axis:])
    loss = np.zeros((plan.n_scenario, *row_shape, n_draw))
    ood = np.zeros((*row_shape, n_draw))
    # Modelling the tail costs more than a chunk of rows, so it is done once for all of them.
    kept = list(shared(blocks(tokens, plan.block, plan.tail)))
    for table in tables:
        draws = slice(table.first, table.stop)
        n_now = table.stop - table.first

        def rows(
            where: tuple[slice, ...],
            parts: list[schema.Array],
            table: Tables = table,
            draws: slice = draws,
            n_now: int = n_now,
        ) -> None:
            """Compute one chunk of rows for these draws."""
            sums = NodeSums(n_row, plan.n_scenario, nodes.n_node)
            values = tuple(jnp.asarray(axis) for axis in parts)
            n_point = math.prod(place.stop - place.start for place in where) * n_now
            for block in kept:
                spread_tokens = binned.spread_rows(
                    block,
                    values,
                    {},
                    chain=plan.chain,
                    names=plan.order[:n_row_axis],
                    nodes=nodes,
                )
                sums.add(*spread_tokens)
                advance(n_point * min(plan.block, tokens.n_token))
            total, cut = sums.all()
            summed, below = binned.products(
                total,
                table.loss,
                table.below,
                _active(total, table.loss),
                n_row=n_row,
                n_scenario=plan.n_scenario,
            )
            lost = np.asarray(cut, np.float64)
            part = np.asarray(summed, np.float64) - lost[..., None] * np.log(table.epsilon)
            count = np.asarray(below, np.float64) + lost[:, :1]
            inner = (*(slice(0, place.stop - place.start) for place in where), slice(0, n_now))
            part = np.moveaxis(part.reshape(*row_chunk, plan.n_scenario, -1), n_row_axis, 0)
            # Cubic weights are negative in places: a sum can be a rounding below its least value.
            loss[(slice(None), *where, draws)] = np.maximum(part[(slice(None), *inner)], 0.0)
            share = np.clip(count.reshape(*row_chunk, -1), 0.0, tokens.n_token)
            ood[(*where, draws)] = share[inner]

        in_threads(rows, chunks(row_axes, row_chunk), plan.workers)
    shape = [len(axis) for axis in axes]
    return loss.reshape(-1, *shape), ood.reshape(shape)


def draw_columns(
    names: Sequence[str], axes: Sequence[Sequence[float]], epsilon: float
) -> schema.Array:
    """Return (draw, 3) alpha, beta and epsilon of every combination of the draw's axes.

    Parameters
    ----------
    names : sequence of str
        Those of alpha, beta and epsilon that are axes, in the grid's order.
    axes : sequence of sequence of float
        Their values.
    epsilon : float
        For a grid without that axis.

    Returns
    -------
    array
    """
    columns: list[list[float]] = []
    for values in itertools.product(*axes):
        point = {"alpha": 1.0, "beta": 1.0, "epsilon": epsilon}
        point.update(zip(names, values, strict=True))
        columns.append([point["alpha"], point["beta"], point["epsilon"]])
    return np.asarray(columns, np.float64)
