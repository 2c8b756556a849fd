"""The tables of a comparison: models and settings side by side, on each dataset and on the mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl.plural import plural
from jaxsppl.report.aligned import aligned, chance, fixed, signed, significant, wrapped
from jaxsppl.report.proof import few_words, interval

if TYPE_CHECKING:
    import xarray as xr

_UNITS = {"token": "nat/token", "byte": "bit/byte", "character": "bit/char"}


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes
    ----------
    head : sequence of (str, str)
        Title of each column, in two lines.
    cells : sequence of sequence of str
    names : int
        Columns at the left that hold names.
    """

    head: Sequence[tuple[str, str]]
    cells: Sequence[Sequence[str]]
    names: int


@dataclass(frozen=True)
class ComparisonSummary:
    """A comparison.

    Attributes
    ----------
    file : str
        Its name, "" where it is in none.
    datasets : mapping of str to sequence of Table
        By the dataset's name and number of documents.
    conditions : tuple of str
        What was counted.
    values : mapping
        All of it at full precision, as ``xarray.Dataset.to_dict`` gives it.
    """

    file: str
    datasets: Mapping[str, Sequence[Table]]
    conditions: tuple[str, ...]
    values: Mapping[str, Any] = field(repr=False)
    kind: str = "comparison"


def summarise_comparison(result: "xr.Dataset", file: str = "") -> ComparisonSummary:
    """Return a comparison as tables.

    Parameters
    ----------
    result : xarray.Dataset
        As `jaxsppl.compare` gives it.
    file : str
        Its name.

    Returns
    -------
    ComparisonSummary
    """
    datasets: dict[str, list[Table]] = {}
    for dataset in result["dataset"].values.tolist():
        here = result.sel(dataset=dataset)
        about = plural(int(here["n_document"]), "document")
        if int(here["n_group"]):
            about += f"; unit: group, {int(here['n_group'])} of them"
        title = f"{dataset} ({about})"
        known = "kl_lower" in here and bool(here["kl_lower"].notnull().any())
        datasets[title] = [*_scores(here), *(_divergences(here) if known else [])]
    return ComparisonSummary(file, datasets, tuple(_conditions(result)), result.to_dict())


def comparison_text(summary: ComparisonSummary, markdown: bool = False) -> str:
    """Return a comparison as text for people.

    Parameters
    ----------
    summary : ComparisonSummary
    markdown : bool
        Tables as Markdown.

    Returns
    -------
    str
    """
    parts: list[str] = []
    for title, tables in summary.datasets.items():
        parts.append(f"### {title}" if markdown else f"{title}\n{'-' * len(title)}")
        parts += [aligned(one.head, one.cells, one.names, markdown) for one in tables]
    parts += [wrapped(line) for line in summary.conditions]
    return "\n\n".join(parts) + "\n"


def _scores(here: "xr.Dataset") -> list[Table]:
    """Return every model under every setting, and the settings of each model beside its first."""
    several = here.sizes["model"] > 1
    known = "bits_per_character" in here and bool(here["bits_per_character"].notnull().all())
    # Side by side, an nll per token says something only of models with the same tokens.
    per_token = here.attrs["unit"] == "token"
    head = [("model", ""), ("setting", ""), *([("nll", "nat/token")] if per_token else [])]
    head += [("bits per", "byte")]
    head += [("bits per", "character")] if known else []
    head += _difference_head(here, "reference") if several else []
    beside = [("model", ""), ("setting", ""), *_difference_head(here, "1st setting")]
    cells: list[list[str]] = []
    settings: list[list[str]] = []
    for model in here["model"].values.tolist():
        for setting in here["setting"].values.tolist():
            one = here.sel(model=model, setting=setting)
            if math.isnan(float(one["nll"])):
                continue
            line = [model, setting, *([fixed(float(one["nll"]))] if per_token else [])]
            line.append(fixed(float(one["bits_per_byte"])))
            line += [fixed(float(one["bits_per_character"]))] if known else []
            cells.append(line + (_difference(one, "to_model") if several else []))
            if any(difference := _difference(one, "to_setting")):
                settings.append([model, setting, *difference])
    return [Table(head, cells, 2), *([Table(beside, settings, 2)] if settings else [])]


def _difference_head(here: "xr.Dataset", other: str) -> list[tuple[str, str]]:
    """Return the titles of a difference."""
    percent = f"{100 * here.attrs['confidence']:g} %"
    return [(f"to {other}", _UNITS[here.attrs["unit"]]), (percent, "interval"), ("lower", "%")]


def _difference(one: "xr.Dataset", name: str) -> list[str]:
    """Return the cells of a difference, empty for the reference itself."""
    value = float(one[name])
    low, high = (float(end) for end in one[f"{name}_interval"])
    if math.isnan(value) or value == low == high == 0:
        return ["", "", ""]
    return [signed(value), interval(low, high, signed), chance(float(one[f"{name}_win"]))]


