"""Commands that hand settings on and take them in: export, import-preset, report."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from jaxsppl.cli.terminal import Json, emit, tell
from jaxsppl.errors import IncompleteError

Format = Literal[
    "llama.cpp", "llama-server-json", "vllm", "ollama", "generation_config", "sillytavern"
]


def export(
    file: Path,
    /,
    *,
    format: Format = "llama.cpp",
    point: str = "best",
    model: str | None = None,
    dataset: str | None = None,
    out: Path | None = None,
    json: Json = False,
) -> int:
    """Write a setting as flags or a file for the program that is to sample with it.

    Parameters
    ----------
    file
        Sweep or optimum file.
    format
        llama.cpp: flags. llama-server-json, vllm: fields of a request. ollama: lines of a
        Modelfile. generation_config: the file for transformers. sillytavern: a text completion
        preset.
    point
        best; best-for-FORMAT, the best point that this program can run; or name=value,..., for
        example temperature=0.8,min_p=0.05, the others neutral.
    model
        The model, where the file has several.
    dataset
        The dataset, where the file has several.
    out
        Write to this file instead of printing.
    """
    from jaxsppl import store
    from jaxsppl.report.chosen import export_point

    chosen, made = export_point(file, format, point, model=model, dataset=dataset)
    for line in (chosen.words(), *made.notes):
        tell(line)
    if out is not None:
        store.write_text(out, made.text + "\n")
    emit(
        json,
        made.text if out is None else f"written: {out}",
        {
            "format": format,
            "settings": made.settings,
            "text": made.text,
            "notes": made.notes,
            "model": chosen.model,
            "dataset": chosen.dataset,
            "point": chosen.point.values,
            "chain": chosen.point.chain,
            "nll": chosen.point.nll,
            "above_best": chosen.above_best,
            "written": out,
        },
    )
    return 0


def import_preset(
    files: Annotated[list[Path], Parameter(negative="", metavar="FILE")],
    /,
    *,
    on: Path,
    format: Format | Literal["webui"] | None = None,
    inputs: Annotated[
        list[str] | None, Parameter(name="--input", negative="", consume_multiple=True)
    ] = None,
    out: Path | None = None,
    json: Json = False,
) -> int:
    """Score presets of other programs on a sweep: say where the recommended settings lie.

    Parameters
    ----------
    files
        A generation_config.json, requests or options (.json), llama.cpp flags, a Modelfile, presets
        of SillyTavern (.json) or text-generation-webui (.yaml).
    on
        The sweep file.
    format
        The program, where a file does not say which it is for.
    inputs
        Harvest files of the sweep; where it found them by default.
    out
        Write the sweep with the presets among its named settings, which every table and figure of
        it then shows.
    """
    from jaxsppl.placing import place_presets

    placed = place_presets(on, files, form=format, inputs=inputs or (), out=out)
    for problem in placed.problems:
        tell(f"problem: {problem}")
    names = [one.name for one in placed.presets]
    emit(
        json,
        placed.text() + ("" if out is None else f"\n\nwritten: {out}"),
        {
            "presets": [asdict(one) for one in placed.presets],
            "scores": [
                {
                    "model": row.model,
                    "dataset": row.dataset,
                    "preset": setting.name,
                    "nll": setting.nll,
                    "above_best": placed.above_best(row, setting.name),
                    "ood": setting.ood,
                }
                for row in placed.summary.rows
                for setting in row.settings
                if setting.name in names
            ],
            "problems": placed.problems,
            "written": out,
        },
    )
    return IncompleteError.exit_code if placed.problems else 0


def report(
    files: Annotated[list[Path], Parameter(negative="", metavar="FILE")],
    /,
    *,
    out: Path,
    title: str = "",
    json: Json = False,
) -> int:
    """Write one self-contained page that can be sent around: tables, figures, and how to redo them.

    Parameters
    ----------
    files
        Sweep, optimum, comparison or harvest files.
    out
        The page (.html).
    title
        Its heading; the names of the files by default.
    """
    from jaxsppl.report.page import write_report

    written = write_report(files, out, title=title)
    emit(json, f"written: {written}", {"written": written})
    return 0
