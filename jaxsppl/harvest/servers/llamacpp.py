"""llama.cpp's server: the model list, loading, tokenising, and who it is.

How a text is scored lies in `jaxsppl.harvest.forcing`.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.alignment import lead_tokens
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.forcing import FINAL_ERRORS, METHODS, Forcing
from jaxsppl.harvest.local import local_build
from jaxsppl.harvest.protocol import (
    How,
    Identity,
    Offer,
    Options,
    Server,
    Unavailable,
)
from jaxsppl.harvest.scoring import Token, TokenScorer
from jaxsppl.harvest.validate import Position

__all__ = ["METHODS", "NAME", "connect", "recognise"]

NAME = "llama.cpp"


class _Status(msgspec.Struct):
    value: str = ""
    failed: bool = False
    exit_code: int | None = None


class _Entry(msgspec.Struct):
    id: str
    aliases: list[str] = []
    status: _Status | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Entry]


class _Settings(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Settings
    total_slots: int = 1
    build_info: str = "unknown"


class _Slot(msgspec.Struct):
    speculative: bool = False


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int]


class _Text(msgspec.Struct):
    content: str


class _Prompt(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: list[_Piece | int]


def connect(session: aiohttp.ClientSession, url: str, *, patience_s: float) -> "LlamaCppServer":
    """Return the server at an address; nothing is sent yet.

    Parameters
    ----------
    session : aiohttp.ClientSession
    url : str
    patience_s : float
        Longest wait for a model that loads [s].

    Returns
    -------
    LlamaCppServer
    """
    client = Client(session, url, final=FINAL_ERRORS, patience_s=patience_s)
    return LlamaCppServer(client, patience_s)


def recognise(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of a model list is this server's; a router's has a status.

    Parameters
    ----------
    entry : mapping

    Returns
    -------
    bool
    """
    return (
        entry.get("owned_by") == "llamacpp"
        or "status" in entry
        or "n_vocab" in (entry.get("meta") or {})
    )


def model_name(identifier: str) -> str:
    """Return the name of a model as files carry it: a server may report a path.

    Parameters
    ----------
    identifier : str
        Path of a GGUF file, an alias, or a router's model id.

    Returns
    -------
    str
    """
    if re.search(r"\.gguf$", identifier, re.IGNORECASE):
        return re.split(r"[/\\]", identifier)[-1][: -len(".gguf")]
    return identifier


class LlamaCppServer(Server):
    """One llama-server, with one model or as a router of several."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self.label = client.label

    async def offers(self) -> list[Offer]:
        """Return the models that it offers.

        Returns
        -------
        list of Offer

        Raises
        ------
        ServerError
            When what answers is no llama.cpp server.
        """
        return [
            Offer(
                id=entry.id,
                name=model_name(entry.id),
                aliases=tuple(entry.aliases),
                router=entry.status is not None,
            )
            for entry in await self._entries()
        ]

    async def _entries(self) -> list[_Entry]:
        """Return the entries of the model list."""
        try:
            return (await self._client.ask("/v1/models", _Models)).data
        except (RefusedError, BadReplyError) as error:
            raise ServerError(
                f"{self.label} does not answer like a llama.cpp server: {error}; "
                "check the address and --protocol"
            ) from error

    async def open(self, offer: Offer, options: Options) -> "LlamaCppScorer":
        """Load a model where that is needed, and find out what it is and can do.

        Parameters
        ----------
        offer : Offer
        options : Options
            The method is "auto", "token-grammar" or "one-token".

        Returns
        -------
        LlamaCppScorer
        """
        if offer.router:
            await self._load(offer)
        scorer = LlamaCppScorer(self._client, offer, options, self._n_vocab)
        scorer.identity = await scorer.identify()
        return scorer

    async def _load(self, offer: Offer) -> None:
        """Ask a router to load a model and wait until it says so."""
        deadline = time.monotonic() + self._patience_s
        asked = False
        while True:
            entry = next((e for e in await self._entries() if e.id == offer.id), None)
            status = entry.status if entry is not None else None
            if status is None or status.value == "loaded":
                return
            if asked and (status.failed or status.value == "unloaded"):
                code = "" if status.exit_code is None else f" (exit code {status.exit_code})"
                raise ServerError(
                    f"{self.label}: model '{offer.name}' failed to load{code}; "
                    "see the log of the server"
                )
            if not asked and status.value == "unloaded":
                try:
                    await self._client.ask("/models/load", dict, body={"model": offer.id})
                except (RefusedError, BadReplyError) as error:
                    raise ServerError(
                        f"{self.label}: model '{offer.name}' cannot be loaded: {error}"
                    ) from error
            asked = True
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.label}: model '{offer.name}' was not loaded within "
                    f"{self._patience_s:g} s"
                )
            await asyncio.sleep(0.5)

    async def _n_vocab(self, offer: Offer) -> tuple[int, dict[str, str | int | float]]:
        """Return the size of the vocabulary, 0 when it is not told, and the model's figures."""
        entry = next((e for e in await self._entries() if e.id == offer.id), None)
        if entry is None:
            raise ServerError(f"{self.label} no longer offers the model '{offer.name}'")
        meta = entry.meta or {}
        figures: dict[str, str | int | float] = {
            key: value
            for key, value in meta.items()
            if isinstance(value, (str, int, float)) and key not in {"n_vocab", "n_ctx"}
        }
        return int(meta.get("n_vocab", 0)), figures


