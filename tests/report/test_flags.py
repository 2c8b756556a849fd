"""The flags for llama-server: exact strings, and names that the real server knows."""

import importlib.util
import json
import shlex
import urllib.request
from pathlib import Path

import pytest

from jaxsppl.errors import ConfigError
from jaxsppl.report.flags import llama_server_flags, obstacles

LLAMA = ("top_k", "top_p", "min_p", "temperature")


@pytest.mark.parametrize(
    ("settings", "chain", "expected"),
    [
        (
            {"temperature": 0.8, "top_k": 40.0, "top_p": 0.95, "min_p": 0.05},
            LLAMA,
            '--samplers "top_k;top_p;min_p;temperature" '
            "--temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05",
        ),
        ({}, (), '--samplers "temperature" --temp 1 --top-k 0 --top-p 1 --min-p 0'),
        (
            {"temperature": 0.0},
            ("temperature",),
            '--samplers "temperature" --temp 0 --top-k 0 --top-p 1 --min-p 0',
        ),
        (
            {"temperature": 1.25, "min_p": 1e-5},
            ("temperature", "min_p"),
            '--samplers "temperature;min_p" --temp 1.25 --top-k 0 --top-p 1 --min-p 0.00001',
        ),
        (  # plain draw and the scoring are no matter for the server
            {"top_k": 20.0, "alpha": 1.0, "beta": 1.0, "epsilon": 0.001},
            ("top_k",),
            '--samplers "top_k" --temp 1 --top-k 20 --top-p 1 --min-p 0',
        ),
        (  # a value whose stage is not in the chain has no effect and is not passed on
            {"top_k": 20.0, "temperature": 0.5},
            ("top_k",),
            '--samplers "top_k" --temp 1 --top-k 20 --top-p 1 --min-p 0',
        ),
    ],
)
def test_exact_flags(settings: dict[str, float], chain: tuple[str, ...], expected: str) -> None:
    assert llama_server_flags(settings, chain) == expected


@pytest.mark.parametrize(
    ("settings", "chain", "named"),
    [
        ({"alpha": 0.8}, ("temperature",), "alpha 0.8"),
        ({"beta": 2.0}, ("temperature",), "beta 2"),
        ({"my_cut": 0.1}, ("temperature",), "my_cut 0.1"),
        ({}, ("my_stage", "temperature"), "stage my_stage"),
    ],
)
def test_what_llama_cpp_cannot_do_is_named(
    settings: dict[str, float], chain: tuple[str, ...], named: str
) -> None:
    assert obstacles(settings, chain) == [named]
    with pytest.raises(ConfigError, match=named):
        llama_server_flags(settings, chain)


def test_the_server_library_knows_every_flag() -> None:
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    (library,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    binary = library.read_bytes()
    words = shlex.split(llama_server_flags({"temperature": 0.8}, LLAMA))
    flags = [word for word in words if word.startswith("--")]
    assert flags == ["--samplers", "--temp", "--top-k", "--top-p", "--min-p"]
    for flag in flags:
        assert b"\0" + flag.encode() + b"\0" in binary


def test_the_server_applies_the_samplers_in_our_order(llama_server: str) -> None:
    order = ("temperature", "min_p", "top_p", "top_k")
    words = shlex.split(llama_server_flags({"temperature": 1.5, "top_k": 20.0}, order))
    given = dict(zip(words[::2], words[1::2], strict=True))
    request = {
        "prompt": "Once upon a time",
        "n_predict": 1,
        "samplers": given["--samplers"].split(";"),
        "temperature": float(given["--temp"]),
        "top_k": int(given["--top-k"]),
        "top_p": float(given["--top-p"]),
        "min_p": float(given["--min-p"]),
    }
    body = json.dumps(request).encode()
    with urllib.request.urlopen(f"{llama_server}/completion", data=body, timeout=60) as reply:
        settings = json.load(reply)["generation_settings"]
    # a name that the server does not know would be dropped without a word
    assert settings["samplers"] == list(order)
    assert settings["temperature"] == 1.5
    assert (settings["top_k"], settings["top_p"], settings["min_p"]) == (20, 1.0, 0.0)
