"""The stages of the chain: published vectors, exact limits, and laws that no value may break."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_reference import chain_law
from law_rows import BOTH, Array, Way, block_of, descending, each_actual

from jaxsppl.sampling.precision import float64

BASE = [0.5, 0.25, 0.12, 0.08, 0.05]
# Two orders of all stages; a shorter chain is one of them with neutral values.
LLAMA = ("top_k", "top_p", "min_p", "temperature")
VLLM = ("temperature", "min_p", "top_k", "top_p")
NEUTRAL = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
SIZE = 16


def sampled(
    way: Way, probability: list[float], chain: list[tuple[str, float]], *, bound: bool = False
) -> Array:
    """(scenario, token) what a chain gives each token of a vector."""
    names = [name for name, _ in chain]
    order = next(
        order for order in (LLAMA, VLLM) if names == [name for name in order if name in names]
    )
    logprob, actual = each_actual(probability, SIZE)
    block = block_of(logprob, actual, bound=bound, n_vocab=len(probability))
    return way(block, order, NEUTRAL | dict(chain))[:, : len(probability)]


# What real libllama gave for BASE, and values of vLLM's order: see samplers in llama.cpp.
VECTORS = [
    ([("top_k", 3)], [0.574713, 0.287356, 0.137931, 0, 0]),
    ([("top_k", 1)], [1, 0, 0, 0, 0]),
    ([("top_k", 0)], BASE),
    ([("top_k", 5)], BASE),
    ([("top_k", 2**31 - 1)], BASE),
    ([("top_p", 0.75)], [2 / 3, 1 / 3, 0, 0, 0]),
    ([("top_p", 0.7500001)], [0.574713, 0.287356, 0.137931, 0, 0]),
    ([("top_p", 0.5)], [1, 0, 0, 0, 0]),
    ([("top_p", 0)], [1, 0, 0, 0, 0]),
    ([("top_p", 1)], BASE),
    ([("min_p", 0.16)], [0.526316, 0.263158, 0.126316, 0.084211, 0]),
    ([("min_p", 0.2)], [0.574713, 0.287356, 0.137931, 0, 0]),
    ([("min_p", 0.25)], [2 / 3, 1 / 3, 0, 0, 0]),
    ([("min_p", 0.5)], [2 / 3, 1 / 3, 0, 0, 0]),
    ([("min_p", 1)], [1, 0, 0, 0, 0]),
    ([("temperature", 0.5)], [0.744491, 0.186123, 0.042883, 0.019059, 0.007445]),
    ([("temperature", 2)], [0.343261, 0.242722, 0.168163, 0.137305, 0.108549]),
    ([("temperature", 0)], [1, 0, 0, 0, 0]),
    (
        [("top_k", 4), ("top_p", 0.9), ("min_p", 0.05), ("temperature", 0.8)],
        [0.629552, 0.264694, 0.105754, 0, 0],
    ),
    ([("top_k", 3), ("top_p", 0.76), ("temperature", 1)], [0.666667, 0.333333, 0, 0, 0]),
    ([("min_p", 0.2), ("temperature", 2)], [0.455165, 0.321850, 0.222984, 0, 0]),
    ([("min_p", 0.3), ("temperature", 2)], [0.585786, 0.414214, 0, 0, 0]),
    (
        [("temperature", 2), ("min_p", 0.3)],
        [0.343261, 0.242722, 0.168163, 0.137305, 0.108549],
    ),
    ([("temperature", 2), ("min_p", 0.5)], [0.585786, 0.414214, 0, 0, 0]),
]


@pytest.mark.parametrize("bound", [False, True], ids=["drop", "bound"])
@pytest.mark.parametrize(("chain", "expected"), VECTORS, ids=[str(v[0]) for v in VECTORS])
def test_published_vectors(
    chain: list[tuple[str, float]], expected: list[float], bound: bool
) -> None:
    exact = chain_law(np.log(BASE), chain)
    assert np.abs(exact - expected).max() < 1e-6
    with float64():
        for way in BOTH:
            found = sampled(way, BASE, chain, bound=bound)
            assert found.shape == (3 if bound else 1, 5)
            assert np.abs(found - exact).max() < 1e-12


@pytest.mark.parametrize(
    ("probability", "top_p", "kept"),
    [
        ([0.5, 0.41, 0.09], 0.9, 2),  # the token that crosses the limit stays
        ([0.5, 0.3, 0.1, 0.1], 0.8, 2),  # .5 + .3 misses .8 in binary
        ([0.5, 0.3, 0.1, 0.1], 1.0, 4),
        (BASE, 0.87, 3),
        (BASE, 0.95, 4),
        ([0.7, 0.2, 0.1], 0.9, 2),
        ([0.1] * 10, 0.3, 3),
        ([0.1] * 10, 0.7, 7),
    ],
)
def test_top_p_stops_at_the_token_that_reaches_the_limit(
    probability: list[float], top_p: float, kept: int
) -> None:
    with float64():
        for way in BOTH:
            found = sampled(way, probability, [("top_p", top_p)])
            assert np.count_nonzero(found) == kept


def test_temperature_renormalises() -> None:
    with float64():
        for way in BOTH:
            found = sampled(way, [0.7, 0.2, 0.1], [("temperature", 2.0)])
            assert np.abs(found - [0.5229, 0.2795, 0.1976]).max() < 5e-5


def test_exact_ties() -> None:
    tied = [0.3, 0.3, 0.3, 0.1]
    with float64():
        for way in BOTH:
            third = [[1 / 3, 1 / 3, 1 / 3, 0]]
            assert np.allclose(sampled(way, tied, [("temperature", 0.0)]), third)
            assert np.allclose(sampled(way, tied, [("min_p", 1.0)]), third)
            # top_k keeps exactly k, in the order of the server.
            half = [[0.5, 0.5, 0, 0]]
            assert np.allclose(sampled(way, tied, [("top_k", 2.0)]), half)
            assert np.allclose(sampled(way, tied, [("top_k", 2.0), ("temperature", 0.0)]), half)


def test_only_the_alternatives_exist_without_a_tail() -> None:
    logprob, actual = each_actual(BASE, SIZE)
    shown = logprob.copy()
    shown[:, 3:] = -np.inf
    with float64():
        # Listed tokens 0 .. 2; 3 and 4 were actual but not among the alternatives.
        listed = block_of(shown, actual)._replace(rank=np.where(actual < 3, actual, SIZE))
        for way in BOTH:
            expected = [*chain_law(np.log(BASE[:3]), [("temperature", 1.7)]), 0, 0]
            warm = way(listed, LLAMA, NEUTRAL | {"temperature": 1.7})[0, :5]
            assert np.abs(warm - expected).max() < 1e-13
            # top_k beyond the alternatives keeps them all.
            for k in (3.0, 4.0, 1e9):
                assert np.array_equal(
                    way(listed, LLAMA, NEUTRAL | {"top_k": k}), way(listed, LLAMA, NEUTRAL)
                )


def rows(seed: int, scale: float) -> Array:
    """One random row, copied so that each of its tokens is the actual one once."""
    logits = descending(np.random.default_rng(seed).normal(0, scale, SIZE))
    logprob = logits - np.log(np.exp(logits).sum())
    return np.tile(logprob, (SIZE, 1))


EVERY = np.arange(SIZE)
SEEDS = st.integers(0, 10**6)
SCALES = st.sampled_from([0.01, 0.5, 2.0, 8.0])
POINTS = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(0.0), st.floats(0.05, 5)),
        "top_k": st.integers(0, 20).map(float),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
    }
)
ORDERS = st.sampled_from([LLAMA, VLLM])


@pytest.mark.parametrize("way", BOTH)
def test_a_neutral_value_changes_nothing(way: Way) -> None:
    with float64():
        for bound in (False, True):
            block = block_of(rows(3, 2.0), EVERY, 10, bound=bound)
            nothing = way(block, (), {})
            for name, value in NEUTRAL.items() if not bound else ():
                assert np.array_equal(way(block, (name,), {name: value}), nothing)
            assert np.array_equal(way(block, LLAMA, NEUTRAL), nothing)
            # A stage whose parameter is not given is neutral.
            assert np.array_equal(way(block, LLAMA, {}), nothing)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS, SCALES, POINTS, ORDERS, st.floats(-30, 30))
def test_a_constant_added_to_the_logits_changes_nothing(
    seed: int, scale: float, point: dict[str, float], chain: tuple[str, ...], constant: float
) -> None:
    logprob = rows(seed, scale)
    # A limit that falls on a token within rounding may go either way.
    point["top_p"] = round(point["top_p"], 3) * 0.9991 if point["top_p"] < 1 else 1.0
    with float64():
        for way in BOTH:
            here = way(block_of(logprob, EVERY), chain, point)
            moved = way(block_of(logprob + constant, EVERY), chain, point)
            assert np.abs(here - moved).max() < 1e-11


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SEEDS, SCALES, POINTS, ORDERS, st.sampled_from(["top_k", "top_p", "min_p"]), st.floats(0, 1))
def test_tightening_a_truncation_never_keeps_more(
    seed: int,
    scale: float,
    point: dict[str, float],
    chain: tuple[str, ...],
    name: str,
    other: float,
) -> None:
    loose, tight = dict(point), dict(point)
    if name == "min_p":
        loose[name], tight[name] = sorted([point[name], other])
    elif name == "top_p":
        tight[name], loose[name] = sorted([point[name], other])
    else:
        tight[name], loose[name] = sorted([1 + point[name] % 15, 1 + round(15 * other)])
    # A later top_p sees what an earlier cut leaves and may then keep other tokens: leave it out.
    if name != "top_p":
        loose["top_p"] = tight["top_p"] = 1.0
    with float64():
        block = block_of(rows(seed, scale), EVERY)
        for way in BOTH:
            wide, narrow = way(block, chain, loose)[0], way(block, chain, tight)[0]
            assert not ((narrow > 0) & (wide == 0)).any()
            # Plain sampling: the likeliest token only gains.
            assert narrow[0] >= wide[0] - 1e-12


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS, SCALES, POINTS, ORDERS)
def test_probabilities_over_all_tokens_sum_to_1(
    seed: int, scale: float, point: dict[str, float], chain: tuple[str, ...]
) -> None:
    with float64():
        block = block_of(rows(seed, scale), EVERY)
        for way in BOTH:
            found = way(block, chain, point)[0]
            assert abs(found.sum() - 1) < 1e-12
            assert (found >= 0).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(SEEDS, st.sampled_from([0.5, 2.0, 8.0]), st.integers(1, 4), ORDERS)
def test_temperature_0_is_the_limit(
    seed: int, scale: float, ties: int, chain: tuple[str, ...]
) -> None:
    logprob = rows(seed, scale)
    logprob[:, :ties] = logprob[:, :1]
    logprob[:, ties:] = np.minimum(logprob[:, ties:], logprob[:, :1] - 0.1)
    # A cut after the temperature sees its result.
    point = {"top_k": 12.0, "top_p": 0.97, "min_p": 0.01}
    with float64():
        block = block_of(logprob, EVERY)
        for way in BOTH:
            limit = way(block, chain, {**point, "temperature": 0.0})[0]
            if ties == 1:
                assert np.array_equal(limit, EVERY == 0)
            for small in (1e-3, 1e-6, 1e-100):
                near = way(block, chain, {**point, "temperature": small})[0]
                assert np.abs(near - limit).max() < 1e-12


def test_the_order_matters_where_it_should() -> None:
    cut, warm = ("min_p", 0.3), ("temperature", 2.0)
    with float64():
        for way in BOTH:
            last, first = sampled(way, BASE, [cut, warm]), sampled(way, BASE, [warm, cut])
            assert (np.count_nonzero(last), np.count_nonzero(first)) == (2, 5)
            # min_p after temperature T cuts where min_p ** T cuts before it.
            power = sampled(way, BASE, [("min_p", 0.3**2), warm])
            assert np.abs(first - power).max() < 1e-13


@pytest.mark.parametrize("way", BOTH)
def test_a_stage_listed_twice_is_applied_twice(way: Way) -> None:
    values = {"temperature": 1.6, "top_p": 0.8, "top_k": 9.0}
    order = ("temperature", "top_p", "top_k", "top_p", "temperature")
    logprob = rows(5, 2.0)
    expected = chain_law(logprob[0], [(name, values[name]) for name in order])
    with float64():
        assert np.abs(way(block_of(logprob, EVERY), order, values)[0] - expected).max() < 1e-12
