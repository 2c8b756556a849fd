"""Commands that gather data: prepare, harvest, import-kld."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from jaxsppl.cli.terminal import Flag, Json, Several, Whole, emit, tell
from jaxsppl.errors import IncompleteError
from jaxsppl.plural import plural


def prepare(
    source: str,
    /,
    *,
    out: Path,
    name: str | None = None,
    column: str = "text",
    prefix_chars: Whole = 600,
    continuation_chars: Whole = 1100,
    minimum_chars: Whole = 200,
    whole: Annotated[bool, Flag] = False,
    prefix_column: str | None = None,
    group_column: str | None = None,
    limit: Whole | None = None,
    seed: Whole = 0,
    split: str = "train",
    subset: str | None = None,
    json: Json = False,
) -> int:
    """Cut texts into passages: a prefix that gives context and a continuation that is scored.

    Parameters
    ----------
    source
        A Hugging Face dataset, a .parquet, .jsonl, .csv or .txt file, a folder or pattern of
        these, or python:prose, python:code (from the Python installation itself).
    out
        Folder for the passages.
    name
        Name of the dataset in all results; made from the source by default.
    column
        Column that holds the text.
    prefix_chars
        Longest prefix, in characters; 0 is none.
    continuation_chars
        Longest continuation, in characters.
    minimum_chars
        Shortest continuation, in characters.
    whole
        Continue to the end of each document; harvest it with --window.
    prefix_column
        Column that holds the prefix, for example the question; the text's column may then hold a
        list of several continuations.
    group_column
        Column that says what a passage belongs to: a coordinate of the harvest.
    limit
        Most passages; 100 by default.
    seed
        Decides which texts are taken.
    split
        Split of a dataset that has several.
    subset
        Configuration of a dataset that has several.
    """
    from jaxsppl.bars import counted
    from jaxsppl.texts.prepare import prepare as cut

    with counted("passages") as progress:
        done = cut(
            source,
            out,
            name=name,
            column=column,
            prefix_chars=prefix_chars,
            continuation_chars=continuation_chars,
            minimum_chars=minimum_chars,
            whole=whole,
            prefix_column=prefix_column,
            group_column=group_column,
            limit=limit,
            seed=seed,
            split=split,
            subset=subset,
            progress=progress,
        )
    if done.skipped:
        tell("skipped: " + ", ".join(f"{reason} {n}" for reason, n in done.skipped.items()))
    kept = " (they were there)" if done.was_prepared else ""
    emit(
        json,
        f"{plural(done.n_passage, 'passage')} of {done.name} in {done.out}{kept}",
        {
            "out": done.out,
            "dataset": done.name,
            "passages": done.n_passage,
            "rows_seen": done.n_row_seen,
            "skipped": done.skipped,
            "fingerprint": done.fingerprint,
            "was_prepared": done.was_prepared,
        },
    )
    return 0


def harvest(
    sources: Annotated[list[str], Parameter(negative="", metavar="DIR")],
    /,
    *,
    server: Annotated[
        list[str] | None,
        Parameter(negative="", consume_multiple=True, env_var="JAXSPPL_SERVER_URL"),
    ] = None,
    out: Path,
    protocol: Literal["auto", "llama.cpp", "vllm", "sglang", "openai", "transformers"] = "auto",
    model: Annotated[list[str] | None, Several] = None,
    all_models: Annotated[bool, Flag] = False,
    alternatives: Whole = 100,
    method: Literal["auto", "token-grammar", "one-token"] = "auto",
    statistics: Annotated[bool, Flag] = False,
    window: Whole = 0,
    stride: Whole = 0,
    chat: Annotated[bool, Flag] = False,
    parallel: Whole | None = None,
    timeout_s: float = 600.0,
    patience_s: float = 300.0,
    force: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Ask a running model what it thinks of the passages; one file for each model and dataset.

    Run it again to resume. An API key is taken from JAXSPPL_API_KEY.

    Parameters
    ----------
    sources
        Folders of passages, made by `jaxsppl prepare`.
    server
        Address of a server, for example http://127.0.0.1:8080; several share the work. The
        protocol transformers needs none.
    out
        Folder for the harvest files.
    protocol
        Kind of server; auto asks it. With transformers the models run in this process.
    model
        Names of the models to harvest, where a server has several; for the protocol transformers
        folders or names of the Hugging Face Hub.
    all_models
        Harvest every model of the server.
    alternatives
        How many of the likeliest tokens are kept at each place.
    method
        How the text is forced on the server; auto tries them in this order.
    statistics
        Keep what some samplers need of the whole vocabulary; llama.cpp sends all of it then.
    window
        Score texts of any length in windows of so many tokens.
    stride
        Tokens that each window scores; half the window by default.
    chat
        The prefix is a user's message in the model's chat template, the continuation the answer.
    parallel
        Requests in flight at each server; its slots by default.
    timeout_s
        Longest time for one request, in seconds.
    patience_s
        How long to wait for a server that stops answering, in seconds.
    force
        Replace harvests that were made from something else.
    """
    from jaxsppl.bars import harvest_bar
    from jaxsppl.harvest.protocol import HarvestReport
    from jaxsppl.harvest.runner import harvest as ask
    from jaxsppl.texts.folder import load_passages

    # A second address after --server is no folder.
    urls = [*(server or ()), *(source for source in sources if "://" in source)]
    folders = [source for source in sources if "://" not in source]
    reports: list[HarvestReport] = []
    for passages in [load_passages(folder) for folder in folders]:
        dataset = passages[0].dataset
        with harvest_bar(f"harvest {dataset}") as progress:
            reports += ask(
                passages,
                urls,
                out,
                dataset=dataset,
                protocol=protocol,
                models=model,
                all_models=all_models,
                alternatives=alternatives,
                method=method,
                statistics=statistics,
                window=window,
                stride=stride,
                chat=chat,
                parallel=parallel,
                timeout_s=timeout_s,
                patience_s=patience_s,
                force=force,
                progress=progress,
            )
    failed = False
    for one in reports:
        for document, reason in one.failures:
            failed = True
            tell(f"problem: {one.model} on {one.dataset}: {document}: {reason}")
    emit(
        json,
        "\n".join(
            f"{one.path}: {plural(one.n_token, 'token')} of {plural(one.n_document, 'document')}"
            f" by {one.protocol}{' (was there)' if one.skipped else ''}"
            for one in reports
            if one.path is not None
        ),
        {"harvests": [asdict(one) for one in reports]},
    )
    return IncompleteError.exit_code if failed else 0


def import_kld(
    file: Path,
    /,
    *,
    out: Path,
    alternatives: Whole = 100,
    model: str | None = None,
    dataset: str = "text",
    server: str | None = None,
    json: Json = False,
) -> int:
    """Make a harvest of a file that `llama-perplexity --kl-divergence-base` writes.

    It is read as a stream: make a pipe by `mkfifo`, start this command on it, then let the
    program write to it, and the many gigabytes are never on disk.

    Parameters
    ----------
    file
        The file or the named pipe.
    out
        The harvest file.
    alternatives
        How many of the likeliest tokens are kept at each place.
    model
        Name of the model in all results; the file's by default.
    dataset
        Name of the text in all results.
    server
        Address of a llama-server with the same vocabulary: it tells the tokens' bytes.
    """
    from jaxsppl.bars import counted
    from jaxsppl.harvest.kld import import_kld as read

    with counted(f"import {file.name}") as progress:
        done = read(
            file,
            out,
            alternatives=alternatives,
            model=model,
            dataset=dataset,
            server=server,
            progress=progress,
        )
    emit(
        json,
        f"{done.path}: {plural(done.n_token, 'token')} of {plural(done.n_document, 'chunk')}",
        {"harvests": [asdict(done)]},
    )
    return 0
