"""The entry point: the commands, and every error as one line with its exit code."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from jaxsppl import __version__
from jaxsppl.cli import data, look, score, share, versus, whole
from jaxsppl.cli.terminal import show_log, tell
from jaxsppl.errors import ConfigError, JaxspplError

INTERRUPTED = "interrupted; run the same command again to resume", 130

app = App(
    name="jaxsppl",
    help=(
        "Which sampling settings fit a language model? Measured: harvest once what the model "
        "thinks of a text, then score every combination of settings at once.\n\n"
        "Start with `jaxsppl demo`, or with `jaxsppl run CONFIG.toml`."
    ),
    help_epilogue=(
        "Exit codes: 0 done, 1 incomplete, 2 usage or config, 3 a file breaks its schema, "
        "4 server unreachable or unfit, 130 interrupted (run it again to resume). "
        "API keys come from JAXSPPL_API_KEY only."
    ),
    version=__version__,
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)
_COMMANDS = (
    whole.demo,
    whole.run,
    data.prepare,
    data.harvest,
    data.import_kld,
    score.sweep,
    score.optimize,
    versus.compare,
    look.show,
    look.explain_token,
    look.plot,
    look.check,
    share.export,
    share.import_preset,
    share.report,
)
for _place, _command in enumerate(_COMMANDS):
    app.command(_command, sort_key=_place)


def run(words: Sequence[str]) -> int:
    """Run one command and turn whatever goes wrong into one line and an exit code.

    Parameters
    ----------
    words : sequence of str
        Words after the program's name.

    Returns
    -------
    int
        The exit code.
    """
    show_log()
    try:
        if "" in words:
            raise ConfigError("an argument is empty; is a variable of the shell not set?")
        code = app([*words], exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):
        # Whoever read the output has seen enough (of the help rich says so by an exit of its own);
        # Python must not complain when it flushes.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("JAXSPPL_DEBUG"):
            traceback.print_exc()
        message, code = explain_error(error)
        with contextlib.suppress(BrokenPipeError):
            tell(f"jaxsppl: {' '.join(message.split())}")
        return code


def explain_error(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit code.

    Parameters
    ----------
    error : BaseException
        What a command raised.

    Returns
    -------
    message : str
        One line.
    code : int
    """
    if isinstance(error, JaxspplError):
        return str(error), error.exit_code
    if isinstance(error, CycloptsError):
        return f"{error} (jaxsppl --help)", ConfigError.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, MemoryError):
        return "out of memory; lower run.memory_mib or the size of the grid", 1
    if isinstance(error, OSError):
        place = f"'{error.filename}'" if error.filename is not None else "a file"
        return f"cannot read or write {place}: {error.strerror or error}; mend it and try again", 1
    name = type(error).__name__
    return f"unexpected {name}: {error} (JAXSPPL_DEBUG=1 shows where; please report it)", 1
