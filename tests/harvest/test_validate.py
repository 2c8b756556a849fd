"""The rules for positions: what a server may say is kept bit for bit, the rest is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl import schema, store
from jaxsppl.harvest.protocol import PassageError
from jaxsppl.harvest.records import assemble, from_record, to_record
from jaxsppl.harvest.validate import UNDERFLOW, Position, scored_passage

N_VOCAB = 50


def law(seed: int, spread: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, spread, N_VOCAB)
    return logits - np.log(np.exp(logits).sum())


def position(seed: int, spread: float, target: int, k: int) -> Position:
    row = law(seed, spread)
    order = np.argsort(-row)[:k]
    return Position(target, float(row[target]), order.tolist(), row[order].tolist())


def scored(positions: list[Position], k: int):
    return scored_passage(
        positions,
        [p.token_id for p in positions],
        [1] * len(positions),
        alternatives=k,
        n_vocab=N_VOCAB,
        context_tokens=3,
        merged=0,
    )


cases = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(0.01, 30), st.integers(0, N_VOCAB - 1)),
    min_size=1,
    max_size=6,
)


class Named:
    document = "doc"
    prefix = "a"
    continuation = "b"


@settings(max_examples=200, deadline=None)
@given(cases, st.integers(1, N_VOCAB))
def test_what_keeps_the_rules_becomes_a_file_that_keeps_the_schema(rows, k: int) -> None:
    result = scored([position(*row, k) for row in rows], k)
    for i, (seed, spread, target) in enumerate(rows):
        row = law(seed, spread)
        assert result.token_logprob[i] == np.float32(min(row[target], 0.0))
        rank = int((row > row[target]).sum()) + 1
        assert result.token_rank[i] == (rank if rank <= k else 0)
    dataset = assemble(
        [Named()], {"doc": result}, model="m", dataset="d", attrs={"n_vocab": N_VOCAB}
    )
    schema.check_harvest(store.contents_of(dataset), "file")
    again = from_record(to_record("doc", result), k)
    assert again is not None
    assert again[0] == "doc"
    for name in ("token_id", "token_logprob", "token_rank", "top_token_id", "top_logprob"):
        np.testing.assert_array_equal(getattr(again[1], name), getattr(result, name))


SPOILERS = {
    "NaN in the list": lambda ids, row, lp: (ids, [np.nan, *row[1:]], lp),
    "NaN for the token": lambda ids, row, lp: (ids, row, np.nan),
    "unsorted": lambda ids, row, lp: (ids, [*row[1:], row[0]], lp),
    "positive": lambda ids, row, lp: (ids, [0.01, *row[1:]], lp),
    "twice": lambda ids, row, lp: ([*ids[:-1], ids[0]], row, lp),
    "id too large": lambda ids, row, lp: ([*ids[:-1], N_VOCAB], row, lp),
    "id negative": lambda ids, row, lp: ([*ids[:-1], -1], row, lp),
    "mass": lambda ids, row, lp: (ids, [max(x, -0.001) for x in row], max(lp, -0.001)),
    "too likely to be unlisted": lambda ids, row, lp: (ids, [x - 40 for x in row], -1.0),
    "empty": lambda ids, row, lp: ([], [], lp),
    "too wide": lambda ids, row, lp: ([*ids, 49], [*row, -99.0], lp),
}


@pytest.mark.parametrize("name", SPOILERS)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 10))
def test_what_breaks_a_rule_is_refused(name: str, seed: int, spread: float) -> None:
    row = law(seed, spread)
    order = np.argsort(-row)[:10]
    # an actual token outside the list
    target = int(np.argsort(-row)[20])
    ids, values, logprob = SPOILERS[name](order.tolist(), row[order].tolist(), float(row[target]))
    with pytest.raises(PassageError, match="token 0"):
        scored([Position(target, logprob, ids, values)], 10)


def test_sentinels_of_underflow_become_absent_or_a_bound() -> None:
    lowest = -3.4028235e38
    result = scored([Position(7, lowest, [1, 2, 7], [0.0, -90.0, lowest])], 4)
    np.testing.assert_array_equal(result.top_token_id, [[1, 2, -1, -1]])
    np.testing.assert_array_equal(result.top_logprob, [[0.0, -90.0, -np.inf, -np.inf]])
    assert result.token_rank.tolist() == [0]
    assert result.token_logprob[0] == np.float32(UNDERFLOW)
    assert result.censored == 1


def test_a_wrong_number_of_positions_is_refused() -> None:
    with pytest.raises(PassageError, match="1 positions came for 2"):
        scored_passage(
            [position(1, 1.0, 2, 5)], [2, 3], [1, 1],
            alternatives=5, n_vocab=N_VOCAB, context_tokens=1, merged=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"top_logprob": "!!!"},
        {"n_token": 5},
        {"token_id": None},
        {"context_tokens": "x"},
        {"document": ...},
    ],
)
def test_a_record_that_is_not_whole_is_not_used(change: dict) -> None:
    record = to_record("doc", scored([position(1, 1.0, 2, 5)], 5))
    record.update(change)
    if record["document"] is ...:
        del record["document"]
    assert from_record(record, 5) is None
