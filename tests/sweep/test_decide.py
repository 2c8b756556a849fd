"""Decisions on made-up harvests: uncertainty of the grid, held-out proof, controls, refusals."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from uneven import uneven as made

import jaxsppl
from jaxsppl.choice import Choice, Rules
from jaxsppl.demo import shipped_harvests
from jaxsppl.errors import ConfigError, PlanError
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.bootstrap import resample
from jaxsppl.sweep.documents import Documents, documents_of
from jaxsppl.sweep.heldout import choose, make_split
from jaxsppl.sweep.placed import place_settings
from jaxsppl.sweep.samplers import default_samplers, tried_points

Array = np.ndarray[Any, Any]
GRID = {"temperature": [0.5, 0.8, 1.0, 1.3], "min_p": [0.0, 0.1], "top_k": [0, 4]}
RULES = Rules(folds=4, resamples=300)


@pytest.fixture(scope="module")
def decided() -> xr.Dataset:
    one = made()
    return jaxsppl.decide(jaxsppl.sweep(one, GRID), one, RULES)


def documents(names: list[str]) -> Documents:
    n = len(names)
    size, index = np.full(n, 10.0), np.repeat(np.arange(n), 10)
    return Documents(tuple(names), index, size, 4 * size, size, ("",) * n, n)


def test_the_numbers_of_the_grid(decided: xr.Dataset) -> None:
    found = decided.squeeze(("model", "dataset"))
    one = made()
    index = one.document_index.values
    point = {"temperature": 1.3, "min_p": 0.1, "top_k": 4}
    best = {
        name: float(v)
        for name, v in zip(found.parameter.values, found.best_value.values, strict=True)
    }
    losses = []
    for at in (point, best):
        own = jaxsppl.token_probabilities(one, **at).values
        losses.append(np.bincount(index, -np.log(np.maximum(own, 0.01))))
    size = np.bincount(index)
    above = losses[0] - losses[1]
    ratio = above.sum() / size.sum()
    here = found.sel({name: value for name, value in point.items()})
    assert float(here.nll_delta) == pytest.approx(ratio, abs=1e-12)
    residual = np.square(above - ratio * size).sum() * 9 / 8
    assert float(here.nll_delta_se) == pytest.approx(np.sqrt(residual) / size.sum(), rel=1e-9)
    assert float(found.nll_delta.sel(best)) == float(found.nll_delta.min()) == 0
    assert int(found.plateau.sel(best)) == 1
    inside = found.nll_delta <= found.plateau_critical * found.nll_delta_se
    assert (inside == found.plateau.astype(bool)).all()
    assert found.nll_delta.dims == found.nll.dims


def test_held_out_scores_are_those_of_settings_chosen_elsewhere(decided: xr.Dataset) -> None:
    found = decided.squeeze(("model", "dataset"))
    one = made()
    split = make_split(documents_of(one), split="folds", fraction=0.5, folds=4, seed=0)
    index = one.document_index.values
    total = 0.0
    for fold, values in enumerate(found.chosen_value.values):
        point = dict(zip(found.searched.values.tolist(), values.tolist(), strict=True))
        held = split.document_fold[index] == fold
        dev = jaxsppl.sweep(one.isel(token=~held), GRID).squeeze()
        assert float(dev.nll.sel(point)) == pytest.approx(float(dev.nll.min()), abs=1e-12)
        own = jaxsppl.token_probabilities(one, **point).values[held]
        total -= np.log(np.maximum(own, 0.01)).sum()
    assert float(found.heldout_nll.sel(setting="chosen")) == pytest.approx(total / 270, abs=1e-12)
    neutral = found.sel(setting="neutral")
    gain = float(found.baseline_nll.sel(baseline="neutral")) - total / 270
    assert float(neutral.heldout_gain) == pytest.approx(gain, abs=1e-9)
    low, high = neutral.heldout_gain_interval.values
    assert low < gain < high
    assert (int(found.n_choosing), int(found.n_proven), int(found.n_document)) == (6, 9, 9)
    assert int(found.n_tried) == 16
    assert found.heldout_nll.sel(setting="vLLM default") == neutral.heldout_nll


def test_what_a_fold_holds_never_reaches_its_choice() -> None:
    one, rules = made(), Rules(split="test", fraction=0.4, resamples=100)
    split = make_split(documents_of(one), split="test", fraction=0.4, folds=5, seed=0)
    held = split.document_fold[one.document_index.values] == 0
    before = jaxsppl.decide(jaxsppl.sweep(one, GRID), one, rules)
    other = made(seed=5)
    names = ("top_logprob", "top_token_id", "token_logprob", "token_rank", "token_id")
    changed = one.assign(
        {
            name: one[name].copy(
                data=np.where(
                    held[:, None] if one[name].ndim == 2 else held, other[name], one[name]
                )
            )
            for name in names
        }
    )
    after = jaxsppl.decide(jaxsppl.sweep(changed, GRID), changed, rules)
    assert np.array_equal(before.chosen_value, after.chosen_value)
    assert not np.allclose(before.heldout_nll, after.heldout_nll)
    assert (before.n_choosing + before.n_proven).item() == 9


@given(
    st.lists(st.sampled_from("abcdefghijkl"), min_size=4, max_size=40, unique=True),
    st.integers(2, 6), st.integers(0, 50), st.randoms(use_true_random=False),
)  # fmt: skip
def test_only_texts_and_seed_decide_the_split(
    names: list[str], folds: int, seed: int, random: Any
) -> None:
    turned = [*names]
    random.shuffle(turned)
    for kind in ("folds", "test"):
        one, other = (
            make_split(documents(order), split=kind, fraction=0.3, folds=folds, seed=seed)
            for order in (names, turned)
        )
        assert dict(zip(names, one.document_fold, strict=True)) == dict(
            zip(turned, other.document_fold, strict=True)
        )
        held = [one.document_fold == fold for fold in one.proven]
        assert all(0 < part.sum() < len(names) for part in held)
        if kind == "folds":
            assert sum(part.sum() for part in held) == len(names)
            assert np.ptp([part.sum() for part in held]) <= 1


@given(st.integers(0, 99), st.integers(2, 5), st.integers(0, 4))
def test_a_choice_does_not_see_its_fold(seed: int, folds: int, fold: int) -> None:
    rng = np.random.default_rng(seed)
    fold %= folds
    loss, weight = rng.uniform(50, 100, (folds, 7)), np.full(folds, 30.0)
    ood = rng.uniform(0, 10, (folds, 7))
    spoiled = loss.copy()
    spoiled[fold] = rng.uniform(-1e6, 1e6, 7)
    proven = [*range(folds)]
    assert (
        choose(loss, ood, weight, proven, Choice())[fold]
        == choose(spoiled, ood, weight, proven, Choice())[fold]
    )


def test_texts_that_are_the_same_are_one_document() -> None:
    one = made()
    digests = one.document_sha256.values.copy()
    digests[7] = digests[2]
    twice = documents_of(one.assign(document_sha256=("document", digests)))
    assert len(twice) == 8
    size = np.bincount(one.document_index.values)
    assert twice.n_token[2] == size[2] + size[7]


def test_groups_are_drawn_and_held_out_whole(caplog: pytest.LogCaptureFixture) -> None:
    one = made()
    group = np.array(["a", "b", "c", "a", "b", "c", "d", "d", ""])
    grouped = one.assign_coords(group=("document", group))
    units = documents_of(grouped).clustered("group")
    assert units.names[:4] == ("group a", "group b", "group c", "group d")
    assert (len(units), units.n_group, units.n_document) == (5, 5, 9)  # one has no group
    every = documents_of(grouped)
    assert units.n_token[0] == every.n_token[0] + every.n_token[3]
    assert (units.index == np.array([0, 1, 2, 0, 1, 2, 3, 3, 4])[every.index]).all()
    assert documents_of(one).clustered("group").unit == "document"
    swept = jaxsppl.sweep(grouped, GRID)
    found = jaxsppl.decide(swept, grouped, RULES).squeeze()
    assert (found.n_document, found.n_group, found.n_proven) == (9, 5, 5)
    alone = jaxsppl.decide(swept, grouped, Rules(folds=4, resamples=300, cluster="document"))
    assert (alone.n_group.item(), alone.n_proven.item()) == (0, 9)
    assert found.nll_se.sel(temperature=1, min_p=0, top_k=0) == pytest.approx(
        resample(*sums_of(grouped, units), np.ones((1, 5))).se
    )
    single = grouped.assign_coords(group=("document", ["a"] * 9))
    nothing = jaxsppl.decide(jaxsppl.sweep(single, GRID), single, RULES)
    assert nothing.heldout_nll.isnull().all()
    assert "a single group, which proves nothing" in caplog.text


def sums_of(harvest: xr.Dataset, units: Documents) -> tuple[Array, Array]:
    """Losses at neutral settings by unit, and tokens."""
    own = jaxsppl.token_probabilities(harvest).values
    return units.sums(-np.log(np.maximum(own, 0.01))), units.n_token


def test_two_copies_of_one_setting_cannot_be_told_apart() -> None:
    one = made()
    copies = {"temperature": [0.7, 1.0], "top_k": [0, 200]}  # 200 is the whole vocabulary
    swept = place_settings(jaxsppl.sweep(one, copies), {"again": Baseline((), {})}, one)
    found = jaxsppl.decide(swept, one, RULES).squeeze()
    assert (found.nll_delta.sel(top_k=0).values == found.nll_delta.sel(top_k=200).values).all()
    assert (found.plateau.sel(top_k=0).values == found.plateau.sel(top_k=200).values).all()
    neutral, again = (found.sel(setting=name) for name in ("neutral", "again"))
    assert float(neutral.heldout_gain) == float(again.heldout_gain)
    chosen = found.sel(setting="chosen")
    assert float(chosen.heldout_gain) == 0
    assert chosen.heldout_gain_interval.values.tolist() == [0, 0]
    assert float(chosen.heldout_win) == 0.5


def test_models_and_datasets_and_an_epsilon_axis(tmp_path: Any) -> None:
    harvests = [made(seed=s, model=m, dataset=d) for s, m, d in
                [(0, "a", "x"), (1, "a", "y"), (2, "b", "x")]]  # fmt: skip
    grid = {"temperature": [0.6, 1.0], "epsilon": [0.01, 0.1]}
    found = jaxsppl.decide(jaxsppl.sweep(harvests, grid), harvests, RULES)
    again = jaxsppl.open_sweep(jaxsppl.save(found, tmp_path / "d.sweep.nc"))
    assert again.nll_se.sel(model="b", dataset="y").isnull().all()
    assert (again.plateau.sel(model="b", dataset="y") == 0).all()
    # Each epsilon has a best point of its own.
    assert (again.nll_delta.sel(model="a").min("temperature") == 0).all()
    assert again.searched.values.tolist() == ["temperature"]
    gains = again.heldout_gain.sel(model="a", setting="neutral").values
    assert float(again.macro_gain.sel(model="a", setting="neutral")) == pytest.approx(gains.mean())
    low, high = again.macro_gain_interval.sel(model="a", setting="neutral").values
    assert low < gains.mean() < high


def test_samplers_get_the_same_number_of_points() -> None:
    axes = {
        "temperature": [0.5, 1.0, 1.5], "min_p": [0.0, 0.1, 0.2], "top_k": [0.0, 5.0],
        "alpha": [0.5, 1.0], "beta": [1.0, 2.0], "top_p": [1.0],
    }  # fmt: skip
    samplers = default_samplers(axes)
    assert samplers == {
        "min_p": ("temperature", "min_p"),
        "top_k": ("temperature", "top_k"),
        "Beta draw": ("temperature", "alpha", "beta"),
    }
    tried = tried_points(axes, samplers, 0)
    assert {len(places) for places in tried.values()} == {6}
    shape = [len(values) for values in axes.values()]
    for sampler, places in tried.items():
        at = dict(zip(axes, np.unravel_index(places, shape), strict=True))
        for name, values in axes.items():
            if name not in samplers[sampler]:
                neutral = 1.0 if name in ("alpha", "beta", "top_p") else 0.0
                assert {values[i] for i in at[name]} == {neutral}
    assert default_samplers({"temperature": [1.0, 2.0], "min_p": [0.0, 0.1]}) == {}
    # A threshold says how XTC acts: one that is not neutral is idle while XTC is off.
    with_xtc = {"min_p": [0.0, 0.1], "xtc_probability": [0.0, 0.5], "xtc_threshold": [0.05, 0.2]}
    assert default_samplers(with_xtc) == {
        "min_p": ("min_p",), "xtc": ("xtc_probability", "xtc_threshold"),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="no axis 'top_q'; did you mean"):
        tried_points(axes, {"mine": ["top_q"]}, 0)
    with pytest.raises(ConfigError, match="its axis lacks the neutral value 0"):
        tried_points({**axes, "min_p": [0.1]}, {"mine": ["top_k"]}, 0)


def test_samplers_are_compared_on_held_out_documents(decided: xr.Dataset) -> None:
    found = decided.squeeze(("model", "dataset"))
    assert found.sampler.values.tolist() == ["min_p", "top_k", "llama.cpp default", "neutral"]
    assert decided.attrs["sampler_points"] == 8
    # 16 alternatives cannot serve the default's top_k 40: neutral is the reference.
    assert np.isnan(found.sampler_gain.sel(sampler="llama.cpp default"))
    assert float(found.sampler_gain.sel(sampler="neutral")) == 0
    expected = found.sampler_nll.sel(sampler="neutral") - found.sampler_nll.sel(sampler="min_p")
    assert float(found.sampler_gain.sel(sampler="min_p")) == pytest.approx(float(expected))


def test_a_choice_by_other_objectives() -> None:
    nll = np.array([[2.0, 1.9, 1.8], [1.7, np.nan, 2.5]])
    ood = np.array([[0.1, 0.2, 0.3], [0.4, 0.0, 0.05]])
    assert Choice().index(nll, ood) == 3
    assert Choice(ood_weight=2.0).index(nll, ood) == 0
    assert Choice(ood_max=0.25).index(nll, ood) == 1
    assert Choice(ood_weight=20.0, ood_max=0.25).index(nll, ood) == 5
    assert Choice(nll_max=1.95).index(nll, ood) == 1
    assert Choice(nll_max=1.95).words() == "least ood with nll <= 1.95"
    assert Choice(ood_weight=2, ood_max=0.5).words() == "least nll + 2 ood with ood <= 0.5"
    with pytest.raises(ConfigError, match=r"no point has ood <= 0.01; the smallest is 0"):
        Choice(ood_max=0.01).index(nll, np.where(np.isnan(nll), 0.02, ood) + 0.001)
    with pytest.raises(ConfigError, match=r"no point has nll <= 1; the smallest is 1.7"):
        Choice(nll_max=1).index(nll, ood)


def test_an_objective_decides_what_is_chosen() -> None:
    one = made()
    swept = jaxsppl.sweep(one, GRID)
    limit = float(swept.ood.min()) + 0.02
    found = jaxsppl.decide(swept, one, Rules(folds=3, resamples=100), Choice(ood_max=limit))
    plain = jaxsppl.decide(swept, one, Rules(folds=3, resamples=100))
    held, free = (d.heldout_ood.sel(setting="chosen").item() for d in (found, plain))
    assert held < free
    assert "ood <=" in found.attrs["decide_json"]


REFUSED: list[tuple[Rules | Choice, str]] = [
    (Rules(split="half"), "split: 'half' is not allowed"),
    (Rules(fraction=1.0), "fraction: 1.0 is not allowed"),
    (Rules(folds=1), "folds: 1 is not allowed; it is at least 2"),
    (Rules(resamples=10), "resamples: 10 is not allowed"),
    (Rules(confidence=95), "confidence: 95 is not allowed"),
    (Rules(detect=0), "detect: 0 is not allowed"),
    (Rules(seed=-1), "seed: -1 is not allowed"),
    (Choice(ood_max=2), "ood_max: 2 is not allowed"),
    (Choice(ood_weight=-1), "ood_weight: -1 is not allowed"),
    (Choice(nll_max=2, ood_max=0.1), "nll_max: it makes ood the objective"),
    (Choice(ood_max=0.0), "model 'tiny' on dataset 'noise': no point has ood <= 0"),
]


@pytest.mark.parametrize(("rules", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refusals(rules: Rules | Choice, words: str, decided: xr.Dataset) -> None:
    given = {"choice": rules} if isinstance(rules, Choice) else {"rules": rules}
    with pytest.raises(ConfigError, match=words):
        jaxsppl.decide(decided, made(), **given)


def test_other_harvests_and_little_memory_are_refused(decided: xr.Dataset) -> None:
    with pytest.raises(ConfigError, match="not those that the sweep was made from"):
        jaxsppl.decide(decided, made(seed=3))
    wide = {"temperature": np.linspace(0.1, 2, 60).tolist(), "epsilon": np.geomspace(1e-3, 0.1, 60)}
    one = made()
    swept = jaxsppl.sweep(one, wide, memory_mib=64)
    with pytest.raises(PlanError, match="sums of 3,600 points take 1 MiB of the 1 MiB allowed"):
        jaxsppl.decide(swept, one, memory_mib=1)


def test_a_single_document_proves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one = made(n_document=1)
    found = jaxsppl.decide(jaxsppl.sweep(one, GRID), one, RULES)
    assert found.heldout_nll.isnull().all()
    assert found.n_document.item() == 1
    assert "a single document, which proves nothing" in caplog.text


def test_no_interval_of_an_nll_reaches_below_zero() -> None:
    prose = next(file for file in shipped_harvests() if "prose" in file.name)
    swept = jaxsppl.sweep(prose, {"temperature": [0.8, 1.0]})
    decided = jaxsppl.decide(swept, prose, Rules(confidence=0.9999))
    assert int(decided.n_document.min()) == 4
    low = decided.heldout_nll_interval.sel(end="low")
    assert (low >= 0).all()
    assert (low <= decided.heldout_nll).all()
    assert (low == 0).any()
