"""The minimiser on functions whose minima are known, with poisoned starts among good ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsppl.sampling.precision import float64
from jaxsppl.sweep import descent
from jaxsppl.sweep.descent import STATUS, Outcome, Value

# A long valley, turned by an angle: the curvatures are 1000 and 1.
AXES = np.array([[0.8, 0.6], [-0.6, 0.8]])
CENTRE = np.array([0.3, -0.7])


def valley(z: Any) -> Any:
    """A quadratic, least at the centre."""
    away = jnp.asarray(AXES) @ (z - CENTRE)
    return 0.5 * (1000 * away[0] ** 2 + away[1] ** 2)


def poisoned(z: Any) -> Any:
    """The same, NaN far to the right."""
    return jnp.where(z[0] > 3, jnp.nan, valley(z))


def kinked(z: Any) -> Any:
    """Least of two parabolas and a level: concave kinks, as where tokens cross epsilon."""
    one, other = (z[0] - 1) ** 2 + z[1] ** 2, 2 * (z[0] + 1) ** 2 + z[1] ** 2 + 0.1
    return jnp.minimum(jnp.minimum(one, other), 3.0)


def run(function: Any, starts: Any, method: str = "lbfgs", **options: Any) -> Outcome:
    """Search from every start; the results in NumPy."""
    lower, upper = options.get("lower", -5.0), options.get("upper", 5.0)

    def objective(z: Any) -> Value:
        value, slope = jax.value_and_grad(function)(z)
        return Value(value, slope, jnp.zeros(()))

    def one(start: Any) -> Outcome:
        return descent.minimise(
            objective,
            start,
            jnp.full(2, lower),
            jnp.full(2, upper),
            memory=descent.fresh_memory(2),
            like=jnp.zeros(()),
            tolerance=jnp.asarray(1e-8),
            max_steps=jnp.asarray(options.get("max_steps", 200)),
            method=method,
        )

    with float64():
        found = jax.jit(lambda places: lax.map(one, places))(jnp.asarray(starts, float))
        return jax.tree.map(np.asarray, found)


def names(found: Outcome) -> list[str]:
    """The statuses in words."""
    return [STATUS[status] for status in found.status]


def test_a_narrow_valley_is_followed_to_its_end() -> None:
    starts = [[-4.0, 4.0], [4.0, -4.0], [0.0, 0.0], [5.0, 5.0]]
    found = run(valley, starts)
    assert names(found) == ["converged"] * 4
    np.testing.assert_allclose(found.place, [CENTRE] * 4, atol=1e-7)
    assert (np.abs(found.best.slope) <= 1e-8).all()


@pytest.mark.parametrize("method", descent.METHODS)
def test_a_poisoned_start_harms_no_other(method: str) -> None:
    starts = [[0.0, 0.0], [4.0, 0.0], [-1.0, 1.0]]
    found = run(poisoned, starts, method, max_steps=400)
    good = run(poisoned, [starts[0], starts[2]], method, max_steps=400)
    assert names(found)[1] == "not finite"
    np.testing.assert_array_equal(found.place[1], starts[1])
    np.testing.assert_array_equal(found.place[[0, 2]], good.place)
    with float64():
        first = [float(valley(jnp.asarray(start))) for start in (starts[0], starts[2])]
    # Adam is slow in a valley this narrow, and does get on.
    assert (good.best.value < (np.multiply(first, 0.1) if method == "adam" else 1e-12)).all()


def test_a_step_into_the_poison_is_taken_back() -> None:
    found = run(lambda z: jnp.where(z[0] < 0, jnp.nan, z[0] - jnp.log(z[0]) + z[1] ** 2), [[4, 4]])
    assert names(found) == ["converged"]
    np.testing.assert_allclose(found.place[0], [1, 0], atol=1e-7)


def test_a_minimum_beyond_a_limit_ends_at_the_limit() -> None:
    found = run(valley, [[-2.0, 0.5], [-3.0, -0.5]], upper=0.0, lower=-0.5)
    assert names(found) == ["at a bound"] * 2
    at = found.place[0]
    assert (at >= -0.5).all()
    assert (at <= 0).all()
    # Along a limit the free coordinate is at its own minimum: no better point near by.
    around = np.clip(at + np.random.default_rng(0).normal(0, 1e-3, (200, 2)), -0.5, 0)
    with float64():
        assert min(float(valley(z)) for z in around) >= float(found.best.value[0]) - 1e-12


def test_concave_kinks_are_crossed_and_the_level_is_flat() -> None:
    found = run(kinked, [[0.4, 0.5], [-0.6, -0.5], [0.3, 0.0], [4.0, 4.0]])
    assert names(found) == ["converged"] * 4
    np.testing.assert_allclose(found.place[[0, 2]], [[1, 0]] * 2, atol=1e-7)
    np.testing.assert_allclose(found.place[1], [-1, 0], atol=1e-7)
    np.testing.assert_array_equal(found.place[3], [4, 4])


def test_best_so_far_is_kept_when_the_steps_run_out() -> None:
    for method in descent.METHODS:
        few = run(valley, [[-4.0, 4.0]], method, max_steps=3)
        more = run(valley, [[-4.0, 4.0]], method, max_steps=6)
        assert names(few) == ["out of steps"]
        assert few.n_step.tolist() == [3]
        with float64():
            start = float(valley(np.array([-4.0, 4.0])))
        assert more.best.value[0] <= few.best.value[0] <= start


def test_a_known_curvature_is_worth_most_of_the_steps() -> None:
    with float64():
        memory = descent.memory_of(AXES[::-1], np.array([1.0, 1000.0]))

        def objective(z: Any) -> Value:
            return Value(*jax.value_and_grad(valley)(z), jnp.zeros(()))

        found = descent.minimise(
            objective,
            jnp.asarray(CENTRE + 0.5),
            jnp.full(2, -5.0),
            jnp.full(2, 5.0),
            memory=jax.tree.map(jnp.asarray, memory),
            like=jnp.zeros(()),
            tolerance=jnp.asarray(1e-8),
            max_steps=jnp.asarray(100),
            method="lbfgs",
        )
    assert int(found.n_step) <= 3
    np.testing.assert_allclose(found.place, CENTRE, atol=1e-9)
