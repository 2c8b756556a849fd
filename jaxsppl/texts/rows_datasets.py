"""Rows through the Hugging Face `datasets` library: the Hub, parquet files, saved datasets."""

import logging
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from jaxsppl.errors import TextError, suggest
from jaxsppl.texts.columns import Row, missing_column
from jaxsppl.texts.passages import BADLY_ENCODED, safe_name

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_BATCH = 256
_TIMEOUT_S = 20
_CHATTY = ("huggingface_hub", "datasets")


def hub_rows(source: str, columns: Sequence[str], subset: str | None, split: str) -> Iterator[Row]:
    """Stream the rows of a dataset on the Hugging Face Hub, in the order of the split.

    Parameters
    ----------
    source : str
        Dataset id, ``"owner/name"`` or ``"name"``.
    columns : sequence of str
        The columns that will be asked for; only the top-level ones that hold them are kept.
    subset : str or None
        Configuration of the dataset, if it has several.
    split : str
        Split.

    Yields
    ------
    Row
        A record with these columns.

    Raises
    ------
    TextError
        When the Hub cannot be reached, or has no such dataset, subset, split or column.
    """
    with _quiet():
        import datasets

        revision = _hub_revision(source)
        stream = datasets.load_dataset(
            source, subset, split=split, streaming=True, revision=revision
        )
        yield from _stream_rows(cast(Any, stream), columns, source, source.rpartition("/")[2])


def parquet_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Row]:
    """Stream the rows of local parquet files, one file after the other.

    Parameters
    ----------
    paths : sequence of Path
        Files.
    columns : sequence of str
        The columns that will be asked for; only the top-level ones that hold them are read.

    Yields
    ------
    Row
        A record with these columns.

    Raises
    ------
    TextError
        When a file has no such column.
    """
    with _quiet():
        import datasets

        for path in paths:
            # File by file: their schemas need not agree, and rows keep their place in a file.
            files = {"train": [str(path)]}
            stream = datasets.load_dataset(
                "parquet", data_files=files, split="train", streaming=True
            )
            tops = _top_columns(path.name, list(stream.column_names or ()), columns)
            stream = datasets.load_dataset(
                "parquet",
                data_files=files,
                split="train",
                streaming=True,
                columns=tops,
                batch_size=_BATCH,
            )
            yield from _stream_rows(cast(Any, stream), columns, path.name, path.stem)


def saved_rows(path: Path, columns: Sequence[str], split: str) -> Iterator[Row]:
    """Yield the rows of a dataset that `datasets` saved to a folder.

    Parameters
    ----------
    path : Path
        Folder written by ``save_to_disk``.
    columns : sequence of str
        The columns that will be asked for.
    split : str
        Split, if the folder holds several.

    Yields
    ------
    Row
        A record with these columns.

    Raises
    ------
    TextError
        When there is no such split or column.
    """
    with _quiet():
        import datasets

        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                raise no_split(path.name, split, [str(name) for name in saved])
            saved = saved[split]
        yield from _stream_rows(cast(Any, saved), columns, path.name, path.name)


def is_saved_dataset(folder: Path) -> bool:
    """Tell whether `datasets` saved a dataset to this folder.

    Parameters
    ----------
    folder : Path
        Existing folder.

    Returns
    -------
    bool
        True if its marker files are there.
    """
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def split_files(folder: Path, split: str) -> set[Path]:
    """Return the data files of one split of a folder, by the naming rules of `datasets`.

    Parameters
    ----------
    folder : Path
        Folder with data files; where no file or folder name says a split, all are ``train``.
    split : str
        Split.

    Returns
    -------
    set of Path
        Absolute paths.

    Raises
    ------
    TextError
        When there is no such split.
    """
    with _quiet():
        from datasets.data_files import DataFilesDict, get_data_patterns

        base = str(folder.absolute())
        files = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    found = {str(name): paths for name, paths in files.items()}
    if split not in found:
        raise no_split(folder.name, split, list(found))
    return {Path(path) for path in found[split]}


def no_split(source: str, split: str, available: Sequence[str]) -> TextError:
    """Return the error that names the splits there are.

    Parameters
    ----------
    source : str
        Where the split was looked for.
    split : str
        The split asked for.
    available : sequence of str
        The splits that exist.

    Returns
    -------
    TextError
        To be raised.
    """
    return TextError(f"{source}: no split '{split}'; {suggest(split, available)}")


def _stream_rows(stream: Any, columns: Sequence[str], source: str, stem: str) -> Iterator[Row]:
    """Yield rows of a dataset object; Arrow tables, so that nothing but text is decoded."""
    known = stream.column_names
    if known:
        stream = stream.select_columns(_top_columns(source, list(known), columns))
    stem, row = safe_name(stem), 0
    for table in stream.with_format("arrow").iter(batch_size=_BATCH):
        tops = [top for column in columns if (top := _find_top(table.column_names, column))]
        values = {top: _values(table[top]) for top in tops}
        for i in range(table.num_rows):
            record: dict[str, object] = {top: found[i] for top, found in values.items()}
            if not record:
                record.update(dict.fromkeys(table.column_names))
            # A value that cannot be decoded has no columns to look into.
            damaged = BADLY_ENCODED in record.values()
            yield Row(f"{stem}-{row:06d}", source, row, BADLY_ENCODED if damaged else record)
            row += 1


def _values(column: Any) -> list[object]:
    """Return an Arrow column as Python objects; one undecodable string costs only its row."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(item) for item in column]


def _value(item: Any) -> object:
    """Return an Arrow scalar as a Python object."""
    try:
        return item.as_py()
    except UnicodeDecodeError:
        return BADLY_ENCODED


def _top_columns(source: str, names: list[str], columns: Sequence[str]) -> list[str]:
    """Return the top-level columns that hold the paths `columns`, or raise."""
    tops: list[str] = []
    for column in columns:
        top = _find_top(names, column)
        if top is None:
            raise missing_column(source, column, names)
        tops.append(top)
    return list(dict.fromkeys(tops))


def _find_top(names: Sequence[str], column: str) -> str | None:
    """Return the top-level column that holds the path `column`."""
    if column in names:
        return column
    top = column.partition(".")[0]
    return top if top in names else None


def _hub_revision(source: str) -> str | None:
    """Ask the Hub once whether the dataset exists; the library itself would retry for long."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import RepositoryNotFoundError

    if HF_HUB_OFFLINE:
        return None
    try:
        return HfApi().dataset_info(source, timeout=_TIMEOUT_S).sha
    except RepositoryNotFoundError:
        raise TextError(
            f"'{source}' is neither a local path nor a dataset on the Hugging Face Hub that "
            "this machine may read"
        ) from None
    except Exception as error:
        # The HTTP library below changes between versions, so its classes cannot be named.
        raise TextError(
            f"'{source}' is no local path, and the Hugging Face Hub cannot be asked for it: "
            f"{one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """Return an exception's class and the start of its message on one line.

    Parameters
    ----------
    error : BaseException
        Any exception.

    Returns
    -------
    str
        At most some 300 characters.
    """
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__


@contextmanager
def _quiet() -> Generator[None]:
    """Keep progress bars and logged retries of the libraries off the terminal."""
    import datasets

    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not were_disabled:
            datasets.enable_progress_bars()
