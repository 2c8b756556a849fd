"""The heat map: how far nll lies above the best over any two parameters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxsppl.report import style
from jaxsppl.report.surface import Surface, at_one_epsilon, effective_order, restrict, value_text
from jaxsppl.schema import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Contours [nat/token]: nobody notices the first, anybody the last.
_CONTOURS = (0.01, 0.03, 0.1)


def heat_figure(surfaces: Sequence[Surface], x: str, y: str) -> "Figure":
    """Draw nll above the best over two axes, a panel for each pair.

    Parameters
    ----------
    surfaces : sequence of Surface
        At most four.
    x, y : str
        The axes. The other parameters stand at each pair's best point.

    Returns
    -------
    Figure
        One colour scale for all panels; the optimum is marked with its values.
    """
    from matplotlib.colors import PowerNorm

    held = [at_one_epsilon(surface) for surface in surfaces]
    title, labels = style.names(held)
    columns = 1 if len(held) == 1 else 2
    rows = -(-len(held) // columns)
    figure = style.new_figure(5.6 if columns == 1 else 1.5 + 4.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    maps = [_map(surface, x, y) for surface in held]
    lined = False
    above = np.concatenate([excess.ravel() for excess, *_ in maps])
    finite = above[np.isfinite(above)]
    # Half of the map in full colour: the far corners only say "bad".
    top = float(np.clip(np.quantile(finite, 0.75), 0.05, None))
    norm = PowerNorm(0.5, vmin=0.0, vmax=top, clip=False)
    image = None
    others = style.other_names(held)
    for axes, label, surface, (excess, xs, ys, inside) in zip(
        panels.flat, labels, held, maps, strict=False
    ):
        image = axes.pcolormesh(excess, cmap="viridis", norm=norm, rasterized=True)
        if inside is not None:
            row, column = np.nonzero(inside)
            axes.scatter(column + 0.5, row + 0.5, s=14, color="white", linewidths=0)
        if _contours(axes, excess, top):
            lined = True
        else:
            _numbers(axes, excess, top)
        _ticks(axes, (x, xs), (y, ys), 76 // columns)
        _optimum(axes, surface, (x, xs), (y, ys))
        _others(axes, surface, (x, xs), (y, ys), others)
        name = "" if len(held) == 1 else f"{label}\n"
        axes.set_title(
            f"{name}best {surface.best.nll:.3f} at {x} {value_text(x, surface.best.values[x])}, "
            f"{y} {value_text(y, surface.best.values[y])}",
            fontsize=style.SMALL,
            loc="left",
        )
    for axes in list(panels.flat)[len(held) :]:
        axes.set_axis_off()
    if image is not None:
        over = "max" if float(finite.max()) > top else "neither"
        bar = figure.colorbar(image, ax=panels, extend=over, pad=0.015, fraction=0.05, aspect=28)
        bar.set_label("nll above the best [nat/token]", fontsize=style.FONT)
        bar.ax.tick_params(labelsize=style.SMALL)
    if others:
        handles = [style.marker_handle(name, others=others) for name in others]
        style.add_legend(figure, handles, title)
    elif title:
        figure.suptitle(title, x=0.012, ha="left", fontsize=style.FONT, fontweight="bold")
    sentences = _sentences(held, x, y, lined)
    if others:
        sentences.append(
            "The named settings differ in other parameters: their nll is not the map's."
        )
    style.add_caption(figure, style.conditions(held), *sentences)
    return figure


def _map(surface: Surface, x: str, y: str) -> tuple[Array, Array, Array, Array | None]:
    """Return nll above the best as (y, x), both axes from strict to off, and the plateau."""
    best = surface.best.values
    cut = restrict(surface, {name: best[name] for name in surface.axes if name not in (x, y)})
    names = list(cut.axes)
    columns, rows = effective_order(x, cut.axes[x]), effective_order(y, cut.axes[y])

    def plane(values: Array) -> Array:
        """Return an array of the grid as (y, x)."""
        held = tuple(i for i, name in enumerate(names) if name not in (x, y))
        flat = np.squeeze(values, axis=held)
        return (flat.T if names.index(x) < names.index(y) else flat)[np.ix_(rows, columns)]

    excess = plane(cut.nll)
    inside = None if cut.plateau is None else plane(cut.plateau)
    return excess - np.nanmin(excess), cut.axes[x][columns], cut.axes[y][rows], inside


def _contours(axes: "Axes", excess: Array, top: float) -> bool:
    """Draw lines of equal nll where there are enough values for them; return whether."""
    levels = [level for level in _CONTOURS if level < top]
    if min(excess.shape) < 4 or not levels:
        return False
    lines = axes.contour(
        np.arange(excess.shape[1]) + 0.5,
        np.arange(excess.shape[0]) + 0.5,
        np.ma.masked_invalid(excess),
        levels=levels,
        colors=["white" if level < top / 3 else "#222222" for level in levels],
        linewidths=1.1,
    )
    axes.clabel(lines, fmt="%g", fontsize=8.5)
    return True


def _numbers(axes: "Axes", excess: Array, top: float) -> None:
    """Write the values into the cells where these are few; the best one has the star."""
    if max(excess.shape) > 8:
        return
    for row, column in np.ndindex(excess.shape):
        value = float(excess[row, column])
        if np.isfinite(value) and value > 0:
            axes.text(
                column + 0.5,
                row + 0.5,
                f"+{value:.3f}",
                ha="center",
                va="center",
                fontsize=9.5,
                color="white" if value < top / 3 else "black",
            )


def _ticks(axes: "Axes", across: tuple[str, Array], up: tuple[str, Array], room: int) -> None:
    """Name the cells, as many as there is room for: `room` is the letters of a panel's width."""
    for (name, values), axis, most in ((across, axes.xaxis, 9), (up, axes.yaxis, 12)):
        texts = [value_text(name, float(value)) for value in values]
        # Side by side, long labels need more room.
        fit = most if axis is axes.yaxis else max(2, room // (max(map(len, texts)) + 2))
        places = style.thinned(texts, min(most, fit))
        axis.set_ticks([place + 0.5 for place in places], [texts[place] for place in places])
        axis.set_label_text(name)
    style.dress(axes, grid=False)


def _optimum(
    axes: "Axes", surface: Surface, across: tuple[str, Array], up: tuple[str, Array]
) -> None:
    """Mark the best point."""
    best = surface.best.values
    places = [int(np.argmin(np.abs(values - best[name]))) + 0.5 for name, values in (across, up)]
    axes.plot(
        places[0], places[1], marker="*", markersize=17, color="white", markeredgecolor="black"
    )


def _others(
    axes: "Axes",
    surface: Surface,
    across: tuple[str, Array],
    up: tuple[str, Array],
    others: Sequence[str],
) -> None:
    """Mark settings that were put on the sweep by name, where they lie within the map."""
    for point in surface.baselines:
        if point.name in others:
            places = [_place(name, values, point.value(name)) for name, values in (across, up)]
            axes.plot(*([place] for place in places), zorder=5, **style.marker(point.name, others))


def _place(name: str, values: Array, value: float | None) -> float:
    """Return the place of a value along the cells of an axis, NaN outside."""
    if value is None:
        return np.nan
    same = np.flatnonzero(np.isclose(values, value))
    if len(same):
        return float(same[0]) + 0.5
    on = [at for at, other in enumerate(values) if value_text(name, float(other)) != "off"]
    places = np.interp(value, values[on], np.array(on) + 0.5, left=np.nan, right=np.nan)
    return float(places) if value_text(name, value) != "off" else np.nan


def _sentences(held: Sequence[Surface], x: str, y: str, lined: bool) -> list[str]:
    """Return what the caption says beyond the conditions."""
    sentences = ["Star: best point."]
    if any(surface.plateau is not None for surface in held):
        sentences.append("Dots: cannot be told from the best, all points at once.")
    sentences.append(style.held_sentence(held, (x, y)))
    if lined:
        sentences.append("Lines: that many nat/token above the best.")
    return sentences
