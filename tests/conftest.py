"""Fixtures that several rooms share: the real model and a real llama.cpp server on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxsppl.harvest.demo_model import demo_model
from jaxsppl.harvest.local import LocalServer


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The demo's GGUF file; downloaded once, then from the cache."""
    return demo_model()


@pytest.fixture(scope="session")
def llama_server(model_path: Path) -> Iterator[str]:
    """Address of a real server with 2 slots of 1024 tokens; one for each test process."""
    # One thread: two of them wait for each other in busy loops, which a loaded machine punishes.
    with LocalServer(model_path, slots=2, context=1024, threads=1) as server:
        yield server.url
