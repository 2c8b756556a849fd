"""A whole config, prepare to table, doing only what is missing.

Each step asks its own file whether it is still right: a folder of passages and a harvest by their
fingerprints, a sweep by its grid, order, objective and the harvests it was made from, a figure by
its age.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsppl import journal, schema, store
from jaxsppl.bars import counted, harvest_bar
from jaxsppl.errors import ConfigError, SchemaError, ServerError
from jaxsppl.optimum_task import optimize_task
from jaxsppl.report.rows import SweepSummary
from jaxsppl.results import sweep_is_current, sweep_paths, sweep_to

if TYPE_CHECKING:
    from jaxsppl.config import Config, Server
    from jaxsppl.texts.passages import Passage

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One file of a run.

    Attributes
    ----------
    what : str
        "texts", "harvest", "sweep", "optimum", "table", "figure" or "report".
    path : Path
        The file or folder.
    made : bool
        True when it was made now, False when it was there already.
    """

    what: str
    path: Path
    made: bool


@dataclass
class RunReport:
    """What a run did.

    Attributes
    ----------
    tell : callable
        Takes a line about each step.
    steps : list of Step
        In the order of the work.
    problems : list of str
        What could not be done; the rest was.
    """

    tell: Tell = lambda line: None
    steps: list[Step] = field(default_factory=list[Step])
    problems: list[str] = field(default_factory=list[str])

    def add(self, what: str, path: Path, *, made: bool) -> None:
        """Note a step and say so."""
        self.steps.append(Step(what, path, made))
        self.tell(f"{what}: {path}{'' if made else ' (was there)'}")

    def problem(self, words: str) -> None:
        """Note what could not be done and say so."""
        self.problems.append(words)
        self.tell(f"problem: {words}")

    def paths(self, what: str) -> list[Path]:
        """Return the files of one kind."""
        return [step.path for step in self.steps if step.what == what]


def run(settings: "Config", tell: Tell = lambda line: None, *, force: bool = False) -> RunReport:
    """Prepare, harvest, sweep, optimize, and write tables, figures and a page, where missing.

    Parameters
    ----------
    settings : Config
        `texts.datasets`, `server`, `grid` and `run.out` say what and where.
    tell : callable
        Takes a line about each step.
    force : bool
        Replace harvests that were made from something else.

    Returns
    -------
    RunReport

    Raises
    ------
    ConfigError
        When nothing is asked for, another run writes to the same folder, or a harvest of
        something else is in the way.
    ServerError
        When the server cannot be reached and a dataset has no harvest yet.
    """
    if not settings.texts.datasets and not settings.run.input:
        raise ConfigError(
            f"config '{settings.name}' names no text; add [texts.datasets] or run.input, for "
            "example --set texts.datasets.prose=python:prose"
        )
    report = RunReport(tell)
    with journal.lock(Path(settings.run.out) / "run"):
        files: list[Path] = []
        for dataset, folder in prepare_texts(settings, report).items():
            files += harvest_texts(settings, dataset, folder, report, force=force)
        files += [file for pattern in settings.run.input for file in store.expand(pattern)]
        files = list(dict.fromkeys(files))
        if settings.grid:
            sweep_and_draw(settings, files, report)
        if settings.optimize.over:
            task = optimize_task(settings=settings, inputs=[str(file) for file in files])
            made = not task.is_current()
            if made:
                task.write(task.path.with_suffix(".csv"))
            report.add("optimum", task.path, made=made)
        found = report.paths("sweep") + report.paths("optimum")
        if found:
            _write_page(found, settings, report)
    return report


def _write_page(files: Sequence[Path], settings: "Config", report: RunReport) -> None:
    """Write the page about all results of a run, unless it is newer than they are."""
    target = Path(settings.run.out) / f"{store.safe_name(settings.name)}.html"
    made = not _is_newer(target, files)
    if made:
        from jaxsppl.report.page import write_report

        write_report(files, target)
    report.add("report", target, made=made)


