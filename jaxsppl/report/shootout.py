"""The shootout figure: samplers ranked by what their best setting gains on held-out documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxsppl.errors import ConfigError
from jaxsppl.report import style
from jaxsppl.report.proof import CHOSEN, Line, Proof
from jaxsppl.report.surface import DEFAULT, NEUTRAL, Surface

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Proven = tuple[Surface, Proof]


@dataclass(frozen=True)
class Entry:
    """A sampler in the ranking.

    Attributes
    ----------
    name : str
    gain, low, high : float
        How much lower the nll of its best setting is than the reference's, held out
        [nat/token].
    points : int
        Settings that it tried.
    """

    name: str
    gain: float
    low: float
    high: float
    points: int


def shootout_figure(proven: Sequence[Proven]) -> "Figure":
    """Rank the samplers of one model, a panel for each dataset.

    Parameters
    ----------
    proven : sequence of (Surface, Proof)
        One file for each sampler, or one whose proof compares samplers.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        When there are fewer than two samplers to rank.
    """
    datasets = list(dict.fromkeys(surface.dataset for surface, _ in proven))
    ranked = [ranking([one for one in proven if one[0].dataset == name]) for name in datasets]
    most = max(len(entries) for entries, _ in ranked)
    figure = style.new_figure(1.9 + 0.3 * most)
    panels = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset, (entries, reference) in zip(panels, datasets, ranked, strict=True):
        _panel(axes, entries)
        axes.set_title(style.plain(dataset), fontsize=style.FONT, fontweight="bold")
        axes.set_xlabel(f"held-out gain on\n{reference} [nat/token]")
    proof = proven[0][1]
    most_points = max(entry.points for entries, _ in ranked for entry in entries)
    fewer = {e.name: e.points for some, _ in ranked for e in some if e.points < most_points}
    few = ", ".join(f"{name}: {points}" for name, points in fewer.items())
    few = f" ({few})" if few else ""
    tail = "; the listed alternatives only" if proven[0][0].tail == "drop" else ""
    counts = sorted({one.n_proven for _, one in proven})
    proving = " to ".join(dict.fromkeys(f"{count}" for count in (counts[0], counts[-1])))
    style.add_caption(
        figure,
        f"{style.plain(proven[0][0].model)}: of each sampler the best of {most_points} "
        f"settings{few}, chosen and scored on different documents ({proving} of them), "
        f"epsilon {proven[0][0].epsilon:g}{tail}.",
        f"Bars: {100 * proof.confidence:g} % intervals, paired by document; open dots: they "
        "include 0.",
    )
    return figure


def ranking(proven: Sequence[Proven]) -> tuple[list[Entry], str]:
    """Return the samplers of one pair, the best first, and what they are compared with.

    Parameters
    ----------
    proven : sequence of (Surface, Proof)

    Returns
    -------
    list of Entry
    str
        Name of the reference.

    Raises
    ------
    ConfigError
        When there are fewer than two.
    """
    entries: list[Entry] = []
    if len(proven) == 1:
        proof = proven[0][1]
        named = (DEFAULT, NEUTRAL)
        reference = next(
            (x.name for x in proof.samplers if x.name in named and not x.gain), NEUTRAL
        )
        entries = [
            _entry(line.name, line, proof.sampler_points)
            for line in proof.samplers
            if line.name not in named
        ]
    else:
        # The first that every file was compared with.
        reference = next(
            (n for n in (DEFAULT, NEUTRAL) if all(p.setting(n) is not None for _, p in proven)),
            CHOSEN,
        )
        for (_, proof), name in zip(proven, _names([s for s, _ in proven]), strict=True):
            line = proof.setting(reference)
            if line is not None:
                entries.append(_entry(name, line, proof.n_tried))
    if len(entries) < 2:
        raise ConfigError(
            "kind 'shootout' ranks samplers, and there is one; give a sweep file of each, as "
            "sweeps/shootout.toml makes them, or one whose [decide] compares samplers"
        )
    return sorted(entries, key=lambda entry: -entry.gain), reference


def _entry(name: str, line: Line, points: int) -> Entry:
    """Return a line of a proof as an entry."""
    return Entry(name, line.gain, line.gain_low, line.gain_high, points)


def _names(surfaces: Sequence[Surface]) -> list[str]:
    """Return what tells the chains apart: the stages that not all of them have."""
    shared = set(surfaces[0].chain).intersection(*(s.chain for s in surfaces))
    names = [
        style.chain_text([stage for stage in s.chain if stage not in shared] or s.chain)
        for s in surfaces
    ]
    if len(set(names)) < len(names):
        names = [style.chain_text(s.chain) for s in surfaces]
    return names


def _panel(axes: "Axes", entries: Sequence[Entry]) -> None:
    """Draw the ranking of one dataset."""
    style.dress(axes)
    axes.grid(False, axis="y")
    axes.axvline(0.0, color="#999999", linewidth=1.2, zorder=1)
    for row, entry in enumerate(entries):
        sure = entry.low > 0 or entry.high < 0
        colour = style.LINES[0] if entry.gain >= 0 else style.LINES[1]
        axes.plot([entry.low, entry.high], [row, row], color=colour, linewidth=2.4, zorder=2)
        axes.plot(
            [entry.gain], [row], marker="o", markersize=7.5, color=colour, zorder=3,
            markerfacecolor=colour if sure else "white", markeredgewidth=1.6,
        )  # fmt: skip
    axes.set_yticks(range(len(entries)), [style.plain(entry.name) for entry in entries])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=4)
