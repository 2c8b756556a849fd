"""Rows of local text, JSON and CSV files, read so that one bad row costs one row.

The readers of the `datasets` library take a block of a file or nothing, and translate line
ends of text files; these keep every byte and go on after a bad line.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from jaxsppl.texts.columns import Row
from jaxsppl.texts.passages import BADLY_ENCODED, NOT_A_RECORD, safe_name

_OPENERS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": cast("Callable[..., IO[bytes]]", gzip.open),
    ".bz2": cast("Callable[..., IO[bytes]]", bz2.open),
    ".xz": cast("Callable[..., IO[bytes]]", lzma.open),
}
COMPRESSIONS = tuple(_OPENERS)
_CHUNK = 1 << 16
_LARGEST_CHUNK = 1 << 24
# What `json.loads` raises for input that is not JSON, too deep, or a number too long.
_JSON_ERRORS = (ValueError, RecursionError)


def text_rows(paths: Iterable[Path], names: Iterable[str], n_char: int) -> Iterator[Row]:
    """Yield each text file as one document.

    Parameters
    ----------
    paths : iterable of Path
        UTF-8 files, possibly compressed; a byte order mark is not part of the text.
    names : iterable of str
        A document name for each.
    n_char : int
        How many characters after leading white space are wanted; a longer file is not read
        to its end.

    Yields
    ------
    Row
        The text, at least its first `n_char` characters with all line ends as they are, or
        `BADLY_ENCODED` when those are not UTF-8.
    """
    for path, name in zip(paths, names, strict=True):
        yield Row(name, path.name, 0, _head(path, n_char))


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the records of a JSON Lines file, or of a JSON file that holds an array.

    Parameters
    ----------
    path : Path
        UTF-8 file, possibly compressed.

    Yields
    ------
    Row
        The parsed value of each line that is not blank (or array item; a file that is one
        object is one record); `BADLY_ENCODED` or `NOT_A_RECORD` when it cannot be parsed.
    """
    stem = _stem(path)
    with _open(path) as file:
        for row, value in enumerate(_json_values(file)):
            yield Row(f"{stem}-{row:06d}", path.name, row, value)


def csv_rows(path: Path) -> Iterator[Row]:
    """Yield the records of a CSV file whose first row names the columns.

    Parameters
    ----------
    path : Path
        UTF-8 file, possibly compressed; separated by tabs if it is called ``.tsv``.

    Yields
    ------
    Row
        A mapping from column to text, line ends within quotes kept; `NOT_A_RECORD` for a
        broken row. Bytes that are not UTF-8 stay as lone surrogates, so that the row that
        has them in its text is recognised.
    """
    stem = _stem(path)
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with _open(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
        reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
        row = 0
        while True:
            try:
                value: object = next(reader)
            except StopIteration:
                return
            except csv.Error:
                value = NOT_A_RECORD
            yield Row(f"{stem}-{row:06d}", path.name, row, value)
            row += 1


def _json_values(file: IO[bytes]) -> Iterator[object]:
    """Yield the values of JSON Lines, of one array, or of one object over several lines."""
    first = b""
    while not first.strip() and (line := file.readline()):
        first = line.removeprefix(codecs.BOM_UTF8)
    if not first.strip():
        return
    is_whole = first.lstrip().startswith(b"[") or first.strip() == b"{"
    if is_whole:
        whole = _parse_json(first + file.read())
        yield from cast("list[object]", whole) if isinstance(whole, list) else [whole]
        return
    yield _parse_json(first)
    for line in file:
        if line.strip():
            yield _parse_json(line)


def _parse_json(data: bytes) -> object:
    """Return the parsed value, or the `Skip` that says why there is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return BADLY_ENCODED
    try:
        return json.loads(text)
    except _JSON_ERRORS:
        return NOT_A_RECORD


def _head(path: Path, n_char: int) -> object:
    """Return the text up to at least `n_char` characters after leading white space."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text = ""
    with _open(path) as file:
        while len(text.lstrip()) < n_char:
            chunk = file.read(min(max(_CHUNK, n_char), _LARGEST_CHUNK))
            try:
                text += decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError:
                return BADLY_ENCODED
            text = text.removeprefix("\ufeff")
            if not chunk:
                break
    return text


def _open(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed."""
    return _OPENERS.get(path.suffix.lower(), open)(path, "rb")


def _stem(path: Path) -> str:
    """Return the safe file name without its endings."""
    return safe_name(path.name.split(".")[0])
