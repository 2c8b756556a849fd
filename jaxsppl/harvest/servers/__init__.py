"""The server protocols, one module each: a new server is a new file here and nothing else.

A module defines `NAME`, the name that users type, `METHODS`, its ways of scoring, and
`connect(session, url, patience_s)`, which returns a `jaxsppl.harvest.protocol.Server`.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from jaxsppl.errors import ConfigError, suggest

if TYPE_CHECKING:
    import aiohttp

    from jaxsppl.harvest.protocol import Server


class ProtocolModule(Protocol):
    """What a module of this package offers."""

    NAME: str
    METHODS: tuple[str, ...]

    def connect(self, session: "aiohttp.ClientSession", url: str, *, patience_s: float) -> "Server":
        """Return the server at an address; nothing is sent yet."""
        ...


def protocols() -> dict[str, ProtocolModule]:
    """Return the protocols by the name that users type.

    Returns
    -------
    dict
    """
    found: dict[str, ProtocolModule] = {}
    for entry in pkgutil.iter_modules(__path__):
        module: ProtocolModule = importlib.import_module(f"{__name__}.{entry.name}")  # pyright: ignore[reportAssignmentType]
        found[module.NAME] = module
    return found


def protocol(name: str, method: str) -> ProtocolModule:
    """Return one protocol and check the method against it.

    Parameters
    ----------
    name, method : str
        As the user typed them; the method may be "auto".

    Returns
    -------
    ProtocolModule

    Raises
    ------
    ConfigError
        Listing what exists.
    """
    known = protocols()
    if name not in known:
        raise ConfigError(f"there is no protocol '{name}'; {suggest(name, known)}")
    methods = {"auto", *known[name].METHODS}
    if method not in methods:
        raise ConfigError(f"{name} has no method '{method}'; {suggest(method, methods)}")
    return known[name]
