"""The continued fraction of a Beta tail and its derivatives, against mpmath."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxsppl.sampling.beta_fraction import inverse_fraction
from jaxsppl.sampling.precision import float64

LEVELS = 40
DIRECTIONS = ((1.0, 0.0), (0.0, 1.0))


def exact(z: Any, p: Any, q: Any) -> Any:
    incomplete = mpmath.betainc(p, q, 0, z)
    return z**p * (1 - z) ** q / incomplete


@pytest.mark.parametrize("per_value", [False, True])
def test_value_and_slopes_of_both_tails(per_value: bool) -> None:
    run = jax.jit(
        lambda left, z, a, b: (
            inverse_fraction(left, z, a, b, LEVELS),
            inverse_fraction(left, z, a, b, LEVELS, DIRECTIONS),
        )
    )
    for a, b in itertools.product((0.1, 1.0, 2.5, 40.0), (0.3, 1.0, 3.0, 60.0)):
        left = np.array([True, True, True, False, False, False])
        mean = np.where(left, a, b) / (a + b)
        z = mean * np.array([1e-9, 0.3, 0.9, 1e-9, 0.3, 0.9])
        with float64():
            shape = np.ones_like(z) if per_value else np.float64(1)
            plain, dual = run(left, z, a * shape, b * shape)
            plain = np.asarray(plain.value)
            slopes = np.array([np.asarray(slope) for slope in dual.slopes])
            dual = np.asarray(dual.value)
        np.testing.assert_allclose(dual, plain, rtol=1e-13)
        with mpmath.workdps(50):
            for k, (side, point) in enumerate(zip(left, z, strict=True)):
                x = mpmath.mpf(float(point))

                def at(a: Any, b: Any, side: bool = bool(side), x: Any = x) -> Any:
                    return exact(x, a, b) if side else exact(x, b, a)

                assert plain[k] == pytest.approx(float(at(a, b)), rel=1e-12)
                for slope, orders in zip(slopes[:, k], ((1, 0), (0, 1)), strict=True):
                    true = float(mpmath.diff(at, (a, b), orders))
                    assert slope == pytest.approx(true, rel=1e-9, abs=1e-11)


def test_integer_parameters_end_the_fraction_without_nan() -> None:
    z = np.linspace(0, 0.5, 7)
    with float64():
        for n in (1.0, 2.0, 5.0):
            values = inverse_fraction(
                jnp.full(7, True), jnp.asarray(z), *map(jnp.asarray, (n, n)), 20
            )
            assert np.isfinite(np.asarray(values.value)).all()
