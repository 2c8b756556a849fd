"""Commands that hand settings and results on: export."""

from pathlib import Path
from typing import Literal

from jaxsppl.cli.terminal import Json, emit, tell

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
