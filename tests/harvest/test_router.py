"""Router mode: several models behind one address, some of which do not load."""

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from harvest_standin import StandIn, Text

from jaxsppl import store
from jaxsppl.errors import ServerError
from jaxsppl.harvest.runner import harvest_async


@pytest.fixture
async def router(llama_server: str) -> AsyncGenerator[str]:
    """A router's manners before the one real server, under two names, and a model that fails."""
    states = {"smol-a": "unloaded", "smol-b": "unloaded", "broken": "unloaded"}
    listed: Callable[[str], Any] = lambda name: {  # noqa: E731
        "id": name,
        "aliases": [],
        "object": "model",
        "status": {"value": states[name]}
        if states[name] != "failed"
        else {"value": "unloaded", "failed": True, "exit_code": 1},
    }

    def refuse(status: int, message: str) -> web.Response:
        kind = "server_error" if status == 500 else "invalid_request_error"
        return web.json_response(
            {"error": {"code": status, "message": message, "type": kind}}, status=status
        )

    def trouble(name: str | None) -> web.Response | None:
        if not name:
            return refuse(400, "model name is missing from the request")
        if name not in states:
            return refuse(400, f"model '{name}' not found")
        if name == "broken":
            return refuse(500, "model name=broken failed to load")
        return None

    async def models(request: web.Request) -> web.Response:
        shown = [listed(name) for name in states]
        for name, state in states.items():
            states[name] = "loaded" if state == "loading" else state
        return web.json_response({"data": shown, "object": "list"})

    async def load(request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        states[name] = "failed" if name == "broken" else "loading"
        return web.json_response({"success": True})

    async with aiohttp.ClientSession() as session:

        async def passed_on(request: web.Request) -> web.Response:
            body = await request.read()
            name = json.loads(body).get("model") if body else request.query.get("model")
            if (refusal := trouble(name)) is not None:
                return refusal
            sent = session.request(request.method, llama_server + request.path, data=body or None)
            async with sent as reply:
                return web.Response(
                    body=await reply.read(),
                    status=reply.status,
                    content_type=reply.content_type,
                )

        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/models/load", load)
        app.router.add_get("/props", passed_on)
        app.router.add_post("/tokenize", passed_on)
        app.router.add_post("/completion", passed_on)
        server = TestServer(app)
        await server.start_server()
        yield f"http://127.0.0.1:{server.port}"
        await server.close()


async def test_all_models_of_a_router(
    router: str, llama_server: str, tmp_path: Path, texts: list[Text]
) -> None:
    options: dict[str, Any] = {"dataset": "d", "alternatives": 5}
    reports = await harvest_async(texts[:2], router, tmp_path, all_models=True, **options)
    assert [report.model for report in reports] == ["smol-a", "smol-b", "broken"]
    first, second = (store.read_harvest(str(report.path)) for report in reports[:2])
    assert str(first.model.values) == "smol-a"
    np.testing.assert_array_equal(first.token_logprob, second.token_logprob)
    # a router's list does not tell the size of the vocabulary
    assert first.attrs["n_vocab"] == 49152
    assert reports[2].path is None
    [(document, reason)] = reports[2].failures
    assert document == "*"
    assert "'broken' failed to load (exit code 1)" in reason
    [direct] = await harvest_async(texts[:2], llama_server, tmp_path, **options)
    same = store.read_harvest(str(direct.path))
    np.testing.assert_array_equal(first.token_logprob, same.token_logprob)


async def test_a_router_wants_a_choice(router: str, tmp_path: Path, texts: list[Text]) -> None:
    options: dict[str, Any] = {"dataset": "d", "alternatives": 5}
    with pytest.raises(ServerError, match="'smol-a', 'smol-b', 'broken'; name one with --model"):
        await harvest_async(texts, router, tmp_path, **options)
    with pytest.raises(ServerError, match="no server offers the model 'smol-c'"):
        await harvest_async(texts, router, tmp_path, models=["smol-c"], **options)
    with pytest.raises(ServerError, match="'broken' failed to load"):
        await harvest_async(texts, router, tmp_path, models=["broken"], **options)
    [report] = await harvest_async(texts[:1], router, tmp_path, models=["smol-b"], **options)
    assert report.model == "smol-b"


async def test_no_model_loads(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    url = await start(StandIn(router={"broken-1": "unloaded", "broken-2": "unloaded"}))
    with pytest.raises(ServerError, match=r"'broken-1' failed to load .*'broken-2' failed to load"):
        await harvest_async(texts, url, tmp_path, dataset="d", all_models=True)


async def test_names_of_models_are_no_paths(start: Any, tmp_path: Path, texts: list[Text]) -> None:
    for name in ("../../evil", "/etc/passwd", "ollama://deepseek-r1:7b", "C:\\models\\x.gguf", "."):
        url = await start(StandIn(name=name))
        [report] = await harvest_async(
            texts[:1], url, tmp_path / "out", dataset="../d", alternatives=5
        )
        path = Path(str(report.path))
        assert path.parent == tmp_path / "out"
        assert path.is_file()
        assert not path.name.startswith(".")
    assert {p.name for p in tmp_path.iterdir()} == {"out"}
