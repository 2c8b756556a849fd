"""What the commands share: results to standard output, everything else to standard error."""

import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import Parameter, Token

from jaxsppl.errors import ConfigError


def whole(type_: Any, tokens: Sequence[Token]) -> int:
    """Return the whole number of a flag; 1.5 is none, instead of being rounded."""
    del type_
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"'{tokens[0].value}' is no whole number") from error


Json = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object and nothing else.")
]
Flag = Parameter(negative="")
Several = Parameter(negative="", consume_multiple=True)
Whole = Annotated[int, Parameter(converter=whole)]
Overrides = Annotated[list[str] | None, Parameter(name="--set", negative="")]


def tell(line: str) -> None:
    """Say something about the work, which is no result, on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def emit(as_json: bool, text: str, data: Mapping[str, Any]) -> None:
    """Print the result of a command on standard output: for people, or as one JSON object."""
    if as_json:
        is_unicode = "utf" in (sys.stdout.encoding or "utf").lower()
        text = json.dumps(plain(dict(data)), ensure_ascii=not is_unicode, allow_nan=False)
    if text:
        sys.stdout.write(text.rstrip("\n") + "\n")


def plain(value: Any) -> Any:
    """Return a value as JSON knows it; not-a-number and the infinities become null."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): plain(inner) for key, inner in mapping.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def pairs_of(entries: list[str], flag: str) -> dict[str, str]:
    """Return ``name=value`` entries of a flag as a mapping."""
    held: dict[str, str] = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise ConfigError(f"{flag} {entry}: write name=value, for example temperature=0.8")
        if name.strip() in held:
            raise ConfigError(f"{flag} {entry}: '{name.strip()}' is given twice; give one value")
        held[name.strip()] = value.strip()
    return held


def words_of(text: str) -> list[str]:
    """Return the comma-separated words of a flag."""
    return [word.strip() for word in text.split(",") if word.strip()]


def show_log() -> None:
    """Let warnings of the library reach the terminal; JAXSPPL_LOG=INFO or DEBUG shows more."""
    level = logging.getLevelNamesMapping().get(os.environ.get("JAXSPPL_LOG", "").upper())
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("jaxsppl: %(message)s"))
    logger = logging.getLogger("jaxsppl")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if level is None else level)
    logger.propagate = False
