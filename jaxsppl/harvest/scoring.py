"""How a passage is scored on any server that takes token ids: tokenise, split, ask, check."""

import abc
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxsppl.harvest.alignment import split, text_bytes
from jaxsppl.harvest.client import BadReplyError, RefusedError
from jaxsppl.harvest.protocol import (
    NEUTRAL,
    How,
    Passage,
    PassageError,
    ScoredPassage,
    Scorer,
)
from jaxsppl.harvest.validate import Position, scored_passage


@dataclass(frozen=True)
class Token:
    """A token of the text; `whole` says that its bytes are complete characters."""

    id: int
    piece: bytes
    whole: bool = True


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
    lead: tuple[int, ...] = ()
    alternatives: int = 1
    too_long: str = "shorten the passage"

    def __init__(self) -> None:
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

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
        prefix = text_bytes("prefix", passage.prefix)
        continuation = text_bytes("continuation", passage.continuation)
        try:
            tokens = await self.tokenize(passage.prefix + passage.continuation)
            cut = split([t.piece for t in tokens], prefix, continuation, lead=bool(self.lead))
            ids = [*self.lead, *(token.id for token in tokens)]
            whole = [*(True for _ in self.lead), *(token.whole for token in tokens)]
            start = len(self.lead) + cut.start
            if len(ids) > self.identity.n_context - 1:
                raise PassageError(
                    f"{start} tokens of context and {len(ids) - start} to score do not fit in the "
                    f"{self.identity.n_context} of a slot, less 1; {self.too_long}"
                )
            # The next passage is tokenised, and the last one checked, while the server is busy.
            async with self._turns[slot]:
                positions = await self.positions(ids, whole, start, slot, how)
        except RefusedError as error:
            raise PassageError(f"the server refused it: {error}") from error
        except BadReplyError as error:
            raise PassageError(str(error)) from error
        return scored_passage(
            positions,
            ids[start:],
            cut.token_bytes,
            alternatives=self.alternatives,
            n_vocab=self.identity.n_vocab,
            context_tokens=start,
            merged=cut.merged,
        )

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
