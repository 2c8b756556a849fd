"""How llama.cpp is made to score a text: its own token ids are forced, and its words checked.

The server reports the log-softmax of the raw logits, whatever is forced, so forcing costs no truth.
One request covers a run of whole tokens by a grammar of token ids. A token whose bytes are no
character by themselves is not reported when it is generated; it is looked up among the
alternatives at its place instead, while a filler token is generated. Servers without token
grammars get one request a token, which forces it by a bias.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from jaxsppl.errors import ServerError
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.protocol import NEUTRAL, How, PassageError
from jaxsppl.harvest.statistics import statistics
from jaxsppl.harvest.validate import LOWEST, SENTINEL, Position

TOKEN_GRAMMAR = "token-grammar"
ONE_TOKEN = "one-token"
METHODS = (TOKEN_GRAMMAR, ONE_TOKEN)

# Messages of status 500 that come back for the same request every time.
GRAMMAR_DEAD_END = "empty grammar stack"
FINAL_ERRORS = (
    GRAMMAR_DEAD_END,
    "Content-only format",
    "failed to load",
    "failed to parse grammar",
)
BIAS = 1e6
# Every setting that could change what is drawn, though not what is reported: servers have defaults
# of their own, and models bring some along.
SETTINGS: Mapping[str, Any] = {
    "seed": 0,
    "temperature": 0,
    "samplers": ["temperature"],
    "dynatemp_range": 0,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "typical_p": 1,
    "top_n_sigma": -1,
    "xtc_probability": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "mirostat": 0,
    "adaptive_target": -1,
    "logit_bias": [],
    "ignore_eos": False,
    "min_keep": 0,
    "n_keep": 0,
    "stop": [],
    "post_sampling_probs": False,
    "backend_sampling": False,
    "stream": False,
    "return_tokens": False,
    "response_fields": [
        "completion_probabilities",
        "stop_type",
        "truncated",
        "tokens_evaluated",
        "model",
    ],
}
# Measured: 105 bytes for an alternative; long pieces repeat their bytes as numbers.
ALTERNATIVE_BYTES = 700
TYPICAL_BYTES = 105
# Replies are parsed while the server works on the next ones, so they are kept this small.
RUN_BYTES = 1 << 25


class _Alternative(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Entry(msgspec.Struct):
    id: int = -1
    logprob: float | None = None
    top_logprobs: list[_Alternative] | None = None
    prob: float | None = None
    probs: list[Any] | None = None


class _Completion(msgspec.Struct):
    completion_probabilities: list[_Entry] | None = None
    stop_type: str = "limit"
    truncated: bool = False
    tokens_evaluated: int | None = None
    model: str = ""


@dataclass
class _Walk:
    """One passage on its way: all ids, the slot, and whether the slot holds its beginning."""

    ids: Sequence[int]
    slot: int
    begun: bool = False
    how: How = NEUTRAL


@dataclass
class Forcing:
    """The requests that score a text on one llama-server."""

    client: Client
    model: Mapping[str, str]
    build: str
    filler: int
    slots: int
    n_vocab: int = 0
    alternatives: int = 1
    method: str = field(default=TOKEN_GRAMMAR)
    statistics: bool = False
    answering: str = ""

    @property
    def _n_listed(self) -> int:
        """Return how many alternatives are asked for."""
        return self.n_vocab if self.statistics else self.alternatives

    @property
    def _longest_run(self) -> int:
        """Return how many tokens one request may score, so that its reply stays small."""
        return max(1, RUN_BYTES // (self._n_listed * TYPICAL_BYTES))

    async def choose(self, wanted: str, prompt: Sequence[int], targets: Sequence[int]) -> str:
        """Find out, once, whether the server knows token grammars.

        Parameters
        ----------
        wanted : str
            "auto" or a method.
        prompt, targets : sequence of int
            A few harmless tokens.

        Returns
        -------
        str
            The method that is used from now on.

        Raises
        ------
        ServerError
            When the method that was asked for does not work, or none does.
        """
        ids = [*prompt, *targets]
        if wanted != ONE_TOKEN:
            try:
                await self._force(_Walk(ids, -1), len(prompt), len(ids), split=False)
            except RefusedError as error:
                if wanted == TOKEN_GRAMMAR:
                    raise ServerError(
                        f"{self.client.label}: build {self.build} knows no token grammars "
                        f"({error.said}); use --method auto or one-token"
                    ) from error
            else:
                self.method = TOKEN_GRAMMAR
                return self.method
        self.method = ONE_TOKEN
        await self._single(_Walk(ids, -1), len(prompt))
        return self.method

    async def vocabulary(self, prompt: Sequence[int]) -> int:
        """Find the size of the vocabulary from which ids a prompt may hold.

        Parameters
        ----------
        prompt : sequence of int

        Returns
        -------
        int
        """
        low, high = max(prompt), 1 << 22
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await self._complete(_Walk([middle], -1), 1, 1, {}, 1)
                low = middle
            except RefusedError:
                high = middle
        return low + 1

    async def positions(
        self, ids: Sequence[int], whole: Sequence[bool], start: int, slot: int, how: How = NEUTRAL
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
            The server's slot that keeps this passage's beginning between requests.
        how : How
            What a self-test varies.

        Returns
        -------
        list of Position

        Raises
        ------
        PassageError
            When a reply is not what was asked for.
        """
        walk = _Walk(ids, slot % max(self.slots, 1), how.cache, how)
        found: list[Position] = []
        at = start
        while at < len(ids):
            if not whole[at]:
                found.append(await self._peek(walk, at))
                at += 1
            elif self.method == ONE_TOKEN:
                found.append(await self._single(walk, at))
                at += 1
            else:
                last = min(at + self._longest_run, len(ids))
                end = next((i for i in range(at, last) if not whole[i]), last)
                found += await self._force(walk, at, end, split=True)
                at = end
        return found

    async def _force(self, walk: _Walk, at: int, end: int, *, split: bool) -> list[Position]:
        """Score tokens at .. end by a grammar; halve the run where the server refuses a token."""
        rule = " ".join(f"<[{token}]>" for token in walk.ids[at:end])
        try:
            reply = await self._complete(
                walk, at, end - at, {"grammar": f"root ::= {rule}"}, self._n_listed
            )
        except RefusedError as error:
            if not split or GRAMMAR_DEAD_END not in error.said:
                raise
            if end - at == 1:
                return [await self._single(walk, at)]
            middle = (at + end) // 2
            return [
                *await self._force(walk, at, middle, split=True),
                *await self._force(walk, middle, end, split=True),
            ]
        if reply.stop_type != "limit":
            raise PassageError(f"the server stopped by '{reply.stop_type}' before the text's end")
        entries = self._entries(reply)
        if len(entries) != end - at:
            raise PassageError(f"{len(entries)} tokens came back for {end - at}")
        for entry, target in zip(entries, walk.ids[at:end], strict=True):
            if entry.id != target:
                raise PassageError(f"token id {entry.id} came back for {target}")
        return [self._position(entry) for entry in entries]

    async def _single(self, walk: _Walk, at: int) -> Position:
        """Score one token by a bias that makes it certain."""
        target = walk.ids[at]
        try:
            reply = await self._complete(
                walk, at, 1, {"logit_bias": [[target, BIAS]]}, self._n_listed
            )
        except RefusedError as error:
            if error.status != 500:
                raise
            return await self._peek(walk, at)
        if reply.completion_probabilities is None or not reply.completion_probabilities:
            return await self._peek(walk, at)
        entries = self._entries(reply)
        if len(entries) != 1 or entries[0].id != target:
            raise PassageError(f"token id {entries[0].id} came back for {target}")
        return self._position(entries[0])

    async def _peek(self, walk: _Walk, at: int) -> Position:
        """Look a token up among the alternatives at its place, in a list as long as it takes."""
        target = walk.ids[at]
        first: Position | None = None
        wanted = self._n_listed
        while True:
            reply = await self._complete(walk, at, 1, {"logit_bias": [[self.filler, BIAS]]}, wanted)
            entries = self._entries(reply)
            if len(entries) != 1:
                raise PassageError(f"{len(entries)} tokens came back for 1")
            listed = entries[0].top_logprobs or []
            place = next((one for one in listed if one.id == target), None)
            if place is not None:
                seen = self._position(_Entry(target, place.logprob, listed))
                break
            if wanted >= self.n_vocab or len(listed) < wanted:
                raise PassageError(f"the server lists no log-probability for token id {target}")
            first = first or self._position(entries[0])
            wanted = min(wanted * 10, self.n_vocab)
        if first is None:
            return seen
        logprob = seen.logprob
        if first.top_ids[0] in seen.top_ids:
            # one offset is common to all entries of a reply and depends on the list's length
            again = seen.top_logprobs[list(seen.top_ids).index(first.top_ids[0])]
            logprob += first.top_logprobs[0] - again
        return Position(target, logprob, first.top_ids, first.top_logprobs)

    async def price(self, prompt: Sequence[int]) -> tuple[int, float]:
        """Ask for the whole vocabulary once, and return what that costs.

        Parameters
        ----------
        prompt : sequence of int

        Returns
        -------
        (int, float)
            Bytes and seconds for one token.
        """
        began = time.monotonic()
        reply = await self.client.ask(
            "/completion",
            msgspec.Raw,
            body={
                **SETTINGS,
                "prompt": list(prompt),
                "n_predict": 1,
                "n_probs": self.n_vocab,
                "cache_prompt": False,
                **self.model,
            },
            limit=(1 << 20) + self.n_vocab * ALTERNATIVE_BYTES,
        )
        return len(bytes(reply)), time.monotonic() - began

    async def _complete(
        self, walk: _Walk, at: int, n_predict: int, how: Mapping[str, Any], n_probs: int
    ) -> _Completion:
        """Send one completion of the ids before `at`, with every setting that matters."""
        varied = walk.how.temperature
        reply = await self.client.ask(
            "/completion",
            _Completion,
            body={
                **SETTINGS,
                "prompt": list(walk.ids[:at]),
                "n_predict": n_predict,
                "n_probs": n_probs,
                # The first request computes the context anew; those that follow extend what the
                # slot holds by the tokens since, which is the arithmetic of one long request.
                "cache_prompt": walk.begun,
                "id_slot": walk.slot,
                **({} if varied is None else {"temperature": varied}),
                **how,
                **self.model,
            },
            limit=(1 << 20) + n_predict * (n_probs + 1) * ALTERNATIVE_BYTES,
        )
        walk.begun = True
        self.answering = self.answering or reply.model
        if reply.model != self.answering:
            raise PassageError(f"the model '{reply.model}' answered, not '{self.answering}'")
        if reply.truncated:
            raise PassageError("the server ran out of context and cut the text off")
        if reply.tokens_evaluated not in {None, at}:
            raise PassageError(
                f"the server read {reply.tokens_evaluated} tokens of context for {at}"
            )
        return reply

    def _entries(self, reply: _Completion) -> list[_Entry]:
        """Return the entries of a reply, or say which of the known formats it is instead."""
        entries = reply.completion_probabilities
        if not entries:
            raise BadReplyError(f"build {self.build} sent no completion_probabilities")
        for entry in entries:
            if entry.logprob is None and (entry.prob is not None or entry.probs is not None):
                raise BadReplyError(
                    f"build {self.build} sends probabilities after sampling, not log-probabilities "
                    "of the model; use a newer llama.cpp"
                )
            if entry.logprob is None or not entry.top_logprobs:
                raise BadReplyError(
                    f"build {self.build} sent an entry without logprob or list; tokens that are "
                    "drafted (speculative decoding) have none"
                )
        return entries

    def _position(self, entry: _Entry) -> Position:
        """Return an entry as a position; null at a listed token means no probability."""
        listed = entry.top_logprobs or []
        logprob = LOWEST if entry.logprob is None else entry.logprob
        ids = [alternative.id for alternative in listed]
        logprobs = [LOWEST if a.logprob is None else a.logprob for a in listed]
        if not self.statistics:
            return Position(entry.id, logprob, ids, logprobs)
        law = np.asarray(logprobs)
        if law.size != self.n_vocab or np.unique(ids).size != law.size:
            raise BadReplyError(f"{law.size} alternatives came for all {self.n_vocab}")
        if law.min() <= SENTINEL:
            raise PassageError(
                f"the probability of {(law <= SENTINEL).sum()} tokens underflowed, so the server "
                "does not tell their logits; harvest without --statistics"
            )
        # The server's sum is of float32, one after another: its error is one offset for all.
        offset = float(np.log(np.exp(law).sum()))
        law -= offset
        k = self.alternatives
        return Position(
            entry.id, logprob - offset, ids[:k], law[:k].tolist(), statistics=statistics(law[None])
        )
