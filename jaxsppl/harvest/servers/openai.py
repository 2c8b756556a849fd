"""OpenAI-compatible legacy completions with `echo`: llama-cpp-python's server and others.

These know tokens by their text only. A passage is refused where two tokens of a list have the same
text, because one of the two values is then lost; ids are numbers of the harvest file itself.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.alignment import split, text_bytes
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.listed import ListedServer
from jaxsppl.harvest.protocol import (
    NEUTRAL,
    How,
    Identity,
    Offer,
    Options,
    Passage,
    PassageError,
    ScoredPassage,
    Scorer,
)
from jaxsppl.harvest.validate import Position, listed_position, scored_passage

__all__ = ["METHODS", "NAME", "connect"]

NAME = "openai"
METHODS = ("echo",)

# These servers do not tell their vocabulary, and none in use is larger: the tail's brackets, which
# widen with it, hold for every smaller one.
MOST_TOKENS = 1 << 19
# What the interface knows, and what llama-cpp-python adds; servers that refuse the latter get none.
SETTINGS: Mapping[str, Any] = {
    "max_tokens": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": 0,
    "n": 1,
    "stream": False,
}
MORE_SETTINGS: Mapping[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "mirostat_mode": 0,
    "min_tokens": 0,
}
ALTERNATIVE_BYTES = 100
PROBE = "one two three four five six seven"
AGREE = 0.1
_LOST = "\N{REPLACEMENT CHARACTER}"


class _About(msgspec.Struct):
    title: str = ""
    version: str = "unknown"


class _OpenApi(msgspec.Struct):
    info: _About = msgspec.field(default_factory=_About)


class Logprobs(msgspec.Struct):
    """The arrays of a reply; `content` has those of chat replies instead."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[Any] | None = None


class Choice(msgspec.Struct):
    """What came of one prompt."""

    logprobs: Logprobs | None = None


class Completion(msgspec.Struct):
    """The part of a reply that is read."""

    choices: list[Choice]


def connect(session: aiohttp.ClientSession, url: str, *, patience_s: float) -> ListedServer:
    """Return the server at an address; nothing is sent yet.

    Parameters
    ----------
    session : aiohttp.ClientSession
    url : str
    patience_s : float
        Longest time for one request and its retries [s].

    Returns
    -------
    ListedServer
    """
    return ListedServer(Client(session, url, patience_s=patience_s), EchoScorer)


class EchoScorer(Scorer):
    """One model of one server that echoes the prompt with its log-probabilities."""

    slots = 1

    def __init__(self, client: Client, offer: Offer, options: Options) -> None:
        self._client = client
        self._offer = offer
        self._alternatives = options.alternatives
        self._more = MORE_SETTINGS
        self.label = client.label

    async def identify(self) -> Identity:
        """Ask the server who it is, and compare what it echoes with what it generates.

        Returns
        -------
        Identity
        """
        try:
            about = (await self._client.ask("/openapi.json", _OpenApi)).info
        except (RefusedError, BadReplyError):
            about = _About()
        try:
            await self._check_echo()
        except (RefusedError, BadReplyError, PassageError) as error:
            raise ServerError(
                f"{self.label} cannot score a given text: {error}; serve the model with "
                "llama-server, vLLM or SGLang, or take --protocol transformers"
            ) from error
        return Identity(
            protocol=NAME,
            build=about.version,
            n_vocab=MOST_TOKENS,
            n_context=0,
            method=METHODS[0],
            details={"program": about.title, "ids": "of this file", "n_vocab_is": "a bound"},
        )

    async def _check_echo(self) -> None:
        """Check that the list of an echoed token is what is generated in its place."""
        try:
            reply = await self._complete(PROBE, echo=True, how=NEUTRAL)
        except RefusedError as error:
            if error.status not in {400, 422}:
                raise
            self._more = {}
            reply = await self._complete(PROBE, echo=True, how=NEUTRAL)
        echoed = read(reply, PROBE)
        if len(echoed.tokens) < 3 or not echoed.tokens[-1]:
            raise BadReplyError(f"it makes {len(echoed.tokens)} tokens of '{PROBE}'")
        most = max(len(law or ()) for law in echoed.top_logprobs)
        if most < self._alternatives:
            raise BadReplyError(
                f"at most {most} alternatives come for {self._alternatives}, because it clamps its "
                "lists or many tokens have the same text; ask for fewer with --alternatives"
            )
        shorter = PROBE[: -len(echoed.tokens[-1])]
        generated = await self._complete(shorter, echo=False, how=NEUTRAL)
        lists = _arrays(generated).top_logprobs
        law = lists[0] if lists else None
        if law is None:
            raise BadReplyError("it lists no alternatives of a generated token")
        if _same(law, echoed.top_logprobs[-1]):
            return
        if _same(law, echoed.top_logprobs[-2]):
            raise BadReplyError(
                "its echoed lists are shifted by one token (llama-cpp-python does so with models "
                "that add no begin-of-text token)"
            )
        raise BadReplyError("what it echoes differs from what it generates in the same place")

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
        return await self.score_as(passage, slot, NEUTRAL)

    async def score_as(self, passage: Passage, slot: int, how: How) -> ScoredPassage:
        """Score one passage under other settings; see `Scorer.score_as`.

        Parameters
        ----------
        passage : Passage
        slot : int
        how : How

        Returns
        -------
        ScoredPassage
        """
        del slot
        prefix = text_bytes("prefix", passage.prefix)
        continuation = text_bytes("continuation", passage.continuation)
        text = passage.prefix + passage.continuation
        try:
            echoed = read(await self._complete(text, echo=True, how=how), text)
            pieces = [token.encode() for token in echoed.tokens]
            cut = split(pieces, prefix, continuation, lead=False)
            return echoed.scored(cut.start, cut.token_bytes, cut.merged, self._alternatives)
        except RefusedError as error:
            raise PassageError(f"the server refused it: {error}") from error
        except BadReplyError as error:
            raise PassageError(str(error)) from error

    async def _complete(self, text: str, *, echo: bool, how: How) -> Completion:
        """Send one prompt, with every setting that the server knows."""
        return await self._client.ask(
            "/v1/completions",
            Completion,
            body={
                **SETTINGS,
                **self._more,
                "model": self._offer.id,
                "prompt": text,
                "echo": echo,
                "logprobs": self._alternatives,
                **({} if how.temperature is None else {"temperature": how.temperature}),
            },
            limit=(1 << 20) + (len(text) + 1) * (self._alternatives + 1) * ALTERNATIVE_BYTES,
        )


