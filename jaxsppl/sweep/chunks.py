"""A grid in chunks of one shape, so that everything is compiled once."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxsppl import schema


def chunks(
    axes: Sequence[Sequence[float]], chunk: Sequence[int]
) -> Iterator[tuple[tuple[slice, ...], list[schema.Array]]]:
    """Cut a grid into chunks of one shape; short ends repeat their last value.

    Parameters
    ----------
    axes : sequence of sequence of float
        Values of each axis.
    chunk : sequence of int
        Points along each axis in a chunk.

    Yields
    ------
    tuple
        Where the chunk lies in the grid, and its axes.
    """
    starts = [range(0, len(axis), step) for axis, step in zip(axes, chunk, strict=True)]
    for corner in itertools.product(*starts):
        where: list[slice] = []
        parts: list[schema.Array] = []
        for axis, first, step in zip(axes, corner, chunk, strict=True):
            stop = min(first + step, len(axis))
            where.append(slice(first, stop))
            part = np.asarray(axis[first:stop], np.float64)
            parts.append(np.concatenate([part, np.repeat(part[-1:], step - part.size)]))
        yield tuple(where), parts
