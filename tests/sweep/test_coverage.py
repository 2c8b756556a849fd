"""What `compare` and `decide` say of their own certainty, against pools whose truth is known.

Each turn draws some documents of a pool and hands them to the public function as a harvest; the
whole pool says what is true. No formula of the intervals is repeated here.
"""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from law_rows import harvest_of

import jaxsppl
from jaxsppl.choice import Rules
from jaxsppl.sweep.compared import PLAIN

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
V = 8
RULES = Rules(resamples=400, samplers={})
GRID = {"temperature": [0.7, 0.9, 1.0, 1.15, 1.3, 1.5], "min_p": [0.0, 0.03, 0.06, 0.1]}


def pool(n_token: Array, hardness: Array, model: str = "a", wrong: float = 0.0) -> xr.Dataset:
    """Documents of those sizes, written at temperatures of their own: exp(hardness).

    A model that is wrong by some nats gives the same text other log-probabilities.
    """
    rng, index = np.random.default_rng(5), np.repeat(np.arange(len(n_token)), n_token)
    logits = rng.normal(0, 2.0, (len(index), V))
    heat = np.exp(hardness)[index][:, None]
    actual = np.argmax(logits / heat + rng.gumbel(size=logits.shape), axis=1)
    logits = logits + wrong * rng.normal(size=logits.shape)
    logprob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-logprob, axis=1)
    place = np.argmax(order == actual[:, None], axis=1)
    made = harvest_of(np.take_along_axis(logprob, order, 1), place, model=model)
    # As two models of one tokenizer see it: the same ids.
    return made.drop_vars(["document", "context_tokens", "document_sha256"]).assign(
        top_token_id=(("token", "rank"), order.astype("i4")),
        token_id=("token", actual.astype("i4")),
        document_index=("token", index.astype("i4")),
    )


def drawn(whole: xr.Dataset, documents: Array, name: str, group: Array | None = None) -> xr.Dataset:
    """Some documents of a pool as a harvest of their own."""
    index, n = whole.document_index.values, len(documents)
    starts = np.searchsorted(index, [documents, documents + 1])
    tokens = np.concatenate([np.arange(*ends) for ends in starts.T])
    found = whole.isel(token=tokens).assign(
        document_index=("token", np.repeat(np.arange(n), np.diff(starts, axis=0)[0]).astype("i4")),
        context_tokens=("document", np.zeros(n, "i4")),
        document_sha256=("document", np.array([f"{d:064x}" for d in documents])),
    )
    labels: dict[str, Any] = {"document": [f"d{d}" for d in documents], "dataset": name}
    if group is not None:
        labels["group"] = ("document", group[documents].astype(str))
    return found.assign_coords(labels).assign_attrs(fingerprint=f"{name} by {whole.model.values}")


def coverage(values: Any, intervals: Any, truth: float | Array, size: float = 1.0) -> float:
    """How often intervals hold the truth, as they are or each at a share of its size."""
    low, high = (values + size * (intervals.isel(end=end) - values) for end in (0, 1))
    return float(((low <= truth) & (truth <= high)).mean())


def test_intervals_of_a_comparison_hold_the_truth_at_their_rate() -> None:
    rng, turns, n, many = np.random.default_rng(0), 120, 14, 700
    n_token, hardness = rng.integers(3, 10, many), 0.5 * rng.normal(size=many)
    models = [pool(n_token, hardness), pool(n_token, hardness, "b", wrong=0.6)]
    settings = {"neutral": {}, "cold": {"temperature": 0.7}}
    every = np.arange(many)

    def compared(harvests: list[xr.Dataset]) -> xr.Dataset:
        return jaxsppl.compare(harvests, settings, rules=RULES, tail="drop")

    truth = compared([drawn(one, every, "all") for one in models]).isel(dataset=0)
    picks = [rng.choice(many, n, replace=False) for _ in range(turns)]
    found = compared([drawn(m, pick, f"{i}") for i, pick in enumerate(picks) for m in models])
    found = found.isel(dataset=slice(turns))  # the mean over datasets is last
    held, short = [], []
    for name, model, setting in (
        ("nll", "a", PLAIN), ("bits_per_byte", "b", "cold"), ("to_model", "b", PLAIN),
        ("to_model", "b", "cold"), ("to_setting", "a", "cold"),
    ):  # fmt: skip
        there, here = ({"model": model, "setting": setting},) * 2
        value, interval = found[name].sel(here), found[f"{name}_interval"].sel(here)
        true = float(truth[name].sel(there))
        held.append(coverage(value, interval, true))
        short.append(coverage(value, interval, true, 0.8))

    assert all(0.90 <= share <= 0.985 for share in held)
    assert 0.92 <= np.mean(held) <= 0.97
    assert np.mean(short) < 0.90  # intervals a fifth too short would not pass


