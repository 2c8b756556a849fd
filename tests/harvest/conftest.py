"""Passages and helpers of the harvest tests."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harvest_standin import StandIn, Text

Start = Callable[[StandIn], Awaitable[str]]


@pytest.fixture
def start(aiohttp_server: Any) -> Start:
    """Start a stand-in server and return its address."""

    async def begin(standin: StandIn) -> str:
        server = await aiohttp_server(standin.app())
        return f"http://127.0.0.1:{server.port}"

    return begin


@pytest.fixture
def texts() -> list[Text]:
    """Six short passages of plain words."""
    words = "the cat sat on the mat and looked at a dog that ran"
    return [Text(f"doc-{i}", f"It was said {i} times: ", f"{words} {i} times.") for i in range(6)]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on a key of the machine it runs on."""
    monkeypatch.delenv("JAXSPPL_API_KEY", raising=False)
