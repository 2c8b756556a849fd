"""`--protocol auto`: which protocol a server speaks, or why none can make it score a text.

One request for the model list tells most of them; a second tells those that have a route of their
own. What cannot score a given text is refused with the reason and an alternative.
"""

import logging
from typing import Any, NoReturn

import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.servers import ProtocolModule, protocols

log = logging.getLogger("jaxsppl.harvest")

FALLBACK = "openai"

_LLAMA = "serve the same GGUF with llama-server"
# By the owner in the model list.
_UNFIT_OWNERS = {
    "library": (
        "Ollama reports generated tokens only, without ids, and forces no token",
        f"{_LLAMA} (the blobs of Ollama are GGUF files)",
    ),
    "koboldcpp": ("KoboldCpp reports generated tokens only and forces no token", _LLAMA),
    "organization_owner": ("LM Studio reports no log-probabilities of a given text", _LLAMA),
    "openai": (
        "OpenAI's models refuse echo with log-probabilities",
        "take an open model with llama-server, vLLM or SGLang",
    ),
}
# By a route that others do not have, and a key of its reply.
_UNFIT_ROUTES = {
    "/info": (
        "docker_label",
        "text-generation-inference gives the actual token of a prompt only, no alternatives",
        "serve the model with vLLM or SGLang, or take --protocol transformers",
    ),
    "/api/version": ("version", *_UNFIT_OWNERS["library"]),
}


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


async def recognise(client: Client) -> ProtocolModule:
    """Find the protocol of a server.

    Parameters
    ----------
    client : Client

    Returns
    -------
    ProtocolModule

    Raises
    ------
    ServerError
        When the server cannot score a given text, or is none that is known.
    Unavailable
        When it does not answer.
    """
    known = protocols()
    try:
        entries = (await client.ask("/v1/models", _Models)).data
    except (RefusedError, BadReplyError) as error:
        await _refuse_routes(client)
        raise ServerError(
            f"{client.label} does not answer like a llama.cpp server, vLLM, SGLang or any other "
            f"with OpenAI's routes: {error}; check the address, or give --protocol"
        ) from error
    for module in known.values():
        knows = getattr(module, "recognise", None)
        if knows is not None and any(map(knows, entries)):
            log.info("%s speaks %s", client.label, module.NAME)
            return module
    for entry in entries:
        if (owner := str(entry.get("owned_by"))) in _UNFIT_OWNERS:
            _refuse(client, *_UNFIT_OWNERS[owner])
    await _refuse_routes(client)
    log.info("%s is none that is known by name; trying %s", client.label, FALLBACK)
    return known[FALLBACK]


async def _refuse_routes(client: Client) -> None:
    """Refuse a server that answers on a route of one that cannot score a given text."""
    for path, (key, reason, instead) in _UNFIT_ROUTES.items():
        try:
            reply = await client.ask(path, dict[str, Any])
        except (RefusedError, BadReplyError):
            continue
        if key in reply:
            _refuse(client, reason, instead)


def _refuse(client: Client, reason: str, instead: str) -> NoReturn:
    """Say why a server is of no use here, and what is."""
    raise ServerError(f"{client.label} cannot score a given text: {reason}; {instead}")
