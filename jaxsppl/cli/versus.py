"""The command that puts models and settings side by side: compare."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from jaxsppl.cli.terminal import Flag, Json, Several, Whole, emit


def compare(
    harvests: Annotated[list[str], Parameter(negative="", metavar="HARVEST")],
    /,
    *,
    setting: Annotated[list[str] | None, Several] = None,
    reference: str | None = None,
    unit: Literal["auto", "token", "byte", "character"] = "auto",
    epsilon: float = 0.01,
    tail: Literal["bound", "drop"] = "bound",
    dialect: Literal["llama.cpp", "vllm", "transformers", "sglang"] = "llama.cpp",
    texts: Annotated[list[str] | None, Several] = None,
    resamples: Whole = 2000,
    confidence: float = 0.95,
    seed: Whole = 0,
    cluster: Literal["group", "document"] = "group",
    out: Path | None = None,
    markdown: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Compare models, quantisations or settings on the same documents, with paired intervals.

    Parameters
    ----------
    harvests
        Harvest files, folders or patterns: one or several models on the same texts.
    setting
        neutral, "llama.cpp default", "vLLM default", name=value,... or a preset file of another
        program, for example generation_config.json; several are compared with the first. Without
        any: neutral and llama.cpp's default.
    reference
        The model that the others are compared with; the first by default.
    unit
        Of the differences. Models of different tokenizers have no tokens in common: auto then
        takes bytes.
    epsilon
        Probabilities below count as it.
    tail
        Whether the unseen tail is modelled, or taken for absent.
    dialect
        Whose order and rules a setting of name=value follows.
    texts
        Folders of the passages, for bits per character.
    resamples
        Of the bootstrap over documents.
    confidence
        Of the intervals.
    seed
        Of the bootstrap.
    cluster
        What is drawn whole: groups of documents where the harvests have them, or documents.
    out
        Write the comparison to this file (NAME.comparison.nc), for show and report.
    markdown
        Print tables as Markdown.
    """
    from jaxsppl import store
    from jaxsppl.choice import Rules
    from jaxsppl.comparing import compare_files
    from jaxsppl.report.comparison import comparison_text, summarise_comparison

    result = compare_files(
        harvests,
        setting or (),
        reference=reference,
        unit=unit,
        epsilon=epsilon,
        tail=tail,
        dialect=dialect,
        texts=texts or (),
        rules=Rules(resamples=resamples, confidence=confidence, seed=seed, cluster=cluster),
    )
    text = comparison_text(summarise_comparison(result), markdown)
    if out is not None:
        store.write_dataset(result, out)
        text += f"\nwritten: {out}"
    emit(json, text, {**result.to_dict(), "written": out})
    return 0