def prepare_texts(settings: "Config", report: RunReport) -> dict[str, Path]:
    """Prepare each dataset of a config in ``run.out/texts/NAME``.

    Parameters
    ----------
    settings : Config
    report : RunReport
        Takes the steps.

    Returns
    -------
    dict of str to Path
        Folder of each dataset.
    """
    from jaxsppl.texts.prepare import prepare

    texts = settings.texts
    folders: dict[str, Path] = {}
    for name, source in texts.datasets.items():
        folder = Path(settings.run.out) / "texts" / store.safe_name(name)
        with counted(f"prepare {name}") as progress:
            done = prepare(
                source,
                folder,
                name=name,
                column=texts.column,
                prefix_chars=texts.prefix_chars,
                continuation_chars=texts.continuation_chars,
                minimum_chars=texts.minimum_chars,
                whole=texts.whole,
                prefix_column=texts.prefix_column,
                group_column=texts.group_column,
                limit=texts.limit,
                seed=texts.seed,
                progress=progress,
            )
        report.add("texts", folder, made=not done.was_prepared)
        folders[name] = folder
    return folders


def missing_harvests(settings: "Config", folders: Mapping[str, Path]) -> bool:
    """Return whether a server is needed: whether a named model lacks a harvest of a dataset.

    Parameters
    ----------
    settings : Config
    folders : mapping of str to Path
        Folder of passages of each dataset.

    Returns
    -------
    bool
        Always True when `server.models` is empty or all models are asked for: only the server
        knows which those are.
    """
    from jaxsppl.texts.folder import load_passages

    server = settings.server
    if server.all_models or not server.models:
        return True
    return any(
        set(_stored_names(server)) - set(_present(settings, name, load_passages(folder)))
        for name, folder in folders.items()
    )


def harvest_texts(
    settings: "Config", dataset: str, folder: Path, report: RunReport, *, force: bool = False
) -> list[Path]:
    """Harvest one dataset from the servers of a config, unless its harvests are there.

    Parameters
    ----------
    settings : Config
    dataset : str
    folder : Path
        Its passages.
    report : RunReport
        Takes the steps and the problems.
    force : bool
        Replace harvests that were made from something else.

    Returns
    -------
    list of Path
        The harvest files.

    Raises
    ------
    ConfigError
        When no server is named and no harvest is there.
    ServerError
        When the server cannot be reached and no harvest is there.
    """
    from jaxsppl.harvest.runner import harvest
    from jaxsppl.texts.folder import load_passages

    server = settings.server
    passages = load_passages(folder)
    there = _present(settings, dataset, passages)
    if not missing_harvests(settings, {dataset: folder}):
        files = [there[model] for model in _stored_names(server)]
        for file in files:
            report.add("harvest", file, made=False)
        return files
    if not settings.urls() and not there and server.protocol != "transformers":
        raise ConfigError(
            f"no server is named to harvest '{dataset}'; give --server URL, set server.url in the "
            "config, or JAXSPPL_SERVER_URL"
        )
    files = dict.fromkeys(there.values())
    try:
        with harvest_bar(f"harvest {dataset}") as progress:
            done = harvest(
                passages,
                settings.urls(),
                settings.run.out,
                dataset=dataset,
                protocol=server.protocol,
                models=server.models or None,
                all_models=server.all_models,
                alternatives=server.alternatives,
                method=server.method,
                statistics=server.statistics,
                window=server.window,
                stride=server.stride,
                chat=server.chat,
                timeout_s=server.timeout_s,
                # Who has harvests need not wait minutes for a server that is switched off.
                patience_s=min(server.patience_s, 5.0) if there else server.patience_s,
                force=force,
                progress=progress,
            )
    except ServerError as error:
        if not there:
            raise
        report.problem(f"{error}; going on with the harvests that are there")
        done = []
    for one in done:
        for document, reason in one.failures:
            report.problem(f"{one.model} on {one.dataset}: {document}: {reason}")
        if one.path is not None:
            files[Path(one.path)] = None
    made = {Path(one.path) for one in done if one.path is not None and not one.skipped}
    for file in files:
        report.add("harvest", file, made=file in made)
    return list(files)


def _stored_names(server: "Server") -> list[str]:
    """Return the names that harvests of a config's models carry."""
    if server.protocol != "transformers":
        return list(server.models)
    from jaxsppl.harvest.servers.transformers_local import model_name

    return [model_name(model) for model in server.models]


