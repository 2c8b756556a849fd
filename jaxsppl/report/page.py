"""A report that a person can send around: one HTML file with tables, figures and their recipes.

The file asks for nothing: styles and figures are inside, and no script runs. Whatever comes from
files is escaped by the template engine.
"""

import base64
import io
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from jaxsppl import __version__, schema, store
from jaxsppl.errors import ConfigError, JaxspplError
from jaxsppl.plural import plural
from jaxsppl.report.aligned import chance, fixed, signed, significant
from jaxsppl.report.comparison import ComparisonSummary
from jaxsppl.report.plots import figures
from jaxsppl.report.proof import chosen_words, how_words, unit_words, unproven_words
from jaxsppl.report.recipe import (
    Recipe,
    comparison_commands,
    harvests_of,
    modules_of,
    optimum_recipe,
    setting_command,
    sweep_recipe,
)
from jaxsppl.report.rows import Row, SweepSummary
from jaxsppl.report.summaries import HarvestSummary, OptimumSummary, summarise_harvest
from jaxsppl.report.surface import value_text
from jaxsppl.report.table import Summary, describe

_DPI = 160
_WORDS = {
    "curve": "nll and the out-of-distribution share along temperature",
    "heat": "nll above the best over two parameters",
    "tradeoff": "nll against the out-of-distribution share",
    "groups": "the named settings side by side",
}


@dataclass(frozen=True)
class Figure:
    """A picture in the page: a data address, and what it shows in words."""

    address: str
    words: str


@dataclass(frozen=True)
class Section:
    """One file in the page.

    Attributes
    ----------
    summary : Summary
    figures : list of Figure
    starts : list of list of str
        Every start of an optimum.
    recipe : Recipe or None
    commands : list of (str, str)
        A setting's name and the command that scores it alone.
    origin : list of (str, list of (str, str))
        What each harvest is, and the file itself.
    looks : list of str
        Commands that print the origin.
    """

    summary: Summary
    figures: list[Figure] = field(default_factory=list[Figure])
    starts: list[list[str]] = field(default_factory=list[list[str]])
    recipe: Recipe | None = None
    commands: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    origin: list[tuple[str, list[tuple[str, str]]]] = field(
        default_factory=list[tuple[str, list[tuple[str, str]]]]
    )
    looks: list[str] = field(default_factory=list[str])

    def is_proven(self) -> bool:
        """Return whether held-out documents say what the choice is worth."""
        if not isinstance(self.summary, (SweepSummary, OptimumSummary)):
            return False
        return any(row.proof is not None for row in self.summary.rows)


def write_report(
    files: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], *, title: str = ""
) -> Path:
    """Write one self-contained page about result files.

    Parameters
    ----------
    files : sequence of str or path
        Sweep, optimum, comparison and harvest files.
    out : str or path
        The page (.html).
    title : str
        Heading; made from the files by default.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ConfigError
        When no file is given, or the page has another ending or cannot be written.
    SchemaError
        When a file is not whole.

    Examples
    --------
    >>> import jaxsppl
    >>> jaxsppl.write_report(["demo/demo.sweep.nc"], "report.html")  # doctest: +SKIP
    """
    if not files:
        raise ConfigError("no file was given; name at least one result file")
    if Path(out).name and Path(out).suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"'{out}': the page is HTML; give it the ending .html")
    import jinja2

    engine = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters |= {one.__name__: one for one in (chance, fixed, signed, significant)}
    template = engine.from_string(
        resources("jaxsppl.report").joinpath("page.html").read_text("utf-8")
    )
    sections = [_section(file) for file in files]
    named = [os.fspath(file) for file in files]
    command = ["jaxsppl", "report", *named, "--out", os.fspath(out)]
    page = template.render(
        title=title or f"Sampling settings: {_names([one.summary.file for one in sections])}",
        command=shlex.join([*command, *(["--title", title] if title else [])]),
        sections=sections,
        version=__version__,
        value_text=value_text,
        chosen_words=chosen_words,
        how_words=how_words,
        unit_words=unit_words,
        unproven_words=unproven_words,
    )
    store.write_text(Path(out), page)
    return Path(out)


def _names(files: Sequence[str]) -> str:
    """Return the files in a heading, the first ones where they are many."""
    more = len(files) - 2
    return ", ".join(files) if more < 1 else f"{files[0]}, {files[1]} and {more} more"


def _section(path: str | os.PathLike[str]) -> Section:
    """Return what the page says of one file."""
    summary, contents = describe(path), store.read_contents(path)
    made_by = [
        ("SHA-256 of the values", str(contents.attrs.get("digest", ""))),
        ("jaxsppl", str(contents.attrs.get("version", "unknown"))),
        ("JAX", str(contents.attrs.get("jax_version", "unknown"))),
    ]
    checked = shlex.join(["jaxsppl", "check", os.fspath(path)])
    if isinstance(summary, HarvestSummary):
        shown = shlex.join(["jaxsppl", "show", os.fspath(path)])
        facts = [*_harvest_facts(summary), made_by[0]]
        return Section(summary, origin=[("this file", facts)], looks=[shown, checked])
    files = [one["source"] for one in harvests_of(contents) if one["source"]]
    # Of harvests that were in no file there is nothing to make the result from again.
    looked = files or [os.fspath(path)]
    harvests = [shlex.join(["jaxsppl", command, *looked]) for command in ("show", "check")]
    origin = [*_origin(contents), ("this file", made_by)]
    looks = [*dict.fromkeys([*harvests, checked])]
    if isinstance(summary, ComparisonSummary):
        looks = [*comparison_commands(contents, summary.file), *looks]
        return Section(summary, origin=origin, looks=looks)
    if isinstance(summary, OptimumSummary):
        return Section(
            summary,
            starts=_starts(contents),
            recipe=optimum_recipe(contents, summary.file) if files else None,
            origin=origin,
            looks=looks,
        )
    return Section(
        summary,
        figures=_figures(path, summary),
        recipe=sweep_recipe(contents, summary.file) if files else None,
        commands=_commands(summary, contents),
        origin=origin,
        looks=looks,
    )


