"""The curve figure: nll and out-of-distribution share along one parameter."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl import parameters
from jaxsppl.report import style
from jaxsppl.report.surface import (
    DEFAULT,
    NEUTRAL,
    Surface,
    at_one_epsilon,
    effective_order,
    restrict,
    value_text,
)
from jaxsppl.schema import Array

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curve_figure(surfaces: Sequence[Surface], x: str) -> "Figure":
    """Draw nll above and the out-of-distribution share below, along one axis, a line for each pair.

    Parameters
    ----------
    surfaces : sequence of Surface
        At most seven; more would not be told apart.
    x : str
        The axis. The other parameters stand at each pair's best point.

    Returns
    -------
    Figure
        Shaded: between the brackets of the unseen tail, where the sweep has them.
    """
    from matplotlib.lines import Line2D

    title, labels = style.names([at_one_epsilon(s) for s in surfaces])
    figure = style.new_figure(6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines: list[Artist] = []
    scale = _Scale(x, surfaces)
    shown, others = set[str](), style.other_names(surfaces)
    for colour, label, surface in zip(style.LINES, labels, surfaces, strict=False):
        best = at_one_epsilon(surface).best
        at = f"{label}: best {best.nll:.3f} at {value_text(x, best.values[x])}"
        lines.append(Line2D([], [], color=colour, linewidth=2.2, label=at))
        shown |= _draw(top, bottom, surface, scale, colour, others)
    named = [("best", "best"), (DEFAULT, DEFAULT), (NEUTRAL, "all neutral")]
    settings = [
        style.marker_handle(name, label, others, **_grey(name))
        for name, label in (*named, *((name, name) for name in others))
        if name in shown
    ]
    top.set_ylabel(style.NLL)
    bottom.set_ylabel(style.OOD)
    bottom.set_xlabel(x)
    bottom.set_ylim(bottom=0)
    for axes in (top, bottom):
        style.dress(axes)
        scale.apply(axes)
    figure.align_ylabels([top, bottom])
    # A tall legend at the right would leave no room for the curves.
    beside = 0 < len(settings) <= 3
    style.add_legend(figure, lines if beside else [*lines, *settings], title)
    if beside:
        style.add_legend(figure, settings, right=True)
    style.add_caption(figure, *_sentences(surfaces, x))
    return figure


def _grey(name: str) -> dict[str, Any]:
    """Return a grey marker: in this figure the colour stands for the pair."""
    grey = "#444444"
    if name == "best":
        return {"color": grey, "markerfacecolor": grey}
    return {"color": grey, "markeredgecolor": grey, "markerfacecolor": "white"}


# Label of the plateau's band.
PLATEAU = "plateau"


class _Scale:
    """Where the values of the axis lie: by their size, or side by side when they are too uneven."""

    def __init__(self, name: str, surfaces: Sequence[Surface]) -> None:
        values = np.unique(np.concatenate([s.axes[name] for s in surfaces]))
        order = effective_order(name, values)
        self.name = name
        self.values: Array = values[order]
        positive = bool((values > 0).all())
        self.log = positive and len(values) > 3 and values.max() / values.min() >= 5
        steps = np.diff(np.log(values)) if positive else np.array([])
        self.log = self.log and bool(np.ptp(steps) < 0.2 * steps.mean())
        # top_k 0 is off and belongs after the largest; such an axis has no linear scale.
        turned = order != sorted(order)
        gaps = np.diff(values)
        uneven = len(gaps) > 1 and gaps.max() > 5 * np.median(gaps) and len(values) <= 16
        self.ordinal = (turned or uneven or name == "top_k") and not self.log

    def place(self, values: Array) -> Array:
        """Return where values are drawn; NaN when between the places of an uneven axis."""
        if not self.ordinal:
            return values
        return np.array(
            [
                next((i for i, v in enumerate(self.values) if math.isclose(v, value)), math.nan)
                for value in values
            ]
        )

    def apply(self, axes: "Axes") -> None:
        """Set the scale and the ticks."""
        if self.ordinal:
            texts = [value_text(self.name, float(value)) for value in self.values]
            places = style.thinned(texts, 14)
            axes.set_xticks(places, [texts[at] for at in places])
        elif self.log:
            axes.set_xscale("log")
            texts = [value_text(self.name, float(value)) for value in self.values]
            places = style.thinned(texts, 11)
            axes.set_xticks([float(self.values[at]) for at in places], [texts[p] for p in places])
            axes.minorticks_off()


def _slice(surface: Surface, x: str) -> Surface:
    """Hold every axis but one at the best point."""
    best = at_one_epsilon(surface).best.values
    return restrict(surface, {name: best[name] for name in surface.axes if name != x})


def _draw(
    top: "Axes", bottom: "Axes", surface: Surface, scale: _Scale, colour: str, others: Sequence[str]
) -> set[str]:
    """Draw one pair in both axes; return the settings that were marked."""
    x, line = scale.name, _slice(surface, scale.name)
    order = effective_order(x, line.axes[x])
    at = scale.place(line.axes[x][order])
    dots = "." if len(order) <= 12 else ""
    style_of_line: dict[str, Any] = {
        "color": colour,
        "linewidth": 2.0,
        "marker": dots,
        "markersize": 7,
    }
    top.plot(at, line.nll.ravel()[order], **style_of_line)
    bottom.plot(at, 100 * line.ood.ravel()[order], **style_of_line)
    if line.nll_lower is not None and line.nll_upper is not None:
        lower, upper = line.nll_lower.ravel()[order], line.nll_upper.ravel()[order]
        top.fill_between(at, lower, upper, color=colour, alpha=0.18, linewidth=0)
    if line.plateau is not None:
        flat = line.plateau.ravel()[order]
        nll = np.where(flat, line.nll.ravel()[order], np.nan)
        band: dict[str, Any] = {"color": colour, "alpha": 0.3, "zorder": 1}
        top.plot(at, nll, linewidth=9, solid_capstyle="round", label=PLATEAU, **band)
        # A point between points that are worse has no line.
        alone = flat & ~np.append(flat[1:], False) & ~np.insert(flat[:-1], 0, False)
        top.plot(at[alone], nll[alone], "o", markersize=9, markeredgewidth=0, **band)
    held = at_one_epsilon(surface)
    marked: set[str] = set()
    for point in (*held.baselines, held.best):
        value = point.value(x)
        if value is None:
            continue
        here = float(scale.place(np.array([value]))[0])
        inside = float(scale.values.min()) <= value <= float(scale.values.max())
        if math.isnan(here) or not inside:
            continue
        look = style.marker(point.name, others)
        look |= (
            {"color": colour, "markerfacecolor": colour}
            if point.name == "best"
            else {"markeredgecolor": colour, "markerfacecolor": "white"}
        )
        top.plot([here], [point.nll], zorder=5, **look)
        bottom.plot([here], [100 * point.ood], zorder=5, **look)
        marked.add(point.name)
    top.margins(x=0.02, y=0.08)
    return marked


def _sentences(surfaces: Sequence[Surface], x: str) -> list[str]:
    """Return what the caption says."""
    held = [at_one_epsilon(surface) for surface in surfaces]
    sentences = [style.conditions(surfaces), style.held_sentence(held, (x,))]
    if any(_band(_slice(surface, x)) > style.VISIBLE for surface in surfaces):
        sentences.append("Shaded: where the unseen tail can put nll.")
    if any(surface.plateau is not None for surface in surfaces):
        sentences.append("Broad: cannot be told from the best, all points at once.")
    default = next((p for s in held if (p := s.baseline(DEFAULT)) is not None), None)
    if default is not None and x in parameters.PARAMETERS:
        values = ", ".join(f"{name} {value:g}" for name, value in default.values.items())
        sentences.append(f"The {DEFAULT} is {values}.")
    return sentences


def _band(line: Surface) -> float:
    """Return the widest bracket of the unseen tail."""
    if line.nll_lower is None or line.nll_upper is None:
        return 0.0
    return float(np.nanmax(line.nll_upper - line.nll_lower))
