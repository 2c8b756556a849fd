"""Where recommended settings lie: presets of other programs, scored on a sweep."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxsppl import schema, store
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.report.aligned import aligned, fixed, signed, wrapped
from jaxsppl.report.presets import Preset, import_preset
from jaxsppl.report.recipe import harvests_of
from jaxsppl.report.rows import Row, SweepSummary, summarise_sweep
from jaxsppl.report.surface import value_text
from jaxsppl.results import engine

# Names that a table has already.
_TAKEN = ("best", "best for llama.cpp", "neutral", "llama.cpp default")


@dataclass(frozen=True)
class Placed:
    """Presets on a sweep.

    Attributes
    ----------
    presets : tuple of Preset
        Those that were scored, under names that differ.
    problems : tuple of str
        Files that were not, each with the reason.
    summary : SweepSummary
        The sweep with the presets among its settings.
    """

    presets: tuple[Preset, ...]
    problems: tuple[str, ...]
    summary: SweepSummary

    def text(self) -> str:
        """Return a table for each pair, by rising nll, and what was left out."""
        parts = [self._pair(row) for row in self.summary.rows]
        notes = [
            f"- {one.name} ({one.program}): {' -> '.join(one.chain) or 'plain sampling'}"
            + (f"; scored without {', '.join(one.left_out)}" if one.left_out else "")
            for one in self.presets
        ]
        return "\n\n".join([*parts, "\n".join(map(wrapped, notes))])

    def above_best(self, row: Row, name: str) -> float:
        """Return how far a setting of a pair lies above the best [nat/token]."""
        setting, best = row.setting(name), row.setting("best")
        return np.nan if setting is None or best is None else setting.nll - best.nll

    def _pair(self, row: Row) -> str:
        """Return the table of one pair."""
        head = [("setting", ""), ("nll", "nat/token"), ("above best", "nat/token"), ("ood", "%")]
        cells = [
            [
                one.name,
                fixed(one.nll),
                "" if one.name == "best" else signed(self.above_best(row, one.name)),
                fixed(100 * one.ood, 2),
                *(value_text(name, one.values.get(name)) for name in self.used),
            ]
            for one in sorted(row.settings, key=lambda setting: setting.nll)
        ]
        head += [*((name, "") for name in self.used)]
        return f"{row.model} on {row.dataset}\n\n{aligned(head, cells, 1)}"

    @property
    def used(self) -> list[str]:
        """Return the parameters that the table states."""
        named = [name for one in self.presets for name in one.settings]
        return [*dict.fromkeys([*self.summary.axes, *named])]


def place_presets(
    sweep: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    *,
    form: str | None = None,
    inputs: Iterable[str] = (),
    out: str | os.PathLike[str] | None = None,
) -> Placed:
    """Score presets exactly on the harvests of a sweep.

    Parameters
    ----------
    sweep : str or path
        The sweep file.
    files : sequence of str or path
        Presets, as for `jaxsppl.import_preset`.
    form : str, optional
        The program that all of them are for; told from each file by default.
    inputs : iterable of str
        Harvest files, folders or patterns; where the sweep found them by default.
    out : str or path, optional
        Write the sweep with the presets among its named settings to this file: every table and
        figure of it then shows them.

    Returns
    -------
    Placed

    Raises
    ------
    ConfigError
        When no file could be read as a preset, or the harvests are not those of the sweep.
    PlanError
        When the harvests cannot serve the only preset.
    """
    presets: dict[str, Preset] = {}
    problems: list[str] = []
    for file in files:
        try:
            preset = import_preset(file, form)
        except ConfigError as error:
            if len(files) == 1:
                raise
            problems.append(str(error))
        else:
            presets[_name(preset, Path(file), [*presets, *_TAKEN])] = preset
    if not presets:
        raise ConfigError("; ".join(problems) or "no preset was given; name at least one file")
    baseline = engine("jaxsppl.sweep.baselines").Baseline
    place = engine("jaxsppl.sweep.placed").place_settings
    placed = store.read_sweep(sweep)
    harvests = [file for pattern in inputs for file in store.expand(pattern)]
    harvests = harvests or _harvests_of(store.contents_of(placed), Path(sweep))
    for name, one in [*presets.items()]:
        try:
            placed = place(placed, {name: baseline(one.chain, one.settings)}, harvests)
        except PlanError as error:  # this harvest cannot serve it
            if len(files) == 1:
                raise
            problems.append(f"{name}: {error}")
            del presets[name]
    if out is not None:
        store.write_dataset(placed, out)
    summary = summarise_sweep(store.contents_of(placed), Path(sweep).name)
    return Placed(
        tuple(replace(one, name=name) for name, one in presets.items()), tuple(problems), summary
    )


def _harvests_of(contents: schema.Contents, sweep: Path) -> list[Path]:
    """Return the harvests of a sweep: where it found them, or beside it."""
    found: list[Path] = []
    for one in harvests_of(contents):
        source = Path(one["source"])
        places = [place for place in (source, sweep.parent / source.name) if place.is_file()]
        if not places:
            raise ConfigError(
                f"{sweep}: its harvest '{source}' is not there any more; name it with --input"
            )
        found.append(places[0])
    return found


def _name(preset: Preset, file: Path, taken: Sequence[str]) -> str:
    """Return a name for a preset that no other setting has; many files have the same name."""
    names = (preset.name, f"{file.absolute().parent.name}/{preset.name}", str(file))
    return next((name for name in names if name not in taken), f"{file} ({len(taken)})")
