"""Commands that look at files: show, explain-token, plot, check.

`show` and `check` load neither jax nor xarray, so that they answer at once.
"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from jaxsppl.cli.terminal import Flag, Json, Several, Whole, emit, pairs_of, tell, words_of
from jaxsppl.errors import ConfigError, JaxspplError

Files = Annotated[list[Path], Parameter(negative="", metavar="FILE")]


def show(
    files: Files,
    /,
    *,
    markdown: Annotated[bool, Flag] = False,
    front: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Say what is in a file: perplexity, bits per byte, the best settings, the flags to type.

    Parameters
    ----------
    files
        Sweep, optimum, comparison or harvest files.
    markdown
        Print tables as Markdown.
    front
        List the points of a sweep that no other beats in both nll and ood.
    """
    from jaxsppl.report.table import describe, render, to_data

    summaries = [describe(file) for file in files]
    text = "\n\n".join(
        render(summary, markdown=markdown, front=front).rstrip() for summary in summaries
    )
    emit(json, text, {"files": [to_data(summary) for summary in summaries]})
    return 0


def explain_token(
    harvest: Path,
    /,
    *,
    at: Whole,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", consume_multiple=True)
    ] = None,
    chain: str | None = None,
    module: Annotated[list[str] | None, Several] = None,
    dialect: Literal["llama.cpp", "vllm", "transformers", "sglang"] = "llama.cpp",
    tail: Literal["bound", "drop"] = "bound",
    rows: Whole = 20,
    server: str | None = None,
    model: str | None = None,
    json: Json = False,
) -> int:
    """Say what a setting does to each alternative of one token, and why it was cut or not.

    Parameters
    ----------
    harvest
        A harvest file.
    at
        Place of the token in it, from 0.
    settings
        Parameters, for example temperature=0.8 min_p=0.05; llama.cpp's default without any.
    chain
        Stages, comma-separated, first applied first; the dialect's order by default.
    module
        Python files with samplers of your own (jaxsppl.stage).
    dialect
        Whose order and rules.
    tail
        Whether the unseen tail is modelled, or taken for absent.
    rows
        Alternatives to list.
    server
        A llama-server with the same model, which tells the texts of the tokens: a harvest file
        holds their ids only.
    model
        Which of its models.
    """
    from dataclasses import asdict

    from jaxsppl.axes import setting
    from jaxsppl.modules import load_modules
    from jaxsppl.report.explained import explained_text
    from jaxsppl.results import engine

    if rows < 0:
        raise ConfigError(f"--rows is {rows}; give a whole number of at least 0")
    load_modules(module or [], Path(), "--module")
    values = setting(settings or [], "--set")
    one = engine("jaxsppl.sweep.explained").explain_token(
        harvest,
        at,
        chain=None if chain is None else words_of(chain),
        dialect=dialect,
        tail=tail,
        **values,
    )
    texts: dict[int, str] = {}
    if server is not None:
        from jaxsppl.harvest.sampled import token_texts

        shown = [a.token_id for a in one.alternatives if a.rank <= rows]
        texts = token_texts(server, [one.token_id, *shown], model)
    data = asdict(one)
    data["texts"] = texts
    emit(json, explained_text(one, texts, rows), data)
    return 0


def plot(
    files: Files,
    /,
    *,
    out: Path,
    kind: str = "auto",
    x: str | None = None,
    y: str | None = None,
    select: Annotated[list[str] | None, Several] = None,
    dpi: float = 150,
    json: Json = False,
) -> int:
    """Draw a figure from sweep files.

    Parameters
    ----------
    files
        Sweep files.
    out
        The picture: .png, .svg or .pdf.
    kind
        curve, groups, heat, tradeoff, or shootout, which ranks samplers by their held-out gain;
        auto takes heat when --y is given, else curve.
    x
        Parameter of the horizontal axis.
    y
        Parameter of the vertical axis of a heat map.
    select
        Hold an axis at one of its values, for example temperature=0.8, or choose a model or
        dataset by its name, for example dataset=prose.
    dpi
        Dots per inch of a PNG.
    """
    from jaxsppl.report.plots import plot as draw

    written = draw(
        files, out, kind=kind, x=x, y=y, select=pairs_of(select or [], "--select"), dpi=dpi
    )
    emit(json, "\n".join(str(path) for path in written), {"figures": written})
    return 0


def check(files: Files, /, *, json: Json = False) -> int:
    """Say whether files are whole, and what is wrong with those that are not.

    Parameters
    ----------
    files
        Result files of any kind, sweep configs (.toml), or folders.
    """
    from jaxsppl.check import check as examine

    code = 0
    found: list[dict[str, str | bool]] = []
    for file in files:
        try:
            words = examine(file)
            found.append({"path": str(file), "ok": True, "message": words})
            if not json:
                emit(False, f"ok: {file}: {words}", {})
        except JaxspplError as error:
            code = max(code, error.exit_code)
            words = " ".join(str(error).split())
            found.append({"path": str(file), "ok": False, "message": words})
            tell(f"jaxsppl: {words}")
    if json:
        emit(True, "", {"files": found})
    return code
