"""The probability that a Beta(alpha, beta) draw falls on a token's interval of [0, 1].

first correct version; see the notes below the code for the method.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


class _Constants(NamedTuple):
    """Numbers of terms and switching points for one floating type."""

    steps: int  # levels of the continued fraction
    split: float  # k in the point (alpha + k) / (alpha + beta + 2k) where the tails change side
    terms: int  # terms of the local series
    reach: float  # half-width allowed, relative to the distance from 0 and from 1
    slope: float  # change of the log-density allowed over the half-width
    bend: float  # and its curvature


_DOUBLE = _Constants(steps=24, split=2.0, terms=24, reach=0.25, slope=1.0, bend=1.0)
_SINGLE = _Constants(steps=12, split=1.5, terms=20, reach=0.45, slope=1.5, bend=1.0)

# Coefficients of 1/z, 1/z^3, ... in Stirling's series (DLMF 5.11.1).
_STIRLING = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)
_SHIFT = 8


def _constants(dtype: Any) -> _Constants:
    """Return the constants for a floating type."""
    return _DOUBLE if dtype == jnp.float64 else _SINGLE


def _log_gamma(z: Array) -> Array:
    """Return log Gamma(z) for z > 0 by Stirling's series after a fixed shift."""
    small = z < _SHIFT
    product = z
    for k in range(1, _SHIFT):
        product = product * (z + k)
    shifted = jnp.where(small, z + _SHIFT, z)
    inverse = 1 / shifted
    square = inverse * inverse
    series = jnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series * square + coefficient
    return (
        (shifted - 0.5) * jnp.log(shifted)
        - shifted
        + 0.9189385332046727
        + series * inverse
        - jnp.where(small, jnp.log(jnp.where(small, product, 1)), 0)
    )


def log_beta(alpha: Array, beta: Array) -> Array:
    """Return log B(alpha, beta)."""
    return _log_gamma(alpha) + _log_gamma(beta) - _log_gamma(alpha + beta)


def _coefficients(a: Array, b: Array, n: int) -> tuple[Array, Array]:
    """Return the n-th partial numerator over x^2, and the x-coefficient of the n-th denominator."""
    upper = a + (2 * n + 1)
    slope = (a + n) * (a + b + n) / upper
    if n == 0:
        return jnp.zeros_like(a), slope
    lower = a + (2 * n - 1)
    numerator = (a + (n - 1)) * (a + b + (n - 1)) * (n * (b - n)) / (lower * lower)
    return numerator, slope - n * (b - n) / lower


def _tail_fraction(left: Array, z: Array, a: Array, b: Array, steps: int) -> Array:
    """Return I_z(p, q) B(p, q) / (z^p (1-z)^q), (p, q) = (a, b) where `left`, else (b, a)."""
    square = z * z
    first = jnp.where(left, a, b)

    def pick(n: int) -> tuple[Array, Array]:
        (nl, dl), (nr, dr) = _coefficients(a, b, n), _coefficients(b, a, n)
        return jnp.where(left, nl, nr), jnp.where(left, dl, dr)

    num, den = pick(steps)
    f = first + 2 * steps - den * z
    beyond = jnp.where(left, _coefficients(a, b, steps + 1)[0], _coefficients(b, a, steps + 1)[0])
    f = 0.5 * (f + jnp.sqrt(f * f + 4 * beyond * square))
    for n in range(steps, 0, -1):
        lower_num, lower_den = pick(n - 1)
        f = (first + 2 * (n - 1) - lower_den * z) + num * square / f
        num = lower_num
    return 1 / f


class _Parts(NamedTuple):
    """Mass = exp(scale) * value; the two derivatives are of log mass in middle and half-width."""

    scale: Array
    value: Array
    log_mass: Array
    by_middle: Array
    by_half: Array


