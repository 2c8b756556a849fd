"""The unseen tail against whole vocabularies made here: brackets, limits, and what is exact."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_reference import chain_law
from law_rows import BOTH, Array, block_of, descending, fast, slow

from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.tail import ALL, NONE, tail_sum

SIZE, V = 16, 3000
TEMPERATURES = (0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 2.5)
FIRST, LAST = ("temperature", "min_p"), ("min_p", "temperature")
PLACE = np.arange(1, V + 1)


def _normal(rng: np.random.Generator) -> Array:
    return rng.normal(0, rng.uniform(1, 5, (SIZE, 1)), (SIZE, V))


def _power(rng: np.random.Generator) -> Array:
    return -rng.uniform(0.5, 3, (SIZE, 1)) * np.log(PLACE) + rng.normal(0, 0.05, (SIZE, V))


def _uniform(rng: np.random.Generator) -> Array:
    return rng.normal(0, 1e-3, (SIZE, 1)) * np.ones(V)


def _nearly_uniform(rng: np.random.Generator) -> Array:
    return rng.normal(0, 0.01, (SIZE, V))


def _peaked(rng: np.random.Generator) -> Array:
    return np.concatenate([rng.uniform(5, 30, (SIZE, 1)), rng.normal(0, 1, (SIZE, V - 1))], axis=1)


def _steps(rng: np.random.Generator) -> Array:
    return np.where(rng.integers(2, 200, (SIZE, 1)) >= PLACE, 0.0, -12.0)


def _exponential(rng: np.random.Generator) -> Array:
    return -rng.uniform(0.001, 0.02, (SIZE, 1)) * PLACE


FAMILIES: dict[str, Callable[[np.random.Generator], Array]] = {
    "normal": _normal,
    "power": _power,
    "uniform": _uniform,
    "nearly uniform": _nearly_uniform,
    "peaked": _peaked,
    "steps": _steps,
    "exponential": _exponential,
}


@cache
def vocabulary(family: str, n_rank: int) -> tuple[Array, Array, Array]:
    """True log-probabilities, the same as a server tells them in float32, and actual tokens."""
    rng = np.random.default_rng(sum(family.encode()) + n_rank)
    logits = descending(FAMILIES[family](rng))
    true = logits - logits[:, :1]
    true -= np.log(np.exp(true).sum(axis=1, keepdims=True))
    # A float32 sum over the vocabulary is too small by a common factor.
    offset = rng.uniform(0, 5e-5, (SIZE, 1))
    inside, outside = rng.integers(0, n_rank, SIZE // 2), rng.integers(n_rank, V, SIZE - SIZE // 2)
    return true, (true + offset).astype(np.float32), np.concatenate([inside, outside])


@pytest.mark.parametrize("n_rank", [20, 100])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_brackets_hold_at_every_position(family: str, n_rank: int) -> None:
    true, told, actual = vocabulary(family, n_rank)
    own = np.take_along_axis(true, actual[:, None], axis=1)[:, 0]
    with float64():
        block = block_of(told.astype(float), actual, n_rank, bound=True)
        for order in (FIRST, LAST):
            for min_p in (0.0, 1e-3, 0.02, 0.2):
                for t in TEMPERATURES:
                    point = {"temperature": t, "min_p": min_p}
                    chain = [(name, point[name]) for name in order]
                    if min_p and _near_the_limit(true, actual, chain):
                        continue
                    truth = np.array(
                        [chain_law(row, chain)[a] for row, a in zip(true, actual, strict=True)]
                    )
                    found = fast(block, order, point)
                    # Kept or cut is never a guess.
                    assert np.array_equal(found > 0, np.tile(truth > 0, (3, 1))), point
                    kept = truth > 0
                    logs, exact = np.log(found[:, kept]), np.log(truth[kept])
                    # float32 tells each log-probability to 1.2e-7 of itself.
                    rounding = 2e-6 + 1.3e-7 * np.abs(own[kept]) / t
                    assert (logs.min(axis=0) <= exact + rounding).all(), point
                    assert (logs.max(axis=0) >= exact - rounding).all(), point
                    assert (found[0] <= found.max(axis=0)).all()
                    assert (found[0] >= found.min(axis=0)).all()


def _near_the_limit(true: Array, actual: Array, chain: list[tuple[str, float]]) -> bool:
    """Whether float32 could decide otherwise about an actual token than float64."""
    point = dict(chain)
    own = np.take_along_axis(true, actual[:, None], axis=1)[:, 0]
    power = point["temperature"] if chain[0][0] == "temperature" else 1.0
    return bool((np.abs(own - true[:, 0] - power * np.log(point["min_p"])) < 1e-5).any())


@pytest.mark.parametrize("family", FAMILIES)
def test_at_temperature_1_with_nothing_cut_the_model_itself_comes_out(family: str) -> None:
    _, told, actual = vocabulary(family, 20)
    with float64():
        block = block_of(told.astype(float), actual, 20, bound=True)
        own = np.take_along_axis(told.astype(float), actual[:, None], axis=1)[:, 0]
        for way in BOTH:
            found = way(block, LAST, {"temperature": 1.0, "min_p": 0.0})[0]
            assert np.abs(np.log(found) - own).max() < 1e-11


@pytest.mark.parametrize("way", BOTH)
def test_no_tail_is_left_when_everything_is_listed(way: Callable[..., Array]) -> None:
    rng = np.random.default_rng(1)
    logits = descending(rng.normal(0, 3, (SIZE, SIZE)))
    logprob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    actual = np.arange(SIZE)
    with float64():
        bound, drop = block_of(logprob, actual, bound=True), block_of(logprob, actual)
        for t in (0.0, 1e-3, 0.3, 1.0, 2.5, 50.0):
            for min_p in (0.0, 1e-3, 0.3, 1.0):
                point = {"temperature": t, "min_p": min_p}
                three, one = way(bound, LAST, point), way(drop, LAST, point)
                assert np.abs(three - one).max() < 1e-13


@pytest.mark.parametrize("excess", [2e-7, 1e-5, 6e-4])
@pytest.mark.parametrize("way", BOTH)
def test_listed_probabilities_may_sum_to_more_than_1(
    way: Callable[..., Array], excess: float
) -> None:
    rng = np.random.default_rng(2)
    logits = descending(rng.normal(0, 1, (SIZE, SIZE)) + 8.0 * (np.arange(SIZE) == 0))
    logprob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) + np.log1p(excess)
    logprob[:, 0] = np.minimum(logprob[:, 0], 0.0)
    actual = np.arange(SIZE)
    with float64():
        for n_vocab in (SIZE, V):
            block = block_of(logprob, actual, bound=True, n_vocab=n_vocab)
            own = logprob[actual, actual]
            # The estimate says what the server said, and never more than certainty.
            exact = way(block, LAST, {"temperature": 1.0, "min_p": 0.0})[0]
            assert np.abs(np.log(exact) - own).max() < 1e-10
            for t in (1e-3, 0.1, 0.5, 0.9, 0.999, 1.001, 1.1, 2.5):
                found = way(block, LAST, {"temperature": t, "min_p": 0.0})
                assert np.isfinite(found).all()
                assert ((found >= 0) & (found <= 1 + 1e-15)).all(), t
            cold = way(block, LAST, {"temperature": 1e-3, "min_p": 0.0})[0]
            greedy = way(block, LAST, {"temperature": 0.0, "min_p": 0.0})[0]
            assert np.abs(cold - greedy).max() < 1e-6


def test_an_unlisted_token_is_kept_exactly_when_it_passes() -> None:
    true, told, _ = vocabulary("normal", 20)
    actual = np.arange(20, 20 + SIZE)
    ratio = np.exp(told.astype(float)[np.arange(SIZE), actual] - told.astype(float)[:, 0])
    point = {"temperature": 1.4, "min_p": 0.0}
    with float64():
        block = block_of(told.astype(float), actual, 20, bound=True)
        for way in BOTH:
            for index in range(0, SIZE, 5):
                at = ratio[index]
                kept = way(block, LAST, {**point, "min_p": at * (1 - 1e-9)})
                assert (kept[:, index] > 0).all()
                gone = way(block, LAST, {**point, "min_p": at * (1 + 1e-9)})
                assert (gone[:, index] == 0).all()
            assert (way(block, LAST, {"temperature": 0.0, "min_p": 0.0}) == 0).all()
        for k in (1.0, 20.0):
            cut = slow(block, ("top_k",), {"top_k": k})
            assert (cut == 0).all()
            assert np.array_equal(cut, fast(block, ("top_k",), {"top_k": k}))
    assert (true[:, 0] > true[:, 20]).all()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.floats(0.05, 8),
    st.floats(0.2, 8),
    st.floats(1e-6, 1),
)
def test_tail_sums_bracket_any_tail(seed: int, t: float, scale: float, min_p: float) -> None:
    rng = np.random.default_rng(seed)
    logits = descending(rng.normal(0, scale, (SIZE, 200)))
    logprob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    unseen = logprob[:, 20:]
    floor = logprob[:, 0] + np.log(min_p)
    with float64():
        block = block_of(logprob, np.zeros(SIZE, int), 20, bound=True)
        assert block.tail is not None
        for level in (np.full(SIZE, ALL), floor, np.full(SIZE, NONE)):
            truth = np.where(unseen >= level[:, None], np.exp((unseen - logprob[:, :1]) / t), 0)
            sums = np.asarray(
                tail_sum(block.tail, np.asarray(1 / t), level, np.asarray(logprob[:, 0]))
            )
            slack = 1e-9 + 1e-9 * truth.sum(axis=1)
            assert (sums[1] <= truth.sum(axis=1) + slack).all()
            assert (sums[2] >= truth.sum(axis=1) - slack).all()
            assert (sums[1] <= sums[0]).all()
            assert (sums[0] <= sums[2]).all()
            assert (sums[1:] >= -1e-12).all()
        assert (sums == 0).all()


def test_the_estimate_is_close_on_normal_logits() -> None:
    true, told, actual = vocabulary("normal", 100)
    with float64():
        block = block_of(told.astype(float), actual, 100, bound=True)
        # Mean errors of the log-partition; a power law is off by .1 to .4 at the last three.
        for t, allowed in ((0.7, 2e-3), (1.0, 1e-4), (1.5, 0.03), (2.0, 0.06), (2.5, 0.1)):
            found = fast(block, LAST, {"temperature": t, "min_p": 0.0})[0]
            truth = [
                chain_law(row, [("temperature", t)])[a] for row, a in zip(true, actual, strict=True)
            ]
            assert abs(np.mean(np.log(found) - np.log(truth))) < allowed, t
