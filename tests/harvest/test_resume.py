"""A harvest that is killed, interrupted or robbed of its server ends with the same file."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from harvest_standin import StandIn, Text, error

from jaxsppl import store
from jaxsppl.errors import ConfigError, SchemaError, ServerError
from jaxsppl.harvest.local import LocalServer
from jaxsppl.harvest.protocol import Progress
from jaxsppl.harvest.runner import harvest, harvest_async
from jaxsppl.journal import lock

CHILD = Path(__file__).with_name("harvest_child.py")


def begin(url: str, out: Path, texts: list[Text], **options: Any) -> "subprocess.Popen[str]":
    given = {"url": url, "out": str(out), "texts": [astuple(t) for t in texts], **options}
    return subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_nothing_wrong(out: Path) -> None:
    """What lies there is whole, or is no file that opens."""
    for path in out.glob("*.nc"):
        assert store.read_harvest(path).attrs["complete"] == 1
    for path in out.glob(".*.part"):
        with contextlib.suppress(SchemaError):
            store.read_harvest(path)
            raise AssertionError(f"{path} opens as a harvest")


def test_killed_at_random_moments(llama_server: str, tmp_path: Path, texts: list[Text]) -> None:
    [report] = harvest(texts, llama_server, tmp_path / "whole", dataset="d", alternatives=20)
    whole = store.read_harvest(str(report.path))
    dice = random.Random(20)
    out = tmp_path / "killed"
    for _ in range(3):
        child = begin(llama_server, out, texts)
        time.sleep(dice.uniform(0.3, 1.6))
        child.kill()
        child.communicate()
        check_nothing_wrong(out)
    # and at places that chance hits rarely: after a passage, and while the file is written
    for die_at, after in ((1, 0.0), (4, 0.0), (6, 0.0), (6, 0.3)):
        child = begin(llama_server, out, texts, die_at=die_at, die_after_s=after)
        child.communicate()
        check_nothing_wrong(out)
    [again] = harvest(texts, llama_server, out, dataset="d", alternatives=20)
    resumed = store.read_harvest(str(again.path))
    assert resumed.attrs == {**whole.attrs, "source": resumed.attrs["source"]}
    assert resumed.identical(whole.assign_attrs(source=resumed.attrs["source"]))
    assert not list(out.glob(".*.jsonl"))


async def test_what_the_journal_holds_is_not_asked_again(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    standin = StandIn(slots=1)
    url = await start(standin)

    def stop(state: Progress) -> None:
        if state.done == 4:
            raise RuntimeError("the caller has seen enough")

    with pytest.raises(RuntimeError, match="seen enough"):
        await harvest_async(
            texts, url, tmp_path, dataset="d", alternatives=5, parallel=1, progress=stop
        )
    [journal] = tmp_path.glob(".*.jsonl")
    # a torn last line, as a power cut leaves it
    with journal.open("ab") as handle:
        handle.write(b'{"document":"doc-4","n_token":12,"tok')
    standin.seen.clear()
    [report] = await harvest_async(texts, url, tmp_path, dataset="d", alternatives=5)
    asked = {bytes(body["prompt"][1:30]) for body in standin.seen if len(body["prompt"]) > 8}
    assert asked == {b"It was said 4 times: ", b"It was said 5 times: "}
    assert store.read_harvest(str(report.path)).document.values.tolist() == [
        text.document for text in texts
    ]
    assert not list(tmp_path.glob(".*.jsonl"))


async def test_order_of_passages_not_of_completion(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    async def slow_first(standin: StandIn, body: Any, answer: Any) -> None:
        if b"said 0 times" in bytes(body["prompt"][1:30]):
            await asyncio.sleep(0.5)

    standin = StandIn(fault=slow_first)
    done: list[int] = []
    [report] = await harvest_async(
        texts, await start(standin), tmp_path, dataset="d", alternatives=5,
        progress=lambda state: done.append(state.done),
    )  # fmt: skip
    found = store.read_harvest(str(report.path))
    assert found.document.values.tolist() == [text.document for text in texts]
    for i, text in enumerate(texts):
        part = found.isel(token=found.document_index.values == i)
        assert bytes(part.token_id.values.tolist()) == text.continuation.encode()
    assert done == [0, 1, 2, 3, 4, 5, 6]


def test_ctrl_c_leaves_a_journal_and_no_traceback_of_ours(
    llama_server: str, tmp_path: Path, texts: list[Text]
) -> None:
    # long enough that a third is not done before the signal arrives, on any machine
    texts = [Text(text.document, text.prefix, 8 * text.continuation) for text in texts]
    child = begin(llama_server, tmp_path, texts)
    assert child.stdout is not None
    while child.stdout.readline().strip() not in {"2", ""}:
        pass
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert err.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert not list(tmp_path.glob("*.nc"))
    [journal] = tmp_path.glob(".*.jsonl")
    assert len(journal.read_bytes().splitlines()) >= 3
    [report] = harvest(texts, llama_server, tmp_path, dataset="d", alternatives=20)
    assert report.n_document == len(texts)


def test_a_server_that_is_killed_and_comes_back(
    model_path: Path, llama_server: str, tmp_path: Path, texts: list[Text]
) -> None:
    options: dict[str, Any] = {"dataset": "d", "alternatives": 20}
    [report] = harvest(texts, llama_server, tmp_path / "whole", **options)
    server = LocalServer(model_path, slots=2, context=1024, threads=1).start()
    port, notes = server.port, list[str]()
    helper: list[threading.Thread] = []

    def later() -> None:
        time.sleep(1.0)
        server.port = port
        server.start()

    def told(state: Progress) -> None:
        notes.append(state.note)
        if state.done == 2 and not helper:
            server.kill()
            helper.append(threading.Thread(target=later))
            helper[0].start()

    try:
        [again] = harvest(texts, server.url, tmp_path / "robbed", progress=told, **options)
    finally:
        helper[0].join()
        server.stop()
    assert any("waiting for" in note and "cannot connect" in note for note in notes)
    whole, robbed = (store.read_harvest(str(r.path)) for r in (report, again))
    assert whole.drop_attrs().identical(robbed.drop_attrs())


async def test_a_server_that_comes_back_as_another(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    standin = StandIn(slots=1)

    async def change(server: StandIn, body: Any, answer: Any) -> Any:
        server.build = "b2-newer"
        return error(503, "Loading model")

    standin.fault, standin.fault_times = change, 3
    with pytest.raises(ServerError, match="came back with build 'b2-newer' instead of 'b1-stand"):
        await harvest_async(texts, await start(standin), tmp_path, dataset="d", alternatives=5)
    assert not list(tmp_path.glob("*.nc"))


async def test_of_two_servers_one_dies(
    aiohttp_server: Any, start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    [whole] = await harvest_async(
        texts, await start(StandIn()), tmp_path / "whole", dataset="d", alternatives=5
    )
    dying, other = StandIn(slots=1), StandIn(slots=1, delay_s=0.05)
    mortal = await aiohttp_server(dying.app())

    async def die(server: StandIn, body: Any, answer: Any) -> None:
        asyncio.get_running_loop().create_task(mortal.close())
        await asyncio.sleep(0.2)

    dying.fault, dying.fault_times = die, 1
    urls = [f"http://127.0.0.1:{mortal.port}", await start(other)]
    [report] = await harvest_async(
        texts, urls, tmp_path / "two", dataset="d", alternatives=5, patience_s=1.0
    )
    assert not report.failures
    first, second = (store.read_harvest(str(r.path)) for r in (whole, report))
    assert first.drop_attrs().identical(second.drop_attrs())


async def test_all_servers_die(
    aiohttp_server: Any, start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    standin = StandIn(slots=1)
    mortal = await aiohttp_server(standin.app())

    async def die(server: StandIn, body: Any, answer: Any) -> None:
        if b"said 3" in bytes(body["prompt"][1:30]):
            asyncio.get_running_loop().create_task(mortal.close())
            await asyncio.sleep(0.2)

    standin.fault = die
    with pytest.raises(ServerError, match=r"with [23] passages left, what is finished is kept"):
        await harvest_async(
            texts, f"http://127.0.0.1:{mortal.port}", tmp_path, dataset="d", alternatives=5,
            patience_s=0.5,
        )  # fmt: skip
    assert not list(tmp_path.glob("*.nc"))
    standin.fault = None
    standin.seen.clear()
    [report] = await harvest_async(
        texts, await start(standin), tmp_path, dataset="d", alternatives=5
    )
    assert report.n_document == 6
    assert len({bytes(b["prompt"][1:30]) for b in standin.seen if len(b["prompt"]) > 8}) in {2, 3}


async def test_two_servers_share_the_work(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    one, two = StandIn(slots=1, delay_s=0.02), StandIn(slots=2, delay_s=0.02)
    await harvest_async(
        texts, [await start(one), await start(two)], tmp_path, dataset="d", alternatives=5
    )
    asked = [{bytes(b["prompt"][1:30]) for b in s.seen if len(b["prompt"]) > 8} for s in (one, two)]
    assert min(len(passages) for passages in asked) >= 1
    assert not asked[0] & asked[1]
    assert len(asked[0] | asked[1]) == 6
    assert {body["id_slot"] for body in two.seen if len(body["prompt"]) > 8} <= {0, 1}


async def test_servers_that_differ_do_not_share(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    urls = [await start(StandIn()), await start(StandIn(n_ctx=512))]
    with pytest.raises(ServerError, match="n_context 512 instead of 256"):
        await harvest_async(texts, urls, tmp_path, dataset="d", alternatives=5)
    urls = [await start(StandIn()), await start(StandIn(name="other.gguf"))]
    with pytest.raises(ServerError, match=r"the servers have different models.*--all-models"):
        await harvest_async(texts, urls, tmp_path, dataset="d", alternatives=5)
    reports = await harvest_async(
        texts, urls, tmp_path, dataset="d", alternatives=5, all_models=True
    )
    assert [report.model for report in reports] == ["Stand In.Q4", "other"]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("method", ["auto", "one-token"])
async def test_old_servers_and_bos(
    start: Any, tmp_path: Path, texts: list[Text], bos: bool, method: str
) -> None:
    texts = [*texts[:2], Text("bytes", "", "d\u00e9j\u00e0 vu \U0001f984!\0 nul")]
    standin = StandIn(bos=bos, grammars=False, meta=False)
    [report] = await harvest_async(
        texts, await start(standin), tmp_path, dataset="d", alternatives=20, method=method
    )
    found = store.read_harvest(str(report.path))
    assert not report.failures
    assert found.attrs["method"] == "one-token"
    assert found.attrs["n_vocab"] == 260
    assert found.context_tokens.values[0] == len(texts[0].prefix) + bos
    last = found.isel(token=found.document_index.values == 2)
    assert bytes(last.token_id.values.tolist()) == texts[2].continuation.encode()[not bos :]
    # a new server gives the same numbers by its grammars
    fresh = await start(StandIn(bos=bos))
    [other] = await harvest_async(texts, fresh, tmp_path / "new", dataset="d", alternatives=20)
    new = store.read_harvest(str(other.path))
    assert new.attrs["method"] == "token-grammar"
    assert new.drop_attrs().identical(found.drop_attrs())


async def test_a_method_that_is_asked_for_is_not_replaced(
    start: Any, tmp_path: Path, texts: list[Text]
) -> None:
    url = await start(StandIn(grammars=False))
    with pytest.raises(ServerError, match=r"knows no token grammars.*--method auto or one-token"):
        await harvest_async(texts, url, tmp_path, dataset="d", method="token-grammar")


async def test_still_loading(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    notes: list[str] = []
    standin = StandIn(loading=7)
    [report] = await harvest_async(
        texts, await start(standin), tmp_path, dataset="d", alternatives=5,
        progress=lambda state: notes.append(state.note),
    )  # fmt: skip
    assert report.n_document == 6
    assert any("Loading model" in note for note in notes)
    with pytest.raises(ServerError, match=r"Loading model; still so after 0\.2 s"):
        await harvest_async(
            texts, await start(StandIn(loading=10**6)), tmp_path, dataset="d", patience_s=0.2
        )


FULL = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from harvest_standin import Text
from jaxsppl.errors import JaxspplError
from jaxsppl.harvest.runner import harvest
given = json.loads(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (given["limit"], given["limit"]))
try:
    texts = [Text(*text) for text in given["texts"]]
    harvest(texts, given["url"], given["out"], dataset="d", alternatives=20)
except JaxspplError as error:
    print(error)
    sys.exit(error.exit_code)
"""


