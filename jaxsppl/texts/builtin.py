"""Texts that every CPython carries: its language reference and its own sources."""

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxsppl.errors import TextError, suggest
from jaxsppl.texts.columns import Row

# Not installed everywhere, or data rather than code.
_LEFT_OUT = frozenset(
    {
        *("antigravity", "distutils", "encodings", "ensurepip", "idlelib", "idle_test", "lib2to3"),
        *("pydoc_data", "test", "tests", "this", "tkinter", "turtle", "turtledemo", "venv"),
        *("__hello__", "__phello__"),
    }
)
_GENERATED = re.compile(r"(?i)auto-?generated|generated (by|from)|do not edit")
_TABLE_LINE = re.compile(r"^\s*(\+[-=+]{3,}|\|.*\||[-=]{3,}(\s+[-=]{3,})+\s*$)")
_LARGEST_TABLE_SHARE = 0.2
_SMALLEST_MODULE = 2000
_HEAD = 2000


def builtin_rows(source: str, seed: int) -> Iterator[Row]:
    """Yield the documents of a built-in source in an order that the seed decides.

    ``python:prose`` gives the topics of `pydoc_data.topics` except tables; ``python:code``
    the standard library's modules except tests, generated files, data, files under 2000
    characters, and packages that some distributions leave out. The same Python version and
    seed give the same order; a missing module does not move the others.

    Parameters
    ----------
    source : str
        ``"python:prose"`` or ``"python:code"``.
    seed : int
        Decides the order.

    Yields
    ------
    Row
        Topic or module name, and its whole text.

    Raises
    ------
    TextError
        For another name, or when this Python carries no such text.
    """
    match source:
        case "python:prose":
            rows = _topics(seed)
        case "python:code":
            rows = _modules(seed)
        case _:
            raise TextError(
                f"unknown built-in source '{source}'; "
                + suggest(source, ["python:prose", "python:code"])
            )
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise TextError(f"{source}: this Python ({sys.executable}) carries no such text")


def seeded_order(names: Iterable[str], seed: int) -> list[str]:
    """Return the names in an order that depends on each name and the seed alone.

    Parameters
    ----------
    names : iterable of str
        Distinct names.
    seed : int
        Another seed gives another order.

    Returns
    -------
    list of str
        All names; adding or removing one leaves the order of the others as it is.
    """
    return sorted(
        names,
        key=lambda name: hashlib.sha256(
            f"{seed}:{name}".encode("utf-8", "surrogateescape")
        ).digest(),
    )


def _topics(seed: int) -> Iterator[Row]:
    """Yield the help topics that are prose."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    names = sorted(topics)
    for name in seeded_order(names, seed):
        text = topics[name]
        if not _is_table(text):
            yield Row(name, "pydoc_data.topics", names.index(name), text)


def _modules(seed: int) -> Iterator[Row]:
    """Yield the standard library's own sources."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = {_module_name(path.relative_to(root)): path for path in _source_files(root)}
    names = sorted(paths)
    for name in seeded_order(names, seed):
        try:
            # Bytes, so that no newline is translated.
            text = paths[name].read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) >= _SMALLEST_MODULE and not _GENERATED.search(text[:_HEAD]):
            source = paths[name].relative_to(root).as_posix()
            yield Row(name, source, names.index(name), text)


def _source_files(root: Path) -> Iterator[Path]:
    """Yield the module files below `root` that belong to the library of every installation."""
    for name in sys.stdlib_module_names - _LEFT_OUT:
        if not name.startswith("_sysconfigdata"):
            yield from (path for path in [root / f"{name}.py"] if path.is_file())
            for path in (root / name).rglob("*.py"):
                if _LEFT_OUT.isdisjoint(path.relative_to(root).parts):
                    yield path


def _module_name(relative: Path) -> str:
    """Return the dotted name of a module file, for example ``json.decoder``."""
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _is_table(text: str) -> bool:
    """Tell whether a topic is mostly a table."""
    lines = [line for line in text.splitlines() if line.strip()]
    n_table = sum(bool(_TABLE_LINE.match(line)) for line in lines)
    return n_table > _LARGEST_TABLE_SHARE * len(lines)
