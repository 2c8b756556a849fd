"""From a source as a user writes it to a stream of rows, whatever kind of source it is."""

import glob
import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from jaxsppl.errors import JaxspplError, TextError
from jaxsppl.texts.builtin import builtin_rows, seeded_order
from jaxsppl.texts.columns import Columns, Row, pick_columns
from jaxsppl.texts.folder import PARTIAL, PREPARATION
from jaxsppl.texts.passages import safe_name
from jaxsppl.texts.rows_datasets import (
    HUB_ID,
    hub_rows,
    is_saved_dataset,
    one_line,
    parquet_rows,
    saved_rows,
    split_files,
)
from jaxsppl.texts.rows_local import COMPRESSIONS, csv_rows, json_rows, text_rows

_KINDS = {
    "parquet": (".parquet",),
    "JSON": (".jsonl", ".ndjson", ".json"),
    "CSV": (".csv", ".tsv"),
    "text": (".txt", ".text", ".md", ".rst"),
}
_ALLOWED = (
    "a Hugging Face dataset id, 'python:prose', 'python:code', or a file, folder or pattern of "
    ".parquet, .jsonl, .json, .csv, .tsv or .txt"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A source that was found, not yet read.

    Attributes
    ----------
    name : str
        A safe name for the dataset made of it.
    state : str
        Changes when what stands at the source changes, as far as that is cheap to know: sizes
        and times of local files, the Python version; empty for the Hub.
    is_permuted : bool
        Whether the rows come in an order that the seed decides, over the whole source.
    pool : int
        Otherwise: from how many passages at the start of the source to draw.
    rows : iterator of Row
        The rows; each value is what stands in the chosen column, or a `Skip`.
    folders : frozenset of Path
        Resolved folders whose files are found by what lies there: passages among them would be
        taken for texts.
    """

    name: str
    state: str
    is_permuted: bool
    pool: int
    rows: Iterator[Row]
    folders: frozenset[Path] = frozenset()


def open_source(
    source: str, *, columns: Columns, subset: str | None, split: str, seed: int, n_char: int
) -> Source:
    """Find a source and say how its rows will come.

    Parameters
    ----------
    source : str
        Dataset id on the Hugging Face Hub; local file, folder or glob pattern; a folder that
        `datasets` saved; ``python:prose`` or ``python:code``. What exists locally wins.
    columns : Columns
        That of the text is not used where a document is a file or built in; the others cannot be.
    subset : str or None
        Configuration of a dataset on the Hub.
    split : str
        Split of a dataset on the Hub or of a folder of data files; of all else only "train".
    seed : int
        Decides the order of files and of built-in documents.
    n_char : int
        Characters of each document that matter, leading white space aside.

    Returns
    -------
    Source
        With a lazy stream: nothing but names and sizes has been read.

    Raises
    ------
    TextError
        When the source does not exist or is of no known kind; from the stream, when it cannot
        be read.
    """
    if source.startswith("python:"):
        _refuse_columns(source, columns)
        _refuse_parts(source, subset, split)
        return Source(
            name=safe_name(source),
            state=platform.python_version(),
            is_permuted=True,
            pool=0,
            rows=builtin_rows(source, seed),
        )
    try:
        path = Path(source).expanduser()
        if path.exists() or glob.has_magic(source):
            _refuse_parts(source, subset)
            return _open_local(path, columns=columns, split=split, seed=seed, n_char=n_char)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, JaxspplError):
            raise
        raise TextError(f"{source}: cannot be read: {one_line(error)}") from error
    if HUB_ID.fullmatch(source) and _kind(path) is None:
        rows = pick_columns(hub_rows(source, columns.names(), subset, split), columns)
        return Source(safe_name(source), "", False, 1_000, _guarded(source, rows))
    raise TextError(f"'{source}' does not exist; allowed: {_ALLOWED}")


def _open_local(path: Path, *, columns: Columns, split: str, seed: int, n_char: int) -> Source:
    """Open a file, a folder or a pattern."""
    if path.is_dir() and is_saved_dataset(path):
        files = sorted(item for item in path.rglob("*") if item.is_file())
        rows = pick_columns(saved_rows(path, columns.names(), split), columns)
        kind = "saved dataset"
    else:
        kind, files = _local_files(path, split)
        if kind == "text" or not path.is_dir():
            _refuse_parts(str(path), None, split)
        names = _relative_names(files)
        ordered = [files[names.index(name)] for name in seeded_order(names, seed)]
        match kind:
            case "text":
                _refuse_columns(str(path), columns)
                labels = [safe_name(name) for name in seeded_order(names, seed)]
                rows = text_rows(ordered, labels, n_char)
            case "parquet":
                rows = pick_columns(parquet_rows(ordered, columns.names()), columns)
            case "CSV":
                rows = pick_columns(chain.from_iterable(map(csv_rows, ordered)), columns)
            case _:
                rows = pick_columns(chain.from_iterable(map(json_rows, ordered)), columns)
    return Source(
        name=safe_name(path.absolute().name.split(".")[0]),
        state=_files_state(files),
        is_permuted=kind == "text",
        pool=10_000,
        rows=_guarded(str(path), rows),
        folders=frozenset(
            folder.resolve() for folder in {file.parent for file in files} if not path.is_file()
        ),
    )


def _refuse_columns(source: str, columns: Columns) -> None:
    """Raise if a source without columns is asked for some."""
    for kind, name in (("prefix", columns.prefix), ("group", columns.group)):
        if name is not None:
            raise TextError(
                f"{source}: has no columns, so none for the {kind} ('{name}'); leave it out, or "
                "give .parquet, .jsonl or .csv"
            )


def _refuse_parts(source: str, subset: str | None, split: str = "train") -> None:
    """Raise if a source that is one piece is asked for a part of it."""
    for kind, name in (("subset", subset), ("split", None if split == "train" else split)):
        if name is not None:
            raise TextError(f"{source}: has no {kind}s, so no '{name}'; leave out --{kind}")


def _local_files(path: Path, split: str) -> tuple[str, list[Path]]:
    """Return the kind of a local source and its files in the order of their names."""
    if path.is_file():
        kind = _kind(path)
        if kind is None:
            raise TextError(f"{path}: unknown ending '{path.suffix}'; allowed: {_ALLOWED}")
        return kind, [path]
    if path.is_dir():
        found = (item for item in path.rglob("*") if _is_data(item, path))
    else:
        # Path.glob knows no absolute patterns.
        found = (Path(item) for item in glob.iglob(str(path), recursive=True))  # noqa: PTH207
    files = sorted(item for item in found if _kind(item) and item.is_file())
    kinds = Counter(_kind(item) or "" for item in files)
    if not files:
        raise TextError(f"{path}: no file to read; allowed: {_ALLOWED}")
    if len(kinds) > 1:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        raise TextError(
            f"{path}: holds files of several kinds ({counts}); choose with a pattern such as "
            f"'{path / '*.txt'}'"
        )
    kind = next(iter(kinds))
    if path.is_dir() and kind != "text":
        chosen = split_files(path, split)
        files = [item for item in files if item.absolute() in chosen]
    return kind, files


def _kind(path: Path) -> str | None:
    """Return the kind of a file by its ending, None when it is no text source."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        suffix = Path(path.stem).suffix.lower()
        if suffix == ".parquet":
            return None
    return next((kind for kind, suffixes in _KINDS.items() if suffix in suffixes), None)


def _is_data(path: Path, folder: Path) -> bool:
    """Tell whether a file is meant as data: not hidden, no README, not our own output."""
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    if path.name.lower().startswith(("readme", "license")):
        return False
    return not any((path.parent / name).exists() for name in (PREPARATION, PARTIAL))


def _relative_names(files: Sequence[Path]) -> list[str]:
    """Return distinct names of files: their paths below the folder that they share."""
    if len(files) == 1:
        return [files[0].name.split(".")[0] or files[0].name]
    parents = [file.absolute().parts[:-1] for file in files]
    depth = 0
    while len({parts[: depth + 1] for parts in parents}) == 1 and depth < len(parents[0]):
        depth += 1
    return ["/".join(file.absolute().parts[depth:]) for file in files]


def _files_state(files: Iterable[Path]) -> str:
    """Return a digest of the names, sizes and times of files."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]


def _guarded(source: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Turn whatever a reading library raises into one line about the source."""
    try:
        yield from rows
    except JaxspplError:
        raise
    except Exception as error:
        # pyarrow, datasets, the decompressors and the HTTP library each have their own classes.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise TextError(f"{source}: cannot be read: {one_line(cause)}") from error
