"""The draw: plain sampling is Beta(1, 1), masses sum to 1, and SciPy's betainc agrees."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_reference import beta_law, chain_law
from law_rows import BOTH, Array, Way, block_of, descending, each_actual

from jaxsppl.sampling.draw import Interval, probability
from jaxsppl.sampling.precision import float64

SIZE = 16
ORDER = ("top_k", "top_p", "min_p", "temperature")
PLAIN = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
SHAPES = st.floats(0.05, 20)
_drawn = jax.jit(probability)


def drawn(share: Array, alpha: float, beta: float) -> Array:
    """What `probability` gives each interval of a partition of [0, 1]."""
    before = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    after = np.concatenate([np.cumsum(share[::-1])[::-1][1:], [0.0]])
    place = Interval(*(np.asarray(part)[None] for part in (before, share, after)))
    return np.asarray(_drawn(place, np.asarray(alpha), np.asarray(beta)))[0]


def shares(seed: int, scale: float) -> Array:
    """Descending probabilities."""
    logits = descending(np.random.default_rng(seed).normal(0, scale, SIZE))
    weight = np.exp(logits - logits[0])
    return weight / weight.sum()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 4.0, 12.0]), SHAPES, SHAPES)
def test_masses_are_those_of_scipy_and_sum_to_1(
    seed: int, scale: float, alpha: float, beta: float
) -> None:
    share = shares(seed, scale)
    with float64():
        found = drawn(share, alpha, beta)
    assert abs(found.sum() - 1) < 1e-11
    assert (found >= 0).all()
    # SciPy's differences lose digits too; tests of the Beta mass use 50 of them.
    assert np.abs(found - beta_law(share, alpha, beta)).max() < 1e-10


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 4.0, 12.0]))
def test_beta_1_1_is_plain_sampling(seed: int, scale: float) -> None:
    share = shares(seed, scale)
    with float64():
        assert np.abs(drawn(share, 1.0, 1.0) / share - 1).max() < 1e-12


def test_shapes_favour_what_they_should() -> None:
    share = np.array([0.5, 0.25, 0.12, 0.08, 0.05, *[0.0] * (SIZE - 5)])
    with float64():
        assert drawn(share, 0.5, 1.0)[0] == pytest.approx(0.5**0.5)
        assert drawn(share, 2.0, 1.0)[4] == pytest.approx(1 - 0.95**2)
        assert drawn(share, 1.0, 3.0)[0] == pytest.approx(1 - 0.5**3)
        assert (drawn(share, 0.7, 0.4)[5:] == 0).all()
        # exllamav2 raises the drawn number to exp(-s): Beta(exp(s), 1). Its worked numbers:
        skewed = drawn(share, np.exp(0.5), 1.0)[:5]
    assert np.abs(skewed - [0.318923, 0.303393, 0.172532, 0.124061, 0.081091]).max() < 1e-6


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("bound", [False, True], ids=["drop", "bound"])
def test_beta_through_the_chain(way: Way, bound: bool) -> None:
    point = PLAIN | {"temperature": 0.8, "top_k": 9.0, "min_p": 0.02}
    chain = [(name, point[name]) for name in ORDER]
    logprob = np.tile(np.log(shares(4, 2.0)), (SIZE, 1))
    with float64():
        block = block_of(logprob, np.arange(SIZE), bound=bound)
        plain = way(block, ORDER, point)
        for alpha, beta in ((1.0, 1.0), (0.4, 2.5), (3.0, 0.2), (0.1, 0.1), (50.0, 70.0)):
            found = way(block, ORDER, point | {"alpha": alpha, "beta": beta})
            assert np.abs(found - chain_law(logprob[0], chain, alpha, beta)).max() < 1e-10
            if alpha == beta == 1:
                assert np.abs(found - plain).max() < 1e-14


@pytest.mark.parametrize("way", BOTH)
def test_beta_1_1_is_plain_sampling_whatever_the_tail(way: Way) -> None:
    rng = np.random.default_rng(3)
    wide = descending(rng.normal(0, rng.uniform(0.5, 8, (SIZE, 1)), (SIZE, 400)))
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    # Some rows sum to more than 1, as a server's do; half of the actual tokens are unlisted.
    wide += rng.choice([0.0, 6e-4], (SIZE, 1))
    wide = np.minimum(wide, 0.0)
    actual = np.where(np.arange(SIZE) % 2, rng.integers(0, SIZE, SIZE), rng.integers(SIZE, 400))
    one = {"alpha": 1.0, "beta": 1.0}
    with float64():
        block = block_of(wide, actual, SIZE, bound=True)
        for t in (0.1, 0.9, 1.0, 1.2, 3.0):
            for min_p in (0.0, 0.01):
                point = PLAIN | {"temperature": t, "min_p": min_p}
                plain = way(block, ORDER, point)
                assert np.abs(way(block, ORDER, point | one) - plain).max() < 1e-13, point


@pytest.mark.parametrize("way", BOTH)
def test_a_lone_token_has_all_of_any_draw(way: Way) -> None:
    logprob, actual = each_actual([0.5, 0.25, 0.12, 0.08, 0.05], SIZE)
    first = (actual == 0).astype(float)
    with float64():
        block = block_of(logprob, actual)
        for cut in ({"temperature": 0.0}, {"top_k": 1.0}, {"min_p": 1.0}, {"top_p": 0.0}):
            for alpha, beta in ((0.05, 30.0), (30.0, 0.05)):
                found = way(block, ORDER, PLAIN | cut | {"alpha": alpha, "beta": beta})[0]
                assert np.array_equal(found, first)


def test_one_shape_alone_leaves_the_other_neutral() -> None:
    share = shares(8, 2.0)
    before = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    after = np.maximum(1 - before - share, 0)
    place: Any = Interval(*(np.asarray(part)[None] for part in (before, share, after)))
    with float64():
        one = np.asarray(1.0)
        for name in ("alpha", "beta"):
            given_alone = {"alpha": None, "beta": None, name: np.asarray(0.6)}
            both = {"alpha": one, "beta": one, name: np.asarray(0.6)}
            alone = partial(probability, place)(**given_alone)
            assert np.array_equal(np.asarray(alone), np.asarray(probability(place, **both)))
