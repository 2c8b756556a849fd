"""The trade-off figure: nll against the out-of-distribution share, every grid point."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxsppl.errors import ConfigError
from jaxsppl.report import style
from jaxsppl.report.front import compromise, pareto_front
from jaxsppl.report.surface import Surface, at_one_epsilon
from jaxsppl.schema import Array

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

# More dots than this only make the file large.
_MOST_DOTS = 20_000
# Fewer than this hardly cover each other.
_FEW_DOTS = 500


def tradeoff_figure(surfaces: Sequence[Surface], colour_by: str | None = None) -> "Figure":
    """Draw every grid point in the plane of nll and out-of-distribution share.

    Parameters
    ----------
    surfaces : sequence of Surface
        At most four; a panel for each.
    colour_by : str, optional
        The axis that colours the dots; temperature when it is swept.

    Returns
    -------
    Figure
        With the front of points that no other beats in both, and the named settings.
    """
    from matplotlib.lines import Line2D

    held = [at_one_epsilon(surface) for surface in surfaces]
    title, labels = style.names(held)
    swept = held[0].swept()
    by = colour_by or ("temperature" if "temperature" in swept else next(iter(swept), None))
    columns = 1 if len(held) == 1 else 2
    rows = -(-len(held) // columns)
    figure = style.new_figure(5.8 if columns == 1 else 1.9 + 3.9 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    dots, outside, seen = None, 0, list[str]()
    others = style.other_names(held)
    for axes, label, surface in zip(panels.flat, labels, held, strict=False):
        dots, left_out = _panel(axes, surface, by, seen, others)
        outside += left_out
        if len(held) > 1:
            axes.set_title(label, fontsize=style.FONT, loc="left")
        axes.set_xlabel(style.NLL)
        axes.set_ylabel(style.OOD)
        style.dress(axes)
    for axes in list(panels.flat)[len(held) :]:
        axes.set_axis_off()
    if dots is not None and by is not None:
        bar = figure.colorbar(dots, ax=panels, pad=0.015, fraction=0.05, aspect=28)
        bar.set_label(by, fontsize=style.FONT)
        bar.ax.tick_params(labelsize=style.SMALL)
        bar.solids.set_alpha(1.0)  # pyright: ignore[reportOptionalMemberAccess]
    front = Line2D([], [], color="black", linewidth=1.6, label="no point beats it in both")
    handles: list[Artist] = [*(style.marker_handle(n, others=others) for n in seen), front]
    style.add_legend(figure, handles, title)
    beyond = f"{outside:,} points lie outside the frame." if outside else ""
    style.add_caption(
        figure,
        style.conditions(held),
        f"A dot is a grid point; {held[0].nll.size:,} a pair.",
        beyond,
        "" if held[0].choice.is_plain else f"Compromise: {held[0].choice.words()}.",
    )
    return figure


def _panel(
    axes: "Axes", surface: Surface, by: str | None, seen: list[str], others: Sequence[str]
) -> "tuple[PathCollection, int]":
    """Draw one pair; return the dots and how many lie outside the frame."""
    nll, ood = surface.nll.ravel(), 100 * surface.ood.ravel()
    front = pareto_front(nll, ood)
    points = [*surface.baselines, surface.best]
    if not surface.choice.is_plain:
        with contextlib.suppress(ConfigError):  # no point keeps the limit: the table says so
            points.append(compromise(surface))
    right = max([float(nll[front].max()), *(point.nll for point in points)])
    left = min([float(np.nanmin(nll)), *(point.nll for point in points)])
    width = max(right - left, 1e-3)
    limit = right + 0.5 * width
    inside = np.flatnonzero(nll <= limit)
    highest = max([float(np.quantile(ood[inside], 0.98)), *(100 * p.ood for p in points)])
    lowest = min([float(ood[inside].min()), *(100 * p.ood for p in points)])
    room = max(highest - lowest, 1e-3)
    stride = max(1, len(inside) // _MOST_DOTS)
    drawn = inside[::stride]
    few = len(drawn) < _FEW_DOTS
    dots = axes.scatter(
        nll[drawn], ood[drawn], c=_colours(surface, by)[drawn], cmap="viridis",
        s=24 if few else 9, alpha=0.9 if few else 0.45, linewidths=0, rasterized=True,
    )  # fmt: skip
    axes.plot(
        nll[front], ood[front], color="black", linewidth=1.6, drawstyle="steps-post", zorder=3
    )
    for point in points:
        if point.name not in seen:
            seen.append(point.name)
        axes.plot([point.nll], [100 * point.ood], zorder=5, **style.marker(point.name, others))
    axes.set_xlim(left - 0.06 * width, limit)
    axes.set_ylim(lowest - 0.06 * room, highest + 0.06 * room)
    seen_here = (nll <= limit) & (ood <= highest + 0.06 * room)
    return dots, int(np.isfinite(nll).sum() - seen_here.sum())


def _colours(surface: Surface, by: str | None) -> Array:
    """Return the value of one axis at every grid point."""
    if by is None:
        return np.zeros(surface.nll.size)
    place = list(surface.axes).index(by)
    shape = [1] * surface.nll.ndim
    shape[place] = -1
    return np.broadcast_to(surface.axes[by].reshape(shape), surface.nll.shape).ravel()
