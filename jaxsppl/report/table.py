"""What `jaxsppl show` prints: the summary of a file as aligned text, Markdown or JSON.

Neither jax, xarray nor matplotlib is imported, so that the answer comes at once.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from jaxsppl import schema, store
from jaxsppl.errors import SchemaError
from jaxsppl.plural import plural
from jaxsppl.report.aligned import WIDTH, aligned, fixed, signed, significant, wrapped
from jaxsppl.report.comparison import (
    ComparisonSummary,
    comparison_text,
    summarise_comparison,
)
from jaxsppl.report.front import front_text
from jaxsppl.report.macro import macro_text
from jaxsppl.report.proof import interval, proof_text, unproven_words
from jaxsppl.report.rows import Row, Setting, SweepSummary, summarise_sweep
from jaxsppl.report.summaries import (
    HarvestSummary,
    OptimumSummary,
    summarise_harvest,
    summarise_optimum,
)
from jaxsppl.report.surface import DEFAULT, NEUTRAL, value_text

Summary: TypeAlias = SweepSummary | HarvestSummary | OptimumSummary | ComparisonSummary

# More pairs than this are listed one a line; each in detail would scroll away.
_DETAILED = 8


def describe(path: str | os.PathLike[str]) -> Summary:
    """Read, check and summarise a result file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    SweepSummary, HarvestSummary, OptimumSummary or ComparisonSummary

    Raises
    ------
    SchemaError
        When it is none of these or breaks its schema.
    """
    file = str(path)
    contents = store.read_contents(path)
    kind = contents.attrs.get("schema")
    if kind == schema.SWEEP:
        schema.check_sweep(contents, file)
        return summarise_sweep(contents, Path(path).name)
    if kind == schema.OPTIMUM:
        schema.check_optimum(contents, file)
        return summarise_optimum(contents, Path(path).name)
    if kind == schema.HARVEST:
        schema.check_harvest(contents, file)
        return summarise_harvest(contents, Path(path).name)
    if kind == schema.COMPARISON:
        schema.check_comparison(contents, file)
        return summarise_comparison(store.to_dataset(contents), Path(path).name)
    kinds = ", ".join((schema.SWEEP, schema.HARVEST, schema.OPTIMUM, schema.COMPARISON))
    raise SchemaError(f"{file}: its schema is {kind!r}; give a file of {kinds}")


def to_data(summary: Summary) -> dict[str, Any]:
    """Return a summary as nested dicts and lists, for `--json`.

    Parameters
    ----------
    summary : SweepSummary, HarvestSummary, OptimumSummary or ComparisonSummary

    Returns
    -------
    dict
        The attributes of the summary by name, in the units that its class states.
    """
    return asdict(summary)


def to_json(summary: Summary) -> str:
    """Return a summary as JSON text; a number that is not there is null.

    Parameters
    ----------
    summary : SweepSummary, HarvestSummary, OptimumSummary or ComparisonSummary

    Returns
    -------
    str
    """
    import msgspec

    return msgspec.json.format(msgspec.json.encode(to_data(summary)), indent=2).decode()


def render(summary: Summary, *, markdown: bool = False, front: bool = False) -> str:
    """Return a summary as text for people.

    Parameters
    ----------
    summary : SweepSummary, HarvestSummary, OptimumSummary or ComparisonSummary
    markdown : bool
        Tables as Markdown instead of aligned columns of at most 100 characters.
    front : bool
        Whether the points of a sweep that no other beats in both nll and ood are listed too.

    Returns
    -------
    str
    """
    if isinstance(summary, ComparisonSummary):
        return comparison_text(summary, markdown)
    if isinstance(summary, SweepSummary):
        parts = _sweep(summary, markdown, front)
    elif isinstance(summary, OptimumSummary):
        parts = _optimum(summary, markdown)
    else:
        parts = _harvest(summary, markdown)
    return "\n\n".join(part for part in parts if part) + "\n"


def _sweep(summary: SweepSummary, markdown: bool, front: bool) -> list[str]:
    """Return the parts of a sweep: overview, one block for each pair, what holds for all."""
    parts: list[str] = []
    if len(summary.rows) > 1:
        parts.append(_overview(summary, markdown))
        parts += [macro_text(one) for one in summary.macro if one.setting == DEFAULT]
    if len(summary.rows) <= _DETAILED:
        for row in summary.rows:
            parts += _pair(row, summary, markdown)
            parts += [front_text(row.front, row.points_on_front, markdown)] if front else []
    else:
        parts.append(_best_settings(summary, markdown))
        for row in summary.rows if front else ():
            parts.append(_heading(f"{row.model} on {row.dataset}", markdown))
            parts.append(front_text(row.front, row.points_on_front, markdown))
        if any(row.notes for row in summary.rows):
            parts.append("The notes and flags of each pair: --json.")
    parts += [_notes(summary.notes), _conditions(summary)]
    return parts


def _overview(summary: SweepSummary, markdown: bool) -> str:
    """Return one line for each pair."""
    head = [
        ("model", ""),
        ("dataset", ""),
        ("tokens", ""),
        ("plain", "perplexity"),
        ("bits per", "byte"),
        ("nll of", "neutral"),
        ("nll of", "default"),
        ("nll of", "best"),
    ]
    proven = any(row.proof is not None for row in summary.rows)
    head += [("held-out gain", "on default"), ("interval", "")] if proven else []
    cells = [
        [
            row.model,
            row.dataset,
            f"{row.n_token:,}",
            significant(row.perplexity),
            fixed(row.bits_per_byte, 3),
            *(fixed(_nll(row, name)) for name in (NEUTRAL, DEFAULT, "best")),
            *(_gain(row) if proven else []),
        ]
        for row in summary.rows
    ]
    return aligned(head, cells, 2, markdown)


def _nll(row: Row, name: str) -> float | None:
    """Return the nll of a named setting."""
    setting = row.setting(name)
    return None if setting is None else setting.nll


def _gain(row: Row) -> list[str]:
    """Return what choosing gained on llama.cpp's default on held-out documents."""
    line = None if row.proof is None else row.proof.setting(DEFAULT)
    if line is None:
        return ["-", "-"]
    return [signed(line.gain), interval(line.gain_low, line.gain_high, signed)]


