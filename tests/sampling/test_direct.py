"""Both ways of computing against the law written a second time, on random chains and numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_reference import chain_law
from law_rows import BOTH, Array, block_of, descending, fast, slow

from jaxsppl.sampling.precision import float64

SIZE = 16
CHAINS = [
    ("top_k", "top_p", "min_p", "temperature"),
    ("temperature", "min_p", "top_k", "top_p"),
    ("min_p", "temperature", "top_p", "min_p", "temperature", "top_k", "top_p"),
]
POINTS = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(0.0), st.floats(0.05, 6)),
        "top_k": st.integers(0, 20).map(float),
        "top_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.05, 0.999)),
        "min_p": st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-4, 0.9)),
    }
)


def row(seed: int, kind: str) -> Array:
    """A descending row of log-probabilities that sum to 1."""
    rng = np.random.default_rng(seed)
    logits = {
        "smooth": rng.normal(0, rng.uniform(0.1, 6), SIZE),
        "ties": rng.integers(-3, 1, SIZE) * 0.7,
        "all tied": np.zeros(SIZE),
        "float32": rng.normal(0, 2, SIZE).astype(np.float32).astype(float),
        "cliff": np.where(np.arange(SIZE) < 3, 0.0, -60.0) + rng.normal(0, 0.1, SIZE),
    }[kind]
    logits = descending(logits)
    return logits - np.log(np.exp(logits - logits[0]).sum()) - logits[0]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["smooth", "ties", "all tied", "float32", "cliff"]),
    st.sampled_from(CHAINS),
    POINTS,
)
def test_random_chains_follow_the_law(
    seed: int, kind: str, chain: tuple[str, ...], point: dict[str, float]
) -> None:
    logprob = row(seed, kind)
    expected = chain_law(logprob, [(name, point[name]) for name in chain])
    with float64():
        block = block_of(np.tile(logprob, (SIZE, 1)), np.arange(SIZE))
        for way in BOTH:
            assert np.abs(way(block, chain, point)[0] - expected).max() < 1e-10


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.floats(0.3, 8),
    st.sampled_from(CHAINS[:2]),
    POINTS,
)
def test_both_ways_agree_on_the_unseen_tail(
    seed: int, scale: float, chain: tuple[str, ...], point: dict[str, float]
) -> None:
    rng = np.random.default_rng(seed)
    logprob = descending(rng.normal(0, scale, (SIZE, 300)))
    logprob -= np.log(np.exp(logprob).sum(axis=1, keepdims=True))
    actual = np.where(np.arange(SIZE) % 3, rng.integers(0, SIZE, SIZE), rng.integers(0, 300, SIZE))
    point["top_k"] = min(point["top_k"], float(SIZE))
    with float64():
        block = block_of(logprob, actual, SIZE, bound=True)
        one, other = fast(block, chain, point), slow(block, chain, point)
        assert np.abs(one - other).max() < 1e-11
        assert ((one >= 0) & (one <= 1 + 1e-12)).all()


@pytest.mark.parametrize("first", [{"top_p": 0.83}, {"top_a": 0.07}, {"epsilon_cutoff": 0.004}])
@pytest.mark.parametrize("last", [{"epsilon_cutoff": 0.009}, {"top_a": 0.03}, {"p_less": 2.0}])
def test_cuts_of_the_modelled_tail_follow_each_other_alike(
    first: dict[str, float], last: dict[str, float]
) -> None:
    # The first cut ends elsewhere in each scenario of the tail, and the second starts from there.
    rng = np.random.default_rng(4)
    logprob = descending(rng.normal(0, rng.uniform(0.3, 2, (200, 1)), (200, 300)))
    logprob -= np.log(np.exp(logprob).sum(axis=1, keepdims=True))
    chain, point = (*first, "temperature", *last), {**first, "temperature": 0.94, **last}
    with float64():
        block = block_of(logprob, rng.integers(0, 300, 200), SIZE, bound=True)
        one, other = fast(block, chain, point), slow(block, chain, point)
    assert np.abs(one[1] - one[2]).max() > 1e-3
    assert np.abs(one - other).max() < 1e-11


def test_the_last_kept_token_has_nothing_behind_it_however_the_draw_is_bent() -> None:
    # Rounding noise of 1e-16 behind it would count: with beta = 0.1, 0.03 of the draw's mass.
    logprob = descending(np.random.default_rng(5).normal(0, 2, (100, SIZE)))
    point = {"temperature": 1.3, "top_k": 5.0, "skew": -0.25, "alpha": 0.7, "beta": 0.1}
    with float64():
        block = block_of(logprob, np.arange(100) % 5)
        one, other = (way(block, ("temperature", "top_k", "skew"), point)[0] for way in BOTH)
    assert np.abs(one - other).max() < 1e-11


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logprob = np.tile(row(3, "smooth"), (SIZE, 1))
    point = {"temperature": temperature, "top_k": 0.0, "top_p": 0.9, "min_p": 0.05}
    with float64():
        for bound in (False, True):
            block = block_of(logprob, np.arange(SIZE), bound=bound)
            for way in BOTH:
                for chain in CHAINS[:2]:
                    found = way(block, chain, point)
                    assert np.isfinite(found).all()
                    assert np.abs(found.sum(axis=1) - 1).max() < 1e-11
