"""Pairs of floats carry sums of weighted logarithms beyond float32."""

from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl.sampling.pairs import Pair, exact, pair_sum, weighted_logs
from jaxsppl.sampling.precision import float64

WEIGHTS = st.floats(np.float32(-200.0), np.float32(200.0), width=32)
VALUES = st.floats(np.float32(2.0**-100), np.float32(2.0**100), width=32)


@jax.jit
def combined(w1: Any, v1: Any, w2: Any, v2: Any, small: Any) -> Pair:
    return weighted_logs((exact(w1), Pair(v1, small)), (exact(w2), exact(v2)))


@settings(max_examples=200, deadline=None)
@given(WEIGHTS, VALUES, WEIGHTS, VALUES)
def test_weighted_logs_against_mpmath(w1: float, v1: float, w2: float, v2: float) -> None:
    small = np.float32(v1) * np.float32(2.0**-26)
    arguments = [np.float32(v) for v in (w1, v1, w2, v2)]
    total = combined(*arguments, small)
    assert total.high.dtype == jnp.float32
    with mpmath.workdps(40):
        value = mpmath.mpf(float(v1)) + mpmath.mpf(float(small))
        terms = [mpmath.mpf(w1) * mpmath.log(value), mpmath.mpf(w2) * mpmath.log(mpmath.mpf(v2))]
        error = mpmath.mpf(float(total.high)) + mpmath.mpf(float(total.low)) - sum(terms)
        # Plain float32 has 1e-5 times the weight at the ends of this range; a logarithm of 70 has
        # about 36 good bits behind its point here.
        assert abs(error) < 5e-9 * (abs(w1) + abs(w2)) + 1e-12


def test_cancelling_terms_keep_their_difference() -> None:
    one, other = np.float32(0.7), np.float32(0.7000001)
    total = combined(np.float32(100), one, np.float32(-100), other, np.float32(0))
    true = 100 * (np.log(np.float64(one)) - np.log(np.float64(other)))
    # Either term is -36: its last place in float32 is 4e-6.
    assert abs(float(total.high) + float(total.low) - true) < 1e-7


def test_pair_sum_is_exact() -> None:
    total = pair_sum(jnp.float32(1), jnp.float32(2.0**-40))
    assert float(total.high) == 1
    assert float(total.low) == 2.0**-40


def test_double_precision_is_plain() -> None:
    with float64():
        total = combined(*map(jnp.float64, (3.0, 2.0, -1.0, 5.0, 0.0)))
        assert total.high.dtype == jnp.float64
        np.testing.assert_allclose(float(total.high), 3 * np.log(2) - np.log(5), rtol=1e-15)
        assert float(total.low) == 0


def test_slopes_are_those_of_the_plain_formula() -> None:
    def value(weight: Any, argument: Any) -> Any:
        total = weighted_logs(
            (exact(weight), exact(argument)), (exact(-weight), exact(2 * argument))
        )
        return total.high + total.low

    slopes = jax.grad(value, (0, 1))(jnp.float32(3), jnp.float32(0.25))
    np.testing.assert_allclose(np.array(slopes), [-np.log(2), 0], rtol=1e-6, atol=1e-6)
    curvature = jax.grad(jax.grad(lambda v: weighted_logs((exact(jnp.float32(3)), exact(v))).high))
    np.testing.assert_allclose(float(curvature(jnp.float32(0.5))), -12, rtol=1e-6)
