"""A sweep in parts: sums over shards of tokens add up, ranges of rows lie side by side.

A part can be computed anywhere and in any order. Finished parts may be kept in a folder, from
which a sweep that was stopped goes on.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxsppl import __version__, store
from jaxsppl.sweep.binning import Tables, shared_tables
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.engine import Sums, grid_sums
from jaxsppl.sweep.plan import Advance, Axis, Plan

# Evaluates a plan's grid on one harvest.
Evaluate = Callable[[Plan, TokenArrays, Advance], Sums]


class Part(NamedTuple):
    """Some values of the slowest axis on some tokens."""

    rows: slice
    tokens: slice


def parts_of(plan: Plan, n_token: int) -> list[Part]:
    """Cut a grid and a harvest.

    Parameters
    ----------
    plan : Plan
        Its `rows` and `shard` give the sizes.
    n_token : int
        Tokens of the harvest.

    Returns
    -------
    list of Part
        All shards of the first rows, then of the next.
    """
    n_row = len(_slowest(plan).values)
    return [
        Part(
            slice(row, min(row + plan.rows, n_row)), slice(first, min(first + plan.shard, n_token))
        )
        for row in range(0, n_row, plan.rows)
        for first in range(0, n_token, plan.shard)
    ]


def of_part(plan: Plan, tokens: TokenArrays, part: Part) -> tuple[Plan, TokenArrays]:
    """Return the plan and the tokens of a part.

    Parameters
    ----------
    plan : Plan
        Of the whole.
    tokens : TokenArrays
        The harvest.
    part : Part

    Returns
    -------
    tuple
        As `grid_sums` takes them; tables of the whole plan serve the part.
    """
    slowest = _slowest(plan)
    axes = tuple(
        replace(axis, values=axis.values[part.rows]) if axis is slowest else axis
        for axis in plan.axes
    )
    chunk = (min(plan.chunk[0], plan.rows), *plan.chunk[1:])
    return replace(plan, axes=axes, chunk=chunk), tokens.take(part.tokens)


def together(plan: Plan, parts: Iterable[tuple[Part, Sums]]) -> Sums:
    """Put the sums of parts into those of the whole.

    Parameters
    ----------
    plan : Plan
        Of the whole.
    parts : iterable of tuple
        Parts and their sums.

    Returns
    -------
    Sums
    """
    shape = tuple(len(axis.values) for axis in plan.axes)
    loss, ood = np.zeros((plan.n_scenario, *shape)), np.zeros(shape)
    before = (slice(None),) * plan.axes.index(_slowest(plan))
    for part, sums in parts:
        loss[(slice(None), *before, part.rows)] += sums.loss
        ood[(*before, part.rows)] += sums.ood
    return Sums(loss, ood)


def _slowest(plan: Plan) -> Axis:
    """Return the axis that parts cut."""
    return next(axis for axis in plan.axes if axis.name == plan.order[0])


class Finished:
    """The folder where finished parts of a sweep are kept.

    Parameters
    ----------
    folder : Path
        Made with the first part.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, plan: Plan, tokens: TokenArrays, part: Part) -> Sums | None:
        """Return the sums of a part that was finished before, by the same plan and harvest."""
        arrays = store.read_arrays(self._path(plan, tokens, part))
        return None if arrays is None else Sums(arrays["loss"], arrays["ood"])

    def put(self, plan: Plan, tokens: TokenArrays, part: Part, sums: Sums) -> None:
        """Keep the sums of a part."""
        arrays = {"loss": sums.loss, "ood": sums.ood}
        store.write_arrays(self._path(plan, tokens, part), arrays)

    def _path(self, plan: Plan, tokens: TokenArrays, part: Part) -> Path:
        """Return the file of a part; everything that its numbers depend on is in its name."""
        key = store.fingerprint(
            [
                __version__,
                tokens.fingerprint,
                tokens.n_token,
                [plan.axes, plan.chain, plan.epsilon, plan.tail, plan.level, plan.nodes],
                part,
            ],
            str,
        )
        return self._folder / f"{key}.npz"


class Here:
    """Evaluates plans in this process, part after part.

    Parameters
    ----------
    finished : Finished, optional
        Where parts are kept; those found there are not computed again.
    """

    def __init__(self, finished: Finished | None = None) -> None:
        self._finished = finished
        self._plan: Plan | None = None
        self._tables: list[Tables] | None = None

    def __call__(self, plan: Plan, tokens: TokenArrays, advance: Advance) -> Sums:
        """Evaluate a plan's grid on one harvest.

        Parameters
        ----------
        plan : Plan
            What to do; node values are made once for harvests that share a plan.
        tokens : TokenArrays
            One harvest.
        advance : callable
            Told the number of (token, point) pairs after each step.

        Returns
        -------
        Sums
            Arrays of the shape of the plan's axes.
        """
        parts = parts_of(plan, tokens.n_token)
        if len(parts) == 1:
            return self.part(plan, tokens, parts[0], advance)
        return together(plan, ((part, self.part(plan, tokens, part, advance)) for part in parts))

    def part(self, plan: Plan, tokens: TokenArrays, part: Part, advance: Advance) -> Sums:
        """Return the sums of a part, found or computed."""
        own_plan, own_tokens = of_part(plan, tokens, part)
        found = self._finished.get(plan, tokens, part) if self._finished else None
        if found is not None:
            advance(own_plan.n_point * own_tokens.n_token)
            return found
        if plan != self._plan:
            self._plan, self._tables = plan, shared_tables(plan)
        sums = grid_sums(own_plan, own_tokens, advance, self._tables)
        if self._finished:
            self._finished.put(plan, tokens, part, sums)
        return sums
