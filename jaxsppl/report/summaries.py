"""Summaries of harvest and optimum files; neither xarray nor matplotlib is imported."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsppl import schema
from jaxsppl.report.proof import Proof, optimum_proof
from jaxsppl.report.surface import bits_per_byte, choice_of, split_chain


@dataclass(frozen=True)
class HarvestSummary:
    """A harvest file.

    Attributes
    ----------
    file, model, dataset : str
    n_token, n_byte, n_document : int
        Scored tokens, their UTF-8 bytes, and documents.
    alternatives, n_vocab : int
        Listed alternatives K of each token, and the size of the vocabulary.
    coverage : float
        Mean probability mass of the alternatives [1].
    share_listed : float
        Share of actual tokens that are among the alternatives [1].
    perplexity, bits_per_byte : float or None
        Of the model itself.
    statistics : str
        What is kept of the whole vocabulary, in words; "" for nothing.
    groups : mapping of str to int
        Documents of each group, where there are groups.
    attrs : mapping
        Server, build, method and whatever else the harvest noted.
    """

    file: str
    model: str
    dataset: str
    n_token: int
    n_byte: int
    n_document: int
    alternatives: int
    n_vocab: int
    coverage: float
    share_listed: float
    perplexity: float
    bits_per_byte: float | None
    statistics: str
    groups: Mapping[str, int]
    attrs: Mapping[str, str | int | float]
    kind: str = "harvest"


def summarise_harvest(contents: schema.Contents, file: str) -> HarvestSummary:
    """Summarise a checked harvest file.

    Parameters
    ----------
    contents : Contents
    file : str
        Its name.

    Returns
    -------
    HarvestSummary
    """
    nll = -float(contents.array("token_logprob").astype(np.float64).mean())
    n_token, alternatives = contents.array("top_logprob").shape
    n_byte = int(contents.array("token_bytes").sum())
    mass = np.exp(contents.array("top_logprob").astype(np.float64)).sum(axis=1)
    hidden = {"schema", "complete", "digest", "n_vocab", "config_json"}
    known = [name for name in ("entropy", "logit_std", "min_logprob") if name in contents.variables]
    if "log_partition" in contents.variables:
        inverse = contents.array("inverse_temperature")
        known.append(f"log_partition at inverse temperatures {inverse[0]:g} to {inverse[-1]:g}")
    groups: Counter[str] = Counter()
    if "group" in contents.variables:
        groups.update(str(group) for group in contents.array("group").tolist())
    return HarvestSummary(
        file=file,
        model=str(contents.array("model")),
        dataset=str(contents.array("dataset")),
        n_token=n_token,
        n_byte=n_byte,
        n_document=contents.sizes["document"],
        alternatives=alternatives,
        n_vocab=int(contents.attrs["n_vocab"]),
        coverage=float(np.minimum(mass, 1.0).mean()),
        share_listed=float((contents.array("token_rank") > 0).mean()),
        perplexity=math.exp(nll),
        bits_per_byte=bits_per_byte(nll, n_token, n_byte),
        statistics=", ".join(known),
        groups=dict(sorted(groups.items())),
        attrs={key: _plain(value) for key, value in contents.attrs.items() if key not in hidden},
    )


def _plain(value: Any) -> str | int | float:
    """Return an attribute as a plain Python value."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if isinstance(value, (float, np.floating)) else str(value)


@dataclass(frozen=True)
class OptimumRow:
    """The best start of one pair.

    Attributes
    ----------
    model, dataset : str
    values : mapping of str to float
        Optimum.
    nll, ood : float
        [nat/token], [1].
    status : str
        How the best start ended.
    n_step : int
        Steps that it took.
    starts, starts_at_best : int
        Starts, and how many of them came within 1e-6 of the best.
    std_error : mapping of str to float
        Standard errors of the values that a gradient moved, units taken as independent.
    correlation : mapping of str to float
        Of the errors of two of them, by ``"temperature, beta"``.
    n_unit : int
        Documents, or groups of them.
    unit : {"document", "group"}
    proof : Proof or None
        What it is worth on held-out documents.
    """

    model: str
    dataset: str
    values: Mapping[str, float]
    nll: float
    ood: float
    status: str
    n_step: int
    starts: int
    starts_at_best: int
    std_error: Mapping[str, float]
    correlation: Mapping[str, float]
    n_unit: int
    unit: str
    proof: Proof | None


