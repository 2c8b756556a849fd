"""The groups figure: nll and out-of-distribution share of each model and dataset, by setting."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxsppl.report import style
from jaxsppl.report.chosen import best_runnable
from jaxsppl.report.surface import Point, Surface, at_one_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def groups_figure(surfaces: Sequence[Surface]) -> "Figure":
    """Draw the named settings and the best one as dots, a row for each pair, grouped by dataset.

    Parameters
    ----------
    surfaces : sequence of Surface

    Returns
    -------
    Figure
        nll on the left, with the brackets of the unseen tail as thin bars, and the
        out-of-distribution share on the right.
    """
    held = sorted(
        (at_one_epsilon(s) for s in surfaces), key=lambda s: [t.dataset for t in surfaces].index(
            s.dataset
        )
    )  # fmt: skip
    title, labels = style.names(held)
    grouped = len({s.dataset for s in held}) > 1 and len({s.model for s in held}) > 1
    if grouped:
        labels = [
            _without(label, style.plain(s.dataset)) for label, s in zip(labels, held, strict=True)
        ]
    ticks: list[tuple[float, str, bool]] = []
    place, last = 0.0, ""
    for label, surface in zip(labels, held, strict=True):
        if grouped and surface.dataset != last:
            place += 0.35 if last else 0.0
            ticks.append((place, style.plain(surface.dataset), True))
            place += 0.8
        last = surface.dataset
        ticks.append((place, label, False))
        place += 1.0
    figure = style.new_figure(2.4 + 0.4 * place)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = [at for at, _, heading in ticks if not heading]
    seen, others = list[str](), style.other_names(held)
    for row, surface in zip(rows, held, strict=True):
        points = _points(surface)
        _line(left, row, [point.nll for point in points])
        _line(right, row, [100 * point.ood for point in points])
        for point in points:
            if point.name not in seen:
                seen.append(point.name)
            _dot(left, right, row, point, style.marker(point.name, others))
    for axes, label in ((left, style.NLL), (right, style.OOD)):
        style.dress(axes)
        axes.grid(False, axis="y")
        axes.set_xlabel(label)
        axes.margins(x=0.06)
        axes.tick_params(axis="y", length=0)
    left.set_yticks([at for at, _, _ in ticks], [text for _, text, _ in ticks])
    for tick, (_, _, heading) in zip(left.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight("bold" if heading else "normal")
        tick.set_fontsize(style.SMALL)
    left.set_ylim(place - 0.4, -0.6)
    style.add_legend(figure, [style.marker_handle(n, others=others) for n in seen], title)
    style.add_caption(figure, style.conditions(held), *_sentences(held))
    return figure


def _without(label: str, dataset: str) -> str:
    """Drop the dataset from a label: the heading of the group says it."""
    return ", ".join(part for part in label.split(", ") if part != dataset)


def _points(surface: Surface) -> list[Point]:
    """Return the settings of a row, the best one last, so that it is drawn on top."""
    points = [*surface.baselines]
    runnable = best_runnable(surface)
    if runnable is not None and runnable is not surface.best:
        points.append(runnable)
    return [*points, surface.best]


def _line(axes: "Axes", row: float, values: Sequence[float]) -> None:
    """Join the dots of a row."""
    axes.plot([min(values), max(values)], [row, row], color="#cccccc", linewidth=2.2, zorder=1)


def _dot(left: "Axes", right: "Axes", row: float, point: Point, look: dict[str, Any]) -> None:
    """Draw one setting in both axes."""
    lower, upper = point.nll_lower, point.nll_upper
    if lower is not None and upper is not None and upper - lower > style.VISIBLE:
        ends = [lower, upper]
        left.plot(ends, [row, row], color=str(look["color"]), linewidth=5, alpha=0.3, zorder=2,
                  solid_capstyle="butt")  # fmt: skip
    left.plot([point.nll], [row], zorder=4, **look)
    right.plot([100 * point.ood], [row], zorder=4, **look)


def _width(point: Point) -> float:
    """Return how far the unseen tail leaves nll open."""
    if point.nll_lower is None or point.nll_upper is None:
        return 0.0
    return point.nll_upper - point.nll_lower


def _sentences(held: Sequence[Surface]) -> list[str]:
    """Return what the caption says beyond the conditions."""
    sentences: list[str] = []
    points = [point for surface in held for point in _points(surface)]
    if any(_width(point) > style.VISIBLE for point in points):
        sentences.append("Broad bars: where the unseen tail can put nll.")
    by_dataset: dict[str, dict[str, int]] = {}
    for surface in held:
        by_dataset.setdefault(surface.dataset, {})[surface.model] = surface.n_token
    if any(len(set(counts.values())) > 1 for counts in by_dataset.values()):
        sentences.append(
            "The models cut the text into different tokens: nll per token does not rank them."
        )
    return sentences
