"""The named settings: what token_probabilities says, scored by hand."""

import json

import numpy as np
import pytest
from made_up import made

import jaxsppl
from jaxsppl.errors import PlanError
from jaxsppl.sweep.baselines import BASELINES, baseline_means
from jaxsppl.sweep.data import token_arrays

LLAMA = "llama.cpp default"


@pytest.mark.parametrize("tail", ["drop", "bound"])
def test_a_baseline_is_its_token_probabilities(tail: str) -> None:
    harvest = made()
    result = jaxsppl.sweep(harvest, {"temperature": [1.0]}, tail=tail, epsilon=0.02)
    assert result.baseline.values.tolist() == ["neutral", LLAMA]
    for name, one in BASELINES.items():
        if tail == "bound" and name == LLAMA:
            continue  # 16 alternatives say nothing about a top_k of 40, see below
        own = jaxsppl.token_probabilities(harvest, chain=one.chain, tail=tail, **one.settings)
        found = result.sel(baseline=name).squeeze()
        assert float(found.baseline_nll) == pytest.approx(
            float(-np.log(own.values.clip(0.02)).mean()), abs=1e-12
        )
        assert float(found.baseline_ood) == pytest.approx(float((own.values < 0.02).mean()))
        if tail == "bound":
            for bracket, probability in (("lower", own.upper), ("upper", own.lower)):
                loss = float(-np.log(probability.values.clip(0.02)).mean())
                assert float(found[f"baseline_nll_{bracket}"]) == pytest.approx(loss, abs=1e-9)
    told = json.loads(result.attrs["baselines_json"])
    assert told["neutral"] == {"chain": [], "settings": {}}
    assert told[LLAMA] == {
        "chain": ["top_k", "top_p", "min_p", "temperature"],
        "settings": {"top_k": 40.0, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
    }


def test_neutral_is_plain_sampling_with_epsilon() -> None:
    harvest = made()
    result = jaxsppl.sweep(harvest, {"temperature": [1.0]})
    expected = -np.log(np.exp(harvest.token_logprob.values.astype(float)).clip(0.01)).mean()
    assert float(result.baseline_nll.sel(baseline="neutral").squeeze()) == pytest.approx(
        expected, abs=1e-9
    )
    assert float(result.nll.squeeze()) == pytest.approx(expected, abs=1e-9)


def test_a_setting_that_cannot_be_known_is_nan_and_no_error() -> None:
    result = jaxsppl.sweep(made(), {"temperature": [1.0]})
    llama = result.sel(baseline=LLAMA).squeeze()
    assert np.isnan(llama.baseline_nll)
    assert np.isnan(llama.baseline_ood)
    with pytest.raises(PlanError):
        jaxsppl.token_probabilities(made(), top_k=40)
    means = baseline_means(
        token_arrays(made()), [BASELINES[LLAMA]], epsilon=0.01, tail="drop", block=64
    )
    assert np.isfinite(means[0].nll)
