"""vLLM's server: one prefill of the whole text, `prompt_logprobs` of its own tokens.

The values are those of the raw logits at temperature 1, whatever is sampled. A salt of its own
keeps each request from the prefix cache, which has given stale values.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.alignment import lead_tokens
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.listed import ListedServer, listed_model
from jaxsppl.harvest.pieces import from_vocabulary
from jaxsppl.harvest.protocol import How, Identity, Offer, Options, PassageError
from jaxsppl.harvest.scoring import Token, TokenScorer
from jaxsppl.harvest.validate import Position, listed_position

__all__ = ["METHODS", "NAME", "connect", "recognise"]

NAME = "vllm"
METHODS = ("prompt-logprobs",)

# Requests in flight: prompt log-probabilities need memory that the engine has not set aside.
IN_FLIGHT = 4
# Every setting that could change what is drawn, though not what is reported: the model's own
# generation_config would fill in what is not sent.
SETTINGS: Mapping[str, Any] = {
    "max_tokens": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
    "seed": 0,
    "min_tokens": 0,
    "ignore_eos": False,
    "stop": [],
    "logit_bias": None,
    "echo": False,
    "stream": False,
    "add_special_tokens": False,
}
ALTERNATIVE_BYTES = 300
_LIMIT = re.compile(r"of (\d+), which is greater than max allowed: (\d+)")


class _Version(msgspec.Struct):
    version: str = "unknown"


class _Tokens(msgspec.Struct):
    tokens: list[int]
    token_strs: list[str] | None = None


class Entry(msgspec.Struct):
    """One token of a list."""

    logprob: float | None = None


class Choice(msgspec.Struct):
    """What came of one prompt."""

    prompt_logprobs: list[dict[str, Entry] | None] | None = None


class Completion(msgspec.Struct):
    """The part of a reply that is read."""

    choices: list[Choice]


def recognise(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of a model list is this server's.

    Parameters
    ----------
    entry : mapping

    Returns
    -------
    bool
    """
    return entry.get("owned_by") == "vllm"


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
    return ListedServer(Client(session, url, patience_s=patience_s), VllmScorer)


class VllmScorer(TokenScorer):
    """One model of one vLLM server."""

    slots = IN_FLIGHT
    abilities = TokenScorer.abilities | {"chat"}
    too_long = "start the server with a larger --max-model-len or shorten the passage"

    def __init__(self, client: Client, offer: Offer, options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._offer = offer
        self.label = client.label

    async def _identify(self) -> Identity:
        model = await listed_model(self._client, self._offer)
        version = (await self._client.ask("/version", _Version)).version
        bare = [token.id for token in await self.tokenize("a b c d e")]
        dressed = (await self._tokens("a b c d e", add_special=True)).tokens
        self.lead = lead_tokens(bare, dressed)
        ids = [*self.lead, *bare]
        n_vocab, most = await self._sizes(ids)
        self.alternatives = min(self._options.alternatives, n_vocab)
        if self.alternatives > most:
            raise ServerError(
                f"{self.label} gives at most {most} alternatives; start it with --max-logprobs "
                f"{self.alternatives}, or ask for fewer with --alternatives {most}"
            )
        positions(await self._complete(ids, self.alternatives, How()), ids, 1, self.alternatives)
        return Identity(
            protocol=NAME,
            build=version,
            n_vocab=n_vocab,
            n_context=model.max_model_len,
            method=METHODS[0],
            details={"lead_tokens": " ".join(map(str, self.lead))},
        )

    async def _sizes(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the vocabulary's size and the longest list, both told when all is asked for."""
        try:
            reply = await self._complete(ids[:2], -1, How(), limit=1 << 27)
        except RefusedError as error:
            told = _LIMIT.search(error.said)
            if told is None:
                raise
            return int(told[1]), int(told[2])
        listed = (reply.choices[0].prompt_logprobs or [None])[-1]
        if listed is None:
            raise BadReplyError("it sent no prompt_logprobs")
        return len(listed), len(listed)

    async def _tokens(self, text: str, *, add_special: bool) -> _Tokens:
        """Ask for the tokens of a text."""
        return await self._client.ask(
            "/tokenize",
            _Tokens,
            body={
                "model": self._offer.id,
                "prompt": text,
                "add_special_tokens": add_special,
                "return_token_strs": True,
            },
            limit=(1 << 20) + 256 * len(text),
        )

    async def tokenize(self, text: str) -> list[Token]:
        """Return the tokens of a text; special tokens in it are parsed, as vLLM always does.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Token
        """
        reply = await self._tokens(text, add_special=False)
        if reply.token_strs is None or len(reply.token_strs) != len(reply.tokens):
            raise BadReplyError("this vLLM is too old: its /tokenize knows no return_token_strs")
        pieces = from_vocabulary(reply.token_strs, text.encode())
        return [Token(*pair) for pair in zip(reply.tokens, pieces, strict=True)]

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
            "/tokenize",
            _Tokens,
            body={
                "model": self._offer.id,
                "messages": [{"role": "user", "content": message}],
                "add_generation_prompt": True,
            },
            limit=(1 << 20) + 256 * len(message),
        )
        return reply.tokens

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
        del whole, slot
        reply = await self._complete(ids, self.alternatives, how)
        return positions(reply, ids, start, self.alternatives)

    async def _complete(
        self, ids: Sequence[int], n_listed: int, how: How, limit: int = 0
    ) -> Completion:
        """Send one prompt, with every setting that matters."""
        return await self._client.ask(
            "/v1/completions",
            Completion,
            body={
                **SETTINGS,
                "model": self._offer.id,
                "prompt": list(ids),
                "prompt_logprobs": n_listed,
                **({} if how.temperature is None else {"temperature": how.temperature}),
                **({} if how.cache else {"cache_salt": secrets.token_hex(16)}),
            },
            limit=limit or (1 << 20) + len(ids) * (n_listed + 1) * ALTERNATIVE_BYTES,
        )


def positions(
    reply: Completion, ids: Sequence[int], start: int, alternatives: int
) -> list[Position]:
    """Read the scored tokens from a reply.

    Parameters
    ----------
    reply : Completion
    ids : sequence of int
        The whole prompt.
    start : int
        First scored token.
    alternatives : int
        How many were asked for.

    Returns
    -------
    list of Position

    Raises
    ------
    BadReplyError, PassageError
        When the reply is not about these tokens.
    """
    listed = reply.choices[0].prompt_logprobs if len(reply.choices) == 1 else None
    if listed is None:
        raise BadReplyError("it sent no prompt_logprobs; is it vLLM, and not behind a proxy?")
    if len(listed) != len(ids):
        raise PassageError(f"{len(listed)} entries of prompt_logprobs came for {len(ids)} tokens")
    if listed[0] is not None:
        raise PassageError("the first token has a log-probability; the list is shifted by one")
    found: list[Position] = []
    for i in range(start, len(ids)):
        entries = listed[i]
        if entries is None:
            raise PassageError(f"token {i - start}: null came instead of a list")
        own = entries.get(str(ids[i]))
        if own is None:
            raise PassageError(
                f"token {i - start}: its id {ids[i]} is not in its own list; the list is shifted, "
                "or of another text"
            )
        try:
            tokens = [int(token) for token in entries]
        except ValueError:
            raise BadReplyError("prompt_logprobs are not keyed by token ids") from None
        found.append(
            listed_position(
                i - start,
                ids[i],
                own.logprob,
                tokens,
                [entry.logprob for entry in entries.values()],
                alternatives=alternatives,
            )
        )
    return found
