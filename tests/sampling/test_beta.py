"""The mass of an interval under Beta(alpha, beta), against 50-digit arithmetic and its own laws."""

import contextlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsppl.sampling.beta import PARAMETER_RANGE, beta_mass, log_beta, log_beta_mass
from jaxsppl.sampling.precision import float64

TYPES = [np.float64, np.float32]
TOLERANCE = {np.float64: 1e-10, np.float32: 1e-5}

# (before, own, after); the last three are public triples where subtraction in float32 gives 0.
INTERVALS = [
    (0.0, 0.3, 0.7),
    (0.3, 0.7, 0.0),
    (0.0, 1e-30, 1.0),
    (1.0, 1e-30, 0.0),
    (1e-30, 0.5, 0.5),
    (0.5, 0.5, 1e-30),
    (1e-30, 1e-32, 1.0),
    (1.0, 1e-32, 1e-30),
    (1e-30, 1.0, 1e-30),
    (0.3, 1e-12, 0.7),
    (0.2, 0.2, 0.6),
    (0.05, 0.9, 0.05),
    (0.009, 0.99, 0.001),
    (1e-9, 1e-3, 0.999),
    (0.9, 1e-6, 0.1 - 1e-6),
    (0.95, 1e-5, 0.05 - 1e-5),
    (0.6, 1e-4, 0.4 - 1e-4),
]
PARAMETERS = [
    (0.05, 0.05),
    (0.05, 100.0),
    (100.0, 0.05),
    (100.0, 100.0),
    (0.9, 100.0),
    (30.0, 0.3),
    (0.5, 6.0),
    (1.0, 8.0),
    (1.43, 7.25),
    (2.0, 30.0),
    (50.0, 1.0),
    (3.0, 3.0),
]
NASTY = np.array([i + p for i, p in itertools.product(INTERVALS, PARAMETERS)])


RUN = {dtype: jax.jit(beta_mass) for dtype in TYPES}


def exact_log_mass(before: Any, own: Any, after: Any, alpha: Any, beta: Any) -> Any:
    """Return the log mass in high precision, each tail from its own end."""
    with mpmath.workdps(
        max(130, 2 * mpmath.mp.dps)
    ):  # differences of tails lose up to the digits of the interval's width
        before, own, after, alpha, beta = map(mpmath.mpf, (before, own, after, alpha, beta))
        total = before + own + after

        def left(mass: Any) -> Any:
            return mpmath.betainc(alpha, beta, 0, mass / total, regularized=True)

        def right(mass: Any) -> Any:
            return mpmath.betainc(beta, alpha, 0, mass / total, regularized=True)

        if before + own < after:
            mass = left(before + own) - left(before)
        elif own + after < before:
            mass = right(own + after) - right(after)
        else:
            mass = 1 - left(before) - right(after)
        return mpmath.log(mass)


def exact(rows: np.ndarray) -> list[Any]:
    return [exact_log_mass(*map(float, row)) for row in rows]


def precision(dtype: Any) -> Any:
    """Return the context in which a type is computed; float32 is JAX's default."""
    return float64() if dtype is np.float64 else contextlib.nullcontext()


ALL = (0, 1, 2, 3, 4)
CHUNK = 256
MASS, LOG_MASS = jax.jit(beta_mass), jax.jit(log_beta_mass)
MASS_SLOPES, LOG_MASS_SLOPES = (
    jax.jit(jax.grad(lambda *arguments, f=f: jnp.sum(f(*arguments)), ALL))
    for f in (beta_mass, log_beta_mass)
)


