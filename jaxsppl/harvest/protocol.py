"""What every server protocol offers to the runner: a passage in, checked arrays out.

A protocol is one module in `jaxsppl.harvest.servers`; nothing else needs to know about it.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from jaxsppl.harvest.statistics import Statistics

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]


class Passage(Protocol):
    """A text to score; what `jaxsppl.texts` yields, or anything with these attributes."""

    @property
    def document(self) -> str:
        """Name of the document, unique within the dataset."""
        ...

    @property
    def prefix(self) -> str:
        """Context, not scored."""
        ...

    @property
    def continuation(self) -> str:
        """The text whose tokens are scored."""
        ...


class PassageError(Exception):
    """The passage cannot be scored, whatever is retried; the message is the reason."""


class Unavailable(Exception):  # noqa: N818
    """The server does not answer now: `down` it cannot be reached, `busy` it asks us to wait."""

    def __init__(self, reason: str, *, down: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.down = down
        self.busy = busy


@dataclass(frozen=True)
class ScoredPassage:
    """One scored passage; arrays have one row per scored token (n), K alternatives each.

    Attributes
    ----------
    token_id, token_rank, token_bytes : int32 (n,)
        Actual token; its 1-based place among the alternatives or 0; UTF-8 length of its piece.
    token_logprob : float32 (n,)
        Log-probability under the whole vocabulary [nat].
    top_token_id : int32 (n, K)
        Alternatives by falling probability; -1 where the server gave fewer.
    top_logprob : float32 (n, K)
        Their log-probabilities [nat]; -inf where absent.
    context_tokens : int
        Tokens before the first scored one.
    merged : int
        1 when a token spans the join of prefix and continuation, and so is context.
    censored : int
        Scored tokens whose probability underflowed: their log-probability is an upper bound.
    statistics : Statistics or None
        Of the whole vocabulary, from sources that see all of it.
    texts : tuple of str or None
        Where a server knows tokens by their text only: the texts whose places here are the ids.
    """

    token_id: Int
    token_logprob: Float
    token_rank: Int
    token_bytes: Int
    top_token_id: Int
    top_logprob: Float
    context_tokens: int
    merged: int = 0
    censored: int = 0
    statistics: Statistics | None = None
    texts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Offer:
    """A model that a server offers: `id` in requests, `name` in files, aliases that select it."""

    id: str
    name: str
    aliases: tuple[str, ...] = ()
    router: bool = False

    def answers_to(self, wanted: str) -> bool:
        """Return whether a user's name means this model."""
        return wanted in {self.id, self.name, *self.aliases}


@dataclass(frozen=True)
class Options:
    """What a user wants of each token, and how the passages are read.

    Attributes
    ----------
    alternatives : int
        K; at most the vocabulary is used.
    method : str
        "auto", or one of the protocol's methods.
    statistics : bool
        Keep statistics of the whole vocabulary too.
    window, stride : int
        Longer passages are scored in windows of so many tokens, and each window after the first
        scores `stride` of them; 0: a passage that does not fit is refused.
    chat : bool
        The prefix is a user's message in the model's chat template, the continuation the answer.
    """

    alternatives: int = 100
    method: str = "auto"
    statistics: bool = False
    window: int = 0
    stride: int = 0
    chat: bool = False

    def marks(self) -> dict[str, int]:
        """Return what changes the numbers, beyond alternatives and method, where it is set."""
        kept = ("statistics", "window", "stride", "chat")
        return {name: int(value) for name in kept if (value := getattr(self, name))}


@dataclass(frozen=True)
class Identity:
    """What must not change while a harvest runs, nor differ between servers that share it."""

    protocol: str
    build: str
    n_vocab: int
    n_context: int
    method: str
    details: Mapping[str, str | int | float] = field(default_factory=dict[str, str | int | float])

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class How:
    """What a self-test varies in a request and what must not change its numbers.

    Attributes
    ----------
    temperature : float or None
        Of the sampling that is not wanted; None is the protocol's neutral one.
    cache : bool
        Whether the server may use what it still knows of an earlier request.
    """

    temperature: float | None = None
    cache: bool = False


NEUTRAL = How()


class Scorer(abc.ABC):
    """One model of one server, ready to score.

    Attributes
    ----------
    label : str
        The server's address.
    identity : Identity
    slots : int
        Passages that it scores at once.
    ahead : int
        Workers for each slot: 2 where one passage is made ready while another is scored.
    abilities : set of str
        Marks of `Options` that it knows.
    """

    label: str
    identity: Identity
    slots: int
    ahead: int = 1
    abilities: frozenset[str] = frozenset()

    @abc.abstractmethod
    async def score(self, passage: Passage, slot: int) -> ScoredPassage:
        """Score one passage.

        Parameters
        ----------
        passage : Passage
        slot : int
            Number of the worker that asks, 0 .. slots-1; a server may keep state for each.

        Returns
        -------
        ScoredPassage

        Raises
        ------
        PassageError
            When this passage can never be scored by this server.
        Unavailable
            When the server does not answer, after retries.
        ServerError
            When the server is unfit for all passages.
        """

    async def score_as(self, passage: Passage, slot: int, how: How) -> ScoredPassage | None:
        """Score one passage under other settings, for the self-test.

        Parameters
        ----------
        passage : Passage
        slot : int
        how : How

        Returns
        -------
        ScoredPassage or None
            None where there is nothing to vary.
        """
        del passage, slot, how
        return None

    async def price(self) -> tuple[int, float] | None:
        """Measure what the statistics of one token cost.

        Returns
        -------
        (int, float) or None
            Bytes of reply and seconds; None when they cost nothing to speak of.
        """
        return None

    @abc.abstractmethod
    async def identify(self) -> Identity:
        """Ask the server anew who it is, by a real completion too.

        Returns
        -------
        Identity

        Raises
        ------
        Unavailable
            When it cannot answer (yet).
        """


class Server(abc.ABC):
    """An address that offers models."""

    label: str

    @abc.abstractmethod
    async def offers(self) -> list[Offer]:
        """Return the models that it offers."""

    @abc.abstractmethod
    async def open(self, offer: Offer, options: Options) -> Scorer:
        """Make a model ready and find out what it is.

        Parameters
        ----------
        offer : Offer
            One of `offers`.
        options : Options
            What it must give; what it cannot is refused.

        Returns
        -------
        Scorer

        Raises
        ------
        ServerError
            When the model cannot be loaded or the server cannot score a given text.
        Unavailable
            When it is not ready yet.
        """


@dataclass(frozen=True)
class Progress:
    """Where a harvest stands; `note` says what it waits for, or is empty."""

    model: str
    dataset: str
    done: int
    total: int
    n_token: int
    failed: int = 0
    note: str = ""


@dataclass(frozen=True)
class HarvestReport:
    """What came of one model on one dataset.

    Attributes
    ----------
    path : str or None
        The file; None when nothing could be written.
    model, dataset : str
    n_document, n_token : int
        In the file.
    failures : sequence of (str, str)
        Document and reason; document "*" stands for all of them.
    seconds : float
        Time that was spent.
    skipped : bool
        The file was complete already.
    protocol : str
        How the server was asked.
    """

    path: str | None
    model: str
    dataset: str
    n_document: int
    n_token: int
    failures: Sequence[tuple[str, str]] = ()
    seconds: float = 0.0
    skipped: bool = False
    protocol: str = ""
