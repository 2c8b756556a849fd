"""The factored grid: every point is the law's, padding and shapes are free, gradients are true."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_reference import chain_law, objective
from law_rows import QUICK, Array, arrays, block_of, cut, descending

from jaxsppl.sampling import factored
from jaxsppl.sampling.candidates import Candidates, candidates
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.tail import with_tail

SIZE = 16
NAMES = ("min_p", "temperature", "epsilon")
CHAIN = ("min_p", "temperature")
AXES = ((0.0, 0.05, 0.4), (0.0, 0.5, 1.0, 2.0), (0.001, 0.05))


def harvest_rows(seed: int, n_vocab: int) -> tuple[Array, Array]:
    """Descending rows that sum to 1, and actual tokens of any rank."""
    rng = np.random.default_rng(seed)
    logprob = descending(rng.normal(0, 2.5, (SIZE, n_vocab)))
    logprob -= np.log(np.exp(logprob).sum(axis=1, keepdims=True))
    return logprob, rng.integers(0, n_vocab, SIZE)


def grid(block: Candidates, axes: Any = AXES) -> factored.Score:
    """All points of small axes."""
    values = tuple(jnp.asarray(axis) for axis in axes)
    return factored.grid(block, values, {}, chain=CHAIN, names=NAMES)


def test_every_point_is_the_laws() -> None:
    logprob, actual = harvest_rows(0, SIZE)
    with float64():
        result = grid(block_of(logprob, actual))
    loss, ood = np.asarray(result.loss), np.asarray(result.ood)
    assert loss.shape == (3, 4, 2, 1)
    assert ood.shape == (3, 4, 2)
    for place in itertools.product(*map(range, ood.shape)):
        point = [axis[at] for axis, at in zip(AXES, place, strict=True)]
        chain = list(zip(CHAIN, point[:2], strict=True))
        own = np.array([chain_law(row, chain)[a] for row, a in zip(logprob, actual, strict=True)])
        nll, share = objective(own, point[2])
        assert abs(loss[place][0] / SIZE - nll) < 1e-11
        assert ood[place] / SIZE == share


@pytest.mark.parametrize("bound", [False, True], ids=["drop", "bound"])
def test_padding_and_blocks_change_nothing(bound: bool) -> None:
    logprob, actual = harvest_rows(1, 120)
    top, own, rank = cut(logprob, actual, SIZE)
    whole_weight = np.ones(SIZE)
    # 11 of the tokens, then 5, each filled up with other tokens of weight 0.
    first, second = whole_weight.copy(), whole_weight.copy()
    first[11:], second[5:] = 0, 0
    with float64():

        def block(order: Array, weight: Array) -> Candidates:
            made = candidates(top[order], own[order], rank[order], weight)
            return with_tail(made, 120) if bound else made

        whole = grid(block(np.arange(SIZE), whole_weight))
        before = factored.grid._cache_size()
        parts = [
            grid(block(np.roll(np.arange(SIZE), -start), weight))
            for start, weight in ((0, first), (11, second))
        ]
        # Other tokens of the same shape are no new program.
        assert factored.grid._cache_size() == before
    for name in ("loss", "ood"):
        total = sum(np.asarray(getattr(part, name)) for part in parts)
        assert np.abs(total - np.asarray(getattr(whole, name))).max() < 1e-12


def test_one_program_for_all_values_of_one_shape() -> None:
    with float64():
        grid(block_of(*harvest_rows(2, SIZE)))
        before = factored.grid._cache_size()
        for seed in range(3, 8):
            grid(block_of(*harvest_rows(seed, SIZE)), [np.asarray(a) * 0.9 for a in AXES])
        assert factored.grid._cache_size() == before


def ragged() -> tuple[Array, Array, Array, Array]:
    """Rows with absent alternatives, tokens outside, ties, a certain token, and padding."""
    logprob, actual = harvest_rows(9, 120)
    logprob[3, 1:4] = logprob[3, 0]
    logprob[4] = np.where(np.arange(120) == 0, -1e-7, -40.0)
    actual[:6] = [0, 15, 60, 2, 0, 119]
    top, own, rank = cut(logprob, actual, SIZE)
    top = top.copy()
    top[1, 9:] = -np.inf
    top[6, 1:] = -np.inf
    rank[1], rank[6] = 3, 1
    return top, own, rank, (np.arange(SIZE) < 13).astype(float)


@pytest.mark.parametrize("bound", [False, True], ids=["drop", "bound"])
@pytest.mark.parametrize("first", [False, True], ids=["temperature last", "temperature first"])
def test_gradients_are_finite_and_true(bound: bool, first: bool) -> None:
    chain = ("temperature", "min_p") if first else ("min_p", "temperature")
    fixed = {"epsilon": 1e-4, "min_p": 0.003}
    with float64():
        block = candidates(*ragged())
        if bound:
            block = with_tail(block, 120)

        def loss(point: Array) -> jax.Array:
            values = dict(zip(("temperature", "alpha", "beta"), point, strict=True))
            return factored.point(block, chain, arrays(fixed) | values).loss[0]

        both = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)
        for point in ([0.83, 0.7, 1.4], [1.6, 2.5, 0.45], [1.0, 1.0, 1.0], [0.31, 1.0, 3.0]):
            at = np.asarray(point)
            value, slope = both(at)
            assert np.isfinite(value)
            assert np.isfinite(np.asarray(slope)).all()
            for index in range(3):
                step = 1e-6 * (np.arange(3) == index)
                sides = [float(both(at + sign * step)[0]) for sign in (1, -1)]
                numeric = (sides[0] - sides[1]) / 2e-6
                # At T = 1 the rounding's share in the estimate turns: either slope is one.
                allowed = 1e-6 if not (bound and point[0] == 1.0) else 2e-2
                assert abs(numeric - float(slope[index])) < allowed * max(1.0, abs(numeric))


def test_gradients_at_temperature_0_are_finite() -> None:
    with float64():
        block = with_tail(candidates(*ragged()), 120)

        def loss(temperature: jax.Array) -> jax.Array:
            values = arrays({"epsilon": 1e-4, "min_p": 0.01}) | {"temperature": temperature}
            return factored.point(block, ("min_p", "temperature"), values).loss[0]

        both = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)
        value, slope = both(jnp.asarray(0.0))
        assert np.isfinite(float(value))
        assert np.isfinite(float(slope))
