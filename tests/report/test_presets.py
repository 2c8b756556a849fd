"""Presets of other programs: what each syntax means, and what is refused in one line."""

import json
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsppl.errors import ConfigError
from jaxsppl.report.export import export
from jaxsppl.report.presets import Preset, import_preset

LLAMA = ("top_k", "top_p", "min_p", "temperature")


def read(folder: Path, name: str, text: str | dict[str, object], form: str | None = None) -> Preset:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return import_preset(path, form)


def test_generation_config(tmp_path: Path) -> None:
    given = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "min_p": None,
        "eos_token_id": [1, 2],
        "_from_model_config": True,
        "vendor": {"nested": [1]},
        "repetition_penalty": 1.05,
    }
    found = read(tmp_path, "generation_config.json", given)
    assert found.program == "generation_config"
    # the default of top_k is 50, and ties at its edge are kept there
    assert found.settings == {"top_k": 50.0, "temperature": 0.6, "top_p": 0.9}
    assert found.chain == ("temperature", "top_k@transformers", "top_p")
    assert found.left_out == ("repetition_penalty 1.05",)


@pytest.mark.parametrize("sample", [False, None])
def test_without_sampling_it_is_greedy(tmp_path: Path, sample: bool | None) -> None:
    given = {"do_sample": sample, "temperature": 0.6, "top_p": 0.9}
    found = read(tmp_path, "x.json", given)
    assert (found.chain, found.settings) == (("temperature",), {"temperature": 0.0})


def test_llama_cpp_flags_fill_in_the_servers_defaults(tmp_path: Path) -> None:
    script = (
        "#!/bin/sh\n# --temp 9\nllama-server -m 'a b.gguf' --temp 1.1 \\\n --top-k=0 --host x\n"
    )
    found = read(tmp_path, "serve.sh", script)
    assert found.settings == {"temperature": 1.1, "top_p": 0.95, "min_p": 0.05}
    assert found.chain == ("top_p", "min_p", "temperature")
    found = read(tmp_path, "serve.sh", "--samplers 'temperature;min_p' --top-nsigma -1")
    assert found.chain == ("temperature", "min_p")
    assert set(found.left_out) == {"top_k 40 (not in its order)", "top_p 0.95 (not in its order)"}
    assert read(tmp_path, "serve.sh", "--sampling-seq tmp --temp 0.5").chain == (
        "temperature", "min_p", "top_p",
    )  # fmt: skip


def test_a_request_for_llama_server(tmp_path: Path) -> None:
    given = {"samplers": ["xtc", "temperature", "unheard_of"], "xtc_probability": 0.5, "top_k": -1}
    found = read(tmp_path, "x.json", given)
    assert found.chain == ("xtc", "temperature")
    assert found.settings == {"temperature": 0.8, "xtc_probability": 0.5}
    nested = read(tmp_path, "x.json", {"generation_settings": {**given, "min_p": 0.3}})
    assert nested.chain == found.chain


@pytest.mark.parametrize(
    "given",
    [
        ["typ_p", "tfs_z", "typical_p", "xtc", "top_p", "min_p", "temperature"],
        ["temp", "min-p", "NUCLEUS", "top-k", "typ", "top-n-sigma", "top_nsigma", " xtc"],
        ["top_k", "min_p", "top_k"],
        "edskypmxt",
        "top_k;temperature",
        [],
    ],
)
def test_an_order_is_read_as_the_real_server_reads_it(
    tmp_path: Path, llama_server: str, given: list[str] | str
) -> None:
    everything = {
        "temperature": 0.5, "top_k": 9, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5,
        "top_n_sigma": 2, "xtc_probability": 0.5, "repeat_last_n": 64, "samplers": given,
    }  # fmt: skip
    body = json.dumps({"prompt": "Once", "n_predict": 1, **everything}).encode()
    with urllib.request.urlopen(f"{llama_server}/completion", data=body, timeout=60) as reply:
        told = json.load(reply)["generation_settings"]["samplers"]
    passed = ("penalties", "dry", "adaptive_p", "infill")  # nothing of a single token
    expected = [{"typ_p": "typical_p"}.get(name, name) for name in told if name not in passed]
    assert [*read(tmp_path, "x.json", everything).chain] == expected


