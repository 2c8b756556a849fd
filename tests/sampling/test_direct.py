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
