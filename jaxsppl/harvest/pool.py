"""Share the passages among the slots of all servers, and outlast servers that go away."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from jaxsppl.errors import ServerError
from jaxsppl.harvest.protocol import (
    Identity,
    Passage,
    PassageError,
    ScoredPassage,
    Scorer,
    Unavailable,
)

log = logging.getLogger("jaxsppl.harvest")

# A passage that a server has failed to answer this often is given up: it may be what kills it.
TRIES = 5
POLL_S = 1.0


@dataclass
class _Work:
    """Passages that wait, how many are under way, and how often each was tried."""

    waiting: deque[int]
    under_way: int = 0
    tries: dict[int, int] = field(default_factory=dict[int, int])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self) -> int | None:
        """Return the next passage, or None once all are finished."""
        async with self.changed:
            while not self.waiting and self.under_way:
                await self.changed.wait()
            if not self.waiting:
                return None
            self.under_way += 1
            return self.waiting.popleft()

    async def put_down(self, index: int, *, again: bool) -> None:
        """Report that a passage is no longer under way."""
        async with self.changed:
            self.under_way -= 1
            if again:
                self.waiting.append(index)
            self.changed.notify_all()


@dataclass
class _Post:
    """A server as its workers see it."""

    scorer: Scorer
    guard: asyncio.Lock = field(default_factory=asyncio.Lock)
    first: asyncio.Lock = field(default_factory=asyncio.Lock)
    proven: bool = False
    healthy_since: float = field(default_factory=time.monotonic)
    lost: str = ""


class Pool:
    """Workers that score passages on several servers, one for each slot.

    Parameters
    ----------
    scorers : sequence of Scorer
        The same model on each.
    passages : sequence of Passage
    todo : sequence of int
        Indices of the passages to score.
    parallel : int or None
        Requests in flight on each server; None: as many as it has slots.
    patience_s : float
        How long a server may be away [s].
    prove : callable (scorer, passage, slot)
        Awaited once for each server, with the first passage that it has scored, while its other
        workers wait.
    keep : callable (passage, ScoredPassage)
        Stores a result at once.
    fail : callable (passage, reason)
    note : callable (text)
        Told what is being waited for, and "" when it goes on.
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        passages: Sequence[Passage],
        todo: Sequence[int],
        *,
        parallel: int | None,
        patience_s: float,
        prove: Callable[[Scorer, Passage, int], Awaitable[None]],
        keep: Callable[[Passage, ScoredPassage], None],
        fail: Callable[[Passage, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._posts = [_Post(scorer) for scorer in scorers]
        self._passages = passages
        self._work = _Work(deque(todo))
        self._parallel = parallel
        self._patience_s = patience_s
        self._prove = prove
        self._keep = keep
        self._fail = fail
        self._note = note

    async def run(self) -> None:
        """Score everything.

        Raises
        ------
        ServerError
            When every server was away for too long, or one is no longer the same.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for post in self._posts:
                    width = self._parallel or post.scorer.slots
                    for worker in range(width * post.scorer.ahead):
                        group.create_task(self._worker(post, worker % width))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        left = len(self._work.waiting)
        if left:
            reasons = "; ".join(post.lost for post in self._posts if post.lost)
            raise ServerError(
                f"{reasons}; given up after {self._patience_s:g} s with {left} passages left, "
                "what is finished is kept: run the same command again"
            )

    async def _worker(self, post: _Post, slot: int) -> None:
        """Score passages on one slot until none is left or the server is lost."""
        while not post.lost and (index := await self._work.take()) is not None:
            passage = self._passages[index]
            asked = time.monotonic()
            again = True
            fault: Unavailable | None = None
            try:
                self._keep(passage, await self._score(post, passage, slot))
                again = False
            except PassageError as error:
                self._fail(passage, str(error))
                again = False
            except Unavailable as error:
                fault = error
                tries = self._work.tries[index] = self._work.tries.get(index, 0) + 1
                if tries >= TRIES:
                    self._fail(passage, f"{TRIES} tries failed, at last: {error}")
                    again = False
            finally:
                await self._work.put_down(index, again=again)
            if fault is not None and not await self._recovered(post, fault, asked):
                return

    async def _score(self, post: _Post, passage: Passage, slot: int) -> ScoredPassage:
        """Score a passage; the first one of a server proves it."""
        if not post.proven:
            async with post.first:
                if not post.proven:
                    scored = await post.scorer.score(passage, slot)
                    try:
                        await self._prove(post.scorer, passage, slot)
                    except PassageError as error:
                        log.warning("%s: no self-test: %s", passage.document, error)
                    else:
                        post.proven = True
                    return scored
        return await post.scorer.score(passage, slot)

    async def _recovered(self, post: _Post, fault: Unavailable, asked: float) -> bool:
        """Wait until the server answers again; one worker asks, the others of the server wait."""
        async with post.guard:
            if post.lost:
                return False
            if post.healthy_since > asked:
                return True
            deadline = time.monotonic() + self._patience_s
            log.warning("%s; waiting for it up to %g s", fault, self._patience_s)
            self._note(f"waiting for {fault}")
            while True:
                try:
                    identity = await post.scorer.identify()
                except Unavailable as error:
                    self._note(f"waiting for {error}")
                    if time.monotonic() > deadline:
                        post.lost = str(error)
                        log.warning("%s; given up on it", error)
                        return False
                    await asyncio.sleep(POLL_S)
                    continue
                check_same(post.scorer.label, post.scorer.identity, identity, "came back with")
                post.healthy_since = time.monotonic()
                self._note("")
                return True


def check_same(label: str, expected: Identity, found: Identity, verb: str) -> None:
    """Check that a server is what it was, or what another one is.

    Parameters
    ----------
    label : str
        Its address.
    expected, found : Identity
    verb : str
        For the message.

    Raises
    ------
    ServerError
        Saying what differs.
    """
    if expected == found:
        return
    one, other = _flat(expected), _flat(found)
    changed = [
        f"{key} {other.get(key)!r} instead of {one.get(key)!r}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    ]
    raise ServerError(
        f"{label} {verb} {', '.join(changed)}; their numbers cannot be mixed, "
        "harvest them into different folders"
    )


def _flat(identity: Identity) -> dict[str, object]:
    """Return an identity as one level of keys."""
    values = identity.as_dict()
    return {**values.pop("details"), **values}


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first single error inside a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
