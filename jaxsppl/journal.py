"""What a killed run has finished: an append-only journal, and the lock of an output."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from jaxsppl.errors import ConfigError, IncompleteError


class Journal:
    """An append-only JSON-lines file: what a killed run has finished.

    The first line is a header that holds the run's fingerprint; each further line is one record,
    known by its place in the file. A record counts once its line ends; a torn last line is cut off
    when the journal is opened. No record stays in memory.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = dict(header)
        # Unbuffered, so that a record that could not be written is not tried again at the close.
        self._handle = path.open("ab", buffering=0)

    @classmethod
    def open(
        cls, path: Path, header: Mapping[str, Any], seen: Callable[[int, dict[str, Any]], None]
    ) -> "Journal":
        """Open a journal for appending, and go through the records that it already holds.

        Parameters
        ----------
        path : Path
            The file; made when missing.
        header : mapping
            What the run is; `header["fingerprint"]` guards the resuming.
        seen : callable (place, record)
            Told each finished record, if the fingerprint agrees; a journal of another run is set
            aside beside it as ``NAME.old`` and a new one begins.

        Returns
        -------
        Journal

        Raises
        ------
        ConfigError
            When the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not cls._recover(path, header, seen):
                if path.exists() and path.stat().st_size:
                    path.replace(path.with_name(path.name + ".old"))
                path.write_bytes(_line(header))
            return cls(path, header)
        except OSError as error:
            raise ConfigError(f"cannot write the journal '{path}': {error.strerror}") from error

    @staticmethod
    def _recover(
        path: Path, header: Mapping[str, Any], seen: Callable[[int, dict[str, Any]], None]
    ) -> bool:
        """Tell the records and cut a torn end off; return whether the journal is of this run."""
        if not path.exists():
            return False
        with path.open("rb+") as handle:
            place = 0
            while (record := _record(handle.readline())) is not None:
                if place:
                    seen(place, record)
                elif record.get("fingerprint") != header["fingerprint"]:
                    return False
                place = handle.tell()
            if place and place < path.stat().st_size:
                handle.truncate(place)
                os.fsync(handle.fileno())
        return place > 0

    def read(self, place: int) -> dict[str, Any]:
        """Read one record again.

        Parameters
        ----------
        place : int
            Where it begins, as `append` returned it or `open` told it.

        Returns
        -------
        dict
        """
        with self.path.open("rb") as handle:
            handle.seek(place)
            return _record(handle.readline()) or {}

    def append(self, record: Mapping[str, Any]) -> int:
        """Write one record and wait until it is on disk.

        Parameters
        ----------
        record : mapping
            What was finished; JSON values only.

        Returns
        -------
        int
            Its place.

        Raises
        ------
        IncompleteError
            When the disk is full or the file cannot be written; earlier records are kept.
        """
        place = self._handle.tell()
        try:
            rest = memoryview(_line(record))
            while rest:
                rest = rest[self._handle.write(rest) :]
            os.fsync(self._handle.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, place)
            raise IncompleteError(
                f"cannot append to '{self.path}': {error.strerror}; mend it and run again"
            ) from error
        return place

    def close(self) -> None:
        """Close the file; it stays for the next run."""
        self._handle.close()

    def remove(self) -> None:
        """Close and delete the journal, once its records are in the final file."""
        self.close()
        self.path.unlink(missing_ok=True)


def _record(line: bytes) -> dict[str, Any] | None:
    """Return what a line holds, or None when it is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _line(record: Mapping[str, Any]) -> bytes:
    """Return one JSON line."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@contextlib.contextmanager
def lock(path: Path) -> Generator[None]:
    """Hold the lock of an output for the block, so that two runs never write one file.

    Parameters
    ----------
    path : Path
        The output that is protected; the lock lies beside it.

    Raises
    ------
    ConfigError
        When another living run of this machine holds it.
    """
    name = path.with_name(f".{path.name}.lock")
    try:
        name.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(name)
    except OSError as error:
        raise ConfigError(
            f"cannot write in '{path.parent}': {error.strerror}; choose another place"
        ) from error
    if handle is None:
        owner = ""
        with contextlib.suppress(OSError):
            owner = name.read_text(encoding="utf-8")
        raise ConfigError(
            f"'{path}' is being written by {owner or 'another run'}; wait for it or stop it"
        )
    try:
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}")
        handle.flush()
        yield
    finally:
        name.unlink(missing_ok=True)
        handle.close()


def _locked(name: Path) -> IO[str] | None:
    """Return the locked file, or None when another process holds it."""
    import fcntl

    while True:
        handle = name.open("a", encoding="utf-8")
        try:
            # The kernel drops the lock with its process, so a killed run never blocks the next.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file after it was opened here: that lock would
            # protect nothing, since the next run makes a new file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(name.stat(), os.fstat(handle.fileno())):
                    return handle
        except BlockingIOError:
            handle.close()
            return None
        handle.close()
