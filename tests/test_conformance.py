"""Our law beside the one that a real llama-server reports."""

import subprocess
import sys
from pathlib import Path

from jaxsppl.conformance import NARROW, WIDE, conformance, random_settings
from jaxsppl.report.programs import LLAMA_STAGES
from jaxsppl.sweep.baselines import Baseline

SCRIPT = Path(__file__).parents[1] / "scripts" / "conformance.py"
CHAINS, PLACES = 40, 25
# Of which these chains have every sampler first and last, and every kind of value.
SEED = 3


def test_random_chains_are_sampled_alike(llama_server: str) -> None:
    found = conformance(llama_server, chains=CHAINS, places=PLACES, seed=SEED)
    assert not found.disagreements, "\n".join(one.text() for one in found.disagreements)
    assert found.compared + found.silent == CHAINS * PLACES
    # Few laws hang on a limit that float32 rounds to one side or the other.
    assert found.ties + found.silent <= 0.03 * CHAINS * PLACES
    assert 0 < found.narrow <= NARROW
    assert 0 < found.wide <= WIDE


def test_random_chains_have_every_sampler_anywhere_and_extreme_values() -> None:
    settings = random_settings(CHAINS, 49152, SEED)
    for end in (0, -1):
        assert {one.chain[end] for one in settings} == set(LLAMA_STAGES)
    assert any(len(set(one.chain)) < len(one.chain) for one in settings)
    for name, some in {
        "temperature": {0.0, 1.0}, "top_k": {0.0, 1.0}, "top_p": {0.0, 1.0}, "min_p": {0.0, 1.0},
        "xtc_probability": {0.0, 1.0}, "xtc_threshold": {0.0, 0.5}, "typical_p": {0.0, 1.0},
        "top_n_sigma": {-1.0, 50.0}, "dynatemp_range": {0.0},
    }.items():  # fmt: skip
        assert some <= {one.settings[name] for one in settings if name in one.settings}, name


def test_a_law_that_the_server_does_not_sample_is_named(llama_server: str) -> None:
    # SGLang's top_p counts the mass that top_k has cut.
    chain = ("top_k", "top_p@sglang", "temperature")
    values = {"top_k": 3.0, "top_p": 0.6, "temperature": 0.7}
    found = conformance(llama_server, [Baseline(chain, values)], places=8)
    assert found.compared == 8
    [first, *_] = found.disagreements
    assert first.text().startswith("top_k > top_p@sglang > temperature (top_k 3.0, top_p 0.6")
    assert first.difference > 0.01


def test_the_script_says_what_it_found(llama_server: str) -> None:
    words = [sys.executable, str(SCRIPT), "--server", llama_server, "--chains=3", "--places=2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6 laws compared, 0 differ" in done.stdout
    words[3] = "http://127.0.0.1:9"
    gone = subprocess.run(words, capture_output=True, text=True, check=False)
    assert gone.returncode == 1
    assert gone.stderr.startswith("conformance: http://127.0.0.1:9: cannot connect")
