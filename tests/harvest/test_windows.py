"""Long texts in windows, and prefixes as chat messages: against requests by hand."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harvest_standin import BOS, StandIn, Text
from hypothesis import given
from hypothesis import strategies as st

from jaxsppl import store
from jaxsppl.errors import ConfigError, IncompleteError, ServerError
from jaxsppl.harvest.protocol import PassageError
from jaxsppl.harvest.runner import harvest, harvest_async
from jaxsppl.harvest.windows import windows

LONG = Text(
    "long",
    "The report begins",
    " with the weather of the year: rain in May, a dry June, and more in the margin. "
    "After that it counts the ships that came and went, and what they carried home for us.",
)
CHAT = Text("chat", "What is the capital of France?", "The capital of France is Paris.")


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """A request by hand, with none of our code."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read())


def logprobs(url: str, ids: list[int], first: int) -> list[float]:
    """The log-probabilities of the ids from `first` on, one request each."""
    return [logprob(url, ids[:i], ids[i], cached=i > first) for i in range(first, len(ids))]


def logprob(url: str, prompt: list[int], target: int, *, cached: bool) -> float:
    """The target's log-probability after the prompt, if need be from the whole vocabulary's list.

    A prompt that extends the last one by a token has the arithmetic of one long request.
    """
    body = {"prompt": prompt, "n_predict": 1, "cache_prompt": cached, "id_slot": 0}
    forced = post(url, "/completion", {**body, "n_probs": 5, "logit_bias": [[target, 1e6]]})
    entries = forced.get("completion_probabilities")
    if entries:
        assert entries[0]["id"] == target
        return entries[0]["logprob"]
    listed = post(url, "/completion", {**body, "n_probs": 49152, "logit_bias": [[28, 1e6]]})
    law = listed["completion_probabilities"][0]["top_logprobs"]
    return next(entry["logprob"] for entry in law if entry["id"] == target)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(2, 90), st.data())
def test_every_token_once_with_as_much_context_as_there_is(
    n_token: int, start: int, width: int, data: st.DataObject
) -> None:
    start = min(start, n_token - 1)
    stride = data.draw(st.integers(1, width - 1))
    found = windows(n_token, start, width=width, stride=stride)
    scored = [i for window in found for i in range(window.first, window.end)]
    assert scored == list(range(start, n_token))
    for window in found:
        assert 0 <= window.begin <= window.first < window.end <= n_token
        assert window.end - window.begin <= width
        # as early as the width allows
        assert window.begin == max(0, window.end - width)
        assert window.first - window.begin >= min(width - stride, window.first)


def test_windows_by_hand() -> None:
    found = windows(20, 3, width=8, stride=5)
    assert [(w.begin, w.first, w.end) for w in found] == [
        (0, 3, 8), (5, 8, 13), (10, 13, 18), (12, 18, 20),
    ]  # fmt: skip
    # a context that is longer than a window
    found = windows(20, 15, width=8, stride=4)
    assert [(w.begin, w.first, w.end) for w in found] == [(11, 15, 19), (12, 19, 20)]


@pytest.mark.parametrize("stride", [0, 8, 9])
def test_a_stride_without_context_is_refused(stride: int) -> None:
    with pytest.raises(PassageError, match="leaves none for context"):
        windows(20, 3, width=8, stride=stride)


def test_nll_over_windows_is_that_of_requests_by_hand(llama_server: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": "d", "alternatives": 5, "window": 24, "stride": 14}
    [report] = harvest([LONG], llama_server, tmp_path, **options)
    found = store.read_harvest(str(report.path))
    assert (found.attrs["window"], found.attrs["stride"]) == (24, 14)
    body = {"content": LONG.prefix + LONG.continuation, "parse_special": False}
    ids = post(llama_server, "/tokenize", body)["tokens"]
    start = len(post(llama_server, "/tokenize", {"content": LONG.prefix})["tokens"])
    assert found.context_tokens.values.tolist() == [start]
    assert found.token_id.values.tolist() == ids[start:]
    by_hand: list[float] = []
    first, end = start, 24
    while first < len(ids):
        begin = max(0, end - 24)
        by_hand += logprobs(llama_server, ids[begin:end], first - begin)
        first, end = end, min(end + 14, len(ids))
    assert len(by_hand) > 30
    np.testing.assert_allclose(found.token_logprob, by_hand, atol=2e-3)
    assert float(found.token_logprob.sum()) == pytest.approx(sum(by_hand), abs=0.02)
    # the same text in one piece has other numbers
    [whole] = harvest([LONG], llama_server, tmp_path / "whole", dataset="d", alternatives=5)
    gap = store.read_harvest(str(whole.path)).token_logprob - found.token_logprob
    assert np.abs(gap[: 24 - start]).max() < 2e-3
    assert np.abs(gap[24 - start :]).max() > 0.1


async def test_a_text_beyond_the_context_is_scored_in_windows(start: Any, tmp_path: Path) -> None:
    standin = StandIn(n_ctx=64)
    url = await start(standin)
    text = Text(
        "long", "It began ", "and went on for much longer than the model could remember" * 2
    )
    options: dict[str, Any] = {"dataset": "d", "alternatives": 3}
    with pytest.raises(IncompleteError, match="let a --window slide over it"):
        await harvest_async([text], url, tmp_path, **options)
    standin.seen.clear()
    [report] = await harvest_async([text], url, tmp_path, window=40, stride=15, **options)
    assert report.n_token == len(text.continuation)
    assert not report.failures
    prompts = [body["prompt"] for body in standin.seen if body["n_predict"] > 1]
    assert all(len(p) + body["n_predict"] <= 40 for body in standin.seen for p in [body["prompt"]])
    # each window begins as the model wants a text to begin
    assert {p[0] for p in prompts} == {BOS}


def test_the_answer_to_a_chat_message(llama_server: str, tmp_path: Path) -> None:
    [report] = harvest([CHAT], llama_server, tmp_path, dataset="d", alternatives=5, chat=True)
    found = store.read_harvest(str(report.path))
    assert found.attrs["chat"] == 1
    messages = [{"role": "user", "content": CHAT.prefix}]
    prompt = post(llama_server, "/apply-template", {"messages": messages})["prompt"]
    assert CHAT.prefix in prompt
    assert prompt.endswith("assistant\n")
    body = {"content": prompt, "add_special": True, "parse_special": True}
    before = post(llama_server, "/tokenize", body)["tokens"]
    answer = post(llama_server, "/tokenize", {"content": CHAT.continuation})["tokens"]
    assert found.context_tokens.values.tolist() == [len(before)]
    assert found.token_id.values.tolist() == answer
    assert found.token_bytes.values.sum() == len(CHAT.continuation)
    by_hand = logprobs(llama_server, [*before, *answer], len(before))
    np.testing.assert_allclose(found.token_logprob, by_hand, atol=2e-3)
    # a chat model knows this answer
    assert float(found.token_logprob.mean()) > -1
    with pytest.raises(ConfigError, match="made with other chat"):
        harvest([CHAT], llama_server, tmp_path, dataset="d", alternatives=5)


def test_windows_that_cannot_be_meant(llama_server: str, tmp_path: Path) -> None:
    for window, stride in ((1, 0), (-1, 0), (10, 10), (0, 5), (10, -1)):
        with pytest.raises(ConfigError, match=f"window {window} and stride {stride} are not"):
            harvest([LONG], "a", tmp_path, dataset="d", window=window, stride=stride)
    with pytest.raises(ServerError, match="window of 1024 tokens does not fit"):
        harvest([LONG], llama_server, tmp_path, dataset="d", window=1024)
