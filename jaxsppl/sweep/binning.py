"""Executes a plan at level `binned`: node sums of the tokens, then one product a chunk of rows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxsppl import schema
from jaxsppl.sampling import binned, collocation
from jaxsppl.sampling.nodes import Layout
from jaxsppl.sampling.precision import float64
from jaxsppl.sweep.chunks import chunks
from jaxsppl.sweep.data import TokenArrays, blocks
from jaxsppl.sweep.devices import NodeSums, shared
from jaxsppl.sweep.plan import Advance, Plan, draw_axes
from jaxsppl.sweep.workers import in_threads


def _nodes(plan: Plan) -> Layout:
    """Return the nodes of a plan that has them."""
    if plan.nodes is None:
        raise ValueError(f"a plan of level '{plan.level}' has no nodes")
    return plan.nodes


@dataclass(frozen=True)
class Tables:
    """What each node contributes under some of the draws; the same for every harvest of a sweep.

    Attributes
    ----------
    first, stop : int
        Which draws, in row-major order of the draw's axes.
    values : NodeValues
        Of these; the last value of the first axis is repeated up to the plan's draws at once.
    """

    first: int
    stop: int
    values: binned.NodeValues


def make_tables(plan: Plan) -> Iterator[Tables]:
    """Evaluate the nodes of a plan of level "binned", for as many draws at once as it allows.

    Parameters
    ----------
    plan : Plan

    Yields
    ------
    Tables
    """
    alpha, beta, epsilon = draw_axes(plan.axes, plan.epsilon)
    each = beta.size * epsilon.size
    step = plan.draws // each
    for first in range(0, alpha.size, step):
        part = alpha[first : first + step]
        stop = first + part.size
        part = np.concatenate([part, np.repeat(part[-1:], step - part.size)])
        yield Tables(first * each, stop * each, _node_values(plan, part, beta, epsilon))


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


def _node_values(
    plan: Plan, alpha: schema.Array, beta: schema.Array, epsilon: schema.Array
) -> binned.NodeValues:
    """Evaluate the nodes under a few draws, some of them in each thread."""
    nodes = _nodes(plan)
    few = [collocation.points(axis, nodes.point_step) for axis in (alpha, beta)]
    pairs = np.stack([axis.ravel() for axis in np.meshgrid(*few, indexing="ij")])
    n_pair = pairs.shape[1]
    filled = np.pad(pairs, ((0, 0), (0, -n_pair % plan.workers)), mode="edge")

    def some(pairs: schema.Array) -> jax.Array:
        """Evaluate some of the draws."""
        return binned.log_masses(*pairs, nodes=nodes)

    pieces = ((part,) for part in np.split(filled, plan.workers, axis=1))
    parts = in_threads(some, pieces, plan.workers)
    log_mass = jnp.concatenate(parts)[:n_pair].T
    weights = (collocation.weights(axis, nodes.point_step) for axis in (alpha, beta))
    values = binned.NodeValues(
        log_mass.reshape(-1, *(axis.size for axis in few)),
        *(jnp.asarray(weight, jnp.float32) for weight in weights),
        log_epsilon=jnp.asarray(np.log(epsilon), jnp.float32),
        is_clipped=jnp.ones(nodes.n_node, bool),
    )
    return binned.with_clipped(values)


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
    nodes = _nodes(plan)
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
            summed, below = binned.products(
                *sums.all(), table.values, n_row=n_row, n_scenario=plan.n_scenario
            )
            inner = (*(slice(0, place.stop - place.start) for place in where), slice(0, n_now))
            part = np.asarray(summed).reshape(*row_chunk, plan.n_scenario, -1)
            part = np.moveaxis(part, n_row_axis, 0)
            # Cubic weights are negative in places: a sum can be a rounding below its least value.
            loss[(slice(None), *where, draws)] = np.maximum(part[(slice(None), *inner)], 0.0)
            share = np.clip(np.asarray(below).reshape(*row_chunk, -1), 0.0, tokens.n_token)
            ood[(*where, draws)] = share[inner]

        in_threads(rows, chunks(row_axes, row_chunk), plan.workers)
    shape = [len(axis) for axis in axes]
    return loss.reshape(-1, *shape), ood.reshape(shape)