class Echoed(msgspec.Struct, frozen=True):
    """The tokens of a text, as they were echoed."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]

    def scored(
        self, start: int, token_bytes: Sequence[int], merged: int, alternatives: int
    ) -> ScoredPassage:
        """Return the tokens from `start` on as arrays, with numbers for texts.

        Parameters
        ----------
        start : int
        token_bytes : sequence of int
            UTF-8 length of each scored token [byte].
        merged : int
            Passed on.
        alternatives : int
            How many were asked for.

        Returns
        -------
        ScoredPassage

        Raises
        ------
        PassageError
            When a list is not usable.
        """
        numbers: dict[str, int] = {}
        targets = [numbers.setdefault(token, len(numbers)) for token in self.tokens[start:]]
        positions: list[Position] = []
        for i, target in enumerate(targets):
            law = self.top_logprobs[start + i]
            if law is None:
                raise PassageError(f"token {i}: null came instead of a list")
            _check_distinct(i, law, self.tokens[start + i], alternatives)
            positions.append(
                listed_position(
                    i,
                    target,
                    self.token_logprobs[start + i],
                    [numbers.setdefault(text, len(numbers)) for text in law],
                    list(law.values()),
                    alternatives=alternatives,
                )
            )
        scored = scored_passage(
            positions,
            targets,
            token_bytes,
            alternatives=alternatives,
            n_vocab=MOST_TOKENS,
            context_tokens=start,
            merged=merged,
        )
        return replace(scored, texts=tuple(numbers))


def _check_distinct(i: int, law: Mapping[str, float | None], token: str, alternatives: int) -> None:
    """Refuse a list in which two tokens may have had one text."""
    last = min(law, key=lambda text: law[text] or 0.0, default="")
    lost = any(text == "" or _LOST in text for text in law)
    short = len(law) < alternatives or (len(law) == alternatives and last == token and lost)
    if short:
        raise PassageError(
            f"token {i}: {len(law)} alternatives came for {alternatives}, because some have the "
            "same text (unfinished characters, for example) or the server clamps its lists; serve "
            "the model with llama-server, or ask for fewer with --alternatives"
        )


def _arrays(reply: Completion) -> Logprobs:
    """Return the arrays of a reply, or say what it holds instead."""
    found = reply.choices[0].logprobs if reply.choices else None
    if found is not None and found.content is not None:
        raise BadReplyError("it answers in the style of chats, about generated tokens only")
    if found is None or not found.tokens or not found.token_logprobs or not found.top_logprobs:
        raise BadReplyError(
            "it sent no log-probabilities (llama-cpp-python: start with logits_all)"
        )
    return found


def read(reply: Completion, text: str) -> Echoed:
    """Read the tokens of a text from a reply.

    Parameters
    ----------
    reply : Completion
    text : str
        The prompt.

    Returns
    -------
    Echoed
        Without a begin-of-text token before and the generated one after.

    Raises
    ------
    BadReplyError, PassageError
        When the reply is not about this text.
    """
    found = _arrays(reply)
    tokens, own, top = found.tokens or [], found.token_logprobs or [], found.top_logprobs or []
    if not len(tokens) == len(own) == len(top):
        raise BadReplyError("its lists have different lengths")
    if own[0] is not None:
        raise BadReplyError("the first token has a log-probability: the prompt is not echoed, or "
                            "the list is shifted by one")  # fmt: skip
    # a begin-of-text token is no part of the text; a space before the first word may be none either
    first = int(not text.startswith((tokens[0], tokens[0].removeprefix(" "))))
    at = 0
    for end in range(first, len(tokens)):
        if at == len(text):
            break
        token = tokens[end]
        if end == first and not text.startswith(token):
            token = tokens[end] = token.removeprefix(" ")
        if not text.startswith(token, at):
            raise PassageError(
                f"token {end - first} is echoed as {token[:20]!r}, which is not in its place; bytes"
                " of unfinished characters are lost in such replies, use another protocol"
            )
        at += len(token)
    else:
        end = len(tokens)
    if at != len(text):
        raise PassageError("the echoed tokens end before the text does")
    return Echoed(tokens[first:end], own[first:end], top[first:end])


def _same(law: Mapping[str, float | None], echoed: Mapping[str, float | None] | None) -> bool:
    """Return whether two lists are of one distribution."""
    both = [
        abs(value - other)
        for text, value in law.items()
        if value is not None and (other := (echoed or {}).get(text)) is not None
    ]
    return 2 * len(both) > len(law) and statistics.median(both) < AGREE
