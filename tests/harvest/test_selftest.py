"""The self-test on servers whose values move a little, for good reasons or bad ones."""

from typing import Any

import numpy as np
import pytest
from harvest_standin import Text
from test_validate import N_VOCAB, law

from jaxsppl.errors import ServerError
from jaxsppl.harvest.protocol import How, Identity, Passage, PassageError, ScoredPassage, Scorer
from jaxsppl.harvest.selftest import prove
from jaxsppl.harvest.validate import Position, scored_passage

PASSAGE = Text("doc", "prefix", "continuation")
N_TOKEN, K = 40, 10


class Made(Scorer):
    """A model that is more or less sure of each token, and a server with manners of its own."""

    label = "http://made"
    identity = Identity("made", "1", N_VOCAB, 100, "made")
    slots = 1

    def __init__(
        self, processed: bool = False, noise: float = 0.0, stale: bool = False, sure: float = 8.0
    ) -> None:
        self.processed, self.noise, self.stale, self.sure = processed, noise, stale, sure
        self.dice = np.random.default_rng(5)

    async def identify(self) -> Identity:
        return self.identity

    async def score(self, passage: Passage, slot: int) -> ScoredPassage:
        raise NotImplementedError

    async def score_as(self, passage: Passage, slot: int, how: How) -> ScoredPassage:
        positions: list[Position] = []
        for i in range(N_TOKEN):
            logits = law(i + 1000 * (self.stale and how.cache), 3.0).copy()
            likeliest = int(np.argmax(logits))
            logits[likeliest] += self.sure
            logits += self.dice.normal(0, self.noise, N_VOCAB)
            if self.processed and how.temperature is not None:
                logits = logits / how.temperature
            row = logits - np.log(np.exp(logits).sum())
            order = np.argsort(-row)[:K]
            positions.append(
                Position(0, float(row[0]), order.tolist(), row[order].tolist())
                if self.stale
                else Position(likeliest, float(row[likeliest]), order.tolist(), row[order].tolist())
            )
        return scored_passage(
            positions, [p.token_id for p in positions], [1] * N_TOKEN,
            alternatives=K, n_vocab=N_VOCAB, context_tokens=1, merged=0,
        )  # fmt: skip


async def proof(**manners: Any) -> Any:
    return await prove(Made(**manners), PASSAGE, 0)


async def test_a_steady_server_passes() -> None:
    found = await proof()
    assert (found.temperature_difference, found.cache_difference) == (0.0, 0.0)
    assert found.n_token == N_TOKEN
    assert 0.9 < found.largest_sum <= 1.000001


async def test_a_temperature_shows_though_the_text_is_nearly_certain() -> None:
    with pytest.raises(ServerError, match=r"by the factor 2\.00 between alternatives"):
        await proof(processed=True)


async def test_arithmetic_that_depends_on_the_batch_passes_and_is_told(caplog: Any) -> None:
    found = await proof(noise=0.08, sure=1.0)
    assert found.temperature_difference > 0.1
    assert "depends on how requests are batched" in caplog.text


async def test_values_of_another_text_are_stale() -> None:
    with pytest.raises(ServerError, match="they are stale"):
        await proof(stale=True)


async def test_a_passage_that_cannot_show_it_is_no_reason() -> None:
    class Mute(Made):
        async def score_as(self, passage: Passage, slot: int, how: How) -> ScoredPassage:
            raise PassageError("too short")

    with pytest.raises(PassageError, match="too short"):
        await prove(Mute(), PASSAGE, 0)