def _divergences(here: "xr.Dataset") -> list[Table]:
    """Return how far each model is from the reference model."""
    shares = [float(p) for p in here["percentile"].values]
    head = [("model", ""), ("KL at least", "nat/token"), ("at most", "nat/token")]
    head += [("same top", "%"), ("unshared", "%")]
    settings = [name for name in here["setting"].values.tolist()
                if bool(here["overlap"].sel(setting=name).notnull().any())]  # fmt: skip
    cells: list[list[str]] = []
    tails: list[list[str]] = []
    by_setting: list[list[str]] = []
    for model in here["model"].values.tolist():
        one = here.sel(model=model)
        if math.isnan(float(one["kl_lower"])):
            continue
        upper = float(one["kl_upper"]) if "kl_upper" in one else math.nan
        cells.append(
            [
                model,
                _with(one, "kl_lower"),
                "not known" if math.isnan(upper) else fixed(upper),
                _with(one, "same_top", 100.0, 2),
                fixed(100 * float(one["unshared"]), 2),
            ]
        )
        tails += [
            [model, words, *(significant(float(v)) for v in one[name].values)]
            for name, words in (("kl_percentile", "KL at least"), ("change_percentile", "|change|"))
            if bool(one[name].notnull().all())
        ]
        by_setting += [
            [
                model,
                setting,
                _with(one.sel(setting=setting), "clipped_kl"),
                _with(one.sel(setting=setting), "overlap", 100.0, 2),
            ]
            for setting in settings
        ]
    setting_head = [("model", ""), ("setting", ""), ("clipped KL", "nat/token"), ("overlap", "%")]
    names = [(f"{p:g} %" if p < 100 else "largest", "") for p in shares]
    by_position = Table([("model", ""), ("by position, nat", ""), *names], tails, 2)
    return [
        Table(head, cells, 1),
        Table(setting_head, by_setting, 2),
        *([by_position] if tails else []),
    ]


def _with(one: "xr.Dataset", name: str, scale: float = 1.0, digits: int = 4) -> str:
    """Return a mean with its interval."""
    low, high = (fixed(scale * float(end), digits) for end in one[f"{name}_interval"])
    return f"{fixed(scale * float(one[name]), digits)} ({low} .. {high})"


def _conditions(result: "xr.Dataset") -> Sequence[str]:
    """Return what was counted."""
    attrs = result.attrs
    lines = [
        f"reference: {attrs['reference']}; differences in {_UNITS[attrs['unit']]}, paired by "
        f"document, lower is better; 'lower %': probability of being lower than the reference",
        f"settings: nll clipped at epsilon {attrs['epsilon']:g}, tail {attrs['tail']}; the model "
        "itself: nothing cut, nothing clipped, exp(nll) is the perplexity",
    ]
    if "kl_lower" in result and bool(result["kl_lower"].notnull().any()):
        lines.append(
            "KL, clipped KL, overlap: from the reference model's law to the model's; |change|: of "
            "the actual token's log-probability; unshared: mass that is not listed by both, which "
            "KL takes as one token"
        )
        if bool((result["kl_lower"].notnull() & result["kl_upper"].isnull()).any()):
            lines.append(
                "KL at most is not known: a model may give a token that it does not list any "
                "probability however small, so that the listed ones bound KL from below only; "
                "harvest with --statistics"
            )
        enough = attrs["alternatives"] >= 1 / attrs["epsilon"]
        lines.append(
            f"clipped KL, with {attrs['alternatives']} alternatives: "
            + (
                "no unlisted token reaches epsilon: what neither model lists adds nothing, and "
                "what only the second lists could only lower it"
                if enough
                else "an unlisted token may reach epsilon, and what is not listed is left out: an "
                "estimate"
            )
        )
    # Of the dataset that has the fewest; their mean has more.
    n_group, n_document = (result[name].values for name in ("n_group", "n_document"))
    units = np.where(n_group > 0, n_group, n_document)
    least = int(np.argmin(units))
    lines += few_words(int(units[least]), "group" if n_group[least] else "document")
    if others := _other_tokens(result):
        lines.append(
            f"no KL to {', '.join(others)}: in other tokens than the reference's the two laws are "
            "about different things"
        )
    if np.isnan(result["nll"].values).any():
        lines.append("a model without a row was not harvested on that dataset")
    return lines


def _other_tokens(result: "xr.Dataset") -> list[str]:
    """Return the models that cut the text into other tokens than the reference."""
    known = {
        model
        for model in result["model"].values.tolist()
        if "kl_lower" in result and bool(result["kl_lower"].sel(model=model).notnull().any())
    }
    known.add(result.attrs["reference"])
    return [model for model in result["model"].values.tolist() if model not in known]