def _figures(path: str | os.PathLike[str], summary: SweepSummary) -> list[Figure]:
    """Return the pictures of a sweep."""
    n_swept = sum(len(values) > 1 for values in summary.axes.values())
    kinds = [*(["heat"] if n_swept > 1 else []), *(["curve", "tradeoff"] if n_swept else [])]
    made: list[Figure] = []
    for kind in (*kinds, "groups"):
        for figure in figures(path, kind=kind):
            target = io.BytesIO()
            figure.savefig(target, format="png", dpi=_DPI)
            picture = base64.b64encode(target.getvalue()).decode()
            made.append(Figure(f"data:image/png;base64,{picture}", _WORDS[kind]))
    return made


def _pairs(contents: schema.Contents) -> list[tuple[tuple[int, int], str]]:
    """Return place and name of each harvested pair."""
    models, datasets = (contents.array(name).tolist() for name in ("model", "dataset"))
    return [
        ((i, j), f"{models[i]} on {datasets[j]}")
        for i, j in np.argwhere(contents.array("n_token") > 0).tolist()
    ]


def _starts(contents: schema.Contents) -> list[list[str]]:
    """Return every start of an optimum as text, a heading first."""
    names = [str(name) for name in contents.array("parameter").tolist()]
    lines = [["pair", "start", *(f"{name}: from, to" for name in names), "nll", "status", "steps"]]
    for at, pair in _pairs(contents) if "n_token" in contents.variables else []:
        for start in range(contents.sizes["start"]):
            place = (*at, start)
            ends = zip(
                contents.array("initial")[place], contents.array("optimum")[place], strict=True
            )
            lines.append([
                pair, str(start), *(f"{a:.5g}, {b:.6g}" for a, b in ends),
                f"{float(contents.array('nll')[place]):.8f}",
                str(contents.array("status")[place]), str(int(contents.array("n_step")[place])),
            ])  # fmt: skip
    return lines


def _commands(summary: SweepSummary, contents: schema.Contents) -> list[tuple[str, str]]:
    """Return for each setting of each pair the command that scores it alone."""
    sources = {(one["model"], one["dataset"]): one["source"] for one in harvests_of(contents)}
    return [
        (
            f"{setting.name}, {row.model} on {row.dataset}",
            setting_command(
                sources[row.model, row.dataset],
                _acting(row, setting.name),
                setting.chain,
                summary.epsilon,
                summary.tail,
                modules_of(contents),
            ),
        )
        for row in summary.rows
        if sources.get((row.model, row.dataset))
        for setting in row.settings
    ]


def _acting(row: Row, name: str) -> dict[str, float]:
    """Return the values of a setting that its chain and the draw make use of."""
    from jaxsppl import parameters

    setting = row.setting(name)
    if setting is None:
        return {}
    stages = {parameters.base_name(stage) for stage in setting.chain} | {"draw"}
    known = parameters.PARAMETERS
    return {
        key: value
        for key, value in setting.values.items()
        if key not in known or (known[key].stage in stages and value != known[key].neutral)
    }


def _origin(contents: schema.Contents) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return what each harvest of a result is, with what its file says where that can be read."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for one in harvests_of(contents):
        if not one["source"]:
            continue  # pooled, or never in a file
        facts = [("file", one["source"]), ("SHA-256 of the values", one["fingerprint"])]
        try:
            harvest = store.read_contents(one["source"])
            schema.check_harvest(harvest, one["source"])
            same = str(harvest.attrs.get("digest") or schema.digest(harvest)) == one["fingerprint"]
            if same:
                facts += _harvest_facts(summarise_harvest(harvest, one["source"]))
            else:
                facts.append(("note", "the file has changed since"))
        except JaxspplError:
            facts.append(("note", "the file is not where it was"))
        found.append((f"{one['model']} on {one['dataset']}", facts))
    return found


def _harvest_facts(summary: HarvestSummary) -> list[tuple[str, str]]:
    """Return what a harvest says of itself."""
    return [
        ("tokens", f"{summary.n_token:,} in {plural(summary.n_document, 'document')}"),
        ("plain perplexity", significant(summary.perplexity)),
        ("bits per byte", fixed(summary.bits_per_byte, 4)),
        ("alternatives", f"{summary.alternatives:,} of a vocabulary of {summary.n_vocab:,}"),
        ("mass of the alternatives", f"{100 * summary.coverage:.2f} %"),
        *((key.replace("_", " "), str(value)) for key, value in summary.attrs.items()),
    ]
