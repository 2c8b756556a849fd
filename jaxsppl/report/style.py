"""How every figure looks: sizes, colours, labels, captions. Object-oriented matplotlib only.

No pyplot and no global setting is touched, so that figures can be made without a display and from
any thread.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl.report.surface import DEFAULT, NEUTRAL, Surface, effective_order, value_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's colours, which people with any colour vision tell apart; yellow is too faint.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BEST_LLAMA_CPP = "best for llama.cpp"
# Marker, colour and filling of each named setting, the same in every figure.
SETTINGS: dict[str, tuple[str, str, bool]] = {
    NEUTRAL: ("s", "#595959", False),
    DEFAULT: ("D", "#D55E00", False),
    BEST_LLAMA_CPP: ("^", "#009E73", False),
    "best": ("o", "#0072B2", True),
    "compromise": ("X", "#CC79A7", True),
}
# Settings with other names, such as presets, take these in turn.
OTHER_SETTINGS = (
    ("v", "#CC79A7", True),
    ("P", "#E69F00", True),
    ("X", "#56B4E9", True),
    ("<", "#009E73", False),
    (">", "#0072B2", False),
    ("p", "#D55E00", False),
    ("h", "#CC79A7", False),
)

WIDTH = 9.0
FONT = 12
SMALL = 10.5
CAPTION = 9.5
NLL = "nll [nat/token]"
OOD = "out of distribution\n[% of tokens]"
_CAPTION_CHARACTERS = 128
# Narrower bands [nat/token] are thinner than a line: naming them would puzzle.
VISIBLE = 0.004


def new_figure(height: float) -> "Figure":
    """Return an empty figure of README width with the Agg canvas.

    Parameters
    ----------
    height : float
        [inch].

    Returns
    -------
    Figure
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.07, h_pad=0.06)  # pyright: ignore[reportCallIssue]
    return figure


def dress(axes: "Axes", *, grid: bool = True) -> None:
    """Give axes the house's font sizes, thin frame and grid."""
    axes.tick_params(labelsize=SMALL, length=3, color="#999999")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.xaxis.label.set_fontsize(FONT)
    axes.yaxis.label.set_fontsize(FONT)
    if grid:
        axes.grid(True, color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)


