"""From harvests to blocks: padding, precision, and a top_k that cannot be known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import SIZE, K, V, made
from small import harvest

import jaxsppl
from jaxsppl import store
from jaxsppl.errors import ConfigError, PlanError, SchemaError
from jaxsppl.sampling.candidates import ABSENT
from jaxsppl.sampling.precision import float64
from jaxsppl.sweep.data import blocks, check_tail, token_arrays, usable_top_k


@pytest.mark.parametrize("size", [7, 30, 64])
@pytest.mark.parametrize("tail", ["drop", "bound"])
def test_blocks_hold_every_token_once_and_padding_weighs_nothing(size: int, tail: str) -> None:
    tokens = token_arrays(made())
    with float64():
        parts = list(blocks(tokens, size, tail))
    assert len(parts) == -(-SIZE // size)
    weight = np.concatenate([part.weight for part in parts])
    assert weight.tolist() == [1.0] * SIZE + [0.0] * (len(parts) * size - SIZE)
    actual = np.concatenate([part.actual for part in parts])
    assert np.abs(actual[:SIZE] - tokens.token_logprob).max() < 1e-6
    assert all(part.logprob.dtype == np.float64 for part in parts)
    assert all(part.logprob.shape == (size, K) for part in parts)
    assert all(part.scenarios == (1 if tail == "drop" else 3) for part in parts)


def test_absent_alternatives_become_finite() -> None:
    harvest = made()
    top, ids = harvest.top_logprob.values.copy(), harvest.top_token_id.values.copy()
    # Only the first two are listed of tokens whose actual one is among these.
    shown = (harvest.token_rank.values > 0) & (harvest.token_rank.values < 3)
    top[shown, 2:], ids[shown, 2:] = -np.inf, -1
    harvest["top_logprob"] = (("token", "rank"), top)
    harvest["top_token_id"] = (("token", "rank"), ids)
    with float64():
        (block,) = blocks(token_arrays(harvest), 64, "bound")
    assert np.isfinite(np.asarray(block.logprob)).all()
    assert (np.asarray(block.logprob)[:SIZE][shown, 2:] == ABSENT).all()
    assert np.array_equal(np.asarray(block.listed)[:SIZE], np.where(shown, 2, K))
    for values in ({"temperature": 0.0}, {"temperature": 2.0}, {"min_p": 0.01}):
        found = jaxsppl.token_probabilities(harvest, **values)
        assert np.isfinite(found).all()
        assert (found.values[shown] > 0).any()


def test_top_k_between_the_alternatives_and_the_vocabulary_cannot_be_known() -> None:
    tokens = token_arrays(made())
    for k in (K + 1.0, V - 1.0):
        with pytest.raises(PlanError, match=f"top_k {k:g} is above the {K} harvested"):
            usable_top_k(tokens, {"top_k": [0.0, k]}, "bound")
        assert usable_top_k(tokens, {"top_k": [k]}, "drop") == {"top_k": [k]}
    whole = usable_top_k(tokens, {"top_k": [0, 1, K, V, 10**6], "min_p": [0.1]}, "bound")
    assert whole == {"top_k": [0.0, 1.0, float(K), 0.0, 0.0], "min_p": [0.1]}


def test_the_name_of_the_tail_is_checked() -> None:
    check_tail("bound")
    with pytest.raises(ConfigError, match=r"tail: 'estimate' .* 'bound' or 'drop'"):
        check_tail("estimate")


def test_a_slice_of_a_saved_harvest_is_a_harvest(tmp_path: Path) -> None:
    path = store.write_dataset(made(), tmp_path / "made.harvest.nc")
    opened = jaxsppl.open_harvest(path)
    whole = token_arrays(opened)
    assert whole.source == str(path)
    assert whole.fingerprint == store.read_contents(path).attrs["digest"]
    part = opened.isel(token=slice(0, 10))
    found = jaxsppl.token_probabilities(part, temperature=0.5, tail="drop")
    every = jaxsppl.token_probabilities(opened, temperature=0.5, tail="drop")
    assert np.array_equal(found.values, every.values[:10])
    # Other values, another mark.
    assert token_arrays(part).fingerprint != whole.fingerprint
    assert token_arrays(jaxsppl.open_harvest(path)).fingerprint == whole.fingerprint


@pytest.mark.parametrize("cut", [{"rank": slice(0, 5)}, {"rank": slice(3, 9)}, {"document": [0]}])
def test_another_cut_says_which_one_is_possible(cut: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="cut it along token only"):
        store.harvests(harvest().isel(cut))