def _parts(before: Array, own: Array, after: Array, a: Array, b: Array, log_b: Array) -> _Parts:
    """Return the mass and its derivatives for own > 0 and a positive total."""
    const = _constants(own.dtype)
    inv = 1 / (before + own + after)
    x_lo, y_lo = before * inv, (own + after) * inv
    x_hi, y_hi = (before + own) * inv, after * inv
    x_mid, y_mid = (before + 0.5 * own) * inv, (after + 0.5 * own) * inv
    half = 0.5 * own * inv

    # local series
    ratio = half / (x_mid * y_mid)
    tilt = (a - 1) * y_mid - (b - 1) * x_mid
    bend = a + b - 2
    narrow = (
        (half <= const.reach * jnp.minimum(x_mid, y_mid))
        & (jnp.abs(tilt) * ratio <= const.slope)
        & (jnp.abs(bend) * ratio * half <= const.bend)
    )
    r = jnp.where(narrow, ratio, 0)
    rh = r * half
    skew = (y_mid - x_mid) * r
    tilt_r = tilt * r
    older, newer = jnp.zeros_like(r), jnp.ones_like(r)
    integral, even, odd = newer, newer, older
    for n in range(const.terms):
        older, newer = (
            newer,
            ((tilt_r - n * skew) * newer + ((n - 1 - bend) * rh) * older) / (n + 1),
        )
        if n % 2:
            even = even + newer
            integral = integral + newer / (n + 2)
        else:
            odd = odd + newer

    # tails
    x_one, y_one = jnp.where(narrow, x_mid, x_lo), jnp.where(narrow, y_mid, y_lo)
    open_one, open_two = x_one > 0, y_hi > 0
    log_one = (
        a * jnp.log(jnp.where(open_one, x_one, 1))
        + b * jnp.log(jnp.where(open_one, y_one, 1))
        - log_b
    )
    log_two = (
        a * jnp.log(jnp.where(open_two, x_hi, 1))
        + b * jnp.log(jnp.where(open_two, y_hi, 1))
        - log_b
    )
    split = (a + const.split) / (a + b + 2 * const.split)
    left_one, left_two = x_lo <= split, x_hi <= split
    around = left_one & ~left_two & ~narrow
    low = jnp.finfo(own.dtype).min
    scale = jnp.where(
        around,
        0,
        jnp.where(
            narrow,
            log_one,
            jnp.maximum(jnp.where(open_one, log_one, low), jnp.where(open_two, log_two, low)),
        ),
    )
    power_one = jnp.where(open_one, jnp.exp(jnp.where(open_one, log_one - scale, 0)), 0)
    power_two = jnp.where(open_two, jnp.exp(jnp.where(open_two, log_two - scale, 0)), 0)
    tail_one = power_one * _tail_fraction(
        left_one, jnp.where(left_one, x_lo, y_lo), a, b, const.steps
    )
    tail_two = power_two * _tail_fraction(
        left_two, jnp.where(left_two, x_hi, y_hi), a, b, const.steps
    )
    outside = jnp.where(around, tail_one + tail_two, 0)
    difference = jnp.where(left_one, tail_two - tail_one, tail_one - tail_two)
    value = jnp.where(narrow, 2 * ratio * integral, jnp.where(around, 1 - outside, difference))
    log_mass = scale + jnp.where(around, jnp.log1p(-outside), jnp.log(jnp.where(around, 1, value)))

    dens_lo = jnp.where(
        open_one, power_one / (jnp.where(open_one, x_lo, 1) * y_lo), jnp.where(a == 1, b, 0)
    )
    dens_hi = jnp.where(
        open_two, power_two / (x_hi * jnp.where(open_two, y_hi, 1)), jnp.where(b == 1, a, 0)
    )
    by_middle = jnp.where(narrow, odd / integral / half, (dens_hi - dens_lo) / value)
    by_half = jnp.where(narrow, even / integral / half, (dens_hi + dens_lo) / value)
    return _Parts(scale, value, log_mass, by_middle, by_half)


@jax.custom_jvp
def _log_mass(before: Array, own: Array, after: Array, a: Array, b: Array) -> Array:
    """Return the log mass; -inf where own is 0."""
    return _evaluate(before, own, after, a, b)[0]


def _evaluate(
    before: Array, own: Array, after: Array, a: Array, b: Array
) -> tuple[Array, Array, _Parts, Array]:
    present = own > 0
    safe = (jnp.where(present, m, 1) for m in (before, own, after))
    s_before, s_own, s_after = safe
    parts = _parts(s_before, s_own, s_after, a, b, log_beta(a, b))
    plain = (a == 1) & (b == 1)
    share = s_own / (s_before + s_own + s_after)
    log_mass = jnp.where(plain, jnp.log(share), parts.log_mass)
    mass = jnp.where(plain, share, jnp.exp(parts.scale) * parts.value)
    return jnp.where(present, log_mass, -jnp.inf), jnp.where(present, mass, 0), parts, present


@_log_mass.defjvp
def _log_mass_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    before, own, after, a, b = primals
    d_before, d_own, d_after, d_a, d_b = tangents
    log_mass, _, _, present = _evaluate(before, own, after, a, b)
    s_before, s_own, s_after = (jnp.where(present, m, 1) for m in (before, own, after))

    def inner(a: Array, b: Array) -> tuple[Array, _Parts]:
        parts = _parts(s_before, s_own, s_after, a, b, log_beta(a, b))
        return parts.log_mass, parts

    one, none = jnp.ones_like, jnp.zeros_like
    _, by_a, parts = jax.jvp(inner, (a, b), (one(a), none(b)), has_aux=True)
    _, by_b, _ = jax.jvp(inner, (a, b), (none(a), one(b)), has_aux=True)
    total = s_before + s_own + s_after
    d_half = 0.5 * (d_own * (s_before + s_after) - s_own * (d_before + d_after)) / (total * total)
    d_middle = (
        (s_after + 0.5 * s_own) * (d_before + 0.5 * d_own)
        - (s_before + 0.5 * s_own) * (d_after + 0.5 * d_own)
    ) / (total * total)
    tangent = parts.by_middle * d_middle + parts.by_half * d_half + by_a * d_a + by_b * d_b
    return log_mass, jnp.where(present, tangent, 0)


def _as_floats(*arguments: ArrayLike) -> list[Array]:
    """Return the arguments as arrays of their common floating type."""
    dtype = jnp.result_type(*arguments, jnp.float32)
    return [jnp.asarray(argument, dtype) for argument in arguments]


def log_beta_mass(
    before: ArrayLike, own: ArrayLike, after: ArrayLike, alpha: ArrayLike, beta: ArrayLike
) -> Array:
    """Return the log-probability that Beta(alpha, beta) gives to each token's interval."""
    return _log_mass(*_as_floats(before, own, after, alpha, beta))


def beta_mass(
    before: ArrayLike, own: ArrayLike, after: ArrayLike, alpha: ArrayLike, beta: ArrayLike
) -> Array:
    """Return the probability that Beta(alpha, beta) gives to each token's interval."""
    return jnp.exp(_log_mass(*_as_floats(before, own, after, alpha, beta)))
