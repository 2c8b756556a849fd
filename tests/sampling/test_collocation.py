"""Collocation: the log mass between a few draws is that of the draw itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl.sampling import collocation
from jaxsppl.sampling.beta import log_beta_mass
from jaxsppl.sampling.precision import float64


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.floats(0.05, 50),
    st.one_of(st.just(1.0), st.floats(1.01, 40)),
    st.integers(1, 200),
    st.sampled_from([0.25, 0.1]),
)
def test_weights_give_back_what_they_are_made_from(
    low: float, ratio: float, size: int, step: float
) -> None:
    axis = np.geomspace(low, low * ratio, size)
    points, weights = collocation.points(axis, step), collocation.weights(axis, step)
    assert points.size <= min(axis.size, 3 + np.log(ratio) / step) or axis[0] == axis[-1]
    assert points.min() >= axis.min() * (1 - 1e-12) and points.max() <= axis.max() * (1 + 1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(weights @ np.log(points), np.log(axis), atol=1e-8)


@pytest.mark.parametrize(("low", "high"), [(0.4, 2.5), (0.2, 20.0)])
def test_interpolated_log_masses_are_those_of_the_draw(low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    axis = np.geomspace(low, high, 60)
    points, weights = collocation.points(axis, 0.25), collocation.weights(axis, 0.25)
    assert points.size < axis.size
    share = rng.dirichlet([0.4, 0.3, 0.4], 300).T
    with float64():
        mass = jax.vmap(log_beta_mass, (None, None, None, 0, 0))
        at = [jnp.asarray(each.ravel()) for each in np.meshgrid(points, points, indexing="ij")]
        few = np.asarray(mass(*share, *at)).reshape(points.size, points.size, -1)
        draws = rng.integers(0, 60, (2, 40))
        found = np.einsum("pqn,dp,dq->dn", few, *weights[draws])
        exact = np.asarray(mass(*share, *jnp.asarray(axis[draws])))
    counts = exact > np.log(0.001)
    error = np.abs(found - exact)[counts]
    assert counts.sum() > 1000
    assert error.max() < 1e-4 and error.mean() < 1e-6
