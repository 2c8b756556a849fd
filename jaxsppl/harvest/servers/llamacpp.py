"""llama.cpp's server: the model list, loading, tokenising, and who it is.

How a text is scored lies in `jaxsppl.harvest.forcing`.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.alignment import split, text_bytes
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.forcing import (
    FINAL_ERRORS,
    METHODS,
    Forcing,
    Token,
)
from jaxsppl.harvest.protocol import (
    Identity,
    Offer,
    Passage,
    PassageError,
    ScoredPassage,
    Scorer,
    Server,
    Unavailable,
)
from jaxsppl.harvest.validate import scored_passage

__all__ = ["METHODS", "NAME", "connect"]

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


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int]


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

    async def open(self, offer: Offer, *, alternatives: int, method: str) -> "LlamaCppScorer":
        """Load a model where that is needed, and find out what it is and can do.

        Parameters
        ----------
        offer : Offer
        alternatives : int
            K.
        method : str
            "auto", "token-grammar" or "one-token".

        Returns
        -------
        LlamaCppScorer
        """
        if offer.router:
            await self._load(offer)
        scorer = LlamaCppScorer(self._client, offer, alternatives, method, self._n_vocab)
        await scorer.prepare()
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


class LlamaCppScorer(Scorer):
    """One model of one llama-server."""

    def __init__(
        self,
        client: Client,
        offer: Offer,
        alternatives: int,
        method: str,
        figures: Any,
    ) -> None:
        self._client = client
        self._offer = offer
        self._asked = alternatives
        self._method = method
        self._figures = figures
        self._model: Mapping[str, str] = {"model": offer.id} if offer.router else {}
        self._lead: tuple[int, ...] = ()
        self._forcing: Forcing | None = None
        self.label = client.label
        self.slots = 1

    async def prepare(self) -> None:
        """Find out who the server is and which method works.

        Raises
        ------
        ServerError
            When it cannot score a given text.
        """
        try:
            self.identity = await self.identify()
        except (RefusedError, BadReplyError) as error:
            raise ServerError(f"{self.label} is not fit for a harvest: {error}") from error

    async def identify(self) -> Identity:
        """Ask the server who it is, and let it complete a few tokens.

        Returns
        -------
        Identity
        """
        try:
            return await self._identify()
        except (RefusedError, BadReplyError, PassageError) as error:
            raise ServerError(f"{self.label} is not fit for a harvest: {error}") from error

    async def _identify(self) -> Identity:
        props = await self._client.ask("/props", _Props, query=self._model)
        n_vocab, figures = await self._figures(self._offer)
        lead = await self._lead_tokens()
        words = await self._tokenize("a b c d e")
        plain = [token for token in words if token.whole and token.id not in lead]
        if len(plain) < 4:
            raise BadReplyError("it does not tokenise 'a b c d e' into whole tokens")
        forcing = Forcing(
            client=self._client,
            model=self._model,
            build=props.build_info,
            filler=plain[0].id,
            slots=props.total_slots,
        )
        prompt = [*lead, plain[0].id]
        if not n_vocab:
            n_vocab = await forcing.vocabulary(prompt)
        forcing.n_vocab = n_vocab
        forcing.alternatives = min(self._asked, n_vocab)
        method = await forcing.choose(self._method, prompt, [token.id for token in plain[1:4]])
        self._forcing, self._lead, self.slots = forcing, lead, max(props.total_slots, 1)
        return Identity(
            protocol=NAME,
            build=props.build_info,
            n_vocab=n_vocab,
            n_context=props.default_generation_settings.n_ctx,
            method=method,
            details={**figures, "lead_tokens": " ".join(map(str, lead))},
        )

    async def _lead_tokens(self) -> tuple[int, ...]:
        """Return the tokens that the model wants before a text; those after it are left off."""
        bare = [t.id for t in await self._tokenize("a")]
        dressed = [t.id for t in await self._tokenize("a", add_special=True)]
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return tuple(dressed[:start])
        raise BadReplyError("/tokenize gives other tokens for a text with add_special than without")

    async def _tokenize(self, text: str, *, add_special: bool = False) -> list[Token]:
        """Return the tokens of a text, with their bytes; special tokens in it stay text."""
        reply = await self._client.ask(
            "/tokenize",
            _Tokens,
            body={
                "content": text,
                "add_special": add_special,
                "parse_special": False,
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

    async def score(self, passage: Passage, slot: int) -> ScoredPassage:
        """Score one passage; see `Scorer.score`.

        Parameters
        ----------
        passage : Passage
        slot : int

        Returns
        -------
        ScoredPassage
        """
        forcing = self._forcing
        if forcing is None:
            raise Unavailable(f"{self.label} is not ready")
        prefix = text_bytes("prefix", passage.prefix)
        continuation = text_bytes("continuation", passage.continuation)
        try:
            tokens = await self._tokenize(passage.prefix + passage.continuation)
            cut = split([t.piece for t in tokens], prefix, continuation, lead=bool(self._lead))
            ids = [*self._lead, *(token.id for token in tokens)]
            whole = [*(True for _ in self._lead), *(token.whole for token in tokens)]
            start = len(self._lead) + cut.start
            if len(ids) > self.identity.n_context - 1:
                raise PassageError(
                    f"{start} tokens of context and {len(ids) - start} to score do not fit in the "
                    f"{self.identity.n_context} of a slot, less 1; give the server a larger "
                    "--ctx-size or shorten the passage"
                )
            positions = await forcing.positions(ids, whole, start, slot)
        except RefusedError as error:
            raise PassageError(f"the server refused it: {error}") from error
        except BadReplyError as error:
            raise PassageError(str(error)) from error
        return scored_passage(
            positions,
            ids[start:],
            cut.token_bytes,
            alternatives=forcing.alternatives,
            n_vocab=forcing.n_vocab,
            context_tokens=start,
            merged=cut.merged,
        )
