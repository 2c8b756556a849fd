"""vLLM, SGLang and servers that echo: the same numbers as by forcing, and every trap is named."""

import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from echo_standin import EchoStandIn
from harvest_standin import N_VOCAB, StandIn, Text
from sglang_standin import SglangStandIn
from vllm_standin import VllmStandIn

from jaxsppl import store
from jaxsppl.errors import IncompleteError, ServerError
from jaxsppl.harvest.runner import harvest_async

Begin = Callable[[Any], Awaitable[str]]
OPTIONS: dict[str, Any] = {"dataset": "d", "alternatives": 20, "patience_s": 1.0}
NASTY = Text("bytes", "", "d\u00e9j\u00e0 vu \U0001f984!\0 nul")


async def harvested(url: str, out: Path, texts: list[Text], **options: Any) -> Any:
    [report] = await harvest_async(texts, url, out, **{**OPTIONS, **options})
    assert not report.failures
    return store.read_harvest(str(report.path))


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("kind", [VllmStandIn, SglangStandIn])
async def test_one_pass_gives_what_forcing_gives(
    kind: Any, bos: bool, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    texts = [*texts[:3], NASTY]
    forced = await harvested(await start(StandIn(bos=bos)), tmp_path / "forced", texts)
    server = kind(bos=bos)
    found = await harvested(await start(server), tmp_path / "one", texts)
    assert found.attrs["protocol"] == ("vllm" if kind is VllmStandIn else "sglang")
    assert found.attrs["n_vocab"] == N_VOCAB
    assert found.attrs["build_info"] == server.version
    # SGLang shows tokens that are no whole character only together: their bytes add up
    byte_counts = ["token_bytes"] if kind is SglangStandIn else []
    names = [name for name in forced.variables if name not in {"model", *byte_counts}]
    for name in names:
        np.testing.assert_array_equal(forced[name], found[name], name)
    sums = [h.token_bytes.groupby(h.document_index).sum() for h in (forced, found)]
    np.testing.assert_array_equal(*sums)


@pytest.mark.parametrize("kind", [VllmStandIn, SglangStandIn])
async def test_windows_and_chat_give_what_they_give_by_forcing(
    kind: Any, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    servers = [await start(StandIn()), await start(kind())]
    readings: list[dict[str, Any]] = [{"window": 25, "stride": 10}]
    if kind is VllmStandIn:
        readings += [{"chat": True}, {"chat": True, "window": 60, "stride": 10}]
    seen: list[float] = []
    for number, reading in enumerate(readings):
        forced, found = [
            await harvested(url, tmp_path / f"{number}-{i}", texts[:2], **reading)
            for i, url in enumerate(servers)
        ]
        for name in ("token_id", "token_logprob", "top_logprob", "context_tokens"):
            np.testing.assert_array_equal(forced[name], found[name], name)
        assert {key: found.attrs[key] for key in reading} == reading
        seen.append(float(found.context_tokens[0]))
    # the chat's prompt is context, and longer than the bare prefix
    assert seen == sorted(seen)
    if kind is SglangStandIn:
        with pytest.raises(ServerError, match="the protocol sglang knows no --chat"):
            await harvested(servers[1], tmp_path / "chat", texts[:1], chat=True)


async def test_echo_gives_what_forcing_gives(
    start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    forced = await harvested(await start(StandIn()), tmp_path / "forced", texts)
    found = await harvested(await start(EchoStandIn()), tmp_path / "echo", texts)
    assert found.attrs["protocol"] == "openai"
    assert found.attrs["build_info"] == "0.3.16"
    assert json.loads(found.attrs["config_json"])["details"]["ids"] == "of this file"
    for name in ("token_logprob", "token_rank", "token_bytes", "top_logprob", "document_sha256"):
        np.testing.assert_array_equal(forced[name], found[name], name)
    # the ids are numbers of the file: one for each text, in all passages
    pairs = {
        (int(a), int(b))
        for a, b in zip(np.ravel(forced.top_token_id), np.ravel(found.top_token_id), strict=True)
        if a not in {256, 257}
    }
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


async def test_a_resumed_echo_has_the_same_ids(
    start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    url = await start(EchoStandIn())
    whole = await harvested(url, tmp_path / "whole", texts)

    def stop(state: Any) -> None:
        if state.done == 3:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        await harvest_async(texts, url, tmp_path / "two", progress=stop, **OPTIONS)
    again = await harvested(url, tmp_path / "two", texts)
    assert whole.drop_attrs().identical(again.drop_attrs())


@pytest.mark.parametrize("kind", [StandIn, VllmStandIn, SglangStandIn, EchoStandIn])
async def test_every_setting_is_sent(
    kind: Any, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    server = kind()
    found = await harvested(await start(server), tmp_path, texts[:1])
    for body in server.seen:
        sent = body | body.get("sampling_params", {})
        neutral = {"top_p": 1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}
        assert {name: sent[name] for name in neutral} == neutral
        assert sent["top_k"] in {0, -1}
        assert sent.get("repeat_penalty", sent.get("repetition_penalty")) == 1
        assert "temperature" in sent
        assert sent["stream"] is False
    [proof] = json.loads(found.attrs["self_test_json"]).values()
    assert proof["document"] == "doc-0"
    assert proof["n_token"] > 20
    assert proof["temperature_difference"] == proof["cache_difference"] == 0.0
    assert 0.5 < proof["largest_sum"] <= 1.0006


@pytest.mark.parametrize("kind", [VllmStandIn, SglangStandIn, EchoStandIn])
async def test_processed_values_are_refused(
    kind: Any, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match=r"change with the temperature .* processed values"):
        await harvest_async(texts, await start(kind(processed=True)), tmp_path, **OPTIONS)
    assert not list(tmp_path.glob("*.nc"))


async def test_stale_values_are_refused(start: Begin, texts: list[Text], tmp_path: Path) -> None:
    url = await start(VllmStandIn(stale=True))
    with pytest.raises(ServerError, match=r"once its cache is filled: they are stale"):
        await harvest_async(texts, url, tmp_path, **OPTIONS)


# kind, what is changed, words of the refusal of the server
UNFIT: dict[str, tuple[Any, str]] = {
    "vLLM's limit": (
        VllmStandIn(max_logprobs=7),
        r"at most 7 alternatives; start it with --max-logprobs 20, or .* --alternatives 7",
    ),
    "vLLM without token strings": (VllmStandIn(token_strs=False), "too old"),
    "SGLang without tokenizer": (SglangStandIn(tokenizer=False), "too old: it has no /tokenize"),
    "no logits_all": (EchoStandIn(logits_all=False), "logits_all=False"),
    "shifted by one": (EchoStandIn(bos=False, shifted=True), r"shifted by one .* llama-server"),
    "chat style": (EchoStandIn(chat_style=True), "style of chats, about generated tokens only"),
    "echo ignored": (EchoStandIn(ignores_echo=True), "the prompt is not echoed"),
    "clamped": (EchoStandIn(most=5), "clamps its lists"),
    "Ollama": (EchoStandIn(owner="library"), "Ollama reports generated tokens only.*llama-server"),
    "LM Studio": (EchoStandIn(owner="organization_owner"), "LM Studio reports no"),
    "KoboldCpp": (EchoStandIn(owner="koboldcpp"), "KoboldCpp reports generated"),
    "OpenAI": (EchoStandIn(owner="openai"), "refuse echo"),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_a_server_that_cannot_score_a_text_is_refused(
    name: str, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    server, words = UNFIT[name]
    with pytest.raises(ServerError, match=words):
        await harvest_async(texts, await start(server), tmp_path, **OPTIONS)
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize(
    ("path", "reply", "words"),
    [
        ("/info", {"model_id": "m", "docker_label": "sha-1"}, "text-generation-inference"),
        ("/api/version", {"version": "0.12.3"}, "Ollama"),
    ],
)
async def test_servers_that_are_known_by_a_route(
    path: str, reply: Any, words: str, aiohttp_server: Any, texts: list[Text], tmp_path: Path
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(reply)

    app = web.Application()
    app.router.add_get(path, answer)
    server = await aiohttp_server(app)
    with pytest.raises(ServerError, match=f"cannot score a given text: {words}"):
        await harvest_async(texts, f"http://127.0.0.1:{server.port}", tmp_path, **OPTIONS)


async def test_settings_beyond_the_interface_are_left_out_where_they_are_refused(
    start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    server = EchoStandIn(strict=True)
    await harvested(await start(server), tmp_path, texts[:2])
    assert sum("repeat_penalty" in body for body in server.seen) == 1


async def test_tokens_that_collapse_are_refused(
    start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    url = await start(EchoStandIn(collapse=True))
    with pytest.raises(ServerError, match="same text"):
        await harvest_async(texts, url, tmp_path, **OPTIONS)


def edit(place: int, **fields: Any) -> Any:
    """Change the actual token's entry at a place of vLLM's list."""
    return lambda listed, ids: listed[place][str(ids[place])].update(fields)


def entry(place: int, change: Callable[[dict[str, Any], list[int]], Any]) -> Any:
    """Change the whole entry at a place of vLLM's list."""

    def spoil(listed: list[Any], ids: list[int]) -> None:
        change(listed[place], ids)

    return spoil


VLLM: dict[str, tuple[Any, str]] = {
    "shifted left": (lambda listed, ids: [*listed[1:], None], "shifted by one"),
    "shifted right": (lambda listed, ids: [None, None, *listed[1:-1]], "shifted|null"),
    "short": (lambda listed, ids: listed[:-1], "entries of prompt_logprobs came for"),
    "no list": (lambda listed, ids: [], "entries of prompt_logprobs came for 0|0 entries"),
    "null inside": (lambda listed, ids: listed.__setitem__(-3, None), "null came instead"),
    "own token null": (edit(-3, logprob=None), "null for the token itself"),
    "own token missing": (entry(-3, lambda e, ids: e.pop(str(ids[-3]))), "not in its own list"),
    "positive": (edit(-3, logprob=0.4), "above 0"),
    "NaN": (edit(-3, logprob=math.nan), "did not answer JSON"),
    "text keys": (entry(-3, lambda e, ids: e.update(Hello={"logprob": -9.0})), "not keyed by"),
    "too many": (
        entry(-3, lambda e, ids: e.update({"258": {"logprob": -99.0}, "259": {"logprob": -99.0}})),
        "alternatives came",
    ),
    "clamped": (entry(-3, lambda e, ids: [e.pop(k) for k in [*e][3:9]]), "clamps its lists"),
    "padding": (
        entry(-3, lambda e, ids: e.update({str(N_VOCAB + 3): e.pop([*e][-1])})),
        "padding",
    ),
    "sums above 1": (
        entry(-3, lambda e, ids: [v.update(logprob=v["logprob"] / 9) for v in e.values()]),
        "sum to",
    ),
}


@pytest.mark.parametrize("name", VLLM)
async def test_vllm_replies_that_are_wrong(
    name: str, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    spoil, words = VLLM[name]
    with pytest.raises(IncompleteError, match=words):
        await harvest_async(texts[:1], await start(VllmStandIn(spoil=spoil)), tmp_path, **OPTIONS)


def at(field: str, place: int, value: Any) -> Any:
    """Change a field of a triple of SGLang's."""
    number = {"logprob": 0, "id": 1}[field]
    return lambda meta, ids: meta["input_token_logprobs"][place].__setitem__(number, value)


SGLANG: dict[str, tuple[Any, str]] = {
    "start off by one": (
        lambda meta, ids: [meta[k].pop(0) for k in ("input_token_logprobs", "input_top_logprobs")],
        "the start is shifted",
    ),
    "first is not null": (at("logprob", 0, -1.0), "shifted by one"),
    "own token null": (at("logprob", -3, None), "null for the token itself"),
    "other id": (at("id", -3, 7), "id 7 came for id"),
    "id as text": (at("id", -3, "7"), "unexpected"),
    "positive": (at("logprob", -3, 0.4), "above 0"),
    "no lists": (lambda meta, ids: meta.pop("input_top_logprobs"), "no input_top_logprobs"),
    "null list": (
        lambda meta, ids: meta["input_top_logprobs"].__setitem__(-3, None),
        "null came instead",
    ),
    "clamped": (
        lambda meta, ids: meta["input_top_logprobs"].__setitem__(
            -3, meta["input_top_logprobs"][-3][:9]
        ),
        "clamps its lists",
    ),
    "an id twice": (
        lambda meta, ids: meta["input_top_logprobs"][-3].__setitem__(
            5, meta["input_top_logprobs"][-3][6]
        ),
        "twice",
    ),
}


@pytest.mark.parametrize("name", SGLANG)
async def test_sglang_replies_that_are_wrong(
    name: str, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    spoil, words = SGLANG[name]
    with pytest.raises(IncompleteError, match=words):
        await harvest_async(texts[:1], await start(SglangStandIn(spoil=spoil)), tmp_path, **OPTIONS)


ECHO: dict[str, tuple[Any, str]] = {
    "other text": (lambda a: a["tokens"].__setitem__(7, "Z"), "not in its place"),
    "a byte is lost": (lambda a: a["tokens"].__setitem__(7, ""), "not in its place"),
    "ends early": (lambda a: [a[k].__delitem__(slice(-5, None)) for k in a], "end before the text"),
    "lengths differ": (lambda a: a["token_logprobs"].pop(), "different lengths"),
    "own token null": (lambda a: a["token_logprobs"].__setitem__(-4, None), "null for the token"),
    "list null": (lambda a: a["top_logprobs"].__setitem__(-4, None), "null came instead"),
    "empty": (lambda a: a["token_logprobs"].clear(), "no log-probabilities"),
    "first is not null": (lambda a: a["token_logprobs"].__setitem__(0, -1.0), "shifted by one"),
}


@pytest.mark.parametrize("name", ECHO)
async def test_echo_replies_that_are_wrong(
    name: str, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    spoil, words = ECHO[name]
    with pytest.raises(IncompleteError, match=words):
        await harvest_async(texts[:1], await start(EchoStandIn(spoil=spoil)), tmp_path, **OPTIONS)


@pytest.mark.parametrize("sentinel", [-9999.0, -1000.0, -100.0, -3.4028235e38, None])
async def test_sentinels_are_no_numbers(
    sentinel: float | None, start: Begin, texts: list[Text], tmp_path: Path
) -> None:
    spoiled: list[int] = []

    def spoil(listed: list[Any], ids: list[int]) -> None:
        inside = next(i for i in range(22, len(ids)) if len(listed[i]) == 20)
        outside = next(i for i in range(22, len(ids)) if len(listed[i]) == 21)
        spoiled[:] = [inside - 21, outside - 21]
        others = [token for token in listed[inside] if token != str(ids[inside])]
        least = min(others, key=lambda token: listed[inside][token]["logprob"])
        own = listed[inside][str(ids[inside])]["logprob"]
        # whatever is listed below the actual token has no probability either
        for token in others:
            if listed[inside][token]["logprob"] < own or token == least:
                listed[inside][token]["logprob"] = sentinel
        if sentinel is not None:
            listed[outside][str(ids[outside])]["logprob"] = sentinel

    server = VllmStandIn(bos=False, spoil=spoil)
    found = await harvested(await start(server), tmp_path, [texts[0]])
    inside, outside = (found.isel(token=place) for place in spoiled)
    assert int((inside.top_token_id == -1).sum()) >= 1
    np.testing.assert_array_equal(inside.top_logprob == -np.inf, inside.top_token_id == -1)
    assert float(inside.top_logprob.where(inside.top_token_id >= 0).min()) > -90
    assert found.attrs["n_censored"] == (sentinel is not None)
    if sentinel is not None:
        # a bound: at or below the floor, or below the smallest float32
        assert float(outside.token_logprob) == np.float32(max(sentinel, -103.27893))
        assert int(outside.token_rank) == 0
