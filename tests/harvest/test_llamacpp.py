"""Harvests from a real llama.cpp server with a real model."""

import asyncio
import hashlib
import json
import math
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from harvest_standin import StandIn, Text

from jaxsppl import store
from jaxsppl.errors import ConfigError, ServerError
from jaxsppl.harvest.forcing import SETTINGS
from jaxsppl.harvest.local import LocalServer, free_port
from jaxsppl.harvest.runner import harvest, harvest_async

PROSE = Text(
    "prose",
    "It was the best of times, it was the worst of times,",
    " it was the age of wisdom, it was the age of foolishness, it was the epoch of belief",
)
NASTY = Text(
    "nasty",
    "Emoji: ",
    "\U0001f469\U0001f3fd\u200d\U0001f680 cafe\u0301 \u6f22\u5b57\u4eee\u540d \t\tx "
    "<|im_end|>\r\nline\r\n\U0001f984 na\u00efve <|endoftext|>!",
)


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """A request by hand, with none of our code."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read())


def harvested(url: str, out: Path, *texts: Text, **options: Any) -> xr.Dataset:
    [report] = harvest(list(texts), url, out, dataset="mixed", **options)
    assert not report.failures
    return store.read_harvest(str(report.path))


def test_grammar_one_token_and_list_length_agree(llama_server: str, tmp_path: Path) -> None:
    texts = (PROSE, NASTY)
    base = harvested(llama_server, tmp_path / "grammar", *texts)
    one = harvested(llama_server, tmp_path / "one", *texts, method="one-token")
    long = harvested(llama_server, tmp_path / "long", *texts, alternatives=1000)
    assert base.attrs["method"] == "token-grammar"
    assert one.attrs["method"] == "one-token"
    assert base.sizes["rank"] == 100
    assert long.sizes["rank"] == 1000
    for other in (one, long):
        np.testing.assert_array_equal(base.token_id, other.token_id)
        np.testing.assert_allclose(base.token_logprob, other.token_logprob, rtol=0, atol=1e-3)
        np.testing.assert_allclose(base.top_logprob, other.top_logprob[:, :100], rtol=0, atol=1e-3)
    inside = base.token_rank.values > 0
    np.testing.assert_array_equal(base.token_rank.values[inside], long.token_rank.values[inside])
    assert (long.token_rank.values[~inside] > 100).sum() > 0


def test_nasty_text_is_kept_exactly(llama_server: str, tmp_path: Path) -> None:
    found = harvested(llama_server, tmp_path, NASTY)
    whole = NASTY.prefix + NASTY.continuation
    expected = post(
        llama_server, "/tokenize", {"content": whole, "add_special": True, "parse_special": False}
    )["tokens"]
    context = int(found.context_tokens[0])
    assert found.token_id.values.tolist() == expected[context:]
    pieces = post(
        llama_server,
        "/tokenize",
        {"content": whole, "add_special": True, "parse_special": False, "with_pieces": True},
    )["tokens"]
    data = [
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    ]
    assert b"".join(data) == whole.encode()
    assert found.token_bytes.values.tolist() == [len(piece) for piece in data[context:]]
    # the space before the emoji is one token with its first bytes, so it spans the join
    inside = len(b"".join(data[:context])) - len(NASTY.prefix.encode())
    assert inside >= 0
    assert found.attrs["n_boundary_merged"] == (1 if inside else 0)
    assert found.token_bytes.values.sum() + inside == len(NASTY.continuation.encode())
    sha = hashlib.sha256(NASTY.continuation.encode()).hexdigest()
    assert str(found.document_sha256.values[0]) == sha


def test_numbers_are_those_of_a_request_by_hand(llama_server: str, tmp_path: Path) -> None:
    found = harvested(llama_server, tmp_path, PROSE, alternatives=7)
    ids = post(
        llama_server,
        "/tokenize",
        {"content": PROSE.prefix + PROSE.continuation, "parse_special": False},
    )["tokens"]
    context = int(found.context_tokens[0])
    total = 0.0
    for place in range(context, len(ids)):
        reply = post(
            llama_server,
            "/completion",
            {
                "prompt": ids[:place],
                "n_predict": 1,
                "n_probs": 7,
                "logit_bias": [[ids[place], 1e6]],
                "temperature": 0,
                "cache_prompt": place > context,
            },
        )
        entry = reply["completion_probabilities"][0]
        assert entry["id"] == ids[place]
        total += entry["logprob"]
        row = found.isel(token=place - context)
        assert [a["id"] for a in entry["top_logprobs"]] == row.top_token_id.values.tolist()
        np.testing.assert_allclose(
            [a["logprob"] for a in entry["top_logprobs"]], row.top_logprob, atol=1e-5
        )
    assert math.isclose(float(found.token_logprob.sum()), total, abs_tol=1e-3)


def test_without_bos_the_first_token_of_a_bare_text_is_context(
    llama_server: str, tmp_path: Path
) -> None:
    assert post(llama_server, "/tokenize", {"content": "", "add_special": True})["tokens"] == []
    bare = Text("bare", "", "Hello world, how are you?")
    found = harvested(llama_server, tmp_path, bare)
    assert found.context_tokens.values.tolist() == [1]
    ids = post(llama_server, "/tokenize", {"content": bare.continuation})["tokens"]
    assert found.token_id.values.tolist() == ids[1:]
    assert found.token_bytes.values.sum() == len(bare.continuation) - len("Hello")
    assert found.attrs["n_boundary_merged"] == 0


def test_passages_that_cannot_be_scored_do_not_stop_the_others(
    llama_server: str, tmp_path: Path
) -> None:
    texts = [
        Text("long", "The ", "word " * 1100),
        Text("one-token", "Ans", "wer"),
        Text("empty", "Something", ""),
        Text("surrogate", "x", "half \ud83d pair"),
        PROSE,
    ]
    [report] = harvest(texts, llama_server, tmp_path, dataset="d", alternatives=5)
    reasons = dict(report.failures)
    assert list(reasons) == ["long", "one-token", "empty", "surrogate"]
    assert "do not fit in the 1024 of a slot" in reasons["long"]
    assert "too short" in reasons["empty"]
    assert "surrogate pair at character 5" in reasons["surrogate"]
    found = store.read_harvest(str(report.path))
    assert found.document.values.tolist() == ["prose"]
    assert found.attrs["n_failed"] == 4
    assert dict(json.loads(found.attrs["failures_json"])) == reasons


def test_the_longest_passage_that_fits_is_scored(model_path: Path, tmp_path: Path) -> None:
    # The server rounds a context up to a multiple of 256.
    with LocalServer(model_path, slots=1, context=256, threads=1) as server:
        fits = Text("fits", "The" + " word" * 200, " word" * 54)
        over = Text("over", "The" + " word" * 200, " word" * 55)
        [report] = harvest([fits, over], server.url, tmp_path, dataset="d", alternatives=3)
    assert [name for name, _ in report.failures] == ["over"]
    assert report.n_token == 54


def test_unknown_model_and_wrong_address(llama_server: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"no server offers the model 'nope'; .* offers 'SmolLM2"):
        harvest([PROSE], llama_server, tmp_path, dataset="d", models=["nope"])
    with pytest.raises(ServerError, match="cannot connect"):
        harvest([PROSE], f"http://127.0.0.1:{free_port()}", tmp_path, dataset="d")
    with pytest.raises(ServerError, match="does not answer like a llama"):
        harvest([PROSE], f"{llama_server}/somewhere", tmp_path, dataset="d")
    assert not list(tmp_path.glob("*.nc"))


def test_a_model_can_be_stored_under_another_name(llama_server: str, tmp_path: Path) -> None:
    models = {"../small one": "SmolLM2-135M-Instruct.Q4_1"}
    found = harvested(llama_server, tmp_path, PROSE, models=models, alternatives=3)
    assert str(found.model.values) == "../small one"
    [path] = tmp_path.glob("*.nc")
    assert "/" not in path.name
    assert not path.name.startswith(".")


def test_a_finished_file_is_kept_and_another_one_is_not_replaced(
    llama_server: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"dataset": "d", "alternatives": 3}
    [first] = harvest([PROSE], llama_server, tmp_path, **options)
    before = Path(str(first.path)).stat().st_mtime_ns
    [second] = harvest([PROSE], llama_server, tmp_path, **options)
    assert (first.skipped, second.skipped) == (False, True)
    assert (second.n_token, second.n_document) == (first.n_token, first.n_document)
    assert Path(str(first.path)).stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="made with other alternatives; choose another folder"):
        harvest([PROSE], llama_server, tmp_path, dataset="d", alternatives=4)
    with pytest.raises(ConfigError, match="made with other texts"):
        harvest([NASTY], llama_server, tmp_path, **options)
    [forced] = harvest([NASTY], llama_server, tmp_path, force=True, **options)
    assert store.read_harvest(str(forced.path)).document.values.tolist() == ["nasty"]
    Path(str(first.path)).write_text("just a text")
    with pytest.raises(ConfigError, match="it is in the way"):
        harvest([PROSE], llama_server, tmp_path, **options)


def test_a_server_with_a_key(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(0)
    key = "real-server-key-0815"
    log = tmp_path / "server.log"
    with LocalServer(model_path, slots=1, context=256, threads=1, api_key=key, log=log) as server:
        for wrong in (None, "not-the-key-99"):
            if wrong:
                monkeypatch.setenv("JAXSPPL_API_KEY", wrong)
            with pytest.raises(ServerError, match="JAXSPPL_API_KEY"):
                harvest([PROSE], server.url, tmp_path / "out", dataset="d", alternatives=3)
        monkeypatch.setenv("JAXSPPL_API_KEY", key)
        [report] = harvest([PROSE], server.url, tmp_path / "out", dataset="d", alternatives=3)
    assert report.n_document == 1
    written = b"".join(f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file())
    assert key.encode() not in written + caplog.text.encode()


def test_the_self_test_of_a_real_server(llama_server: str, tmp_path: Path) -> None:
    found = harvested(llama_server, tmp_path, NASTY, PROSE)
    assert found.attrs["build_info"].startswith("xllamacpp ")
    [proof] = json.loads(found.attrs["self_test_json"]).values()
    assert proof["document"] in {"nasty", "prose"}
    assert proof["n_token"] >= 15
    # the arithmetic is the same, so the values are: neither temperature nor cache changes them
    assert proof["temperature_difference"] < 1e-3
    assert proof["cache_difference"] < 1e-3
    assert 0.3 < proof["largest_sum"] < 1.001


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (
            "openai",
            "in the style of chats, about generated tokens only; serve the model with llama-",
        ),
        ("vllm", "is not fit for a harvest: HTTP 404.*leave out --protocol"),
        ("sglang", "is not fit for a harvest: HTTP 404.*leave out --protocol"),
    ],
)
def test_a_protocol_that_the_real_server_does_not_speak(
    protocol: str, words: str, llama_server: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match=words):
        harvest([PROSE], llama_server, tmp_path, dataset="d", alternatives=5, protocol=protocol)
    assert not list(tmp_path.iterdir())


def test_the_real_server_takes_every_setting(llama_server: str) -> None:
    body = {**SETTINGS, "prompt": [97], "n_predict": 1, "n_probs": 2, "response_fields": []}
    used = post(llama_server, "/completion", body)["generation_settings"]
    # these two say what the reply holds, not what is drawn
    sent = {k: v for k, v in SETTINGS.items() if k not in {"response_fields", "return_tokens"}}
    assert {name: used[name] for name in sent} == sent
    assert used["speculative.types"] == "none"


async def test_the_stand_in_answers_in_the_shapes_of_the_real_server(
    llama_server: str, start: Any
) -> None:
    standin = await start(StandIn(bos=False))

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in sorted(value.items())}
        if isinstance(value, list):
            return [shape(value[0])] if value else []
        return type(value).__name__

    async def both(path: str, body: dict[str, Any]) -> tuple[Any, Any]:
        return (
            await asyncio.to_thread(post, llama_server, path, body),
            await asyncio.to_thread(post, standin, path, body),
        )

    real, ours = await both("/tokenize", {"content": "a b", "with_pieces": True})
    assert shape(real) == shape(ours)
    real, ours = await both("/tokenize", {"content": "\U0001f984", "with_pieces": True})
    assert shape(real) == shape(ours)
    fields = ["completion_probabilities", "stop_type", "truncated", "tokens_evaluated"]
    common = {"n_predict": 1, "n_probs": 3, "response_fields": fields}
    for body in (
        {"prompt": [97, 98], "grammar": "root ::= <[99]>", **common},
        {"prompt": [97, 98], "logit_bias": [[99, 1e6]], **common},
    ):
        real, ours = await both("/completion", body)
        assert shape(real) == shape(ours)
    # a token that begins a character is not reported: 10813 in the one, 0xF0 in the other
    lead, byte = ({"prompt": [97], "logit_bias": [[i, 1e6]], **common} for i in (10813, 0xF0))
    real = await asyncio.to_thread(post, llama_server, "/completion", lead)
    ours = await asyncio.to_thread(post, standin, "/completion", byte)
    assert "completion_probabilities" not in real
    assert shape(real) == shape(ours)
    refusals = {
        "a grammar": {"prompt": [97], "grammar": "root ::= <[", **common},
        "an id": {"prompt": [10**6], **common},
        "a byte in a grammar": {"prompt": [97], "grammar": "root ::= <[{}]>", **common},
    }
    for name, body in refusals.items():
        seen: list[tuple[int, str]] = []
        for url, token in ((llama_server, 10813), (standin, 0xF0)):
            sent = json.loads(json.dumps(body).replace("{}", str(token)))
            with pytest.raises(urllib.error.HTTPError) as caught:
                await asyncio.to_thread(post, url, "/completion", sent)
            said = json.loads(caught.value.read())["error"]
            assert set(said) == {"code", "message", "type"}
            seen.append((caught.value.code, said["message"][:45]))
            caught.value.close()
        assert seen[0] == seen[1], name


async def test_inside_a_running_loop(llama_server: str, tmp_path: Path) -> None:
    # as in a notebook: the plain function works there too, and so does its async form
    [one] = harvest([PROSE], llama_server, tmp_path / "a", dataset="d", alternatives=3)
    [two] = await harvest_async([PROSE], llama_server, tmp_path / "b", dataset="d", alternatives=3)
    first, second = store.read_harvest(str(one.path)), store.read_harvest(str(two.path))
    assert first.drop_attrs().identical(second.drop_attrs())
