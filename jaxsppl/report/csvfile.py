"""CSV files of what a sweep or optimum file holds, written atomically, at full precision.

Neither xarray nor matplotlib is imported.
"""

import csv
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from jaxsppl import schema, store
from jaxsppl.errors import PlanError
from jaxsppl.report.proof import CHOSEN, Line
from jaxsppl.report.rows import SweepSummary
from jaxsppl.report.summaries import goal_of

# What spreadsheets still open.
MOST_ROWS = 1_000_000

_PER_PAIR = ("n_token", "n_byte", "perplexity", "bits_per_byte")
_PER_SETTING = (
    "nll",
    "nll_lower",
    "nll_upper",
    "sampling_perplexity",
    "ood",
    "below_neutral",
    "below_default",
)


def write_settings(summary: SweepSummary, path: str | os.PathLike[str]) -> Path:
    """Write the settings of every pair, one line each: baselines and best points.

    Parameters
    ----------
    summary : SweepSummary
    path : str or path
        The CSV file.

    Returns
    -------
    Path
        The file. Columns: model, dataset, setting, n_token, n_byte, perplexity, bits_per_byte, nll,
        nll_lower, nll_upper [nat/token], sampling_perplexity, ood [1], how far nll is below that of
        neutral and of llama.cpp's default [nat/token], one for each parameter, chain, epsilon,
        tail, llama_server_flags; empty where there is no value.
    """
    head = ["model", "dataset", "setting", *_PER_PAIR, *_PER_SETTING, *summary.parameters]
    head += ["chain", "epsilon", "tail", "llama_server_flags"]

    def lines() -> Iterator[list[object]]:
        """Yield one line for each setting."""
        for row in summary.rows:
            runnable = row.runnable()
            for setting in row.settings:
                yield [
                    row.model,
                    row.dataset,
                    setting.name,
                    *(getattr(row, name) for name in _PER_PAIR),
                    *(getattr(setting, name) for name in _PER_SETTING),
                    *(setting.values.get(name) for name in summary.parameters),
                    ",".join(setting.chain),
                    summary.epsilon,
                    summary.tail,
                    row.flags if setting is runnable else None,
                ]

    return _write(Path(path), head, lines())


def write_proof(summary: SweepSummary, path: str | os.PathLike[str]) -> Path:
    """Write what held-out documents say, one line for each setting and sampler of each pair.

    Parameters
    ----------
    summary : SweepSummary
        With a proof.
    path : str or path
        The CSV file.

    Returns
    -------
    Path
        The file. Columns: model, dataset, compared (setting or sampler), name, the numbers of
        `proof.Line` [nat/token], [1], then n_document, n_group (0 where documents are the unit),
        n_choosing, n_proven, points tried, and the confidence of the intervals; empty where there
        is no value.
    """
    numbers = [field.name for field in fields(Line) if field.name != "name"]
    counts = ["n_document", "n_group", "n_choosing", "n_proven"]
    head = ["model", "dataset", "compared", "name", *numbers, *counts, "tried", "confidence"]

    def lines() -> Iterator[list[object]]:
        """Yield one line for each setting and sampler."""
        for row in summary.rows:
            proof = row.proof
            if proof is None:
                continue
            for kind, compared, tried in (
                ("setting", proof.settings, proof.n_tried),
                ("sampler", proof.samplers, proof.sampler_points),
            ):
                for line in compared:
                    yield [
                        row.model,
                        row.dataset,
                        kind,
                        line.name,
                        *(getattr(line, name) for name in numbers),
                        *(getattr(proof, name) for name in counts),
                        tried if kind == "sampler" or line.name == CHOSEN else None,
                        proof.confidence,
                    ]

    return _write(Path(path), head, lines())


def write_grid(
    contents: schema.Contents,
    path: str | os.PathLike[str],
    *,
    most_rows: int = MOST_ROWS,
) -> Path:
    """Write the whole grid in long form, one line for each point of each harvested pair.

    Parameters
    ----------
    contents : Contents
        A checked sweep file.
    path : str or path
        The CSV file.
    most_rows : int
        Refuse to write more lines than this.

    Returns
    -------
    Path
        The file. Columns: model, dataset, one for each parameter, nll, nll_lower, nll_upper
        [nat/token] (the brackets where the sweep has them), ood [1].

    Raises
    ------
    PlanError
        When there are more rows than allowed.
    """
    names = list(contents.variables["nll"][0])
    scores = [n for n in ("nll", "nll_lower", "nll_upper", "ood") if n in contents.variables]
    shape = contents.array("nll").shape
    harvested = np.argwhere(contents.array("n_token") > 0)
    rows = len(harvested) * math.prod(shape[2:])
    if rows > most_rows:
        raise PlanError(
            f"{path}: the grid has {rows:,} rows, at most {most_rows:,} are written as CSV; read "
            "the sweep file itself, or cut a slice out of it (xarray's sel) and write that"
        )
    axes = [contents.array(name).tolist() for name in names]

    def lines() -> Iterator[Iterable[object]]:
        """Yield the points in the order of the dimensions."""
        for i, j in harvested:
            columns = [contents.array(name)[i, j].ravel().tolist() for name in scores]
            places = itertools.product(*axes[2:])
            for place, *values in zip(places, *columns, strict=True):
                yield (axes[0][i], axes[1][j], *place, *values)

    return _write(Path(path), [*names, *scores], lines())


def write_optimum(contents: schema.Contents, path: str | os.PathLike[str]) -> Path:
    """Write every start of an optimum file, one line each.

    Parameters
    ----------
    contents : Contents
        A checked optimum file.
    path : str or path
        The CSV file.

    Returns
    -------
    Path
        The file. Columns: model, dataset, start, then ``initial_`` and ``optimum_`` of each
        parameter, goal where it is not the nll, nll [nat/token], ood [1], status, n_step, best (1
        for the pair's best start).
    """
    names = [str(name) for name in contents.array("parameter").tolist()]
    goal = goal_of(contents)
    numbers = [
        name for name in ("goal", "nll", "ood", "status", "n_step") if name in contents.variables
    ]

    def lines() -> Iterator[list[object]]:
        """Yield the starts of each pair."""
        for i, j, start in np.ndindex(goal.shape):
            known = np.isfinite(goal[i, j])
            best = known.any() and int(np.argmin(np.where(known, goal[i, j], np.inf))) == start
            yield [
                contents.array("model")[i],
                contents.array("dataset")[j],
                start,
                *contents.array("initial")[i, j, start].tolist(),
                *contents.array("optimum")[i, j, start].tolist(),
                *(
                    contents.array(name)[i, j, start].item()
                    if hasattr(contents.array(name)[i, j, start], "item")
                    else contents.array(name)[i, j, start]
                    for name in numbers
                ),
                int(best),
            ]

    head = ["model", "dataset", "start"]
    head += [f"initial_{name}" for name in names] + [f"optimum_{name}" for name in names]
    return _write(Path(path), [*head, *numbers, "best"], lines())


def _write(path: Path, head: Sequence[str], lines: Iterable[Iterable[Any]]) -> Path:
    """Write lines atomically; numbers as the shortest text that reads back the same."""
    with (
        store.atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(map(_cells, lines))
    return path


def _cells(line: Iterable[Any]) -> list[Any]:
    """Leave a cell empty where there is no number."""
    return ["" if value is None or value != value else value for value in line]  # noqa: PLR0124
