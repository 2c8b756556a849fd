"""One exception per phase that a user has to fix, each with the exit code of the command line.

A message says what was given, what is allowed and what to do, on one line.
"""

import difflib
from collections.abc import Iterable


class JaxspplError(Exception):
    """Base of every error that a user can fix; `exit_code` is what the command line returns."""

    exit_code = 1


class IncompleteError(JaxspplError):
    """Part of the work could not be finished; what was finished is kept and the run resumes."""

    exit_code = 1


class AuditError(JaxspplError):
    """The fast engine disagrees with the direct definition by more than the tolerance."""

    exit_code = 1


class ConfigError(JaxspplError, ValueError):
    """An argument, a parameter value or a key of a sweep config is not usable."""

    exit_code = 2


class PlanError(ConfigError):
    """The requested sweep cannot be computed within the memory or size that is allowed."""


class TextError(ConfigError):
    """A text source cannot be read or yields no passage."""


class SchemaError(JaxspplError, ValueError):
    """A file is not what its schema says: wrong kind, shape, unit, order or not complete."""

    exit_code = 3


class MissingFileError(SchemaError):
    """A file that is named is not there: a slip in the command, no fault of a file."""

    exit_code = 2


class ServerError(JaxspplError):
    """A server cannot be reached or is unfit for the harvest."""

    exit_code = 4


def suggest(given: str, allowed: Iterable[str]) -> str:
    """Return a phrase that lists the near names, or all of them when none is near.

    Parameters
    ----------
    given : str
        The name that was not found.
    allowed : iterable of str
        The names that exist.

    Returns
    -------
    str
        For example ``"did you mean 'min_p'?"`` or ``"allowed: 'a', 'b'"``.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    return "allowed: " + (", ".join(f"'{name}'" for name in names) or "nothing")
