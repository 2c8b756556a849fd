"""The trade-off of nll and the out-of-distribution share: its front, and a compromise on it.

Neither xarray nor matplotlib is imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl.report.aligned import aligned, fixed
from jaxsppl.report.surface import Point, Surface, point_at, value_text
from jaxsppl.schema import Array

COMPROMISE = "compromise"
# More lines of a front than this tell nothing new.
_MOST_POINTS = 12


@dataclass(frozen=True)
class FrontPoint:
    """A grid point that no other beats in both: parameters, nll [nat/token], ood [1]."""

    values: Mapping[str, float]
    nll: float
    ood: float


def pareto_front(nll: Array, ood: Array) -> Array:
    """Return the points that no other point beats in both, by rising nll.

    Parameters
    ----------
    nll, ood : array
        Flat, of one length; NaN is left out.

    Returns
    -------
    array of int
        Their indices.
    """
    known = np.flatnonzero(np.isfinite(nll) & np.isfinite(ood))
    order = known[np.lexsort((ood[known], nll[known]))]
    lowest = np.minimum.accumulate(ood[order])
    falls = np.concatenate([[True], np.diff(lowest) < 0]) if len(order) else np.array([], bool)
    return order[falls]


def front_of(surface: Surface) -> tuple[tuple[FrontPoint, ...], int]:
    """Return the front of one pair, thinned evenly to a dozen points, both ends included.

    Parameters
    ----------
    surface : Surface
        At one epsilon.

    Returns
    -------
    tuple of FrontPoint
        By rising nll and falling ood.
    int
        Points that the whole front has.
    """
    whole = pareto_front(surface.nll.ravel(), surface.ood.ravel())
    kept = np.unique(np.linspace(0, len(whole) - 1, min(len(whole), _MOST_POINTS)).round())
    points = [_place(surface, int(whole[int(at)]), "front") for at in kept]
    return tuple(FrontPoint(one.values, one.nll, one.ood) for one in points), len(whole)


def compromise(surface: Surface) -> Point:
    """Return the best point by the objective of the sweep, where that is more than nll.

    Parameters
    ----------
    surface : Surface
        At one epsilon.

    Returns
    -------
    Point

    Raises
    ------
    ConfigError
        When no point keeps the limit.
    """
    return _place(surface, surface.choice.index(surface.nll, surface.ood), COMPROMISE)


def front_text(front: Sequence[FrontPoint], whole: int, markdown: bool = False) -> str:
    """Return a front as a table.

    Parameters
    ----------
    front : sequence of FrontPoint
    whole : int
        Points that the whole front has.
    markdown : bool

    Returns
    -------
    str
    """
    names = [name for name in front[0].values if name != "epsilon"] if front else []
    head = [("nll", "nat/token"), ("ood", "%"), *((name, "") for name in names)]
    cells = [
        [
            fixed(point.nll),
            fixed(100 * point.ood, 2),
            *(value_text(name, point.values[name]) for name in names),
        ]
        for point in front
    ]
    some = f" ({len(front)} of {whole:,} such points)" if whole > len(front) else ""
    return f"No point beats these in both nll and ood{some}\n\n{aligned(head, cells, 0, markdown)}"


def _place(surface: Surface, flat: int, name: str) -> Point:
    """Return a grid point from its place in row-major order."""
    index = tuple(int(i) for i in np.unravel_index(flat, surface.nll.shape))
    return point_at(surface, index, name)