@dataclass(frozen=True)
class OptimumSummary:
    """An optimum file.

    Attributes
    ----------
    file : str
    chain : tuple of str
    epsilon : float
    tail : str
    parameters : tuple of str
        What was optimized.
    objective : str
        What is best, in words.
    decided : bool
        Whether a proof on held-out documents was asked for.
    rows : tuple of OptimumRow
    notes : tuple of str
    """

    file: str
    chain: tuple[str, ...]
    epsilon: float
    tail: str
    parameters: tuple[str, ...]
    objective: str
    decided: bool
    rows: tuple[OptimumRow, ...]
    notes: tuple[str, ...] = ()
    kind: str = "optimum"


def summarise_optimum(contents: schema.Contents, file: str) -> OptimumSummary:
    """Summarise a checked optimum file.

    Parameters
    ----------
    contents : Contents
    file : str
        Its name.

    Returns
    -------
    OptimumSummary
        Pairs without a finite goal are left out.
    """
    goals = goal_of(contents)
    names = tuple(str(name) for name in contents.array("parameter").tolist())
    rows: list[OptimumRow] = []
    for i, model in enumerate(contents.array("model").tolist()):
        for j, dataset in enumerate(contents.array("dataset").tolist()):
            goal = goals[i, j]
            if not np.isfinite(goal).any():
                continue
            start = int(np.nanargmin(goal))
            met = int((goal <= goal[start] + 1e-6).sum())
            optimum = contents.array("optimum")[i, j, start]
            rows.append(
                OptimumRow(
                    model=str(model),
                    dataset=str(dataset),
                    values={name: float(value) for name, value in zip(names, optimum, strict=True)},
                    nll=float(contents.array("nll")[i, j, start]),
                    ood=float(contents.array("ood")[i, j, start]),
                    status=str(contents.array("status")[i, j, start]),
                    n_step=int(contents.array("n_step")[i, j, start]),
                    starts=len(goal),
                    starts_at_best=met,
                    **_errors(contents, (i, j), names),
                    **_units(contents, (i, j)),
                    proof=optimum_proof(contents, str(model), str(dataset)),
                )
            )
    attrs = contents.attrs
    return OptimumSummary(
        file=file,
        chain=split_chain(attrs.get("chain", "")),
        epsilon=float(attrs.get("epsilon", math.nan)),
        tail=str(attrs.get("tail", "drop")),
        parameters=names,
        objective=choice_of(contents).words(),
        decided="decide_json" in attrs,
        rows=tuple(rows),
    )


def _units(contents: schema.Contents, at: tuple[int, int]) -> dict[str, Any]:
    """Return what is taken as independent, and how many there are."""
    number = {name: 0 for name in ("n_document", "n_group")}
    number |= {name: int(contents.array(name)[at]) for name in number if name in contents.variables}
    is_group = number["n_group"] > 0
    return {
        "unit": "group" if is_group else "document",
        "n_unit": number["n_group" if is_group else "n_document"],
    }


def goal_of(contents: schema.Contents) -> schema.Array:
    """Return what each start of an optimum file is judged by: the nll where the file names nothing.

    Parameters
    ----------
    contents : Contents
        A checked optimum file.

    Returns
    -------
    array
        (model, dataset, start), NaN where nothing finite, or nothing within the limit, was found.
    """
    values = contents.array("goal" if "goal" in contents.variables else "nll")
    return np.where(np.isfinite(values), values, np.nan)


def _errors(
    contents: schema.Contents, at: tuple[int, int], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the standard errors and correlations of one pair that the file has."""
    if not {"std_error", "correlation"} <= set(contents.variables):
        return {"std_error": {}, "correlation": {}}
    error, tied = contents.array("std_error")[at], contents.array("correlation")[at]
    pairs = itertools.combinations(range(len(names)), 2)
    return {
        "std_error": {
            name: float(value)
            for name, value in zip(names, error, strict=True)
            if np.isfinite(value)
        },
        "correlation": {
            f"{names[i]}, {names[j]}": float(tied[i, j])
            for i, j in pairs
            if np.isfinite(tied[i, j])
        },
    }
