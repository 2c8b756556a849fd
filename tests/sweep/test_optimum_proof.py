"""The proof of an optimum: each fold is scored at what was found without it."""

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr
from small import harvest

import jaxsppl
from jaxsppl import schema, store
from jaxsppl.choice import Rules
from jaxsppl.errors import ConfigError
from jaxsppl.report import table
from jaxsppl.report.summaries import summarise_optimum
from jaxsppl.sweep.documents import documents_of, joined
from jaxsppl.sweep.heldout import make_split
from jaxsppl.sweep.optimize import optimize

DATA = harvest(n_token=400, n_rank=12, n_vocab=60, n_document=10, seed=3)
OTHER = harvest(n_token=400, n_rank=12, n_vocab=60, n_document=10, seed=4, dataset="more").assign(
    document_sha256=("document", [f"{number:064x}" for number in range(100, 110)])
)
OVER: dict[str, Any] = {"over": ("temperature",), "tail": "drop", "epsilon": 1e-3, "starts": 4}
RULES = Rules(folds=5, seed=2, resamples=400)


@pytest.fixture(scope="module")
def proven() -> xr.Dataset:
    """The temperature of two datasets and of both, proven on held-out documents."""
    return optimize([DATA, OTHER], pooled=True, rules=RULES, **OVER)


def losses(data: xr.Dataset, **point: Any) -> Any:
    """The loss of each token by the direct definition."""
    p = jaxsppl.token_probabilities(data, tail="drop", **point).values
    return -np.log(np.maximum(p, OVER["epsilon"]))


def test_each_fold_is_scored_at_what_was_found_without_it(proven: xr.Dataset) -> None:
    documents = documents_of(DATA)
    split = make_split(documents, split="folds", fraction=0.5, folds=5, seed=2)
    fold_of = split.document_fold[documents.index]
    found = proven.sel(dataset="noise").isel(model=0)
    total = 0.0
    for fold in range(5):
        temperature = float(found.chosen_value[fold, 0])
        # A minimum on the other folds, to one in a thousand.
        near = [temperature * factor for factor in (0.999, 1.0, 1.001)]
        rest = [losses(DATA, temperature=t)[fold_of != fold].mean() for t in near]
        assert rest[1] <= min(rest) + 1e-9
        total += losses(DATA, temperature=temperature)[fold_of == fold].sum()
    assert float(found.heldout_nll.sel(setting="chosen")) == pytest.approx(total / 400, abs=1e-9)
    neutral = float(found.heldout_nll.sel(setting="neutral"))
    assert neutral == pytest.approx(losses(DATA).mean(), abs=1e-9)
    gain = found.heldout_gain.sel(setting="neutral")
    assert float(gain) == pytest.approx(neutral - total / 400, abs=1e-9)
    low, high = found.heldout_gain_interval.sel(setting="neutral").values
    assert low < float(gain) < high


def test_what_was_found_in_sample_is_never_below_what_proves_it(proven: xr.Dataset) -> None:
    held_out = proven.heldout_nll.sel(setting="chosen")
    assert (proven.best_nll <= held_out + 1e-9).all()
    # The optimum of all documents is the same with and without a proof.
    plain = optimize([DATA, OTHER], pooled=True, **OVER)
    np.testing.assert_array_equal(plain.best_value, proven.best_value)
    assert "heldout_nll" not in plain


def test_pooled_documents_are_those_of_all_harvests(proven: xr.Dataset) -> None:
    assert proven.n_document.values.tolist() == [[10, 10, 20]]
    assert proven.n_proven.values.tolist() == [[10, 10, 20]]
    # The same text in two datasets is one document, which no split tears apart.
    twice = joined([documents_of(DATA)] * 2)
    assert (len(twice), twice.n_token.sum(), len(twice.index)) == (10, 800, 800)
    neutral = proven.heldout_nll.sel(setting="neutral").isel(model=0)
    both, each = neutral.sel(dataset="pooled"), neutral.sel(dataset=["noise", "more"]).mean()
    assert float(both) == pytest.approx(float(each), abs=1e-9)


def test_the_file_says_how_and_keeps_its_schema(proven: xr.Dataset) -> None:
    schema.check_optimum(store.contents_of(proven), "proven")
    rules = json.loads(proven.attrs["decide_json"])
    assert (rules["folds"], rules["seed"]) == (5, 2)
    assert proven.searched.values.tolist() == ["temperature"]
    assert list(json.loads(proven.attrs["settings_json"])) == proven.setting.values.tolist()[1:]


def test_a_single_document_proves_nothing() -> None:
    one = harvest(n_token=60, n_document=1, dataset="one")
    alone = optimize(one, rules=RULES, **OVER)
    assert "heldout_nll" not in alone
    text = table.render(summarise_optimum(store.contents_of(alone), "one"))
    assert "no gain is proven: that takes at least two documents" in text
    both = optimize([harvest(n_token=60), one], rules=Rules(split="test", resamples=200), **OVER)
    assert np.isnan(both.sel(dataset="one").heldout_nll.values).all()
    assert int(both.sel(dataset="one").n_proven[0]) == 0
    with pytest.raises(ConfigError, match="folds"):
        optimize(one, rules=Rules(folds=1), **OVER)
