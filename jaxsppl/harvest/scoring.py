"""How a passage is scored on any server that takes token ids: tokenise, split, ask, check."""

import abc
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxsppl.errors import ServerError
from jaxsppl.harvest.alignment import Split, split, text_bytes
from jaxsppl.harvest.client import BadReplyError, RefusedError
from jaxsppl.harvest.protocol import (
    NEUTRAL,
    How,
    Identity,
    Options,
    Passage,
    PassageError,
    ScoredPassage,
    Scorer,
)
from jaxsppl.harvest.validate import Position, scored_passage
from jaxsppl.harvest.windows import Window, windows


@dataclass(frozen=True)
class Token:
    """A token of the text; `whole` says that its bytes are complete characters."""

    id: int
    piece: bytes
    whole: bool = True


@dataclass(frozen=True)
class _Read:
    """A passage as tokens: those before every window, those of the text, where scoring begins."""

    lead: tuple[int, ...]
    tokens: list[Token]
    cut: Split


class TokenScorer(Scorer):
    """A model that is asked by token ids.

    Attributes
    ----------
    lead : tuple of int
        Tokens that the model wants before a text.
    alternatives : int
        K.
    too_long : str
        What to do about a passage that does not fit.
    """

    ahead = 2
    abilities = frozenset({"window", "stride"})
    lead: tuple[int, ...] = ()
    alternatives: int = 1
    too_long: str = "shorten the passage"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def identify(self) -> Identity:
        """Ask the server who it is, and let it score a few tokens; see `Scorer.identify`.

        Returns
        -------
        Identity

        Raises
        ------
        ServerError
            When it cannot score a given text.
        """
        try:
            return await self._identify()
        except (RefusedError, BadReplyError, PassageError) as error:
            other = isinstance(error, RefusedError) and error.status in {404, 405}
            hint = "; is it another kind of server? leave out --protocol" if other else ""
            raise ServerError(f"{self.label} is not fit for a harvest: {error}{hint}") from error

    @abc.abstractmethod
    async def _identify(self) -> Identity:
        """Do what `identify` does; what goes wrong need not be told as a `ServerError`."""

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
        try:
            read = await self._read(passage)
            # The next passage is tokenised, and the last one checked, while the server is busy.
            async with self._turns[slot]:
                positions = [
                    position
                    for window in self._windows(read)
                    for position in await self._window(read, window, slot, how)
                ]
        except RefusedError as error:
            raise PassageError(f"the server refused it: {error}") from error
        except BadReplyError as error:
            raise PassageError(str(error)) from error
        return scored_passage(
            positions,
            [token.id for token in read.tokens[read.cut.start :]],
            read.cut.token_bytes,
            alternatives=self.alternatives,
            n_vocab=self.identity.n_vocab,
            context_tokens=len(read.lead) + read.cut.start,
            merged=read.cut.merged,
        )

    async def _read(self, passage: Passage) -> "_Read":
        """Tokenise a passage and find its first scored token."""
        prefix = text_bytes("prefix", passage.prefix)
        continuation = text_bytes("continuation", passage.continuation)
        if self._options.chat:
            # What answers is given the finished prompt, so the answer is tokenised by itself.
            lead = await self.chat(passage.prefix)
            tokens = await self.tokenize(passage.continuation)
            cut = split([token.piece for token in tokens], b"", continuation, lead=True)
            return _Read(tuple(lead), tokens, cut)
        tokens = await self.tokenize(passage.prefix + passage.continuation)
        pieces = [token.piece for token in tokens]
        return _Read(self.lead, tokens, split(pieces, prefix, continuation, lead=bool(self.lead)))

    def _windows(self, read: "_Read") -> list[Window]:
        """Return the windows of a text, one where it fits."""
        n_token, start = len(read.tokens), read.cut.start
        options = self._options
        if options.window:
            width = options.window - len(read.lead)
            return windows(n_token, start, width=width, stride=options.stride)
        if len(read.lead) + n_token > self.identity.n_context - 1:
            raise PassageError(
                f"{len(read.lead) + start} tokens of context and {n_token - start} to score do not "
                f"fit in the {self.identity.n_context} of a slot, less 1; {self.too_long}, or let "
                "a --window slide over it"
            )
        return [Window(0, start, n_token)]

    async def _window(self, read: "_Read", window: Window, slot: int, how: How) -> list[Position]:
        """Score the tokens of one window."""
        tokens = read.tokens[window.begin : window.end]
        ids = [*read.lead, *(token.id for token in tokens)]
        whole = [*(True for _ in read.lead), *(token.whole for token in tokens)]
        start = len(read.lead) + window.first - window.begin
        return await self.positions(ids, whole, start, slot, how)

    async def chat(self, message: str) -> list[int]:
        """Return the ids of a user's message in the chat template, up to the answer.

        Parameters
        ----------
        message : str

        Returns
        -------
        list of int
        """
        raise NotImplementedError(message)

    @abc.abstractmethod
    async def tokenize(self, text: str) -> list[Token]:
        """Return the tokens of a text, without those that the model wants before it.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Token
        """

    @abc.abstractmethod
    async def positions(
        self, ids: Sequence[int], whole: Sequence[bool], start: int, slot: int, how: How
    ) -> list[Position]:
        """Score the tokens from `start` on.

        Parameters
        ----------
        ids : sequence of int
            Context and targets.
        whole : sequence of bool
            Which of them are complete characters.
        start : int
            First scored token, at least 1.
        slot : int
            Number of the worker that asks.
        how : How

        Returns
        -------
        list of Position
        """
