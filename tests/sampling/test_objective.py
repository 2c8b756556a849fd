"""The objective: clipped losses and the share below epsilon, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsppl.sampling.objective import score
from jaxsppl.sampling.precision import float64


def test_three_tokens_by_hand() -> None:
    with float64():
        result = score(jnp.asarray([[0.5, 0.005, 0.0]]), jnp.ones(3), jnp.asarray(0.01))
    # -ln .5, and -ln .01 twice; two of three are below epsilon.
    assert float(result.loss[0]) == pytest.approx(0.6931471805599453 + 2 * 4.605170185988091)
    assert float(result.ood) == 2.0


def test_a_probability_of_epsilon_itself_is_not_below_it() -> None:
    with float64():
        result = score(jnp.asarray([[0.01, 0.01]]), jnp.ones(2), jnp.asarray(0.01))
    assert float(result.ood) == 0.0


def test_padding_does_not_count() -> None:
    probability = np.asarray([[0.2, 0.3, 0.0], [0.1, 0.4, 0.0], [0.3, 0.2, 0.0]])
    with float64():
        padded = score(jnp.asarray(probability), jnp.asarray([1.0, 1, 0]), jnp.asarray(1e-9))
        alone = score(jnp.asarray(probability[:, :2]), jnp.ones(2), jnp.asarray(1e-9))
    assert np.array_equal(np.asarray(padded.loss), np.asarray(alone.loss))
    assert float(padded.ood) == float(alone.ood) == 0.0


def test_each_scenario_has_its_own_loss_and_the_share_is_the_estimates() -> None:
    probability = np.asarray([[0.2, 0.001], [0.25, 0.02], [0.1, 0.0]])
    with float64():
        result = score(jnp.asarray(probability), jnp.ones(2), jnp.asarray(0.01))
    assert np.allclose(result.loss, -np.log([0.2 * 0.01, 0.25 * 0.02, 0.1 * 0.01]))
    assert float(result.ood) == 1.0


def test_a_tiny_epsilon_clips_nothing_that_is_kept() -> None:
    with float64():
        result = score(jnp.asarray([[1e-200, 1.0]]), jnp.ones(2), jnp.asarray(1e-300))
    assert float(result.loss[0]) == pytest.approx(200 * np.log(10))
    assert float(result.ood) == 0.0