def test_vllm_comes_temperature_first(tmp_path: Path) -> None:
    found = read(tmp_path, "x.json", {"temperature": 1.2, "top_k": -1, "min_p": 0.1}, "vllm")
    assert found.chain == ("temperature", "min_p")
    assert found.settings == {"temperature": 1.2, "min_p": 0.1}
    with pytest.raises(ConfigError, match="--format"):
        read(tmp_path, "x.json", {"temperature": 1.2, "top_p": 0.9})


def test_ollama(tmp_path: Path) -> None:
    text = 'FROM x\nparameter temperature 1.5\nPARAMETER top_k 20\nPARAMETER stop "<|end|>"\n'
    found = read(tmp_path, "Modelfile", text)
    assert found.chain == ("top_k", "temperature", "top_p")
    assert found.settings == {"temperature": 1.5, "top_k": 20.0, "top_p": 0.9}
    assert read(tmp_path, "x.json", {"options": {"min_p": 0.1}}).settings["min_p"] == 0.1


def test_sillytavern(tmp_path: Path) -> None:
    given = {
        "temp": 1,
        "dynatemp": True,
        "min_temp": 0.5,
        "max_temp": 1.5,
        "top_p": 1,
        "min_p": "0.05",
        "epsilon_cutoff": 3,
        "samplers": ["penalties", "min_p", "temperature"],
        "rep_pen": 1.1,
    }
    found = read(tmp_path, "x.json", given)
    assert found.chain == ("min_p", "temperature")
    assert found.settings == {"dynatemp_range": 0.5, "min_p": 0.05}
    assert found.left_out == ("rep_pen 1.1", "epsilon_cutoff 0.0003 (not in its order)")


def test_text_generation_webui(tmp_path: Path) -> None:
    text = "temperature: 1.31\ntop_p: 0.9\nmin_p: 0.1\nepsilon_cutoff: 2.5\ntop_k: 0\n"
    found = read(tmp_path, "x.yaml", text)
    assert found.chain == ("temperature", "top_p", "epsilon_cutoff", "min_p")
    assert found.settings["epsilon_cutoff"] == pytest.approx(2.5e-4)
    last = read(tmp_path, "x.yaml", text + "temperature_last: true\n")
    assert last.chain == ("top_p", "epsilon_cutoff", "min_p", "temperature")
    listed = read(tmp_path, "x.yaml", text + "sampler_priority: |-\n  min_p\n  temperature\n")
    assert listed.chain == ("min_p", "temperature")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", '{"temp": 1,}', "not valid JSON"),
        ("x.json", "[" * 100_000, "not valid JSON"),
        ("x.json", "[1, 2]", "no names with values"),
        ("x.json", '{"temp": "hot"}', "temp is 'hot'"),
        ("x.json", '{"temp": NaN}', "temp is 'nan'"),
        ("x.json", '{"temp": true}', "temp is 'True'"),
        ("x.json", '{"temp": 1, "mirostat_mode": 2}', "depends on what was drawn"),
        ("x.json", '{"samplers": 3}', "a list of names"),
        ("x.yaml", "a: [1", "not valid YAML"),
        ("x.yaml", "!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("x.txt", "--temp 'open", "quotation"),
        ("x.txt", "hello", "no sampling flags"),
        ("x.json", "\x00\x01", "not valid JSON"),
    ],
)
def test_what_is_no_preset_is_one_clear_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(tmp_path, name, text)
    assert name in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        import_preset(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="name a preset"):
        import_preset(tmp_path)
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        import_preset(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="did you mean 'ollama'"):
        import_preset(tmp_path / "x.json", "olama")


@given(
    st.sampled_from(["llama.cpp", "llama-server-json", "sillytavern"]),
    st.permutations(LLAMA),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.35, 0.8, 2.0]),
            "top_k": st.sampled_from([1.0, 40.0]),
            "top_p": st.sampled_from([0.2, 0.95]),
            "min_p": st.sampled_from([1e-5, 0.05]),
        }
    ),
)
def test_what_was_exported_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    chain: list[str],
    settings: dict[str, float],
) -> None:
    text = export(settings, chain, form).text
    found = read(tmp_path_factory.mktemp("preset"), "x.txt", text)
    assert found.program == form
    if settings["temperature"] == 0:  # nothing else matters then, and nothing else is stated
        assert found.settings == {"temperature": 0.0}
    else:
        assert (found.chain, found.settings) == (tuple(chain), settings)
    assert found.left_out == ()