def _best_settings(summary: SweepSummary, markdown: bool) -> str:
    """Return the best parameters of each pair, one line each."""
    head = [("model", ""), ("dataset", ""), *((name, "") for name in summary.axes)]
    cells: list[list[str]] = []
    for row in summary.rows:
        best = row.setting("best")
        values = {} if best is None else best.values
        cells.append(
            [
                row.model,
                row.dataset,
                *(value_text(name, values.get(name)) for name in summary.axes),
            ]
        )
    return "Best settings\n\n" + aligned(head, cells, 2, markdown)


def _pair(row: Row, summary: SweepSummary, markdown: bool) -> list[str]:
    """Return the block of one pair."""
    about = [plural(row.n_token, "token"), plural(row.n_byte, "byte")]
    if row.perplexity is not None:
        about.append(f"plain perplexity {significant(row.perplexity)}")
    if row.bits_per_byte is not None:
        about.append(f"{row.bits_per_byte:.3f} bits per byte")
    heading = _heading(f"{row.model} on {row.dataset}", markdown)
    parts = [f"{heading}\n{', '.join(about)}", _settings(row, summary, markdown)]
    runnable = row.runnable()
    if row.flags is not None and runnable is not None:
        flags = f"    {row.flags}" if markdown else f"  {row.flags}"
        parts.append(
            f"llama-server flags ({runnable.name}):{chr(10) * (2 if markdown else 1)}{flags}"
        )
    parts += proof_text(row.proof, markdown) if row.proof is not None else []
    parts.append(_notes(row.notes))
    return parts


def _heading(title: str, markdown: bool) -> str:
    """Return the title of a pair, underlined or as a heading."""
    return f"### {title}" if markdown else f"{title}\n{'-' * min(len(title), WIDTH)}"


def _settings(row: Row, summary: SweepSummary, markdown: bool) -> str:
    """Return the settings of one pair; scores and parameters side by side where they fit."""
    bounded = row.is_bounded()
    head = [("setting", ""), ("nll", "nat/token")]
    head += [("at least", "nat/token"), ("at most", "nat/token")] if bounded else []
    head += [
        ("sampling", "perplexity"),
        ("ood", "%"),
        ("below", "neutral"),
        ("below", "default"),
    ]
    scores = [[setting.name, *_scores(setting, bounded)] for setting in row.settings]
    names = summary.parameters
    values = [
        [value_text(name, setting.values.get(name)) for name in names] for setting in row.settings
    ]
    both = [a + b for a, b in zip(scores, values, strict=True)]
    whole = [*head, *((name, "") for name in names)]
    joined = aligned(whole, both, 1, markdown)
    if markdown or max(len(line) for line in joined.splitlines()) <= WIDTH:
        return joined
    second = [[a[0], *b] for a, b in zip(scores, values, strict=True)]
    parameter_head = [("setting", ""), *((name, "") for name in names)]
    return (
        aligned(head, scores, 1, markdown) + "\n\n" + aligned(parameter_head, second, 1, markdown)
    )


def _scores(setting: Setting, bounded: bool) -> list[str]:
    """Return the numbers of one setting."""
    brackets = [fixed(setting.nll_lower), fixed(setting.nll_upper)] if bounded else []
    return [
        fixed(setting.nll),
        *brackets,
        fixed(setting.sampling_perplexity, 2),
        fixed(100 * setting.ood, 2),
        signed(setting.below_neutral) if setting.name != NEUTRAL else "",
        signed(setting.below_default) if setting.name != DEFAULT else "",
    ]


