"""The audit: the best point and random ones, recomputed by the definition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl import schema
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.engine import Means, direct_means
from jaxsppl.sweep.plan import Plan


@dataclass(frozen=True)
class Audit:
    """What the audit of one harvest found.

    Attributes
    ----------
    n_point : int
        Points that were recomputed.
    nll, ood : float
        Largest difference from the definition: nll and its brackets [nat/token], and the share.
    best : mapping of str to float
        Parameters of the best grid point.
    best_nll, best_ood : float
        Its scores by the definition.
    """

    n_point: int
    nll: float
    ood: float
    best: Mapping[str, float]
    best_nll: float
    best_ood: float


def audit(
    plan: Plan, tokens: TokenArrays, grid: Means, n_point: int, rng: np.random.Generator
) -> Audit:
    """Recompute the best point and random ones.

    Parameters
    ----------
    plan : Plan
        What was computed.
    tokens : TokenArrays
        The harvest.
    grid : Means
        The result, of the shape of the plan's axes.
    n_point : int
        How many random points beside the best one; fewer when the grid has no more.
    rng : numpy.random.Generator
        Draws them.

    Returns
    -------
    Audit
    """
    # NaN never wins: it is no score.
    best = int(np.argmin(np.where(np.isnan(grid.nll), np.inf, grid.nll)))
    size = grid.nll.size
    # Sets and not a permutation: a grid may have 10^8 points.
    drawn = rng.choice(size, size=min(n_point, size), replace=False, shuffle=False)
    chosen = [best, *(int(index) for index in drawn if int(index) != best)]
    points = [point_at(plan, index) for index in chosen]
    exact = direct_means(
        tokens,
        [{"epsilon": plan.epsilon, **point} for point in points],
        chain=plan.chain,
        tail=plan.tail,
        block=plan.block,
    )
    nll = max(
        float(_largest(getattr(grid, name), chosen, [getattr(one, name) for one in exact]))
        for name in ("nll", "lower", "upper")
    )
    ood = float(_largest(grid.ood, chosen, [one.ood for one in exact]))
    return Audit(len(chosen), nll, ood, points[0], float(exact[0].nll), float(exact[0].ood))


def point_at(plan: Plan, index: int) -> dict[str, float]:
    """Return the parameters of a grid point from its place in row-major order.

    Parameters
    ----------
    plan : Plan
    index : int

    Returns
    -------
    dict of str to float
    """
    shape = [len(axis.values) for axis in plan.axes]
    places = np.unravel_index(index, shape)
    return {axis.name: axis.values[int(at)] for axis, at in zip(plan.axes, places, strict=True)}


def _largest(grid: schema.Array, chosen: Sequence[int], exact: Sequence[schema.Array]) -> float:
    """Return the largest difference at the chosen points; NaN counts as infinite."""
    difference = np.abs(grid.reshape(-1)[list(chosen)] - np.asarray(exact, np.float64))
    return float(np.where(np.isnan(difference), np.inf, difference).max())
