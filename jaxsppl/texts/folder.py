"""The folder of passages: its files, its manifest, and how a kill can never fake a whole one.

``manifest.jsonl`` holds one line per passage; it appears last, by one atomic rename of
``manifest.jsonl.partial``, which exists from the first change of the folder until then.
Readers refuse a folder that holds the partial file. ``prepare.json`` says how it was made.
"""

import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from jaxsppl.errors import SchemaError, TextError
from jaxsppl.texts.passages import Passage, safe_name, sha256

MANIFEST = "manifest.jsonl"
PARTIAL = "manifest.jsonl.partial"
PREPARATION = "prepare.json"
_PREFIX, _CONTINUATION = ".prefix.txt", ".continuation.txt"
_OURS = re.compile(r"\d{4,}\.(prefix|continuation)\.txt", re.ASCII)
_STEM = re.compile(r"\d{4,9}", re.ASCII)


class ManifestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``manifest.jsonl``.

    Attributes
    ----------
    number : str
        Beginning of the names of the two files, ``NNNN``.
    document, dataset, source, group : str
        As in `Passage`.
    row, start : int
        As in `Passage`.
    prefix_sha256, continuation_sha256 : str
        Of the bytes of the two files.
    prefix_chars, continuation_chars, prefix_bytes, continuation_bytes : int
        Their lengths.
    """

    number: str
    document: str
    dataset: str
    source: str
    row: int | None
    start: int | None
    prefix_sha256: str
    continuation_sha256: str
    prefix_chars: int
    continuation_chars: int
    prefix_bytes: int
    continuation_bytes: int
    group: str = ""


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """How a folder was made: the content of ``prepare.json``.

    Attributes
    ----------
    dataset : str
        Name of the dataset.
    fingerprint : str
        Of everything that decides the passages.
    n_passage, n_row_seen : int
        Passages written, rows read.
    skipped : dict of str to int
        Rows without a passage, by reason.
    arguments : dict
        What the fingerprint was made from.
    manifest_sha256 : str
        Of ``manifest.jsonl``: binds the two files together.
    schema : str
        Always ``"jaxsppl-texts/1"``.
    """

    dataset: str
    fingerprint: str
    n_passage: int
    n_row_seen: int
    skipped: dict[str, int]
    arguments: dict[str, str | int | None]
    manifest_sha256: str = ""
    schema: str = "jaxsppl-texts/1"


def load_passages(directory: Path | str) -> list[Passage]:
    """Read the passages of a folder, byte for byte.

    Parameters
    ----------
    directory : Path or str
        A folder that `prepare` made, or any folder with pairs of files
        ``STEM.prefix.txt`` and ``STEM.continuation.txt`` in UTF-8. The dataset is then called
        as the folder, a document as its stem, and numbers within stems count as numbers in
        the order.

    Returns
    -------
    list of Passage
        In the order of the manifest, or of the stems.

    Raises
    ------
    TextError
        When there is no such folder, it holds no passages, or its preparation was
        interrupted.
    SchemaError
        When a file is missing, not UTF-8, empty, or not the one that the manifest describes.
    """
    folder = Path(directory).expanduser()
    try:
        if not folder.is_dir():
            raise TextError(f"{folder}: no such folder; make it with 'jaxsppl prepare'")
        if (folder / PARTIAL).exists():
            raise TextError(
                f"{folder}: its preparation was interrupted or is going on; run 'jaxsppl prepare' "
                "again"
            )
        if (folder / MANIFEST).exists():
            return _load_listed(folder)
        return _load_pairs(folder)
    except OSError as error:
        raise TextError(f"{folder}: cannot be read: {error.strerror or error}") from error


def read_preparation(directory: Path | str) -> Preparation | None:
    """Return how a complete folder was made, without reading its passages.

    Parameters
    ----------
    directory : Path or str
        Folder.

    Returns
    -------
    Preparation or None
        None when `prepare` did not make or not finish it.

    Raises
    ------
    SchemaError
        When the record is damaged or belongs to another manifest.
    """
    folder = Path(directory)
    if (folder / PARTIAL).exists():
        return None
    try:
        manifest = (folder / MANIFEST).read_bytes()
        data = (folder / PREPARATION).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        preparation = msgspec.json.decode(data, type=Preparation)
    except msgspec.DecodeError as error:
        raise SchemaError(f"{folder / PREPARATION}: {error}") from error
    if preparation.manifest_sha256 != sha256(manifest):
        raise SchemaError(f"{folder / MANIFEST}: is not the manifest that {PREPARATION} describes")
    return preparation


def write_folder(folder: Path, passages: Sequence[Passage], preparation: Preparation) -> None:
    """Write a complete folder in place of what an earlier preparation left there.

    Parameters
    ----------
    folder : Path
        Made if missing; files other than those of a preparation are left alone.
    passages : sequence of Passage
        What to write.
    preparation : Preparation
        How they were made; the manifest's digest is added.

    Raises
    ------
    TextError
        When the folder cannot be written, is being written by another process, or holds
        passages that no preparation made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(folder)
        with _marked(folder) as partial:
            (folder / MANIFEST).unlink(missing_ok=True)
            for path in folder.iterdir():
                if _OURS.fullmatch(path.name):
                    path.unlink()
            width = max(4, len(str(len(passages) - 1)))
            lines: list[bytes] = []
            for index, passage in enumerate(passages):
                line = _write_pair(folder, f"{index:0{width}d}", passage)
                lines.append(msgspec.json.encode(line))
            manifest = b"".join(line + b"\n" for line in lines)
            record = msgspec.structs.replace(preparation, manifest_sha256=sha256(manifest))
            data = msgspec.json.format(msgspec.json.encode(record), indent=2)
            (folder / PREPARATION).write_bytes(data + b"\n")
            partial.write(manifest)
            partial.flush()
            os.fsync(partial.fileno())
            (folder / PARTIAL).replace(folder / MANIFEST)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TextError(f"{folder}: cannot be written: {reason}; choose another folder") from error


