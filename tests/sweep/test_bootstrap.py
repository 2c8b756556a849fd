"""The cluster bootstrap: explicit resamples, SciPy, coverage on known generators, controls."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxsppl.sweep.bootstrap import critical_value, draw_documents, macro_mean, resample
from jaxsppl.sweep.heldout import documents_needed
from jaxsppl.sweep.plateau import uncertainty

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


# The generators whose coverage docs/statistics.md states.
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "coverage.py"))
lengths, normal, skewed, longer_is_harder, paired = (
    SCRIPT[name] for name in ("sizes", "normal", "skewed", "longer_is_harder", "paired")
)


@pytest.mark.parametrize("n", [5, 10, 40])
def test_a_95_percent_interval_covers_90_to_97_percent(n: int) -> None:
    covered, short = [], []
    for world in (normal, skewed, longer_is_harder, paired):
        loss, weight = world(np.random.default_rng(9), 400_000)
        truth, rng, held = loss.sum() / weight.sum(), np.random.default_rng(n), []
        for turn in range(400):
            found = resample(*world(rng, n), draw_documents(n, 500, turn)).estimate(0.95)
            held.append(found.low <= truth <= found.high)
            low, high = (found.value + 0.8 * (end - found.value) for end in (found.low, found.high))
            short.append(low <= truth <= high)
        covered.append(np.mean(held))
    assert all(0.90 <= share <= 0.97 for share in covered)
    # Intervals a fifth too short would not pass; the broad ones of five documents just would.
    assert np.mean(short) < (0.93 if n == 5 else 0.90)


@given(st.integers(2, 12), st.floats(-1, 1), st.integers(0, 99), st.sampled_from([0.8, 0.95]))
def test_the_probability_agrees_with_the_interval(
    n: int, shift: float, seed: int, confidence: float
) -> None:
    loss, weight = paired(np.random.default_rng(seed), n)
    drawn = draw_documents(n, 300, seed)
    found = resample(loss + 0.02 * shift * weight, weight, drawn).estimate(confidence)
    tail = (1 - confidence) / 2
    if found.high < 0:
        assert found.below > 1 - tail
    if found.low > 0:
        assert found.below < tail
    assert 0 < found.below < 1


@pytest.mark.parametrize("n", [3, 6, 20])
def test_a_probability_is_as_rarely_large_as_it_says(n: int) -> None:
    """Where nothing differs, 0.975 is exceeded in about one of forty; percentiles in one of ten."""
    rng, sure, by_percentile = np.random.default_rng(n), [], []
    for turn in range(1200):
        resampled = resample(*paired(rng, n), draw_documents(n, 300, turn))
        sure.append(abs(resampled.estimate(0.95).below - 0.5) > 0.475)
        by_percentile.append(abs((resampled.values < 0).mean() - 0.5) > 0.475)
    assert 0.03 <= np.mean(sure) <= 0.09
    assert n == 20 or np.mean(by_percentile) > 0.14


def test_a_resample_is_what_explicit_repetition_gives() -> None:
    loss, weight = normal(np.random.default_rng(0), 7)
    drawn = draw_documents(7, 50, 3)
    found = resample(loss, weight, drawn)
    assert (drawn.sum(axis=1) == 7).all()
    for row, value, error in zip(drawn.astype(int), found.values, found.errors, strict=True):
        x, w = np.repeat(loss, row), np.repeat(weight, row)
        ratio = x.sum() / w.sum()
        assert value == pytest.approx(ratio, rel=1e-12)
        by_hand = np.sqrt(7 / 6 * np.square(x - ratio * w).sum()) / w.sum()
        assert error == pytest.approx(by_hand, rel=1e-6, abs=1e-9)


def test_the_spread_is_that_of_scipys_bootstrap() -> None:
    loss, weight = skewed(np.random.default_rng(1), 25)

    def ratio(x: Array, w: Array, axis: int = -1) -> Array:
        return x.sum(axis=axis) / w.sum(axis=axis)

    reference = stats.bootstrap(
        (loss, weight), ratio, paired=True, vectorized=True, n_resamples=20_000,
        method="percentile", rng=np.random.default_rng(5),
    )  # fmt: skip
    ours = resample(loss, weight, draw_documents(25, 20_000, 6))
    assert ours.values.std() == pytest.approx(reference.standard_error, rel=0.03)
    low, high = np.quantile(ours.values, [0.025, 0.975])
    width = reference.confidence_interval.high - reference.confidence_interval.low
    assert low == pytest.approx(reference.confidence_interval.low, abs=0.03 * width)
    assert high == pytest.approx(reference.confidence_interval.high, abs=0.03 * width)


@given(st.integers(2, 30), st.floats(-3, 3), st.floats(0.1, 10), st.integers(0, 99))
def test_shift_and_scale(n: int, shift: float, scale: float, seed: int) -> None:
    loss, weight = normal(np.random.default_rng(seed), n)
    drawn = draw_documents(n, 200, seed)
    plain = resample(loss, weight, drawn).estimate(0.9)
    moved = resample(scale * loss + shift * weight, weight, drawn).estimate(0.9)
    for one, other in ((plain.low, moved.low), (plain.high, moved.high)):
        assert other == pytest.approx(scale * one + shift, rel=1e-6, abs=1e-6)


def test_what_all_documents_agree_on_is_certain() -> None:
    weight = lengths(np.random.default_rng(0), 8)
    drawn = draw_documents(8, 300, 0)
    same = resample(np.stack([0 * weight, 0.25 * weight], axis=1), weight, drawn).estimate(0.95)
    assert same.se.tolist() == [0, 0]
    assert same.low.tolist() == same.high.tolist() == [0, 0.25]
    assert same.below.tolist() == [0.5, 0.5 / 301]  # 300 resamples show no more


def test_what_one_document_shows_is_open_but_finite() -> None:
    weight = lengths(np.random.default_rng(0), 10)
    loss = np.where(np.arange(10) == 3, 0.5 * weight, 0.0)
    drawn = draw_documents(10, 500, 0)
    found = resample(loss, weight, drawn).estimate(0.95)
    assert np.isfinite([found.low, found.high]).all()
    assert found.low < 0 < found.high
    assert np.isfinite(critical_value(loss[:, None], weight, drawn, 0.95))


def test_a_single_document_says_nothing() -> None:
    found = resample(np.array([5.0]), np.array([4.0]), draw_documents(1, 100, 0)).estimate(0.95)
    assert found.value == 1.25
    assert np.isnan([found.se, found.low, found.high, found.below]).all()


def test_the_mean_over_datasets() -> None:
    rng = np.random.default_rng(4)
    worlds = [normal(rng, n) for n in (12, 30)]
    parts = [
        resample(loss, weight, draw_documents(len(weight), 4000, seed))
        for seed, (loss, weight) in enumerate(worlds)
    ]
    mean = macro_mean(parts)
    assert mean.value == pytest.approx((parts[0].value + parts[1].value) / 2)
    assert mean.se == pytest.approx(np.hypot(parts[0].se, parts[1].se) / 2)
    assert mean.values.std() == pytest.approx(mean.se, rel=0.1)
    few = macro_mean([resample(*normal(rng, 3), draw_documents(3, 100, 0))] * 2)
    assert few.freedom == pytest.approx(4)  # twice two, both varying alike


def test_halves_of_one_text_differ_as_often_as_chance_lets_them() -> None:
    rng, found = np.random.default_rng(8), 0
    for turn in range(300):
        loss, weight = normal(rng, 24)
        halves = [
            resample(sign * loss[part], weight[part], draw_documents(12, 400, [turn, seed]))
            for seed, (sign, part) in enumerate([(1, slice(0, 12)), (-1, slice(12, 24))])
        ]
        difference = macro_mean(halves).estimate(0.95)
        found += not difference.low <= 0 <= difference.high
    assert 0.02 <= found / 300 <= 0.10


def surface(rng: Rng, n: int, level: Array, rough: float) -> tuple[Array, Array]:
    """(document, point) sums: documents prefer other parts of the grid, and points are rough."""
    size = lengths(rng, n)
    x = np.linspace(-1, 1, level.size)
    slope = 0.03 * rng.standard_t(5, (n, 1))
    own = 2 + 0.4 * rng.normal(size=(n, 1)) + level + slope * x
    return size[:, None] * (own + rough * rng.normal(size=(n, level.size))), size


@pytest.mark.parametrize("rough", [0.0, 0.01])
@pytest.mark.parametrize("n", [8, 30])
def test_the_plateau_holds_the_true_best_at_its_rate(n: int, rough: float) -> None:
    x = np.linspace(-1, 1, 60)
    level = np.where(np.abs(x - 0.2) < 0.1, 0.0, 0.0004) - 1e-5 * (np.arange(60) == 37)
    best, rng, held = int(np.argmin(level)), np.random.default_rng(n), []
    for turn in range(200):
        loss, size = surface(rng, n, level, rough)
        found = uncertainty(
            (loss.sum(axis=0) / size.sum())[None],
            ((row[None], np.zeros_like(row)[None]) for row in loss),
            size, np.arange(n) % 4, resamples=400, confidence=0.95, seed=turn,
        )  # fmt: skip
        held.append(found.plateau[0, best])
    assert np.mean(held) >= 0.94


def test_a_plateau_ends_where_the_difference_is_plain() -> None:
    level = np.array([0.0, 1e-6, 0.01, 0.5])
    rng, n = np.random.default_rng(3), 30
    size = lengths(rng, n)
    loss = size[:, None] * (2 + 0.4 * rng.normal(size=(n, 1)) + level)
    loss += size[:, None] * 0.004 * rng.normal(size=(n, 4))
    loss[:, 0] = loss[:, 1]  # two copies of one setting
    found = uncertainty(
        (loss.sum(axis=0) / size.sum())[None],
        ((row[None], 0 * row[None]) for row in loss),
        size, np.zeros(n, int), resamples=1000, confidence=0.95, seed=0,
    )  # fmt: skip
    assert found.plateau[0].tolist() == [True, True, False, False]
    assert found.delta[0, 1] == found.delta_se[0, 1] == 0
    loss_of_best = resample(loss[:, 2] - loss[:, 0], size, draw_documents(n, 10, 0))
    assert found.delta[0, 2] == pytest.approx(loss_of_best.value)
    assert found.delta_se[0, 2] == pytest.approx(loss_of_best.se, rel=1e-6)
    assert found.nll_se[0, 2] == pytest.approx(
        resample(loss[:, 2], size, draw_documents(n, 10, 0)).se, rel=1e-6
    )


def test_more_points_need_more_evidence() -> None:
    rng = np.random.default_rng(0)
    size = lengths(rng, 40)
    noise = size[:, None] * rng.normal(size=(40, 50))
    drawn = draw_documents(40, 2000, 1)
    limits = [critical_value(noise[:, :k], size, drawn, 0.95) for k in (1, 10, 50)]
    assert limits[0] < limits[1] < limits[2]
    assert limits[0] == pytest.approx(stats.t.ppf(0.975, 39), abs=0.2)


@pytest.mark.parametrize("pilot", [10, 40])
@pytest.mark.parametrize("difference", [0.014, 0.008])
def test_documents_needed_give_the_power_they_promise(pilot: int, difference: float) -> None:
    """On average over first looks, whose errors are estimates; intervals as they are printed."""
    rng, seen, turns = np.random.default_rng(pilot), 0, 500
    for turn in range(turns):
        size = lengths(rng, pilot)
        first = resample(0.02 * size * rng.normal(size=pilot), size, np.ones((1, pilot)))
        need = int(documents_needed(first.se, pilot, difference, 0.95))
        size = lengths(rng, need)
        loss = size * (difference + 0.02 * rng.normal(size=need))
        seen += resample(loss, size, draw_documents(need, 300, turn)).estimate(0.95).low > 0
    assert 0.75 <= seen / turns <= 0.85
