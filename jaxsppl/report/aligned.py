"""Aligned text and Markdown tables, and how numbers are written in them."""

import math
import textwrap
from collections.abc import Sequence
from typing import TypeAlias

WIDTH = 100
_NAME = len("best for llama.cpp")  # no column of names is shortened below this
Cells: TypeAlias = Sequence[Sequence[str]]


def wrapped(text: str, indent: str = "  ") -> str:
    """Break a line at the width of the table."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def fixed(value: float | None, digits: int = 4) -> str:
    """Write a number with that many decimals."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """Write a difference with its sign."""
    return "-" if value is None or math.isnan(value) else f"{value:+.4f}"


def chance(share: float) -> str:
    """Write a probability in percent; never as certain, which no number of resamples shows."""
    return {"100.0": ">99.95", "0.0": "<0.05"}.get(text := fixed(100 * share, 1), text)


def significant(value: float | None) -> str:
    """Write a perplexity with four digits, large ones whole."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def aligned(
    head: Sequence[tuple[str, str]], cells: Cells, names: int, markdown: bool = False
) -> str:
    """Return a table; the first `names` columns hold text, shortened where it is too wide."""
    if markdown:
        titles = [" ".join(word for word in pair if word) for pair in head]
        rule = ["---" if column < names else "---:" for column in range(len(head))]
        rows = [titles, rule, *([cell.replace("|", "\\|") for cell in row] for row in cells)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    rows = [[pair[0] for pair in head], [pair[1] for pair in head], *map(list, cells)]
    if not any(rows[1]):
        del rows[1]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    for column in sorted(range(names), key=lambda at: -widths[at]):
        if excess > 0 and widths[column] > _NAME:
            shorter = max(_NAME, widths[column] - excess)
            excess -= widths[column] - shorter
            widths[column] = shorter
    rule = ["-" * width for width in widths]
    rows.insert(len(rows) - len(cells), rule)
    return "\n".join(
        "  ".join(
            _fit(cell, width).ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _fit(text: str, width: int) -> str:
    """Shorten a name in its middle: the end tells quantisations apart."""
    if len(text) <= width:
        return text
    left = (width - 2) // 2
    return f"{text[:left]}..{text[len(text) - (width - 2 - left) :]}"