@contextmanager
def _marked(folder: Path) -> Generator[IO[bytes]]:
    """Mark the folder as being written, for readers and for other writers."""
    with (folder / PARTIAL).open("ab") as partial:
        if sys.platform != "win32":
            import fcntl

            try:
                # The lock goes with the process, so a killed writer blocks nobody.
                fcntl.flock(partial.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TextError(
                    f"{folder}: another process is preparing it; wait for it or choose another "
                    "folder"
                ) from None
        if not os.path.samestat(os.fstat(partial.fileno()), (folder / PARTIAL).stat()):
            # Another writer finished between opening and locking: this is its manifest now.
            raise TextError(f"{folder}: another process has just prepared it; try again")
        partial.truncate(0)
        yield partial


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder holds passages that someone made by other means."""
    if (folder / PARTIAL).exists() or (folder / PREPARATION).exists():
        return
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) or path.name == MANIFEST:
            raise TextError(
                f"{folder}: holds '{path.name}', which 'jaxsppl prepare' did not make and would "
                "overwrite; choose another folder"
            )


def _write_pair(folder: Path, number: str, passage: Passage) -> ManifestLine:
    """Write the two files of a passage and return its line."""
    prefix, continuation = passage.prefix.encode(), passage.continuation.encode()
    (folder / f"{number}{_PREFIX}").write_bytes(prefix)
    (folder / f"{number}{_CONTINUATION}").write_bytes(continuation)
    return ManifestLine(
        number=number,
        document=passage.document,
        dataset=passage.dataset,
        source=passage.source,
        row=passage.row,
        start=passage.start,
        prefix_sha256=passage.prefix_sha256,
        continuation_sha256=passage.sha256,
        prefix_chars=len(passage.prefix),
        continuation_chars=len(passage.continuation),
        prefix_bytes=len(prefix),
        continuation_bytes=len(continuation),
        group=passage.group,
    )


def _load_listed(folder: Path) -> list[Passage]:
    """Read what the manifest lists, and check it."""
    manifest = folder / MANIFEST
    passages: list[Passage] = []
    documents: set[str] = set()
    read_preparation(folder)
    for index, data in enumerate(manifest.read_bytes().splitlines(), 1):
        try:
            line = msgspec.json.decode(data, type=ManifestLine)
        except msgspec.DecodeError as error:
            raise SchemaError(f"{manifest}: line {index}: {error}") from error
        # The manifest may come from a stranger: its names must not lead out of the folder.
        if not _STEM.fullmatch(line.number) or line.document != safe_name(line.document):
            raise SchemaError(f"{manifest}: line {index}: unsafe number or document name")
        if line.document in documents:
            raise SchemaError(f"{manifest}: line {index}: document '{line.document}' again")
        documents.add(line.document)
        prefix = _read(folder / f"{line.number}{_PREFIX}", line.prefix_sha256)
        continuation = _read(folder / f"{line.number}{_CONTINUATION}", line.continuation_sha256)
        passages.append(
            Passage(
                document=line.document,
                prefix=prefix,
                continuation=continuation,
                prefix_sha256=line.prefix_sha256,
                sha256=line.continuation_sha256,
                dataset=line.dataset,
                source=line.source,
                row=line.row,
                start=line.start,
                group=line.group,
            )
        )
    if not passages:
        raise TextError(f"{manifest}: lists no passage; run 'jaxsppl prepare' again")
    return passages


def _load_pairs(folder: Path) -> list[Passage]:
    """Read pairs of files that someone made by other means."""
    dataset = safe_name(folder.absolute().name)
    stems = {
        path.name.removesuffix(suffix)
        for suffix in (_PREFIX, _CONTINUATION)
        for path in folder.glob(f"*{suffix}")
    }
    if not stems:
        raise TextError(
            f"{folder}: holds neither {MANIFEST} nor pairs STEM{_PREFIX} and STEM{_CONTINUATION}; "
            "make it with 'jaxsppl prepare'"
        )
    passages: list[Passage] = []
    documents: set[str] = set()
    for stem in sorted(stems, key=_natural):
        prefix = _read(folder / f"{stem}{_PREFIX}")
        continuation = _read(folder / f"{stem}{_CONTINUATION}")
        document = safe_name(stem)
        if document in documents:
            raise SchemaError(f"{folder}: two documents would be called '{document}'; rename one")
        documents.add(document)
        passages.append(
            Passage(
                document=document,
                prefix=prefix,
                continuation=continuation,
                prefix_sha256=sha256(prefix.encode()),
                sha256=sha256(continuation.encode()),
                dataset=dataset,
                source=f"{stem}{_CONTINUATION}",
            )
        )
    return passages


def _read(path: Path, expected_sha256: str | None = None) -> str:
    """Return a file's text, no byte changed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SchemaError(f"{path}: is missing; run 'jaxsppl prepare' again") from None
    if expected_sha256 is not None and sha256(data) != expected_sha256:
        raise SchemaError(f"{path}: was changed since it was prepared; prepare it again")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    if not text and path.name.endswith(_CONTINUATION):
        raise SchemaError(f"{path}: is empty; a continuation needs text")
    return text


def _natural(stem: str) -> list[tuple[int, str]]:
    """Return a sorting key in which numbers within names count as numbers."""
    parts = re.split(r"(\d+)", stem)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