@pytest.fixture(scope="module")
def proven() -> dict[str, Any]:
    """Many decisions on documents of one pool, and the truth about what they chose."""
    rng, turns, n, many = np.random.default_rng(1), 160, 15, 1500
    n_token = np.full(many, 6)
    whole = pool(n_token, 0.2 + 0.35 * rng.normal(size=many))
    options: dict[str, Any] = {"tail": "drop", "level": "factored", "audit_points": 1}
    everything = drawn(whole, np.arange(many), "all")
    truth = jaxsppl.sweep(everything, GRID, **options).squeeze(drop=True)
    picks = [rng.choice(many, n, replace=False) for _ in range(turns)]
    harvests = [drawn(whole, pick, f"{i}") for i, pick in enumerate(picks)]
    swept = jaxsppl.sweep(harvests, GRID, **options)
    found = jaxsppl.decide(swept, harvests, RULES, level="factored").isel(model=0)
    neutral, true = float(truth.baseline_nll.sel(baseline="neutral")), truth.nll
    best = dict(zip(truth.parameter.values, truth.best_value.values, strict=True))

    def true_gain(values: xr.DataArray, names: xr.DataArray) -> xr.DataArray:
        """What settings gain on neutral in the whole pool; folds weigh the same."""
        point = {str(name): values.isel({names.dims[0]: i}) for i, name in enumerate(names.values)}
        return neutral - true.sel(point)

    held = found.sel(setting="neutral")
    return {
        "held_out": held.heldout_gain,
        "interval": held.heldout_gain_interval,
        "of_folds": true_gain(found.chosen_value, found.searched).mean("fold"),
        "in_sample": found.baseline_nll.sel(baseline="neutral") - found.best_nll,
        "of_best": true_gain(found.best_value, found.parameter),
        "nll": held.heldout_nll,
        "nll_interval": held.heldout_nll_interval,
        "neutral": np.asarray(neutral),
        "plateau": found.plateau.sel(best),
    }


def test_a_held_out_gain_is_unbiased_and_one_on_the_choosing_text_is_not(
    proven: dict[str, Any],
) -> None:
    def bias(found: str, true: str) -> tuple[float, float]:
        """Mean error and its standard error."""
        off = (proven[found] - proven[true]).values
        return off.mean(), off.std(ddof=1) / np.sqrt(off.size)

    off, error = bias("held_out", "of_folds")
    assert abs(off) < 2.5 * error
    curse, error = bias("in_sample", "of_best")
    assert curse > 5 * error
    assert curse > 3 * abs(off)
    # What choosing lost is hidden from the text that chose: there no choice looks worse than none.
    assert (proven["in_sample"] >= 0).all()
    assert (proven["held_out"] < 0).any()


def test_intervals_and_plateau_of_a_decision_hold_the_truth(proven: dict[str, Any]) -> None:
    nll = proven["nll"], proven["nll_interval"], float(proven["neutral"])
    assert 0.90 <= coverage(*nll) <= 0.98
    # Folds share documents that chose, which no interval knows of: docs/statistics.md.
    gain = proven["held_out"], proven["interval"], proven["of_folds"]
    assert 0.87 <= coverage(*gain) <= 0.98
    assert coverage(*nll, 0.8) + coverage(*gain, 0.8) < 1.8
    assert float(proven["plateau"].mean()) >= 0.93


def test_documents_of_one_group_are_no_independent_witnesses() -> None:
    rng, turns, n, many, each = np.random.default_rng(2), 200, 12, 400, 6
    group = np.repeat(np.arange(many), each)
    hardness = 0.9 * rng.normal(size=many)[group] + 0.1 * rng.normal(size=many * each)
    whole = pool(rng.integers(4, 12, many * each), hardness)

    def compared(harvests: list[xr.Dataset], **rules: Any) -> xr.Dataset:
        found = jaxsppl.compare(
            harvests, ["neutral"], rules=Rules(resamples=400, **rules), tail="drop"
        )
        return found.sel(model="a", setting="neutral")

    truth = compared([drawn(whole, np.arange(many * each), "all", group)]).nll.item()
    picks = [
        np.flatnonzero(np.isin(group, rng.choice(many, n, replace=False))) for _ in range(turns)
    ]
    harvests = [drawn(whole, pick, f"{i}", group) for i, pick in enumerate(picks)]
    by_group, by_document = compared(harvests), compared(harvests, cluster="document")
    for found in (by_group, by_document):
        assert (found.n_document.values[:turns] == n * each).all()
    assert (by_group.n_group.values[:turns] == n).all()
    assert (by_document.n_group == 0).all()
    one, other = (found.isel(dataset=slice(turns)) for found in (by_group, by_document))
    assert one.nll.values == pytest.approx(other.nll.values)
    assert 0.91 <= coverage(one.nll, one.nll_interval, truth) <= 0.98
    assert coverage(other.nll, other.nll_interval, truth) < 0.80


def test_halves_of_one_text_differ_as_often_as_chance_lets_them() -> None:
    """A negative control: documents of one pool under two names of settings that are one."""
    rng, turns, n, many = np.random.default_rng(3), 100, 24, 400
    whole = pool(rng.integers(3, 10, many), 0.5 * rng.normal(size=many))
    picks = [rng.choice(many, n, replace=False) for _ in range(turns)]
    halves = [
        drawn(whole, half, f"{i} {side}")
        for i, pick in enumerate(picks)
        for side, half in zip("ab", np.split(pick, 2), strict=True)
    ]
    found = jaxsppl.compare(halves, ["neutral"], rules=RULES, tail="drop")
    here = found.sel(model="a", setting="neutral").isel(dataset=slice(2 * turns))
    value = here.nll.values.reshape(turns, 2)
    reach = np.abs(here.nll_interval.values - here.nll.values[:, None]).reshape(turns, 2, 2)
    # Two independent intervals: their difference's reach is the root of the squares.
    apart = value[:, 0] - value[:, 1]
    side = np.where(apart > 0, np.hypot(reach[:, 0, 0], reach[:, 1, 1]),
                    np.hypot(reach[:, 0, 1], reach[:, 1, 0]))  # fmt: skip
    assert 0.01 <= np.mean(np.abs(apart) > side) <= 0.10