class LlamaCppScorer(TokenScorer):
    """One model of one llama-server."""

    abilities = TokenScorer.abilities | {"chat", "statistics"}
    too_long = "give the server a larger --ctx-size or shorten the passage"

    def __init__(
        self,
        client: Client,
        offer: Offer,
        options: Options,
        figures: Any,
    ) -> None:
        super().__init__(options)
        self._client = client
        self._offer = offer
        self._figures = figures
        self._model: Mapping[str, str] = {"model": offer.id} if offer.router else {}
        self._forcing: Forcing | None = None
        self.label = client.label
        self.slots = 1

    async def _identify(self) -> Identity:
        props = await self._client.ask("/props", _Props, query=self._model)
        await self._check_speculation()
        build = local_build(self.label) or props.build_info
        n_vocab, figures = await self._figures(self._offer)
        lead = await self._lead_tokens()
        words = await self.tokenize("a b c d e")
        plain = [token for token in words if token.whole and token.id not in lead]
        if len(plain) < 4:
            raise BadReplyError("it does not tokenise 'a b c d e' into whole tokens")
        forcing = Forcing(
            client=self._client,
            model=self._model,
            build=build,
            filler=plain[0].id,
            slots=props.total_slots,
            statistics=self._options.statistics,
        )
        prompt = [*lead, plain[0].id]
        if not n_vocab:
            n_vocab = await forcing.vocabulary(prompt)
        forcing.n_vocab = n_vocab
        forcing.alternatives = min(self._options.alternatives, n_vocab)
        few = [token.id for token in plain[1:4]]
        method = await forcing.choose(self._options.method, prompt, few)
        self._forcing, self.lead, self.slots = forcing, lead, max(props.total_slots, 1)
        self.alternatives = forcing.alternatives
        return Identity(
            protocol=NAME,
            build=build,
            n_vocab=n_vocab,
            n_context=props.default_generation_settings.n_ctx,
            method=method,
            details={**figures, "lead_tokens": " ".join(map(str, lead))},
        )

    async def _check_speculation(self) -> None:
        """Refuse a server that drafts tokens: what it reports of them is not the model's."""
        try:
            slots = await self._client.ask("/slots", list[_Slot], query=self._model, limit=1 << 26)
        except (RefusedError, BadReplyError):
            return  # the route may be switched off
        if any(slot.speculative for slot in slots):
            raise ServerError(
                f"{self.label} drafts tokens (speculative decoding), and their log-probabilities "
                "are not the model's; start it without a draft model"
            )

    async def price(self) -> tuple[int, float] | None:
        """Measure what the whole vocabulary costs; see `Scorer.price`.

        Returns
        -------
        (int, float) or None
        """
        if self._forcing is None:
            return None
        return await self._forcing.price([*self.lead, self._forcing.filler])

    async def _lead_tokens(self) -> tuple[int, ...]:
        """Return the tokens that the model wants before a text; those after it are left off."""
        bare = [t.id for t in await self.tokenize("a")]
        dressed = [t.id for t in await self.tokenize("a", add_special=True)]
        return lead_tokens(bare, dressed)

    async def chat(self, message: str) -> list[int]:
        """Return the ids of a user's message in the model's template; see `TokenScorer.chat`.

        Parameters
        ----------
        message : str

        Returns
        -------
        list of int
        """
        reply = await self._client.ask(
            "/apply-template",
            _Prompt,
            body={"messages": [{"role": "user", "content": message}], **self._model},
            limit=(1 << 20) + 16 * len(message),
        )
        # Not add_special, which ends the prompt where a model wants an end-of-text token.
        ids = [token.id for token in await self.tokenize(reply.prompt, parse_special=True)]
        return ids if tuple(ids[: len(self.lead)]) == self.lead else [*self.lead, *ids]

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[Token]:
        """Return the tokens of a text, with their bytes.

        Parameters
        ----------
        text : str
        add_special : bool
            With the tokens that the model wants around a text.
        parse_special : bool
            Special tokens in it are these tokens; else they stay text.

        Returns
        -------
        list of Token
        """
        reply = await self._client.ask(
            "/tokenize",
            _Tokens,
            body={
                "content": text,
                "add_special": add_special,
                "parse_special": parse_special,
                "with_pieces": True,
                **self._model,
            },
            limit=(1 << 20) + 256 * len(text),
        )
        tokens: list[Token] = []
        for token in reply.tokens:
            if isinstance(token, int):
                raise ServerError(
                    f"{self.label}: this build is too old, its /tokenize knows no with_pieces"
                )
            whole = isinstance(token.piece, str)
            try:
                piece = token.piece.encode() if isinstance(token.piece, str) else bytes(token.piece)
            except ValueError as error:
                raise BadReplyError("/tokenize gave a piece that is not bytes") from error
            tokens.append(
                Token(token.id, piece, whole and not piece.startswith(b"\0") and piece != b"")
            )
        return tokens

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; what is no whole character is replaced.

        Parameters
        ----------
        ids : sequence of int

        Returns
        -------
        str
        """
        reply = await self._client.ask(
            "/detokenize",
            _Text,
            body={"tokens": list(ids), **self._model},
            limit=(1 << 20) + 64 * len(ids),
        )
        return reply.content

    async def positions(
        self, ids: Sequence[int], whole: Sequence[bool], start: int, slot: int, how: How
    ) -> list[Position]:
        """Score the tokens from `start` on; see `TokenScorer.positions`.

        Parameters
        ----------
        ids : sequence of int
        whole : sequence of bool
        start, slot : int
        how : How

        Returns
        -------
        list of Position
        """
        if self._forcing is None:
            raise Unavailable(f"{self.label} is not ready")
        return await self._forcing.positions(ids, whole, start, slot, how)