def apply(function: Any, rows: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Return a function of the five columns, in chunks of one shape so that it compiles once."""
    padded = np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % CHUNK, axis=0)])
    with precision(dtype):
        parts = [
            np.array(function(*columns(padded[k : k + CHUNK], dtype)))
            for k in range(0, len(padded), CHUNK)
        ]
    assert all(part.dtype == dtype for part in parts)
    return np.concatenate(parts, axis=-1)[..., : len(rows)]


def columns(rows: np.ndarray, dtype: Any = np.float64) -> list[Any]:
    return [jnp.asarray(column, dtype) for column in rows.T]


@pytest.mark.parametrize("dtype", TYPES)
def test_mass_and_log_mass_against_mpmath(dtype: Any) -> None:
    rows = NASTY.astype(dtype)
    truth = exact(rows)
    masses, logs = apply(MASS, rows, dtype), apply(LOG_MASS, rows, dtype)
    smallest = np.log(float(np.finfo(dtype).tiny))
    for row, true, mass, log in zip(rows, truth, masses, logs, strict=True):
        # The logarithm cannot be better than its own rounding.
        bound = max(TOLERANCE[dtype], 2 * np.finfo(dtype).eps * abs(float(true)))
        assert abs(float(mpmath.mpf(float(log)) - true)) < bound, row
        if true > smallest:
            # nor the mass better than the exponential of such a number
            error = float(abs(mpmath.mpf(float(mass)) / mpmath.exp(true) - 1))
            assert error < TOLERANCE[dtype], row
        else:
            assert mass <= np.finfo(dtype).tiny


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("alpha", "beta", "before", "own", "true"),
    [
        (1.0, 8.0, 0.9, 1e-6, 8.0e-13),
        (0.5, 6.0, 0.95, 1e-5, 4.3e-12),
        (2.0, 30.0, 0.6, 1e-4, 1.6e-13),
    ],
)
def test_tails_that_subtraction_loses(
    dtype: Any, alpha: float, beta: float, before: float, own: float, true: float
) -> None:
    with precision(dtype):
        arguments = before, own, 1 - before - own, alpha, beta
        mass = float(RUN[dtype](*(jnp.asarray(v, dtype) for v in arguments)))
    assert mass == pytest.approx(true, rel=0.02)


PARAMETER = st.floats(np.log(PARAMETER_RANGE[0]), np.log(PARAMETER_RANGE[1])).map(
    lambda x: float(np.clip(np.exp(x), *PARAMETER_RANGE))
)


@settings(max_examples=250, deadline=None)
@given(st.floats(-30, 0), st.floats(-14, 0), st.floats(-30, 0), PARAMETER, PARAMETER, st.booleans())
def test_any_interval_and_parameters(
    before: float, own: float, after: float, alpha: float, beta: float, open_end: bool
) -> None:
    masses = np.array([0.0 if open_end else 10**before, 10**own, 10**after])
    row = np.array([*masses / masses.sum(), alpha, beta])
    true = exact_log_mass(*row)
    with float64():
        mass = float(RUN[np.float64](*map(jnp.float64, row)))
    if true > -690:
        assert abs(mpmath.mpf(mass) / mpmath.exp(true) - 1) < 1e-10
    single = row.astype(np.float32)
    true = exact_log_mass(*map(float, single))
    with precision(np.float32):
        mass = float(RUN[np.float32](*map(jnp.float32, single)))
    if true > -80:
        assert abs(mpmath.mpf(mass) / mpmath.exp(true) - 1) < 1e-5


def random_rows(n: int, seed: int, low: float = 0.05, high: float = 100.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    masses = rng.dirichlet([0.3, 0.3, 0.3], n)
    shapes = np.exp(rng.uniform(np.log(low), np.log(high), (n, 2)))
    return np.concatenate([masses, shapes], axis=1)


def test_agrees_with_scipy_where_subtraction_is_safe() -> None:
    rows = random_rows(3000, 1)
    rows = rows[rows[:, 2] > 1e-6]  # nearer to 1, 1 - after is rounded and SciPy cannot know
    before, own, _, a, b = rows.T
    lower, upper = scipy.special.betainc(a, b, before), scipy.special.betainc(a, b, before + own)
    safe = (upper - lower > 1e-3) & (upper - lower > 1e-3 * upper)
    assert safe.sum() > 1000
    masses = apply(MASS, rows)
    np.testing.assert_allclose(masses[safe], (upper - lower)[safe], rtol=2e-10)


def test_log_beta_against_scipy() -> None:
    a, b = np.meshgrid(np.geomspace(0.01, 300, 40), np.geomspace(0.01, 300, 40))
    with float64():
        ours = np.asarray(log_beta(a, b))
    np.testing.assert_allclose(ours, scipy.special.betaln(a, b), rtol=1e-13, atol=1e-12)
    with precision(np.float32):
        ours = np.asarray(log_beta(a.astype(np.float32), b.astype(np.float32)))
    truth = scipy.special.betaln(a.astype(np.float32).astype(float), b.astype(np.float32))
    np.testing.assert_allclose(ours, truth, rtol=2e-7, atol=2e-6)


def test_mirror_image() -> None:
    rows = np.concatenate([NASTY, random_rows(2000, 2)])
    logs = apply(LOG_MASS, rows)
    mirrored = apply(LOG_MASS, rows[:, [2, 1, 0, 4, 3]])
    np.testing.assert_allclose(mirrored, logs, rtol=1e-13, atol=5e-11)


def test_any_common_scale_of_the_masses() -> None:
    rows = random_rows(500, 3)
    logs = apply(LOG_MASS, rows)
    scaled = apply(LOG_MASS, rows * [37.0, 37.0, 37.0, 1, 1])
    np.testing.assert_allclose(scaled, logs, rtol=1e-13, atol=1e-10)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("alpha", "beta"), PARAMETERS)
def test_partition_sums_to_one_and_adjacent_intervals_add(
    dtype: Any, alpha: float, beta: float
) -> None:
    rng = np.random.default_rng(4)
    own = np.sort(rng.dirichlet(np.full(200, 0.1)).clip(1e-12))[::-1]
    own = (own / own.sum()).astype(dtype)
    edges = np.concatenate([[0], np.cumsum(own, dtype=dtype)])
    rest = np.concatenate([[0], np.cumsum(own[::-1], dtype=dtype)])[::-1]
    shape = np.full((len(own), 2), (alpha, beta), dtype)
    single = np.column_stack([edges[:-1], own, rest[1:], shape])
    double = np.column_stack([edges[:-2], own[:-1] + own[1:], rest[2:], shape[1:]])
    masses, pairs = apply(MASS, single, dtype), apply(MASS, double, dtype)
    # Edges are sums, good to a few roundings; those count alpha + beta times.
    tolerance = 1e-10 if dtype is np.float64 else 2e-4
    assert masses.sum(dtype=np.float64) == pytest.approx(1, rel=tolerance)
    np.testing.assert_allclose(pairs, masses[:-1] + masses[1:], rtol=tolerance * 10, atol=1e-30)


def test_mass_grows_with_the_interval() -> None:
    edges = np.concatenate([np.geomspace(1e-12, 0.5, 60), 1 - np.geomspace(0.49, 1e-9, 60)])
    for (alpha, beta), lower in itertools.product(PARAMETERS, (0.0, 1e-3, 0.2, 0.7)):
        upper = edges[edges > lower]
        rows = np.column_stack([np.full_like(upper, lower), upper - lower, 1 - upper])
        rows = np.column_stack([rows, np.full((len(upper), 2), (alpha, beta))])
        logs = apply(LOG_MASS, rows)
        assert np.all(np.diff(logs) > -1e-11)
        assert np.all(logs <= 0)


@pytest.mark.parametrize("dtype", TYPES)
def test_plain_sampling_is_the_own_share(dtype: Any) -> None:
    rows = random_rows(1000, 5)
    rows = np.concatenate([rows, NASTY]).astype(dtype)
    rows[:, 3:] = 1
    masses, logs = apply(MASS, rows, dtype), apply(LOG_MASS, rows, dtype)
    rows = rows[:, :3]
    share = rows[:, 1] / rows.sum(axis=1)
    np.testing.assert_allclose(masses, share, rtol=3 * np.finfo(dtype).eps)
    np.testing.assert_allclose(logs, np.log(share), rtol=3 * np.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_alone_has_everything(dtype: Any) -> None:
    rows = np.array([(0, 0.7, 0, *shape) for shape in PARAMETERS], dtype)
    np.testing.assert_array_equal(apply(LOG_MASS, rows, dtype), 0)
    np.testing.assert_array_equal(apply(MASS, rows, dtype), 1)


def gradients(rows: np.ndarray, dtype: Any, function: Any = LOG_MASS_SLOPES) -> np.ndarray:
    """Return the derivatives in all five arguments, (row, argument)."""
    return apply(function, rows, dtype).T


def exact_gradient(row: np.ndarray) -> list[float]:
    """Return derivatives by central differences in 130 digits (step 1e-25 of the argument)."""
    values = [mpmath.mpf(float(v)) for v in row]
    slopes = []
    with mpmath.workdps(130):
        for k, value in enumerate(values):
            # The step's square, relative, is the error of the difference; 1e-50 here.
            step = value * mpmath.mpf(10) ** -25
            if step == 0:
                slopes.append(float("nan"))
                continue
            ends = [
                exact_log_mass(*(v + sign * step if j == k else v for j, v in enumerate(values)))
                for sign in (1, -1)
            ]
            slopes.append(float((ends[0] - ends[1]) / (2 * step)))
    return slopes


@pytest.mark.parametrize("dtype", TYPES)
def test_all_derivatives_against_mpmath(dtype: Any) -> None:
    rows = np.concatenate([NASTY[::3], random_rows(40, 6)]).astype(dtype)
    ours = gradients(rows, dtype).astype(float)
    truth = np.array([exact_gradient(row) for row in rows])
    assert np.isfinite(ours).all()
    # In the masses: the change of the log mass for a relative change of the mass.
    weight = np.concatenate([rows[:, :3], np.ones((len(rows), 2))], axis=1).astype(float)
    known = np.isfinite(truth)
    errors = np.abs(ours - truth) * weight / np.maximum(1, np.abs(truth * weight))
    assert known.sum() > 300
    assert errors[known].max() < (1e-10 if dtype is np.float64 else 1e-5)


def test_derivatives_against_finite_differences_of_the_function_itself() -> None:
    rows = random_rows(50, 7, 0.2, 20)
    rows[:, :3] = 0.05 + rows[:, :3]
    ours = gradients(rows, np.float64)
    for k in range(5):
        # Central: error ~ step^2, rounding ~ 1e-14 / step.
        step = 1e-5 * rows[:, k]
        up, down = rows.copy(), rows.copy()
        up[:, k] += step
        down[:, k] -= step
        change = apply(LOG_MASS, up) - apply(LOG_MASS, down)
        np.testing.assert_allclose(ours[:, k], change / (2 * step), 2e-6, 2e-6)


def test_mass_and_log_mass_have_the_same_derivatives() -> None:
    rows = random_rows(200, 8)
    masses = apply(MASS, rows)
    linear, logarithmic = gradients(rows, np.float64, MASS_SLOPES), gradients(rows, np.float64)
    np.testing.assert_allclose(linear, masses[:, None] * logarithmic, rtol=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
def test_second_derivatives_in_the_parameters(dtype: Any) -> None:
    rows = np.array([[0.2, 0.3, 0.5, 1.43, 7.25], [0.6, 0.01, 0.39, 3.0, 0.5], [0, 0.4, 0.6, 2, 9]])
    rows = rows.astype(dtype)
    with precision(dtype):
        hessian = jax.jit(jax.hessian(log_beta_mass, argnums=(3, 4)))
        for row in rows:
            ours = np.array(hessian(*map(dtype, row)), float)
            masses = row[:3].tolist()
            point = tuple(map(float, row[3:]))

            def at(a: Any, b: Any, masses: Any = masses) -> Any:
                return exact_log_mass(*masses, a, b)

            with mpmath.workdps(60):
                truth = [
                    [mpmath.diff(at, point, orders) for orders in ((2, 0), (1, 1))],
                    [mpmath.diff(at, point, orders) for orders in ((1, 1), (0, 2))],
                ]
            tolerance = 1e-9 if dtype is np.float64 else 3e-5
            np.testing.assert_allclose(ours, np.array(truth, float), tolerance, tolerance)


@pytest.mark.parametrize("dtype", TYPES)
def test_padding_and_edges_give_no_nan(dtype: Any) -> None:
    tiny = np.finfo(dtype).tiny
    masses = [
        (0, 0, 0),
        (0.5, 0, 0.5),
        (0, 0, 1),
        (1, 0, 0),
        (0, 1, 0),
        (0, 20 * tiny, 1),
        (1, 20 * tiny, 0),
        (tiny, 1, tiny),
        (20 * tiny, 1, 20 * tiny),
        (0, 0.5, 0.5),
        (0.5, 0.5, 0),
        (0.5, tiny, 0.5),
        (0.5, 20 * tiny, 0.5),
        (50, 2000 * tiny, 50),
        (tiny / 4, tiny / 4, 1),
    ]
    rows = np.array([m + p for m, p in itertools.product(masses, [*PARAMETERS, (1.0, 1.0)])], dtype)
    logs, values = apply(LOG_MASS, rows, dtype), apply(MASS, rows, dtype)
    absent = rows[:, 1] <= tiny
    assert np.all(logs[absent] == -np.inf)
    assert np.all(np.isfinite(logs[~absent]))
    assert np.all(values[absent] == 0)
    assert np.all((values >= 0) & (values <= 1))
    slopes = gradients(rows, dtype)
    assert np.all(slopes[absent] == 0)
    # In the masses a derivative may exceed the type's largest number at an edge of width tiny.
    assert not np.isnan(slopes).any()
    assert np.isfinite(slopes[:, 3:]).all()
    wide = ~absent & (rows[:, 1] > 0.1) & ((rows[:, 0] == 0) | (rows[:, 0] > 0.1))
    assert np.isfinite(slopes[wide]).all()


def test_clipped_loss_over_padded_rows_has_a_clean_gradient() -> None:
    own = np.array([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    before = np.cumsum(own, axis=1) - own
    after = np.array([[0.5, 0.2, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    present = own > 0

    def loss(alpha: Any, beta: Any) -> Any:
        logs = jnp.maximum(log_beta_mass(before, own, after, alpha, beta), jnp.log(0.01))
        return -jnp.sum(jnp.where(present, logs, 0)) / present.sum()

    with float64():
        slopes = np.array(jax.jit(jax.grad(loss, (0, 1)))(0.5, 0.7))
        alone = float(jax.grad(lambda a: log_beta_mass(0.0, 1.0, 0.0, a, 0.7))(0.5))
    assert np.isfinite(slopes).all()
    assert slopes[0] != 0
    assert alone == 0


def test_fixed_edges_do_not_move_but_finite_densities_count() -> None:
    for alpha, expected in ((0.5, 0.0), (1.0, -2.0 / (1 - 0.7**2)), (2.0, 0.0)):
        # d/d lower edge of log mass = -density / mass, 0 by convention where that is infinite.
        row = np.array([[0.0, 0.3, 0.7, alpha, 2.0]])
        slope = gradients(row, np.float64)[0] @ [1, -1, 0, 0, 0]
        assert slope == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_nan_stays_nan() -> None:
    rows = np.tile([0.2, 0.3, 0.5, 2.0, 3.0], (5, 1))
    np.fill_diagonal(rows, np.nan)
    assert np.isnan(apply(LOG_MASS, rows)).all()
    assert np.isnan(apply(MASS, rows)).all()


def test_one_trace_for_all_values_and_global_flag_untouched() -> None:
    flag = jax.config.jax_enable_x64
    traces = 0

    def counted(*arguments: Any) -> Any:
        nonlocal traces
        traces += 1
        return log_beta_mass(*arguments)

    run = jax.jit(jax.value_and_grad(lambda a, b, *m: jnp.sum(counted(*m, a, b)), (0, 1)))
    with float64():
        for alpha, beta in PARAMETERS:
            run(jnp.asarray(alpha), jnp.asarray(beta), *columns(NASTY[:64])[:3])
    assert traces == 1
    assert jax.config.jax_enable_x64 == flag


@pytest.mark.parametrize("dtype", TYPES)
def test_grid_vmap_and_elementwise_calls_agree(dtype: Any) -> None:
    # They take different ways through the coefficients of the fraction.
    masses = random_rows(64, 9)[:, :3].astype(dtype)
    a, b = np.array(PARAMETERS, dtype).T
    with precision(dtype):
        tokens = columns(masses, dtype)
        grid = np.asarray(log_beta_mass(*tokens, a[:, None], b[:, None]))
        mapped = np.asarray(jax.vmap(lambda a, b: log_beta_mass(*tokens, a, b))(a[:2], b[:2]))
    full = [np.broadcast_to(v, grid.shape).ravel() for v in (*masses.T, a[:, None], b[:, None])]
    single = apply(LOG_MASS, np.column_stack(full), dtype).reshape(grid.shape)
    assert grid.shape == (len(PARAMETERS), 64)
    tolerance = 1e-11 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(mapped, grid[:2], tolerance, tolerance)
    np.testing.assert_allclose(single, grid, tolerance, tolerance)