def _present(settings: "Config", dataset: str, passages: "Sequence[Passage]") -> dict[str, Path]:
    """Return the whole harvests of exactly these passages, by model."""
    from jaxsppl.harvest.records import texts_digest

    texts = texts_digest(passages)
    server = settings.server
    read = {
        "window": server.window,
        "stride": server.stride or server.window // 2,
        "chat": int(server.chat),
    }
    found: dict[str, Path] = {}
    for file in sorted(Path(settings.run.out).glob("*.harvest.nc")):
        try:
            contents = store.read_contents(file)
            schema.check_harvest(contents, str(file))
            made_from = json.loads(str(contents.attrs.get("config_json", "{}")))
        except (SchemaError, ValueError):
            continue  # `harvest` says what is wrong when it comes to that file
        most = min(server.alternatives, int(contents.attrs["n_vocab"]))
        if (
            str(contents.array("dataset")) == dataset
            and made_from.get("texts_sha256") == texts
            and contents.sizes["rank"] == most
            and all(made_from.get(key, 0) == value for key, value in read.items())
            and ("log_partition" in contents.variables or not server.statistics)
            and not int(contents.attrs.get("n_failed", 0))
        ):
            found[str(contents.array("model"))] = file
    return found


def sweep_and_draw(settings: "Config", files: Sequence[Path], report: RunReport) -> None:
    """Sweep each order of a config and write its table and figures, where not up to date.

    Parameters
    ----------
    settings : Config
    files : sequence of Path
        Harvest files.
    report : RunReport
        Takes the steps.
    """
    paths = sweep_paths(settings)
    for order, path in paths.items():
        made = not sweep_is_current(path, settings, settings.orders()[order], files)
        if made:
            sweep_to(path, settings, settings.orders()[order], files)
        report.add("sweep", path, made=made)
        # Of samplers that are compared, the comparison is what one looks at.
        write_reports([path], report, figures=not settings.chain.own_axes)
    if settings.chain.own_axes:
        if settings.decide is not None and len(paths) > 1:
            target = Path(settings.run.out) / f"{store.safe_name(settings.name)}.shootout.png"
            _draw(list(paths.values()), target, "shootout", report)
    elif len(paths) > 1:
        together = Path(settings.run.out) / f"{store.safe_name(settings.name)}.orders.png"
        _draw(list(paths.values()), together, "curve", report)


def write_reports(sweeps: Sequence[Path], report: RunReport, *, figures: bool = True) -> None:
    """Write the table (CSV) and the figures of sweep files where they are older or missing.

    Parameters
    ----------
    sweeps : sequence of Path
        Sweep files.
    report : RunReport
        Takes the steps.
    figures : bool
        Whether figures are wanted.
    """
    from jaxsppl.report import csvfile, table

    for path in sweeps:
        stem = path.name.removesuffix(".sweep.nc")
        summary = table.describe(path)
        if not isinstance(summary, SweepSummary):
            raise SchemaError(f"{path}: it is no sweep")
        tables = {f"{stem}.csv": csvfile.write_settings}
        if any(row.proof is not None for row in summary.rows):
            tables[f"{stem}.proof.csv"] = csvfile.write_proof
        for name, write in tables.items():
            target = path.with_name(name)
            made = not _is_newer(target, [path])
            if made:
                write(summary, target)
            report.add("table", target, made=made)
        n_swept = sum(len(values) > 1 for values in summary.axes.values())
        kinds = ["curve", "tradeoff"] if n_swept else []
        kinds += ["heat"] if n_swept > 1 else []
        for kind in (*kinds, "groups") if figures else ():
            _draw([path], path.with_name(f"{stem}.{kind}.png"), kind, report)


def _draw(sweeps: Sequence[Path], target: Path, kind: str, report: RunReport) -> None:
    """Draw a figure unless it is newer than its sweeps."""
    made = not _is_newer(target, sweeps)
    if made:
        from jaxsppl.report.plots import plot

        plot([*sweeps], target, kind=kind)
    report.add("figure", target, made=made)


def _is_newer(target: Path, sources: Iterable[Path]) -> bool:
    """Return whether a file is there and no older than any of its sources."""
    return target.is_file() and all(
        target.stat().st_mtime_ns >= source.stat().st_mtime_ns for source in sources
    )