def plain(text: str) -> str:
    """Return a name as matplotlib shows it literally; a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def names(surfaces: Sequence[Surface]) -> tuple[str, list[str]]:
    """Return what the pairs share, for the title, and what tells each apart, for the legend.

    Parameters
    ----------
    surfaces : sequence of Surface

    Returns
    -------
    str
        Title.
    list of str
        One label for each pair, never two alike.
    """
    described = [
        {
            "model": s.model,
            "dataset": s.dataset,
            "chain": chain_text(s.chain),
            "epsilon": f"epsilon {s.epsilon:g}",
            "tail": f"tail {s.tail}",
            "file": s.source.rsplit("/", 1)[-1],
        }
        for s in surfaces
    ]
    differ = [key for key in described[0] if len({about[key] for about in described}) > 1]
    shown = [key for key in differ if key != "file"]
    labels = [", ".join(about[key] for key in shown) for about in described]
    if len(set(labels)) < len(labels):
        labels = [", ".join(about[key] for key in (*shown, "file")) for about in described]
    title = " on ".join(described[0][key] for key in ("model", "dataset") if key not in differ)
    if len(surfaces) == 1:
        labels = [surfaces[0].dataset]
    return plain(title), [plain(label) for label in labels]


def chain_text(chain: Sequence[str]) -> str:
    """Return the stages in order, with arrows."""
    return " → ".join(chain) if chain else "no stage"


def held_sentence(surfaces: Sequence[Surface], drawn: Sequence[str]) -> str:
    """Return at which values the parameters that are not drawn stand.

    Parameters
    ----------
    surfaces : sequence of Surface
    drawn : sequence of str
        The axes of the figure.

    Returns
    -------
    str
        Empty when there are no others.
    """
    parts: list[str] = []
    for name in dict.fromkeys(name for s in surfaces for name in s.axes):
        if name in drawn or name == "epsilon":
            continue
        values = np.array(sorted({s.best.values[name] for s in surfaces if name in s.axes}))
        ends = [float(values[at]) for at in effective_order(name, values)]
        last = f" to {value_text(name, ends[-1])}" if len(ends) > 1 else ""
        parts.append(f"{name} {value_text(name, ends[0])}{last}")
    if not parts:
        return ""
    which = "the" if len(surfaces) == 1 else "each"
    return f"Other parameters at {which} best point: {', '.join(parts)}."


def conditions(surfaces: Sequence[Surface]) -> str:
    """Return under what the scores hold: chain, epsilon, tail, tokens.

    Parameters
    ----------
    surfaces : sequence of Surface

    Returns
    -------
    str
    """
    chains = {chain_text(s.chain) for s in surfaces}
    epsilons = {s.epsilon for s in surfaces if not math.isnan(s.epsilon)}
    tails = {s.tail for s in surfaces}
    parts = [f"Chain: {chains.pop()}" if len(chains) == 1 else "Chain: as named"]
    if len(epsilons) == 1:
        parts.append(f"epsilon {epsilons.pop():g}")
    elif epsilons:
        parts.append("epsilon as named")
    parts.append(f"tail: {tails.pop()}" if len(tails) == 1 else "tail as named")
    counts = sorted({s.n_token for s in surfaces})
    tokens = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    each = "" if len(surfaces) == 1 else " each"
    parts.append(f"{tokens} tokens{each}")
    return "; ".join(parts) + "."


def add_caption(figure: "Figure", *sentences: str) -> None:
    """Put a caption under the figure, in lines that fit its width."""
    text = plain(" ".join(sentence for sentence in sentences if sentence))
    figure.supxlabel(
        textwrap.fill(text, _CAPTION_CHARACTERS, break_long_words=False, break_on_hyphens=False),
        x=0.012,
        ha="left",
        fontsize=CAPTION,
        color="#444444",
        linespacing=1.35,
    )


def add_legend(
    figure: "Figure", handles: "Sequence[Artist]", title: str = "", *, right: bool = False
) -> None:
    """Put a legend above the axes, where it covers no data."""
    lengths = [len(str(handle.get_label())) + 7 for handle in handles]
    fits = sum(lengths) <= 112
    columns = len(handles) if fits else max(1, 112 // max(lengths))
    legend = figure.legend(
        handles=list(handles),
        loc="outside upper right" if right else "outside upper left",
        ncols=1 if right else columns,
        fontsize=SMALL,
        frameon=False,
        title=title or None,
        title_fontsize=FONT,
        alignment="left",
        handlelength=1.8,
        columnspacing=1.6,
    )
    legend.get_title().set_fontweight("bold")


def other_names(surfaces: Sequence[Surface]) -> list[str]:
    """Return the named settings that have no marker of their own, such as presets.

    Parameters
    ----------
    surfaces : sequence of Surface

    Returns
    -------
    list of str
    """
    named = dict.fromkeys(point.name for s in surfaces for point in s.baselines)
    return [name for name in named if name not in SETTINGS]


def marker(name: str, others: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Return the drawing style of a named setting; `others` says which of them comes when."""
    turn = others.index(name) if name in others else 0
    usual = OTHER_SETTINGS[turn % len(OTHER_SETTINGS)]
    shape, colour, filled = SETTINGS.get(name, usual)
    size = {"s": 7.5, "D": 7.5, "^": 13.0}.get(shape, 9.0)
    # Often a hair from the best: a large open triangle is seen around its dot.
    hollow = "none" if name == BEST_LLAMA_CPP else "white"
    return {
        "marker": shape,
        "color": colour,
        "markersize": size,
        "markerfacecolor": colour if filled else hollow,
        "markeredgecolor": "white" if filled else colour,
        "markeredgewidth": 0.9 if filled else 1.9,
        "linestyle": "none",
        **more,
    }


def marker_handle(name: str, label: str = "", others: Sequence[str] = (), **more: Any) -> "Line2D":
    """Return a legend entry for a named setting."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=plain(label or name), **marker(name, others, **more))


def thinned(labels: Sequence[str], most: int) -> list[int]:
    """Return which of the axis labels to show: evenly spaced, at most so many, the shortest ones.

    Parameters
    ----------
    labels : sequence of str
        One for each value of an axis.
    most : int
        How many there is room for.

    Returns
    -------
    list of int
        Their indices.
    """
    count = len(labels)
    for stride in (1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 1000):
        if math.ceil(count / stride) <= most:
            break
    else:
        stride = math.ceil(count / most)
    # 0.5, 1, 1.5 reads better than 0.55, 1.05, 1.55.
    offset = min(range(min(stride, count)), key=lambda at: _length(labels[at::stride]))
    return list(range(offset, count, stride))


def _length(labels: Sequence[str]) -> float:
    """Return the mean length of labels."""
    return sum(map(len, labels)) / len(labels)
