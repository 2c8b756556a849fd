"""Settings for other programs: exact words, the same law, and names that the real server knows."""

import importlib.util
import json
import shlex
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from law_reference import chain_law
from small_sweep import sweep
from test_table import optimum

from jaxsppl import store
from jaxsppl.errors import ConfigError
from jaxsppl.report.chosen import export_point
from jaxsppl.report.export import export, llama_server_flags, obstacles

JSON = "llama-server-json"
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


def asked(server: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What the real server says it samples with."""
    body = json.dumps({"prompt": "Once upon a time", "n_predict": 1, **fields}).encode()
    with urllib.request.urlopen(f"{server}/completion", data=body, timeout=60) as reply:
        return json.load(reply)["generation_settings"]


def test_the_server_applies_the_samplers_in_our_order(llama_server: str) -> None:
    order = ("temperature", "min_p", "top_p", "top_k")
    words = shlex.split(llama_server_flags({"temperature": 1.5, "top_k": 20.0}, order))
    given = dict(zip(words[::2], words[1::2], strict=True))
    settings = asked(
        llama_server,
        {
            "samplers": given["--samplers"].split(";"),
            "temperature": float(given["--temp"]),
            "top_k": int(given["--top-k"]),
            "top_p": float(given["--top-p"]),
            "min_p": float(given["--min-p"]),
        },
    )
    # a name that the server does not know would be dropped without a word
    assert settings["samplers"] == list(order)
    assert settings["temperature"] == 1.5
    assert (settings["top_k"], settings["top_p"], settings["min_p"]) == (20, 1.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "chain"),
    [
        ({"temperature": 0.9, "min_p": 0.03}, ("min_p", "temperature")),
        (
            {
                "temperature": 0.9,
                "dynatemp_range": 0.25,
                "dynatemp_exponent": 1.5,
                "top_k": 30.0,
                "top_p": 0.8,
                "min_p": 0.03,
                "typical_p": 0.7,
                "top_n_sigma": 1.5,
                "xtc_probability": 0.25,
                "xtc_threshold": 0.2,
            },
            ("xtc", "temperature", "typical_p", "min_p", "top_n_sigma", "top_p", "top_k"),
        ),
    ],
)
def test_the_server_samples_with_what_the_request_says(
    llama_server: str, settings: dict[str, float], chain: tuple[str, ...]
) -> None:
    made = export(settings, chain, JSON)
    told = asked(llama_server, json.loads(made.text))
    assert set(made.settings) <= set(told)  # it knows each word
    for name, value in made.settings.items():
        assert told[name] == (pytest.approx(value) if isinstance(value, float) else value)
    names = {"typical_p": "typ_p"}
    assert told["samplers"] == [names.get(stage, stage) for stage in chain]
    for name, value in settings.items():
        assert told[name] == pytest.approx(value)


# How each program with an order of its own applies what it is told (samplers.md 2, 3, 5.6).
OWN_ORDER = {
    "vllm": ("temperature", "min_p", "top_k", "top_p"),
    "ollama": ("top_k", "temperature", "top_p", "min_p"),
    "generation_config": ("temperature", "top_k", "top_p", "min_p"),
}
NEUTRAL = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
VALUES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.4, 0.8, 1.0, 1.7]),
        "top_k": st.sampled_from([0.0, 1.0, 3.0, 12.0]),
        "top_p": st.sampled_from([0.3, 0.8, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2]),
    }
)


def words_of(form: str, text: str) -> dict[str, Any]:
    """The fields of an exported file, by its own syntax."""
    if form == "ollama":
        rows = [line.split() for line in text.splitlines()]
        assert {row[0] for row in rows} == {"PARAMETER"}
        return {row[1]: float(row[2]) for row in rows}
    return json.loads(text)


@given(st.sampled_from(sorted(OWN_ORDER)), st.permutations(sorted(NEUTRAL)), VALUES)
def test_what_a_fixed_order_gets_is_the_same_law(
    form: str, chain: list[str], values: dict[str, float]
) -> None:
    if obstacles(values, chain, form):
        # only a cut by mass depends on what was done before it
        assert values["top_p"] < 1
        assert values["temperature"] != 0
        return
    told = words_of(form, export(values, chain, form).text)
    if told.get("do_sample") is False:
        told = {"temperature": 0.0}
    rng = np.random.default_rng(7)
    for _ in range(3):
        logprob = -np.sort(-rng.normal(0, 2.5, 40))
        wanted = chain_law(logprob, [(stage, values[stage]) for stage in chain])
        got = chain_law(
            logprob, [(stage, told.get(stage, NEUTRAL[stage])) for stage in OWN_ORDER[form]]
        )
        np.testing.assert_allclose(got, wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "chain", "form", "named"),
    [
        ({"top_p": 0.9, "temperature": 0.7}, ("top_p", "temperature"), "vllm", "top_p before temp"),
        (
            {"top_p": 0.9, "top_k": 9.0},
            ("top_p", "top_k"),
            "generation_config",
            "top_p before top_k",
        ),
        ({"temperature": 2.5}, ("temperature",), "vllm", "temperature 2.5"),
        ({"temperature": 0.7, "alpha": 2.0}, ("temperature",), "ollama", "alpha 2"),
        ({"top_p": 0.9}, ("top_p", "top_p"), "vllm", "top_p twice"),
    ],
)
def test_what_a_program_cannot_do_is_named(
    settings: dict[str, float], chain: tuple[str, ...], form: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        export(settings, chain, form)


def test_temperatures_multiply_where_there_is_one() -> None:
    chain = ("temperature", "min_p", "temperature")
    told = export({"temperature": 0.5, "min_p": 0.01}, chain, "vllm").settings
    assert told["temperature"] == 0.25
    # before the second temperature, 0.01 of the top; after both, 0.01^(1/0.5)
    assert told["min_p"] == pytest.approx(1e-4)


def test_sillytavern_states_everything_that_is_not_neutral_there() -> None:
    made = export({"temperature": 0.8, "min_p": 0.1}, ("min_p", "temperature"), "sillytavern")
    preset = json.loads(made.text)
    assert preset["samplers"] == ["min_p", "temperature"]
    assert preset["temperature_last"] is True
    assert (preset["temp"], preset["min_p"], preset["top_p"], preset["rep_pen"]) == (0.8, 0.1, 1, 1)


def test_a_sweep_is_exported_with_the_nearest_where_it_must(tmp_path: Path) -> None:
    path = store.write_dataset(sweep(datasets=("prose",)), tmp_path / "x.sweep.nc")
    with pytest.raises(ConfigError, match=r"alpha 2.*min_p 0.02, top_k 10.*\+0.1000 nat/token"):
        export_point(path, "vllm")
    with pytest.raises(ConfigError, match=r"alpha 2\); nearest is --point temperature=0.5;"):
        export_point(path, "vllm", "temperature=0.5,alpha=2", dataset="prose")
    chosen, made = export_point(path, "vllm", "best-for-vllm")
    assert chosen.above_best == pytest.approx(0.1)
    assert (made.settings["top_k"], made.settings["min_p"]) == (10, 0.02)
    chosen, made = export_point(path, JSON, "temperature=0.5,min_p=0.1")
    assert made.settings["top_k"] == 0
    assert np.isfinite(chosen.point.nll)
    chosen, made = export_point(path, JSON, "temperature=0.55")
    assert np.isnan(chosen.point.nll)


def test_a_pair_must_be_clear(tmp_path: Path) -> None:
    path = store.write_dataset(sweep(), tmp_path / "x.sweep.nc")
    with pytest.raises(ConfigError, match="alpaca on prose; alpaca on code"):
        export_point(path, "llama.cpp", "best-for-llama.cpp")
    with pytest.raises(ConfigError, match="did you mean 'code'"):
        export_point(path, "llama.cpp", dataset="cod")
    chosen, _ = export_point(path, "llama.cpp", "best-for-llama.cpp", dataset="code")
    assert chosen.dataset == "code"
    with pytest.raises(ConfigError, match=r"alpha 2\); nearest is --point min_p=0.1$"):
        export_point(path, "ollama", "min_p=0.1,alpha=2")


def test_an_optimum_brings_what_was_held(tmp_path: Path) -> None:
    found = optimum().assign_attrs(chain="min_p,temperature", fixed_json='{"min_p": 0.05}')
    found["optimum"][..., 1] = 1.0  # alpha
    path = store.write_dataset(found, tmp_path / "x.optimum.nc")
    _, made = export_point(path, "llama.cpp")
    assert made.text == '--samplers "min_p;temperature" --temp 4 --top-k 0 --top-p 1 --min-p 0.05'
    found["optimum"][..., 1] = 2.0
    store.write_dataset(found, path)
    with pytest.raises(ConfigError, match=r"alpha 2.*nearest is --point .*--fixed alpha=1"):
        export_point(path, "llama.cpp")


def test_a_value_without_its_switch_stands_in_nobodys_way() -> None:
    settings = {"temperature": 0.8, "xtc_probability": 0.0, "xtc_threshold": 0.2}
    assert obstacles(settings, ("xtc", "temperature"), "vllm") == []
    settings["xtc_probability"] = 0.5
    found = obstacles(settings, ("xtc", "temperature"), "vllm")
    assert found == ["xtc_probability 0.5", "xtc_threshold 0.2"]
    flags = llama_server_flags(settings, ("xtc", "temperature"))
    assert flags.endswith("--xtc-probability 0.5 --xtc-threshold 0.2")


def test_a_variant_is_its_own_programs_alone() -> None:
    settings, chain = {"top_k": 20.0, "temperature": 0.7}, ("temperature", "top_k@transformers")
    assert json.loads(export(settings, chain, "generation_config").text)["top_k"] == 20
    assert obstacles(settings, chain, "llama.cpp") == ["stage top_k@transformers"]