async def test_the_disk_is_full(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    [whole] = await harvest_async(
        texts, await start(StandIn()), tmp_path / "whole", dataset="d", alternatives=20
    )
    url = await start(StandIn())
    given = {"url": url, "out": str(tmp_path / "full"), "limit": 40_000,
             "texts": [astuple(text) for text in texts]}  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL, str(Path(__file__).parent), json.dumps(given),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert (process.returncode, "cannot " in said, said.count("\n")) == (1, True, 1), said
    assert not list((tmp_path / "full").glob("*.nc"))
    assert not list((tmp_path / "full").glob(".*.part"))
    [report] = await harvest_async(texts, url, tmp_path / "full", dataset="d", alternatives=20)
    first, second = (store.read_harvest(str(r.path)) for r in (whole, report))
    assert first.drop_attrs().identical(second.drop_attrs())


async def test_the_clock_jumps(
    start: Any, tmp_path: Path, texts: list[Text], monkeypatch: pytest.MonkeyPatch
) -> None:
    [whole] = await harvest_async(
        texts, await start(StandIn()), tmp_path / "whole", dataset="d", alternatives=5
    )
    dice = random.Random(3)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + dice.choice([-1e6, 0.0, 1e6]))

    async def trouble(standin: StandIn, body: Any, answer: Any) -> Any:
        reply = error(503, "busy")
        reply.headers["Retry-After"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        return reply

    url = await start(StandIn(fault=trouble, fault_times=3))
    [report] = await harvest_async(texts, url, tmp_path / "jumps", dataset="d", alternatives=5)
    assert not report.failures
    assert 0 < report.seconds < 60
    first, second = (store.read_harvest(str(r.path)) for r in (whole, report))
    assert first.drop_attrs().identical(second.drop_attrs())


async def test_a_server_that_drafts_tokens(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    url = await start(StandIn(speculative=True))
    with pytest.raises(ServerError, match=r"drafts tokens \(speculative decoding\)"):
        await harvest_async(texts, url, tmp_path, dataset="d", alternatives=5)


async def test_two_runs_on_one_output(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    url = await start(StandIn(name="twice"))
    with (
        lock(tmp_path / "twice.d.harvest.nc"),
        pytest.raises(ConfigError, match="is being written by"),
    ):
        await harvest_async(texts, url, tmp_path, dataset="d", alternatives=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alternatives": 0}, "alternatives is 0"),
        ({"parallel": 0}, "parallel is 0"),
        ({"protocol": "llama-cpp"}, "did you mean 'llama.cpp'"),
        ({"method": "tokengrammar"}, "did you mean 'token-grammar'"),
        ({"dataset": ""}, "no name"),
        ({"passages": []}, "no passages"),
        ({"servers": []}, "no server"),
        ({"servers": "ftp://x"}, "no server address"),
        ({"models": ["a"], "all_models": True}, "choose one of the two"),
        ({"passages": [Text("a", "", "b"), Text("a", "", "c")]}, "two passages have the name 'a'"),
    ],
)
def test_arguments_that_cannot_be_meant(
    change: dict[str, Any], words: str, tmp_path: Path, texts: list[Text]
) -> None:
    given: dict[str, Any] = {
        "passages": texts, "servers": "127.0.0.1:1", "out": tmp_path, "dataset": "d", **change
    }  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        harvest(**given)


async def test_more_alternatives_than_the_vocabulary(
    start: Any, tmp_path: Path, texts: list[Text], caplog: Any
) -> None:
    [report] = await harvest_async(
        texts[:1], await start(StandIn()), tmp_path, dataset="d", alternatives=1000
    )
    found = store.read_harvest(str(report.path))
    assert found.sizes["rank"] == 260
    assert (found.token_rank > 0).all()
    assert "vocabulary of 260" in caplog.text
