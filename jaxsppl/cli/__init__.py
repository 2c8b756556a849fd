"""The command line: commands parse, call the API, print, and return an exit code.

Nothing is imported here before Ctrl-C is understood.
"""

import contextlib
import os
import platform
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
# A compiled program is written in much less [s].
_YOUNG = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after the program's name; those of the process by default.

    Returns
    -------
    int
        The exit code: 0 done, 1 incomplete, 2 usage or config, 3 a file breaks its schema,
        4 server unreachable or unfit, 130 interrupted.
    """
    from jaxsppl.cli.app import run

    return run(sys.argv[1:] if arguments is None else arguments)


def program() -> NoReturn:
    """Run the command of this process and end it with the exit code."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up too
        sys.unraisablehook = _interrupt_again
        _prepare_streams()
        _keep_compiled()
        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("jaxsppl: interrupted; run the same command again to resume\n")
        code = INTERRUPTED
    sys.stderr.flush()
    if code == INTERRUPTED:
        # The threads of a computation that was left midway crash when Python takes itself apart.
        os._exit(code)
    sys.exit(code)


def _prepare_streams() -> None:
    """Make standard streams that are closed, or whose encoding lacks a character, no error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _keep_compiled() -> None:
    """Let JAX keep compiled programs for the next command, unless its variables say otherwise.

    They are as particular as the machine, so every host has a folder of its own.
    """
    from jaxsppl.harvest.demo_model import cache_folder

    folder = cache_folder() / "compiled" / platform.node()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_unfinished(folder)
    except OSError:  # a home that cannot be written costs time, and no more
        return
    # What cannot be kept or read costs time, and no more.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**29))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _drop_unfinished(folder: Path) -> None:
    """Remove compiled programs that a killed writer left; beside one JAX can keep no other."""
    names = {file.name for file in folder.iterdir()}
    for name in names:
        key = name.removesuffix("-cache")
        if key == name or f"{key}-atime" in names:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process may do the same
            # A young one may be in the middle of being written.
            if time.time() - (folder / name).stat().st_mtime > _YOUNG:
                (folder / name).unlink()


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that came where Python can only ignore it, as in callbacks of imports."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)
