"""Python files of the user that a config names: they register samplers (`jaxsppl.stage`).

Only what a config or a caller names is run; result files never are a source of code.
"""

import hashlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxsppl.errors import ConfigError, JaxspplError

_LOG = logging.getLogger("jaxsppl.modules")
# Files that have been run, and a digest of what they held.
_LOADED: dict[Path, str] = {}


def load_modules(names: Sequence[str], folder: Path, where: str = "chain.modules") -> None:
    """Run Python files that register stages; one that was run and has not changed is left out.

    Parameters
    ----------
    names : sequence of str
        Files, relative to the folder.
    folder : Path
        Where the config lies.
    where : str
        Path of the setting, for messages.

    Raises
    ------
    ConfigError
        When a file cannot be read or fails; the message names file, line and reason.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{where}: {names!r} is no list; give files, as ['my_sampler.py']")
    for name in names:
        path = (folder / str(name)).resolve()
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(f"{where}: {path}: {error.strerror}; name a Python file") from error
        if _LOADED.get(path) == digest:
            continue
        _LOG.warning("runs %s, which chain.modules names", path)
        _run(path, where)
        _LOADED[path] = digest


def _run(path: Path, where: str) -> None:
    """Import one file under a name of its own."""
    module = f"jaxsppl_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}: {path}: it is no Python file (.py)")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    try:
        spec.loader.exec_module(loaded)
    except JaxspplError as error:
        raise ConfigError(f"{where}: {path}: {error}") from error
    except SyntaxError as error:
        raise ConfigError(f"{where}: {path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        # whatever a user's file raises
        why = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{where}: {path}, line {_line(error, path)}: {type(error).__name__}: {why}"
        ) from error


def _line(error: BaseException, path: Path) -> int:
    """Return the last line of a file that an error passed through."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
