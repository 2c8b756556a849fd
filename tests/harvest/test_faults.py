"""Everything a server may answer wrongly, and what must come of it.

Each fault is put into a real HTTP server on loopback. Outcomes: "harmless" (taken as it is),
"mended" (retried, the file is as without the fault), "passage" (those passages fail with the
reason, the rest is written), "stopped" (the run ends with one clear line and nothing wrong is
written).
`scripts/faults.py` makes docs/faults.md of the tables here.
"""

import asyncio
import gzip
import json
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from harvest_standin import Json, StandIn, Text, error

from jaxsppl import store
from jaxsppl.errors import IncompleteError, ServerError
from jaxsppl.harvest.runner import harvest_async

Start = Callable[[StandIn], Awaitable[str]]
Edit = Callable[[Json], Any]


def status(code: int, said: str = "trouble", **headers: str) -> Any:
    """Answer with an HTTP error."""

    async def fault(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
        reply = error(code, said)
        reply.headers.update({key.replace("_", "-"): value for key, value in headers.items()})
        return reply

    return fault


def raw(data: bytes, kind: str = "application/json") -> Any:
    """Answer with these bytes."""

    async def fault(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
        return web.Response(body=data, content_type=kind)

    return fault


def edited(change: Edit) -> Any:
    """Answer with a changed reply."""

    async def fault(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
        changed = change(answer)
        return web.Response(
            body=json.dumps(answer if changed is None else changed).encode(),
            content_type="application/json",
        )

    return fault


def entries(change: Callable[[list[Json]], Any]) -> Any:
    """Answer with changed entries."""

    def edit(answer: Json) -> None:
        changed = change(answer["completion_probabilities"])
        if changed is not None:
            answer["completion_probabilities"] = changed

    return edited(edit)


def third(**fields: Any) -> Any:
    """Answer with some fields of the third entry set."""
    return entries(lambda found: found[2].update(fields))


def third_list(change: Callable[[list[Json]], Any]) -> Any:
    """Answer with a changed list of alternatives at the third entry."""

    def edit(found: list[Json]) -> None:
        changed = change(found[2]["top_logprobs"])
        if changed is not None:
            found[2]["top_logprobs"] = changed

    return entries(edit)


async def reset(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse | None:
    """Close the connection without a word."""
    raise asyncio.CancelledError


async def reset_midway(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Send the beginning of a chunked body and drop the connection."""
    reply = web.StreamResponse()
    await reply.prepare(standin.request)
    await reply.write(b'{"completion_probabilities":[')
    assert standin.request.transport is not None
    standin.request.transport.abort()
    return reply


async def dripping(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Send the body in small pieces with pauses."""
    reply = web.StreamResponse(headers={"Content-Type": "application/json"})
    await reply.prepare(standin.request)
    data = json.dumps(answer).encode()
    for start in range(0, len(data), len(data) // 4):
        await reply.write(data[start : start + len(data) // 4])
        await asyncio.sleep(0.02)
    return reply


async def no_http(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse | None:
    """Answer something that is no HTTP."""
    assert standin.request.transport is not None
    standin.request.transport.write(b"220 mail.example ESMTP ready\r\n\r\n")  # type: ignore[attr-defined]
    standin.request.transport.close()
    raise asyncio.CancelledError


async def packed(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Send the reply compressed, though nobody asked for it."""
    return web.Response(
        body=gzip.compress(json.dumps(answer).encode()),
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )


async def packed_badly(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Say that the reply is compressed when it is not."""
    return web.Response(
        body=json.dumps(answer).encode(),
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )


async def typed_wrongly(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Send the right reply under a wrong type."""
    return web.Response(body=json.dumps(answer).encode(), content_type="text/html")


async def cut_body(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """Promise a long body and close in the middle of it."""
    reply = web.StreamResponse(headers={"Content-Length": "5000"})
    await reply.prepare(standin.request)
    await reply.write(b'{"completion')
    assert standin.request.transport is not None
    standin.request.transport.close()
    return reply


async def silent(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse | None:
    """Answer too late."""
    await asyncio.sleep(1.5)
    return None


async def bomb(standin: StandIn, body: Json, answer: Json) -> web.StreamResponse:
    """A small compressed body that becomes a gigantic one."""
    data = gzip.compress(b" " * (64 << 20))
    return web.Response(
        body=data, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
    )


def all_rows_scaled(answer: Json) -> None:
    for entry in answer["completion_probabilities"]:
        for row in (entry, *entry["top_logprobs"]):
            row["logprob"] += 0.5


def after_sampling(answer: Json) -> None:
    for entry in answer["completion_probabilities"]:
        entry["prob"] = math.exp(entry.pop("logprob"))
        entry["top_probs"] = entry.pop("top_logprobs")


def oldest_format(answer: Json) -> None:
    answer["completion_probabilities"] = [
        {"content": "x", "probs": [{"tok_str": "x", "prob": 0.5}]}
        for _ in answer["completion_probabilities"]
    ]


# name: (fault, how many replies have it, outcome, words of the reason)
FAULTS: dict[str, tuple[Any, int, str, str]] = {
    "reset once": (reset, 1, "mended", ""),
    "body cut once": (cut_body, 1, "mended", ""),
    "408 once": (status(408), 1, "mended", ""),
    "429 with Retry-After in seconds": (status(429, Retry_After="0"), 2, "mended", ""),
    "429 with a Retry-After date": (
        status(429, Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"),
        1,
        "mended",
        "",
    ),
    "429 with an unreadable Retry-After": (status(429, Retry_After="soon"), 1, "mended", ""),
    "500 once": (status(500), 1, "mended", ""),
    "502 twice": (status(502), 2, "mended", ""),
    "503 for longer than one request retries": (status(503), 4, "mended", ""),
    "504 once": (status(504), 1, "mended", ""),
    "silent once": (silent, 1, "mended", ""),
    "resets a whole request": (reset, 4, "mended", ""),
    "reset midway in the body": (reset_midway, 1, "mended", ""),
    "no HTTP": (no_http, 1, "mended", ""),
    "said to be compressed": (packed_badly, 1, "mended", ""),
    "429 for an hour": (status(429, Retry_After="3600"), 1, "mended", ""),
    "429 with a Retry-After of NaN": (status(429, Retry_After="nan"), 1, "mended", ""),
    "503 until a date long gone": (
        status(503, Retry_After="Sun, 06 Nov 1994 08:49:37 GMT"),
        1,
        "mended",
        "",
    ),
    "compressed": (packed, 1, "harmless", ""),
    "text/html with JSON in it": (typed_wrongly, 1, "harmless", ""),
    "a body that drips": (dripping, 1, "harmless", ""),
    "unknown fields": (edited(lambda a: a.update(new_thing={"x": [1]})), 1, "harmless", ""),
    "500 for ever": (status(500, "it broke"), 10**6, "passage", "it broke"),
    "a deterministic 500": (
        status(500, "The model produced output that does not match the expected Content-only "
               "format"),
        10**6,
        "passage",
        "Content-only",
    ),
    "400": (status(400, "Prompt contains invalid tokens"), 1, "passage", "invalid tokens"),
    "404": (status(404, "File Not Found"), 1, "passage", "File Not Found"),
    "501": (status(501, "not supported"), 1, "passage", "not supported"),
    "401 midway": (status(401, "Invalid API Key"), 1, "stopped", "JAXSPPL_API_KEY"),
    "403 midway": (status(403, "forbidden"), 1, "stopped", "JAXSPPL_API_KEY"),
    "redirect without a place": (status(307), 1, "stopped", "redirects to another address"),
    "redirect elsewhere": (
        status(302, Location="http://elsewhere.invalid/completion"),
        1,
        "stopped",
        "redirects to elsewhere.invalid",
    ),
    "HTML": (raw(b"<html>Bad gateway</html>", "text/html"), 1, "passage", "did not answer JSON"),
    "empty body": (raw(b""), 1, "passage", "did not answer JSON"),
    "cut JSON": (raw(b'{"completion_probabilities":[{"id":1'), 1, "passage", "JSON"),
    "bytes that are no UTF-8": (raw(b'{"stop_type":"\xff\xfe"}'), 1, "passage", "JSON"),
    "a byte order mark": (raw(b"\xef\xbb\xbf{}"), 1, "passage", "JSON"),
    "two documents": (raw(b"{}{}"), 1, "passage", "JSON"),
    "nested without end": (raw(b'{"x":' + b"[" * 200_000), 1, "passage", "JSON"),
    "a number beyond float64": (raw(b'{"completion_probabilities":[{"id":1,"logprob":-1e999}]}'),
                                1, "passage", "unexpected"),
    "a JSON list": (raw(b"[1,2,3]"), 1, "passage", "unexpected"),
    "JSON null": (raw(b"null"), 1, "passage", "unexpected"),
    "gigantic reply": (raw(b" " * (40 << 20)), 1, "passage", "larger than"),
    "gzip bomb": (bomb, 1, "passage", "larger than"),
    "NaN literal": (third(logprob=math.nan), 1, "passage", "JSON"),
    "Infinity literal": (third(logprob=-math.inf), 1, "passage", "JSON"),
    "no field": (edited(lambda a: a.pop("completion_probabilities") and None), 1, "passage",
                 "completion_probabilities"),
    "null field": (edited(lambda a: a.update(completion_probabilities=None)), 1, "passage",
                   "completion_probabilities"),
    "empty list": (edited(lambda a: a.update(completion_probabilities=[])), 1, "passage",
                   "completion_probabilities"),
    "echo ignored, one entry": (entries(lambda found: found[:1]), 1, "passage", "came back for"),
    "one entry missing": (entries(lambda found: found[:5] + found[6:]), 1, "passage",
                          "came back for"),
    "one entry too many": (entries(lambda found: [*found, found[-1]]), 1, "passage",
                           "came back for"),
    "entries shifted by one": (entries(lambda found: [*found[1:], found[0]]), 1, "passage",
                               "token id"),
    "wrong id": (third(id=7), 1, "passage", "token id 7 came back"),
    "id as a string": (third(id="7"), 1, "passage", "unexpected"),
    "id beyond 64 bits": (third_list(lambda t: t[-1].update(id=2**70)), 1, "passage", "64-bit"),
    "a boolean for log-probability": (third(logprob=True), 1, "passage", "unexpected"),
    "probability for log-probability": (third(logprob=0.53), 1, "passage", "above 0"),
    "null log-probability": (third(logprob=None), 1, "passage", "without logprob"),
    "log-probability as text": (third(logprob="-1.5"), 1, "passage", "unexpected"),
    "list missing": (third(top_logprobs=None), 1, "passage", "without logprob or list"),
    "list empty": (third(top_logprobs=[]), 1, "passage", "without logprob or list"),
    "a drafted token": (third(logprob=0.0, top_logprobs=[]), 1, "passage", "speculative decoding"),
    "all alternatives underflowed": (
        third_list(lambda t: [{"id": i, "logprob": -3.4028235e38} for i in range(20)]),
        1,
        "passage",
        "no alternative has a probability",
    ),
    "list too long": (third_list(lambda t: [*t, {"id": 259, "logprob": -90.0}]), 1, "passage",
                      "alternatives came"),
    "list unsorted": (third_list(lambda t: t[::-1]), 1, "passage", "falling order"),
    "an id twice": (third_list(lambda t: t[4].update(id=t[3]["id"])), 1, "passage", "twice"),
    "an id outside the vocabulary": (third_list(lambda t: t[-1].update(id=260)), 1, "passage",
                                     "not in 0 .. 259"),
    "a negative id": (third_list(lambda t: t[-1].update(id=-1)), 1, "passage", "not in 0 .. 259"),
    "sums above 1": (edited(all_rows_scaled), 1, "passage", "sum to"),
    "two values for one token": (
        entries(lambda found: found[2]["top_logprobs"][0].update(id=found[2]["id"])),
        1,
        "passage",
        "(two log-probabilities|twice)",
    ),
    "probabilities after sampling": (edited(after_sampling), 1, "passage", "after sampling"),
    "the oldest format": (edited(oldest_format), 1, "passage", "after sampling"),
    "truncated": (edited(lambda a: a.update(truncated=True)), 1, "passage", "ran out of context"),
    "stopped by a word": (edited(lambda a: a.update(stop_type="word")), 1, "passage", "'word'"),
    "stopped by the end of text": (edited(lambda a: a.update(stop_type="eos")), 1, "passage",
                                   "'eos'"),
    "another model's reply": (edited(lambda a: a.update(model="other.gguf")), 1, "passage",
                              "'other.gguf' answered"),
    "another prompt was read": (edited(lambda a: a.update(tokens_evaluated=3)), 1, "passage",
                                "read 3 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_fault(name: str, start: Start, texts: list[Text], tmp_path: Path) -> None:
    fault, times, outcome, words = FAULTS[name]
    texts = texts[: 3 if times < 10**6 else 1]
    good = StandIn()
    [expected] = await harvest_async(
        texts, await start(good), tmp_path / "good", dataset="d", alternatives=20
    )
    standin = StandIn(fault=fault, fault_times=times, slots=1)
    url = await start(standin)

    async def run(out: str) -> Any:
        return await harvest_async(
            texts,
            url,
            tmp_path / out,
            dataset="d",
            alternatives=20,
            timeout_s=0.5 if fault is silent else 60.0,
            patience_s=5.0,
        )

    if outcome == "stopped":
        with pytest.raises(ServerError, match=words):
            await run("bad")
        assert not list((tmp_path / "bad").glob("*.nc"))
    elif times >= 10**6:
        with pytest.raises(IncompleteError, match=words):
            await run("bad")
        assert not list((tmp_path / "bad").glob("*.nc"))
    else:
        [report] = await run("bad")
        reasons = [reason for _, reason in report.failures]
        assert len(reasons) == (outcome == "passage"), reasons
        assert all(re.search(words, reason) for reason in reasons), reasons
        # it was asked again exactly where that may help
        assert (standin.completions > good.completions) == (outcome == "mended")
        assert store.read_harvest(report.path).sizes["document"] == 3 - len(reasons)
    # what was spoiled is made up for by the next run, and then nothing differs
    standin.fault = None
    [report] = await run("bad")
    assert not report.failures
    again, whole = store.read_harvest(report.path), store.read_harvest(expected.path)
    assert again.drop_attrs().identical(whole.drop_attrs())