def _conditions(summary: SweepSummary) -> str:
    """Return under what the scores hold: order, epsilon, tail, size, audit."""
    default = next((s for row in summary.rows for s in row.settings if s.name == DEFAULT), None)
    lines = [
        f"chain: {_chain(summary.chain)}"
        + (f"; {DEFAULT}: {_chain(default.chain)}" if default is not None else ""),
        f"epsilon {summary.epsilon:g}; tail {summary.tail}; "
        f"{plural(summary.points, 'point')} a pair"
        + (f"; level {summary.level}" if summary.level else ""),
    ]
    if summary.audit_points is not None and summary.audit_nll is not None:
        lines.append(
            f"audit: {summary.audit_points} points recomputed by the definition, largest "
            f"difference {summary.audit_nll:.1g} nat/token"
        )
    lines.append(
        "nll, below (how much lower nll is on this text, which chose the best: no gain) and gain "
        "in nat/token; ood: share of tokens below epsilon"
    )
    if summary.objective:
        lines.append(f"compromise: {summary.objective}")
    if not any(row.proof is not None for row in summary.rows):
        lines.append(unproven_words(summary.decided))
    return "\n".join(wrapped(line) for line in lines)


def _chain(stages: Sequence[str]) -> str:
    """Return the stages in order, in words."""
    return " -> ".join(stages) if stages else "none (plain sampling)"


def _optimum(summary: OptimumSummary, markdown: bool) -> list[str]:
    """Return the parts of an optimum file."""
    names = summary.parameters
    head = [("model", ""), ("dataset", ""), ("nll", "nat/token"), ("ood", "%")]
    head += [*((name, "") for name in names), ("starts", "at best"), ("status", "")]
    cells = [
        [
            row.model,
            row.dataset,
            f"{row.nll:.6f}",
            fixed(100 * row.ood, 2),
            *(f"{row.values[name]:.5g}" for name in names),
            f"{row.starts_at_best}/{row.starts}",
            row.status,
        ]
        for row in summary.rows
    ]
    below = f"best: {summary.objective}; chain: {_chain(summary.chain)}; "
    below += f"epsilon {summary.epsilon:g}; tail {summary.tail}"
    table = aligned(head, cells, 2, markdown) if cells else "no start came to a finite nll"
    proofs = [
        part
        for row in summary.rows
        if row.proof is not None
        for part in (
            _heading(f"{row.model} on {row.dataset}", markdown),
            *proof_text(row.proof, markdown),
        )
    ]
    unproven = "" if proofs else unproven_words(summary.decided)
    return [table, _errors(summary), *proofs, _notes(summary.notes), wrapped(below), unproven]


def _errors(summary: OptimumSummary) -> str:
    """Return how sharp each optimum is, and which parameters are tied."""
    lines: list[str] = []
    for row in summary.rows:
        if row.std_error:
            errors = ", ".join(f"{name} {value:.2g}" for name, value in row.std_error.items())
            tied = "; ".join(f"{pair} {value:+.2f}" for pair, value in row.correlation.items())
            known = f"{errors}" + (f"; correlations {tied}" if tied else "")
            count = f", {plural(row.n_unit, row.unit)}" if row.n_unit else ""
            lines.append(wrapped(f"- {row.model} on {row.dataset}{count}: {known}"))
    if not lines:
        return ""
    units = " or ".join(sorted({f"{row.unit}s" for row in summary.rows}))
    return "\n".join([f"Standard errors, {units} taken as independent:", *lines])


def _harvest(summary: HarvestSummary, markdown: bool) -> list[str]:
    """Return the parts of a harvest file."""
    lines = [
        ("tokens", f"{summary.n_token:,} in {plural(summary.n_document, 'document')}"),
        ("bytes", f"{summary.n_byte:,}"),
        ("plain perplexity", significant(summary.perplexity)),
        ("bits per byte", fixed(summary.bits_per_byte, 4)),
        ("alternatives", f"{summary.alternatives:,} of a vocabulary of {summary.n_vocab:,}"),
        ("mass of the alternatives", f"{100 * summary.coverage:.2f} %"),
        ("actual tokens among them", f"{100 * summary.share_listed:.2f} %"),
        *([("of the whole vocabulary", summary.statistics)] if summary.statistics else []),
        *([("documents in groups", _groups(summary.groups))] if summary.groups else []),
        *((key.replace("_", " "), str(value)) for key, value in summary.attrs.items()),
    ]
    title = f"{summary.model} on {summary.dataset}"
    if markdown:
        return [f"### {title}", aligned([("", ""), ("", "")], lines, 2, True)]
    width = max(len(name) for name, _ in lines)
    shown = [
        textwrap.shorten(f"{name.ljust(width)}  {value}", 400) if len(value) > 400
        else f"{name.ljust(width)}  {value}"
        for name, value in lines
    ]  # fmt: skip
    return [f"{title}\n{'-' * min(len(title), WIDTH)}\n" + "\n".join(shown)]


def _groups(groups: Mapping[str, int]) -> str:
    """Return the groups with their numbers of documents, the first ones where they are many."""
    shown = [f"{group or '(none)'} {count}" for group, count in [*groups.items()][:8]]
    more = [f"and {len(groups) - 8} more"] if len(groups) > 8 else []
    return ", ".join([*shown, *more])


def _notes(notes: Sequence[str]) -> str:
    """Return notes as a list."""
    return "\n".join(wrapped(f"- {note}", "  ") for note in notes)
