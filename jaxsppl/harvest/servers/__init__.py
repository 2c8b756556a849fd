"""The server protocols, one module each: a new server is a new file here and nothing else.

A module defines `NAME`, the name that users type, `METHODS`, its ways of scoring, and
`connect(session, url, patience_s)`, which returns a `jaxsppl.harvest.protocol.Server`. Where the
model list of a server tells it from others, `recognise(entry)` knows an entry of that list.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from jaxsppl.errors import ConfigError, suggest

if TYPE_CHECKING:
    import aiohttp

    from jaxsppl.harvest.protocol import Server


AUTO = "auto"


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


def protocol(name: str, method: str) -> ProtocolModule | None:
    """Return one protocol and check the method against it.

    Parameters
    ----------
    name, method : str
        As the user typed them; both may be "auto".

    Returns
    -------
    ProtocolModule or None
        None for "auto": the server decides.

    Raises
    ------
    ConfigError
        Listing what exists.
    """
    known = protocols()
    if name not in {AUTO, *known}:
        raise ConfigError(f"there is no protocol '{name}'; {suggest(name, [AUTO, *known])}")
    modules = [known[name]] if name in known else [*known.values()]
    methods = {AUTO, *(method for module in modules for method in module.METHODS)}
    if method not in methods:
        what = "there is" if name == AUTO else f"{name} has"
        raise ConfigError(f"{what} no method '{method}'; {suggest(method, methods)}")
    return known.get(name)
