"""Replies that are changed at random: refused with a reason, or taken as what they say.

No sockets: the bytes of a reply go through the decoder, the parser of its protocol and the rules.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl import schema
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError, decode, retry_after
from jaxsppl.harvest.forcing import Forcing
from jaxsppl.harvest.pieces import from_decoded, from_vocabulary
from jaxsppl.harvest.protocol import (
    NEUTRAL,
    Offer,
    Options,
    PassageError,
    ScoredPassage,
)
from jaxsppl.harvest.servers.openai import EchoScorer
from jaxsppl.harvest.servers.sglang import SglangScorer
from jaxsppl.harvest.servers.vllm import VllmScorer
from jaxsppl.harvest.validate import scored_passage

K, N_VOCAB = 4, 12
CONTEXT, TARGETS = [3, 7], [1, 5, 9]
IDS = [*CONTEXT, *TARGETS]
WORDS = [f" {chr(97 + i)}x" for i in range(N_VOCAB)]
REFUSALS = (BadReplyError, PassageError, RefusedError)


def law(i: int) -> dict[int, float]:
    """A distribution for each place, by falling probability."""
    logits = np.random.default_rng(i).normal(0, 3, N_VOCAB)
    row = logits - np.log(np.exp(logits).sum())
    return {int(token): float(row[token]) for token in np.argsort(-row)}


def listed(i: int, token: int | None = None) -> dict[int, float]:
    """The likeliest tokens at a place, and one more."""
    whole = law(i)
    kept = {t: whole[t] for t in [*whole][:K]}
    return kept if token is None else kept | {token: whole[token]}


def llamacpp_reply() -> Any:
    entries = [
        {
            "id": token,
            "token": "x",
            "logprob": law(i)[token],
            "top_logprobs": [{"id": t, "logprob": value} for t, value in listed(i).items()],
        }
        for i, token in enumerate(TARGETS)
    ]
    return {"completion_probabilities": entries, "stop_type": "limit", "truncated": False,
            "tokens_evaluated": len(CONTEXT), "model": "m"}  # fmt: skip


def vllm_reply() -> Any:
    rows: list[Any] = [None, {"7": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}}]
    for i, token in enumerate(TARGETS):
        rows.append({str(t): {"logprob": v} for t, v in listed(i, token).items()})
    return {"choices": [{"prompt_logprobs": rows}], "model": "m"}


def sglang_reply() -> Any:
    own: list[Any] = [[None, 3, None], [-1.0, 7, None]]
    top: list[Any] = [None, [[-1.0, 7, None]]]
    for i, token in enumerate(TARGETS):
        own.append([law(i)[token], token, None])
        top.append([[v, t, None] for t, v in listed(i).items()])
    return {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": top}}


def echo_reply() -> Any:
    tokens = [WORDS[token] for token in IDS]
    own: list[Any] = [None, -1.0]
    top: list[Any] = [None, {WORDS[t]: v for t, v in listed(9, 7).items()}]
    for i, token in enumerate(TARGETS):
        own.append(law(i)[token])
        top.append({WORDS[t]: v for t, v in listed(i, token).items()})
    return {"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": own,
                                      "top_logprobs": top}}]}  # fmt: skip


class Canned(Client):
    """A client that has its reply already; the decoder is the real one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.label = "http://canned"

    async def ask(self, path: str, kind: Any, **_: Any) -> Any:
        return decode(path, self.data, kind)


def finished(coroutine: Any) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def by_ids(positions: Any) -> ScoredPassage:
    return scored_passage(
        positions, TARGETS, [1] * len(TARGETS),
        alternatives=K, n_vocab=N_VOCAB, context_tokens=len(CONTEXT), merged=0,
    )  # fmt: skip


def llamacpp(data: bytes) -> ScoredPassage:
    forcing = Forcing(Canned(data), {}, "b1", filler=0, slots=1, n_vocab=N_VOCAB, alternatives=K)
    forcing.answering = "m"
    return by_ids(finished(forcing.positions(IDS, [True] * len(IDS), len(CONTEXT), 0)))


def one_pass(kind: Any) -> Callable[[bytes], ScoredPassage]:
    def parse(data: bytes) -> ScoredPassage:
        scorer = kind(Canned(data), Offer("m", "m"), Options(K))
        scorer.alternatives = K
        whole = [True] * len(IDS)
        return by_ids(finished(scorer.positions(IDS, whole, len(CONTEXT), 0, NEUTRAL)))

    return parse


class Words:
    document = "doc"
    prefix = "".join(WORDS[token] for token in CONTEXT)
    continuation = "".join(WORDS[token] for token in TARGETS)


def echo(data: bytes) -> ScoredPassage:
    scorer = EchoScorer(Canned(data), Offer("m", "m"), Options(K))
    return finished(scorer.score(Words(), 0))


