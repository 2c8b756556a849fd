"""Fixtures that several rooms share: the real model and a real llama.cpp server on loopback."""

import getpass
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from jaxsppl.harvest.demo_model import demo_model
from jaxsppl.harvest.local import LocalServer

# What runs unattended draws the same examples every time; by hand each run draws new ones. Neither
# is timed: a busy machine is no mistake.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("by hand", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "by hand")

# Test processes and the commands that they start share what JAX has compiled.
_COMPILED = Path(tempfile.gettempdir()) / f"jaxsppl-tests-{getpass.getuser()}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**30))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# A shell starts background jobs with Ctrl-C ignored, which every child would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Every compiled program takes some tens of the memory mappings that Linux allows a process, 65,530
# in all; when there are no more, the next one that is loaded crashes.
_MAPPINGS = 20_000


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs() -> Iterator[None]:
    """Drop what earlier modules have compiled when it takes much of what a process may have."""
    yield
    mappings = Path("/proc/self/maps")
    if "jax" in sys.modules and mappings.exists():
        with mappings.open() as lines:
            number = sum(1 for _ in lines)
        if number > _MAPPINGS:
            sys.modules["jax"].clear_caches()


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
