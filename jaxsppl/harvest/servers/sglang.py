"""SGLang's server: one prefill of the whole text by `/generate`, with input log-probabilities.

Asked from the first token on, which computes all of them anew; the scored ones are taken here. The
input's values are at temperature 1, the output's would be divided by the temperature.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from jaxsppl.harvest.alignment import lead_tokens
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.listed import ListedServer, listed_model
from jaxsppl.harvest.pieces import from_decoded
from jaxsppl.harvest.protocol import How, Identity, Offer, Options, PassageError
from jaxsppl.harvest.scoring import Token, TokenScorer
from jaxsppl.harvest.validate import Position, listed_position

__all__ = ["METHODS", "NAME", "connect", "recognise"]

NAME = "sglang"
METHODS = ("input-logprobs",)

IN_FLIGHT = 4
# Every setting that could change what is drawn, though not what is reported: the server may have
# preferred ones of its own.
SETTINGS: Mapping[str, Any] = {
    "max_new_tokens": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
    "ignore_eos": False,
    "stop": [],
}
ALTERNATIVE_BYTES = 100
_VOCABULARY = re.compile(r"vocab size \((\d+)\)|valid range is \[0, (\d+)\)")
# No vocabulary is as large; the server says how large its own is.
_NO_TOKEN = 2**30

# A triple of log-probability, id, text.
Triple = tuple[float | None, int, str | None]


class _Info(msgspec.Struct):
    version: str = "unknown"
    speculative_algorithm: str | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Texts(msgspec.Struct):
    text: list[str]


class Meta(msgspec.Struct):
    """The part of a reply that is read."""

    input_token_logprobs: list[Triple] | None = None
    input_top_logprobs: list[list[Triple] | None] | None = None


class Generated(msgspec.Struct):
    """A reply."""

    meta_info: Meta


def recognise(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of a model list is this server's.

    Parameters
    ----------
    entry : mapping

    Returns
    -------
    bool
    """
    return entry.get("owned_by") == "sglang"


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
    return ListedServer(Client(session, url, patience_s=patience_s), SglangScorer)


class SglangScorer(TokenScorer):
    """One model of one SGLang server."""

    slots = IN_FLIGHT
    too_long = "start the server with a larger --context-length or shorten the passage"

    def __init__(self, client: Client, offer: Offer, options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._offer = offer
        self._texts: dict[int, str] = {}
        self.label = client.label

    async def _identify(self) -> Identity:
        model = await listed_model(self._client, self._offer)
        info = await self._client.ask("/get_server_info", _Info)
        try:
            bare = [token.id for token in await self.tokenize("a b c d e")]
        except RefusedError as error:
            raise BadReplyError(f"this SGLang is too old: it has no /tokenize ({error})") from error
        dressed = (await self._tokens("a b c d e", add_special=True)).tokens
        self.lead = lead_tokens(bare, dressed)
        ids = [*self.lead, *bare]
        n_vocab = await self._n_vocab()
        self.alternatives = min(self._options.alternatives, n_vocab)
        positions(await self._generate(ids, How()), ids, 1, self.alternatives)
        return Identity(
            protocol=NAME,
            build=info.version,
            n_vocab=n_vocab,
            n_context=model.max_model_len,
            method=METHODS[0],
            details={
                "lead_tokens": " ".join(map(str, self.lead)),
                "speculative": info.speculative_algorithm or "none",
            },
        )

    async def _n_vocab(self) -> int:
        """Return the size of the vocabulary, which is told when a token is not in it."""
        try:
            await self._generate([_NO_TOKEN], How())
        except RefusedError as error:
            if (told := _VOCABULARY.search(error.said)) is not None:
                return int(told[1] or told[2])
            raise
        raise BadReplyError("it takes token ids that no vocabulary has")

    async def _tokens(self, text: str, *, add_special: bool) -> _Tokens:
        """Ask for the tokens of a text."""
        return await self._client.ask(
            "/tokenize",
            _Tokens,
            body={
                "model": self._offer.id,
                "prompt": text,
                "add_special_tokens": add_special,
            },
            limit=(1 << 20) + 64 * len(text),
        )

    async def tokenize(self, text: str) -> list[Token]:
        """Return the tokens of a text; special tokens in it are parsed, as SGLang always does.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Token
        """
        ids = (await self._tokens(text, add_special=False)).tokens
        unknown = sorted(set(ids) - self._texts.keys())
        if unknown:
            reply = await self._client.ask(
                "/detokenize",
                _Texts,
                body={
                    "model": self._offer.id,
                    "tokens": [[token] for token in unknown],
                    "skip_special_tokens": False,
                },
            )
            if len(reply.text) != len(unknown):
                raise BadReplyError("/detokenize gave another number of texts than asked")
            self._texts.update(zip(unknown, reply.text, strict=True))
        pieces = from_decoded([self._texts[token] for token in ids], text.encode())
        return [Token(*pair) for pair in zip(ids, pieces, strict=True)]

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
        return positions(await self._generate(ids, how), ids, start, self.alternatives)

    async def _generate(self, ids: Sequence[int], how: How) -> Generated:
        """Send one prompt, with every setting that matters."""
        varied = {} if how.temperature is None else {"temperature": how.temperature}
        return await self._client.ask(
            "/generate",
            Generated,
            body={
                "input_ids": list(ids),
                "sampling_params": {**SETTINGS, **varied},
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": self.alternatives,
                "return_text_in_logprobs": False,
                "stream": False,
            },
            limit=(1 << 20) + len(ids) * (self.alternatives + 1) * ALTERNATIVE_BYTES,
        )


def positions(
    reply: Generated, ids: Sequence[int], start: int, alternatives: int
) -> list[Position]:
    """Read the scored tokens from a reply.

    Parameters
    ----------
    reply : Generated
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
    own, top = reply.meta_info.input_token_logprobs, reply.meta_info.input_top_logprobs
    if own is None or top is None:
        raise BadReplyError("it sent no input_token_logprobs or no input_top_logprobs")
    if not len(own) == len(top) == len(ids):
        raise PassageError(
            f"{len(own)} values and {len(top)} lists came for {len(ids)} tokens; the start is "
            "shifted, or a cached part is missing"
        )
    if own[0][0] is not None:
        raise PassageError("the first token has a log-probability; the list is shifted by one")
    found: list[Position] = []
    for i in range(start, len(ids)):
        logprob, token, _ = own[i]
        if token != ids[i]:
            raise PassageError(f"token {i - start}: id {token} came for id {ids[i]}")
        entries = top[i]
        if entries is None:
            raise PassageError(f"token {i - start}: null came instead of a list")
        found.append(
            listed_position(
                i - start,
                ids[i],
                logprob,
                [entry[1] for entry in entries],
                [entry[0] for entry in entries],
                alternatives=alternatives,
            )
        )
    return found