PARSERS: dict[str, tuple[Callable[[], Any], Callable[[bytes], ScoredPassage]]] = {
    "llama.cpp": (llamacpp_reply, llamacpp),
    "vllm": (vllm_reply, one_pass(VllmScorer)),
    "sglang": (sglang_reply, one_pass(SglangScorer)),
    "openai": (echo_reply, echo),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner: list[tuple[Any, ...]] = [path]
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        inner += [place for key, child in pairs for place in places(child, (*path, key))]
    return inner


NUMBERS = [
    0,
    0.0,
    -0.0,
    -1.5,
    0.7,
    1e-9,
    5,
    11,
    12,
    -1,
    2**31,
    2**70,
    -100.0,
    -9999.0,
    -3.4028235e38,
]
OTHERS = [
    None,
    True,
    "",
    "7",
    "x",
    " bx",
    [],
    {},
    [None],
    {"id": 1},
    [[-1.0, 2, None]],
    {"a": -1.0},
]


def change(reply: Any, where: int, how: int) -> Any:
    """Change one place of a reply: another value, removed, doubled, swapped with its neighbour."""
    found = places(reply)
    path = found[where % len(found)]
    others = deepcopy([*NUMBERS, *OTHERS])
    if not path:
        return others[how % len(others)]
    parent = reply
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    choice = how % (len(others) + 4)
    if choice < len(others):
        parent[key] = others[choice]
    elif isinstance(parent, dict):
        value = parent.pop(key)
        if choice % 2:
            parent[f"{how % 15}"] = value
    elif choice % 4 == 0:
        del parent[key]
    elif choice % 4 == 1:
        parent.insert(key, parent[key])
    else:
        parent[key], parent[key - 1] = parent[key - 1], parent[key]
    return reply


def check(scored: ScoredPassage, spoiled: bytes) -> None:
    """What is taken keeps the laws of a harvest file, and says what the reply says."""
    n_token = scored.token_id.size
    assert n_token == len(TARGETS)
    variables = {
        name: (spec.dims, getattr(scored, name))
        for name, spec in schema.HARVEST_VARIABLES.items()
        if spec.dims in {("token",), ("token", "rank")} and hasattr(scored, name)
    }
    variables |= {
        "document_index": (("token",), np.zeros(n_token, np.int32)),
        "context_tokens": (("document",), np.asarray([scored.context_tokens], np.int32)),
        "document_sha256": (("document",), np.asarray(["x"])),
        "document": (("document",), np.asarray(["doc"])),
        "rank": (("rank",), np.arange(1, K + 1, dtype=np.int32)),
        "model": ((), np.asarray("m")),
        "dataset": ((), np.asarray("d")),
    }
    sizes = {"token": n_token, "rank": K, "document": 1}
    attrs = {"schema": schema.HARVEST, "n_vocab": N_VOCAB if scored.texts is None else 1 << 19}
    schema.check_harvest(schema.Contents(sizes, variables, attrs), "fuzzed")
    said = {
        np.float32(min(value, 0.0))
        for value in numbers(json.loads(spoiled.decode("utf-8", "replace")))
    }
    kept = scored.top_logprob[scored.top_token_id >= 0]
    assert set(kept.tolist()) <= {float(value) for value in said}
    assert scored.censored or set(scored.token_logprob.tolist()) <= {float(value) for value in said}


def numbers(value: Any) -> list[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict):
        return [number for child in value.values() for number in numbers(child)]
    if isinstance(value, list):
        return [number for child in value for number in numbers(child)]
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return [float(value)] if whole else []


@pytest.mark.parametrize("name", PARSERS)
def test_an_untouched_reply_is_taken(name: str) -> None:
    make, parse = PARSERS[name]
    data = json.dumps(make()).encode()
    scored = parse(data)
    check(scored, data)
    for i, token in enumerate(TARGETS):
        assert scored.token_logprob[i] == np.float32(law(i)[token])
        np.testing.assert_array_equal(
            scored.top_logprob[i], np.asarray([*listed(i).values()], np.float32)
        )


changes = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=3)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=2000, deadline=None)
@given(changes=changes)
def test_a_changed_reply(name: str, changes: list[tuple[int, int]]) -> None:
    make, parse = PARSERS[name]
    reply = make()
    for where, how in changes:
        reply = change(reply, where, how)
    data = json.dumps(reply).encode()
    try:
        scored = parse(data)
    except REFUSALS as error:
        assert str(error)
        return
    check(scored, data)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=500, deadline=None)
@given(at=st.integers(0, 2000), gone=st.integers(0, 50), put=st.binary(max_size=8))
def test_changed_bytes(name: str, at: int, gone: int, put: bytes) -> None:
    make, parse = PARSERS[name]
    data = json.dumps(make()).encode()
    at %= len(data)
    data = data[:at] + put + data[at + gone :]
    try:
        scored = parse(data)
    except REFUSALS as error:
        assert str(error)
        return
    check(scored, data)


@settings(max_examples=500, deadline=None)
@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_pieces_of_any_text_in_any_tokens(text: str, cuts: list[int]) -> None:
    data = text.encode()
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)} - {0})
    tokens = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)] if data else []
    shown = ["".join(_shown(byte) for byte in token) for token in tokens]
    assert from_vocabulary(shown, data) == tokens
    decoded = [token.decode("utf-8", "replace") for token in tokens]
    if "\ufffd" not in text:
        pieces = from_decoded(decoded, data)
        assert b"".join(pieces) == data
        assert len(pieces) == len(tokens)


def _shown(byte: int) -> str:
    """A byte as byte-level vocabularies write it, by the rule that defines them."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1),
              *range(ord("\u00ae"), ord("\u00ff") + 1)]  # fmt: skip
    return chr(byte) if byte in itself else chr(256 + sum(b not in itself for b in range(byte)))


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=30))
def test_any_retry_after(value: str) -> None:
    pause = retry_after(value)
    assert pause is None or pause >= 0
