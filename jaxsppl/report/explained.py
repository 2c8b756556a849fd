"""What `jaxsppl explain-token` prints: one position, alternative by alternative."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxsppl.report.aligned import aligned, wrapped
from jaxsppl.report.surface import value_text

if TYPE_CHECKING:
    from jaxsppl.sweep.explained import Alternative, ExplainedStage, ExplainedToken

_TEXT = 24


def explained_text(
    one: "ExplainedToken", texts: Mapping[int, str] | None = None, rows: int = 20
) -> str:
    """Return a position under a chain as text for people.

    Parameters
    ----------
    one : ExplainedToken
        As `jaxsppl.explain_token` gives it.
    texts : mapping of int to str, optional
        Texts of the tokens.
    rows : int
        Alternatives to list; the actual token is listed always.

    Returns
    -------
    str
    """
    known = texts or {}
    place = f"rank {one.rank}" if one.rank else f"none of the {len(one.alternatives)} listed"
    title = (
        f"Token {one.at} of {one.model} on {one.dataset}, in {one.document}: "
        f"{_name(one.token_id, known)}, {place}, model {percent(one.probability)} %, "
        f"drawn {percent(one.drawn)} %"
    )
    if one.upper - one.lower > 1e-6 * one.upper:
        title += f" ({percent(one.lower)} .. {percent(one.upper)} by the unseen tail)"
    head = [("rank", ""), ("token", ""), ("model", "%")]
    head += [(stage.name, _values(stage)) for stage in one.stages]
    head += [("drawn", "%")]
    shown = [a for a in one.alternatives if a.rank <= rows or a.is_actual]
    table = aligned(head, [_cells(a, known, len(one.stages)) for a in shown], 2)
    left = len(one.alternatives) - len(shown)
    notes = ["* the token of the text"] if one.rank else []
    notes += [f"{left} more alternatives (--rows)"] if left else []
    parts = [
        wrapped(title, ""),
        table,
        "; ".join(notes),
        "\n".join(wrapped(line) for line in _stages(one)),
        "\n".join(_cuts(shown)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def percent(probability: float) -> str:
    """Write a probability in per cent with three digits."""
    return f"{100 * probability:.3g}"


def _name(token_id: int, texts: Mapping[int, str]) -> str:
    """Return a token's text as Python writes it, and its id."""
    return f"{texts[token_id]!r} ({token_id})" if token_id in texts else str(token_id)


def _cells(one: "Alternative", texts: Mapping[int, str], n_stage: int) -> list[str]:
    """Return one line of the table; after a cut there is nothing."""
    after = ["cut" if not value else percent(value) for value in one.after]
    if "cut" in after:
        first = after.index("cut")
        after = [*after[: first + 1], *[""] * (n_stage - first - 1)]
    name = _name(one.token_id, texts)
    name = name if len(name) <= _TEXT else f"{name[: _TEXT - 2]}.."
    rank = f"{one.rank}{'*' if one.is_actual else ''}"
    return [rank, name, percent(one.probability), *after, percent(one.drawn)]


def _values(stage: "ExplainedStage") -> str:
    """Return the values of a stage's parameters."""
    return " ".join(value_text(name, value) for name, value in stage.settings.items())


def _stages(one: "ExplainedToken") -> list[str]:
    """Return what each stage keeps."""
    lines: list[str] = []
    for stage in one.stages:
        kept = [
            f"ranks {first} to {last}" if share == 1 else f"with {share:g}: {first} to {last}"
            for share, first, last in stage.kept
            if share > 0
        ]
        line = f"{stage.name} leaves {', '.join(kept)}"
        if stage.threshold is not None:
            line += f"; threshold {percent(stage.threshold)} %"
        lines.append(line)
    return lines


def _cuts(shown: "Sequence[Alternative]") -> list[str]:
    """Return why the first token that each stage cut was cut, and the token of the text."""
    lines: list[str] = []
    for stage in dict.fromkeys(a.cut_by for a in shown if a.cut_by):
        cut = [a for a in shown if a.cut_by == stage]
        told = [a for a in cut if a is cut[0] or a.is_actual]
        lines += [f"rank {a.rank} was cut by {stage}: {a.why}" for a in told]
    return [wrapped(line) for line in lines]
