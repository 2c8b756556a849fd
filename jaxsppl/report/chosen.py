"""The point of a file that somebody wants: the best one, the best that a program can run, or named.

Neither xarray nor matplotlib is imported.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxsppl import parameters, schema, store
from jaxsppl.axes import setting
from jaxsppl.errors import ConfigError, SchemaError, suggest
from jaxsppl.report.export import Exported, export, obstacles
from jaxsppl.report.programs import program
from jaxsppl.report.summaries import summarise_optimum
from jaxsppl.report.surface import (
    Point,
    Surface,
    at_one_epsilon,
    point_at,
    restrict,
    split_chain,
    surfaces,
    value_text,
)

BEST = "best"
BEST_FOR = "best-for-"
_DRAW_NEUTRAL = {"alpha": 1.0, "beta": 1.0}


@dataclass(frozen=True)
class Chosen:
    """A point of a file.

    Attributes
    ----------
    model, dataset : str
        The pair that it was chosen on, "" for a point that somebody named.
    point : Point
        Its nll is NaN when the file does not have it.
    above_best : float
        nll above the best of the file [nat/token]; NaN when the file does not have it.
    """

    model: str
    dataset: str
    point: Point
    above_best: float

    def words(self) -> str:
        """Return the settings and the score in words."""
        values = ", ".join(f"{name} {value_text(name, v)}" for name, v in self.point.values.items())
        if np.isnan(self.point.nll):
            return f"{self.point.name}: {values}"
        return (
            f"{self.point.name} of {self.model} on {self.dataset}: {values}; nll "
            f"{self.point.nll:.4f} nat/token, {self.above_best:+.4f} against the best"
        )


def best_runnable(surface: Surface, form: str = "llama.cpp") -> Point | None:
    """Return the best grid point that a program can run.

    Parameters
    ----------
    surface : Surface
    form : str
        A key of `programs.PROGRAMS`.

    Returns
    -------
    Point or None
        Called "best for PROGRAM", or None when the program can run no point of the grid.
    """
    name = f"{BEST} for {program(form).name}"
    if not obstacles(surface.best.values, surface.chain, form):
        return surface.best
    try:
        # No program has another draw: most of a dense grid needs no look.
        held = {key: value for key, value in _DRAW_NEUTRAL.items() if key in surface.axes}
        plain = restrict(surface, held)
    except ConfigError:
        return None
    for flat in np.argsort(plain.nll, axis=None, kind="stable"):
        index = tuple(int(i) for i in np.unravel_index(flat, plain.nll.shape))
        point = point_at(plain, index, name)
        if np.isfinite(point.nll) and not obstacles(point.values, plain.chain, form):
            return point
    return None


def choose(
    path: str | os.PathLike[str],
    point: str = BEST,
    *,
    model: str | None = None,
    dataset: str | None = None,
) -> Chosen:
    """Return a point of a sweep or optimum file.

    Parameters
    ----------
    path : str or path
        The file.
    point : str
        "best"; "best-for-FORMAT", the best that a program can run, for example
        "best-for-vllm"; or ``name=value,...``, where a parameter that is not named is neutral.
    model, dataset : str, optional
        The pair, where the file has several.

    Returns
    -------
    Chosen

    Raises
    ------
    ConfigError
        For a point, model or dataset that is not there, or when it is not clear which is meant.
    SchemaError
        When the file is neither a sweep nor an optimum.
    """
    contents, file = store.read_contents(path), str(path)
    kind = contents.attrs.get("schema")
    if kind == schema.OPTIMUM:
        schema.check_optimum(contents, file)
        if point == BEST:
            return _optimum(contents, Path(path).name, model, dataset)
        if "=" in point:
            chain = split_chain(contents.attrs.get("chain", ""))
            return Chosen("", "", _named(point, chain), np.nan)
        raise ConfigError(
            f"--point {point}: an optimum file has no grid to choose from; take best, "
            "name=value,... or a sweep file"
        )
    if kind != schema.SWEEP:
        raise SchemaError(f"{file}: its schema is {kind!r}; name a sweep or an optimum file")
    schema.check_sweep(contents, file)
    pairs = {(s.model, s.dataset): at_one_epsilon(s) for s in surfaces(contents, file)}
    if "=" in point and model is None and dataset is None and len(pairs) > 1:
        return Chosen("", "", _named(point, next(iter(pairs.values())).chain), np.nan)
    surface = pairs[_pair(list(pairs), model, dataset)]
    if "=" in point:
        found = _on_grid(surface, _named(point, surface.chain))
    elif point == BEST:
        found = surface.best
    elif point.startswith(BEST_FOR):
        form = point.removeprefix(BEST_FOR)
        best = best_runnable(surface, form)
        if best is None:
            raise ConfigError(f"{file}: {program(form).name} can run no point of this grid")
        found = best
    else:
        raise ConfigError(
            f"--point {point}: write best, best-for-FORMAT, or name=value,... as temperature=0.8"
        )
    return Chosen(surface.model, surface.dataset, found, found.nll - surface.best.nll)


def export_point(
    path: str | os.PathLike[str],
    form: str,
    point: str = BEST,
    *,
    model: str | None = None,
    dataset: str | None = None,
) -> tuple[Chosen, Exported]:
    """Choose a point of a file and write it for a program.

    Parameters
    ----------
    path, point, model, dataset
        As in `choose`.
    form : str
        As in `export`.

    Returns
    -------
    Chosen
    Exported

    Raises
    ------
    ConfigError
        When the program cannot express the point; the message names the nearest that it can, or
        the best of the grid that it can and what it costs.
    SchemaError
        As `choose`.
    """
    one = program(form)
    chosen = choose(path, point, model=model, dataset=dataset)
    blocked = obstacles(chosen.point.values, chosen.point.chain, form)
    if not blocked:
        return chosen, export(chosen.point.values, chosen.point.chain, form)
    message = f"{one.name} cannot express the point ({', '.join(blocked)})"
    contents = store.read_contents(path)
    wanted = (chosen.model, chosen.dataset)
    hints = [_without(chosen.point, blocked, form)] if point != BEST else []
    if contents.attrs.get("schema") == schema.OPTIMUM:
        hints = [
            _without(chosen.point, blocked, form),
            "or optimize with what it has, as --fixed alpha=1 --fixed beta=1",
        ]
    elif wanted != ("", ""):
        pairs = {(s.model, s.dataset): s for s in surfaces(contents, str(path))}
        best = best_runnable(at_one_epsilon(pairs[wanted]), form)
        if best is not None:
            values = ", ".join(f"{n} {value_text(n, v)}" for n, v in best.values.items())
            cost = best.nll - chosen.point.nll
            costs = "" if np.isnan(cost) else f" ({cost:+.4f} nat/token)"
            hints.append(f"the best of the grid that it can is {values}{costs}: "
                         f"--point {BEST_FOR}{form}")  # fmt: skip
    known = "; ".join(hint for hint in hints if hint)
    raise ConfigError(f"{message}; {known or 'choose a point without it'}")


def _without(point: Point, blocked: Sequence[str], form: str) -> str:
    """Return the same point without what a program cannot express, "" where that is not enough."""
    kept = {n: v for n, v in point.values.items() if f"{n} {v:g}" not in blocked}
    if not kept or obstacles(kept, point.chain, form):
        return ""
    said = {n: v for n, v in kept.items() if v != parameters.PARAMETERS[n].neutral} or kept
    return f"nearest is --point {','.join(f'{n}={v:.6g}' for n, v in said.items())}"


def _pair(pairs: list[tuple[str, str]], model: str | None, dataset: str | None) -> tuple[str, str]:
    """Return the pair that is meant."""
    for what, at, wanted in (("model", 0, model), ("dataset", 1, dataset)):
        known = {pair[at] for pair in pairs}
        if wanted is not None and wanted not in known:
            raise ConfigError(f"--{what} {wanted}: the file has none; {suggest(wanted, known)}")
    meant = [p for p in pairs if model in (None, p[0]) and dataset in (None, p[1])]
    if len(meant) == 1:
        return meant[0]
    listed = "; ".join(f"{one} on {other}" for one, other in meant) or "nothing"
    raise ConfigError(f"which one is meant? give --model and --dataset; the file has {listed}")


def _optimum(
    contents: schema.Contents, name: str, model: str | None, dataset: str | None
) -> Chosen:
    """Return the best start of a pair with what was held."""
    summary = summarise_optimum(contents, name)
    rows = {(row.model, row.dataset): row for row in summary.rows}
    row = rows[_pair(list(rows), model, dataset)]
    held: Mapping[str, float] = json.loads(str(contents.attrs.get("fixed_json", "{}")))
    values = {**{key: float(value) for key, value in held.items()}, **row.values}
    return Chosen(row.model, row.dataset, Point(BEST, values, summary.chain, row.nll, row.ood), 0.0)


def _named(text: str, chain: tuple[str, ...]) -> Point:
    """Return the point that ``name=value,...`` stands for, without a score."""
    values = setting(text.split(","), "--point")
    parameters.check_order(chain, values, f"--point {text}")
    return Point("point", values, chain, np.nan, np.nan)


def _on_grid(surface: Surface, point: Point) -> Point:
    """Return the point with its score where the grid has it."""
    whole = {**{n: parameters.PARAMETERS[n].neutral for n in surface.axes}, **point.values}
    whole.pop("epsilon", None)
    if set(point.values) - set(surface.axes):
        return point
    try:
        cut = restrict(surface, whole)
    except ConfigError:
        return point
    return point_at(cut, (0,) * len(cut.axes), point.name)
