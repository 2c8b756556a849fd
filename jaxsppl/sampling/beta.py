"""The probability that a Beta(alpha, beta) draw falls on a token's interval of [0, 1].

A token lies between the mass `before` it and the mass `after` it, and gets `I_hi - I_lo`, I being
the regularized incomplete beta function. Subtracting two values of I loses all digits of a short
interval far out, so the mass is made in one of three ways, chosen per element:

1. *Narrow*: a Gauss-Legendre rule over the logit of the position, where `x^a (1-x)^b` is smooth.
2. *On one side of the mean*: the difference of two tails, both counted from the end of [0, 1] that
   they reach. Not being narrow, they differ enough.
3. *Around the mean*: one minus the left tail and minus the right tail.

A tail is `x^a (1-x)^b / B(a, b)` over a continued fraction (`beta_fraction`). All masses are taken
from the side where they are small, so `after = 1e-30` keeps its digits; logarithms and B(a, b) are
summed in pairs of floats where the type is float32 (`pairs`). No loop depends on data, and B(a, b)
is computed in the shape of `alpha` and `beta` alone, not per token.

Error, relative to the mass, against 50-digit arithmetic for parameters in `PARAMETER_RANGE` and
any interval: below 1e-10 in float64 (typically 1e-14) and below 1e-5 in float32 (typically 3e-7).
A logarithm L also carries its own rounding, eps |L|. Beyond the range nothing breaks at once: at
parameters of 1000 float64 still gives 1e-9.

Derivatives are not those of the code path but of the integral: in the ends the density, in alpha
and beta the mean of log x and log (1-x) over the interval.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import digamma
from jax.typing import ArrayLike

from jaxsppl.sampling.beta_fraction import Directions, Dual, inverse_fraction
from jaxsppl.sampling.pairs import Pair, exact, is_single, pair_sum, weighted_logs

PARAMETER_RANGE = (0.05, 100.0)
"""Values of alpha and beta for which the stated accuracy holds."""


class _Constants(NamedTuple):
    """Numbers of terms and switching points for one floating type."""

    levels: int  # of the continued fraction
    split: float  # how far from the mean the tails change side, see `_split`
    nodes: int  # of the Gauss-Legendre rule for narrow intervals
    reach: float  # their half-width, at most, relative to the distance from 0 and from 1
    change: float  # slope of the log-integrand times the half-width, at most
    bend: float  # its second derivative times the half-width squared, at most
    shift: int  # where Stirling's series begins


# float32 cannot afford to lose digits in a difference of tails, hence its wider narrow intervals.
_DOUBLE = _Constants(levels=28, split=0.2, nodes=4, reach=0.1, change=0.2, bend=0.02, shift=9)
_SINGLE = _Constants(levels=32, split=0.06, nodes=10, reach=0.95, change=4.0, bend=2.5, shift=4)

_BOTH_PARAMETERS: Directions = ((1.0, 0.0), (0.0, 1.0))

# Coefficients of 1/z, 1/z^3, ... in Stirling's series (DLMF 5.11.1), used for z >= shift.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_HALF_LOG_TWO_PI = 0.9189385332046727


@jax.jit
def log_beta_mass(
    before: ArrayLike, own: ArrayLike, after: ArrayLike, alpha: ArrayLike, beta: ArrayLike
) -> Array:
    """Return the log-probability that Beta(alpha, beta) gives to each token's interval.

    All arguments broadcast against each other; where few (alpha, beta) meet many tokens, give them
    axes of their own (`alpha[:, None]`) so that what depends on them alone is computed once.

    Parameters
    ----------
    before, own, after : ArrayLike
        Masses of the kept tokens before this one, of this one, and after it, >= 0, on any common
        scale: they are divided by their sum. Up to 16 times the smallest normal number of the type
        (2e-37 in float32) they count as 0.
    alpha, beta : ArrayLike
        Parameters of the Beta distribution, within `PARAMETER_RANGE`. At alpha = beta = 1 the
        result is the logarithm of the own share, to rounding.

    Returns
    -------
    Array
        Natural logarithm of the mass [nat], in the common floating type of the arguments.
        0 for a token alone. -inf where `own` is 0, with all derivatives 0 there, so that
        padding does no harm to gradients; clip it before it is multiplied by 0. An end that lies
        exactly on 0 or 1 where the density is infinite is held fixed by the derivatives.
    """
    return _log_mass(*_as_floats(before, own, after, alpha, beta))


@jax.jit
def beta_mass(
    before: ArrayLike, own: ArrayLike, after: ArrayLike, alpha: ArrayLike, beta: ArrayLike
) -> Array:
    """Return the probability that Beta(alpha, beta) gives to each token's interval.

    Parameters
    ----------
    before, own, after, alpha, beta : ArrayLike
        As for `log_beta_mass`.

    Returns
    -------
    Array
        The mass [1], 0 where `own` is 0; with fewer rounding errors than the exponential of
        `log_beta_mass` where that is large.
    """
    return _mass(*_as_floats(before, own, after, alpha, beta))


@jax.jit
def log_beta(alpha: ArrayLike, beta: ArrayLike) -> Array:
    """Return log B(alpha, beta), the normaliser of the density.

    Parameters
    ----------
    alpha, beta : ArrayLike
        Parameters of the Beta distribution, > 0.

    Returns
    -------
    Array
        Natural logarithm of the beta function.
    """
    return _log_beta(*_as_floats(alpha, beta)).high


def _as_floats(*arguments: ArrayLike) -> list[Array]:
    """Return the arguments as arrays of their common floating type."""
    dtype = jnp.result_type(*arguments)
    if dtype not in (jnp.float32, jnp.float64):  # integers and half floats
        dtype = jnp.result_type(dtype, jnp.float32)
    return [jnp.asarray(argument, dtype) for argument in arguments]


@jax.custom_jvp
def _log_mass(before: Array, own: Array, after: Array, a: Array, b: Array) -> Array:
    """Return the log mass; -inf without own mass."""
    present, masses = _usable(before, own, after)
    return _finish_log(present, masses, a, b, _parts(*masses, a, b))


@_log_mass.defjvp
def _log_mass_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the log mass and its change."""
    a, b = primals[3:]
    present, masses = _usable(*primals[:3])
    parts = _parts(*masses, a, b, _BOTH_PARAMETERS)
    change = _change(masses, parts, tangents)
    return _finish_log(present, masses, a, b, parts), jnp.where(present, change, 0)


@jax.custom_jvp
def _mass(before: Array, own: Array, after: Array, a: Array, b: Array) -> Array:
    """Return the mass."""
    present, masses = _usable(before, own, after)
    return _finish(present, masses, a, b, _parts(*masses, a, b))


@_mass.defjvp
def _mass_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the mass and its change."""
    a, b = primals[3:]
    present, masses = _usable(*primals[:3])
    parts = _parts(*masses, a, b, _BOTH_PARAMETERS)
    mass = _finish(present, masses, a, b, parts)
    return mass, mass * jnp.where(present, _change(masses, parts, tangents), 0)


_Masses = tuple[Array, Array, Array]


class _Parts(NamedTuple):
    """Mass = exp(scale) value, its logarithm, and the derivatives of the logarithm."""

    scale: Pair
    value: Array
    log_mass: Array
    by_ends: "_ByEnds"
    by_shape: tuple[Array, ...]


class _ByEnds(NamedTuple):
    """Derivatives of the log mass in the interval's ends.

    Two of the four are 0: an interval over which the density hardly changes moves as a whole and
    grows (anything else would be a difference of two nearly equal numbers), others by their ends.
    """

    middle: Array
    half: Array
    low: Array
    high: Array


def _constants(dtype: Any) -> _Constants:
    """Return the constants for a floating type."""
    return _SINGLE if is_single(dtype) else _DOUBLE


def _usable(before: Array, own: Array, after: Array) -> tuple[Array, _Masses]:
    """Return where a token has mass (or is NaN), and masses that are harmless elsewhere."""
    present = _counts(own, before + own + after)
    before, own, after = (jnp.where(present, mass, 1) for mass in (before, own, after))
    return present, (before, own, after)


def _counts(mass: Array, total: Array) -> Array:
    """Return where a mass is not too small for arithmetic without subnormal numbers."""
    return ~(mass <= 16 * jnp.finfo(mass.dtype).tiny * jnp.maximum(total, 1))


def _finish_log(present: Array, masses: _Masses, a: Array, b: Array, parts: _Parts) -> Array:
    """Return the log mass with the plain draw and the absent tokens filled in."""
    plain = jnp.log(masses[1] / sum(masses))
    return jnp.where(present, jnp.where((a == 1) & (b == 1), plain, parts.log_mass), -jnp.inf)


def _finish(present: Array, masses: _Masses, a: Array, b: Array, parts: _Parts) -> Array:
    """Return the mass with the plain draw and the absent tokens filled in."""
    mass = jnp.exp(parts.scale.high) * (parts.value * (1 + parts.scale.low))
    plain = masses[1] / sum(masses)
    return jnp.where(present, jnp.where((a == 1) & (b == 1), plain, mass), 0)


def _change(masses: _Masses, parts: _Parts, tangents: Any) -> Array:
    """Return the change of the log mass for changes of all five arguments."""
    before, own, after = masses
    d_before, d_own, d_after, d_a, d_b = tangents
    scale = 1 / (before + own + after)
    before, own, after = before * scale, own * scale, after * scale
    d_half = 0.5 * (d_own * (before + after) - own * (d_before + d_after)) * scale
    d_low = ((own + after) * d_before - before * (d_own + d_after)) * scale
    d_high = (after * (d_before + d_own) - (before + own) * d_after) * scale
    d_middle = (
        (after + 0.5 * own) * (d_before + 0.5 * d_own)
        - (before + 0.5 * own) * (d_after + 0.5 * d_own)
    ) * scale
    by, (by_a, by_b) = parts.by_ends, parts.by_shape
    ends = by.middle * d_middle + by.half * d_half + by.high * d_high - by.low * d_low
    return ends + by_a * d_a + by_b * d_b


def _parts(
    before: Array, own: Array, after: Array, a: Array, b: Array, directions: Directions = ()
) -> _Parts:
    """Return the mass of own > 0, with derivatives in (a, b) along `directions`."""
    const = _constants(own.dtype)
    total = before + own + after
    x_lo, y_lo = before / total, (own + after) / total
    x_hi, y_hi = (before + own) / total, after / total
    x_mid, y_mid = (before + 0.5 * own) / total, (after + 0.5 * own) / total
    low_edge, high_edge = _counts(before, total), _counts(after, total)
    local = _narrow(x_mid, y_mid, 0.5 * own / total, a, b, const, directions)

    # x^a y^b / B(a, b) at the middle of a narrow interval, else at both ends; 0 on an end of [0, 1]
    log_b = _log_beta(a, b)
    share = jnp.where(local.usable, 0.5, 0)
    open_one, open_two = local.usable | low_edge, ~local.usable & high_edge
    whole = pair_sum(before, own)
    whole = pair_sum(whole.high, after).plus(whole.low)
    log_one = _log_power(
        _guard(open_one, pair_sum(before, share * own)),
        pair_sum(after, (1 - share) * own),
        whole, a, b, log_b,
    )  # fmt: skip
    log_two = _log_power(pair_sum(before, own), _guard(open_two, exact(after)), whole, a, b, log_b)

    split = _split(a, b, const)
    left_one, left_two = x_lo <= split, x_hi <= split
    around = left_one & ~left_two & ~local.usable
    one_leads = open_one & (~open_two | (log_one.high >= log_two.high))
    scale = _guard(~around, _select(one_leads, log_one, log_two), 0)
    power_one = _exponential(open_one, log_one, scale)
    power_two = _exponential(open_two, log_two, scale)
    f_one = inverse_fraction(
        left_one, jnp.where(left_one, x_lo, y_lo), a, b, const.levels, directions
    )
    f_two = inverse_fraction(
        left_two, jnp.where(left_two, x_hi, y_hi), a, b, const.levels, directions
    )
    tail_one, tail_two = power_one / f_one.value, power_two / f_two.value

    outside = jnp.where(around, tail_one + tail_two, 0)
    difference = jnp.where(left_one, tail_two - tail_one, tail_one - tail_two)
    wide = jnp.where(local.usable, 1, jnp.where(around, 1 - outside, difference))
    value = jnp.where(local.usable, local.integral.value, wide)
    log_value = jnp.where(around, jnp.log1p(-outside), jnp.log(jnp.where(around, 1, value)))

    # On an end of [0, 1] the density is finite and not 0 only where its parameter is 1.
    at_zero = jnp.where(a == 1, b * jnp.exp(jnp.where(a == 1, -scale.high, 0)), 0)
    at_one = jnp.where(b == 1, a * jnp.exp(jnp.where(b == 1, -scale.high, 0)), 0)
    density_lo = jnp.where(low_edge, power_one / (jnp.where(low_edge, x_lo, 1) * y_lo), at_zero)
    density_hi = jnp.where(high_edge, power_two / (x_hi * jnp.where(high_edge, y_hi, 1)), at_one)

    by_shape: list[Array] = []
    if directions:
        x_one = jnp.where(local.usable, x_mid, jnp.where(low_edge, x_lo, 1))
        logs_one = jnp.log(x_one), jnp.log(jnp.where(local.usable, y_mid, y_lo))
        logs_two = jnp.log(x_hi), jnp.log(jnp.where(high_edge, y_hi, 1))
        part_one = jnp.where(around | left_one, -tail_one, tail_one) / wide
        part_two = jnp.where(left_one & ~around, tail_two, -tail_two) / wide
        both = digamma(a + b)
        norm = digamma(a) - both, digamma(b) - both
        for k, (da, db) in enumerate(directions):
            one = da * (logs_one[0] - norm[0]) + db * (logs_one[1] - norm[1])
            two = da * (logs_two[0] - norm[0]) + db * (logs_two[1] - norm[1])
            tails = part_one * (one - f_one.slopes[k] / f_one.value) + part_two * (
                two - f_two.slopes[k] / f_two.value
            )
            inside = one + local.integral.slopes[k] / local.integral.value
            by_shape.append(jnp.where(local.usable, inside, tails))
    return _Parts(
        scale,
        value,
        scale.high + (scale.low + log_value),
        _ByEnds(
            jnp.where(local.usable, local.by_ends.middle, 0),
            jnp.where(local.usable, local.by_ends.half, 0),
            jnp.where(local.usable, local.by_ends.low, density_lo / wide),
            jnp.where(local.usable, local.by_ends.high, density_hi / wide),
        ),
        tuple(by_shape),
    )


class _Narrow(NamedTuple):
    """A narrow interval; the integral is relative to x^a y^b at its middle."""

    usable: Array
    integral: Dual
    by_ends: _ByEnds


def _narrow(
    x: Array, y: Array, half: Array, a: Array, b: Array, const: _Constants, directions: Directions
) -> _Narrow:
    """Integrate x^a y^b over the logit between x - half and x + half, where that is short."""
    ratio = half / (x * y)
    usable = (
        (half <= const.reach * jnp.minimum(x, y))
        & (jnp.abs(a * y - b * x) * ratio <= const.change)
        & ((a + b) * (ratio * half) <= const.bend)
    )
    safe = jnp.where(usable, half, const.reach * jnp.minimum(x, y))
    low, high = jnp.log1p(-safe / (x * (y + safe))), jnp.log1p(safe / (x * (y - safe)))
    nodes, weights = np.polynomial.legendre.leggauss(const.nodes)
    integral = jnp.zeros_like(ratio * a * b)
    slopes = [integral for _ in directions]
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        step = low * (0.5 - 0.5 * node) + high * (0.5 + 0.5 * node)
        log_y = -jnp.log1p(x * jnp.expm1(step))
        term = weight * jnp.exp(a * step + (a + b) * log_y)
        integral = integral + term
        slopes = [
            slope + term * (da * (step + log_y) + db * log_y)
            for slope, (da, db) in zip(slopes, directions, strict=True)
        ]
    width = 0.5 * (high - low)
    integral, slopes = integral * width, tuple(slope * width for slope in slopes)
    # The density at both ends over that in the middle, less 1: small, so a difference keeps digits.
    rise = jnp.expm1((a - 1) * jnp.log1p(safe / x) + (b - 1) * jnp.log1p(-safe / y))
    fall = jnp.expm1((a - 1) * jnp.log1p(-safe / x) + (b - 1) * jnp.log1p(safe / y))
    norm = 1 / (x * y * integral)
    flat = jnp.maximum(jnp.abs(rise), jnp.abs(fall)) < 0.5
    by_ends = _ByEnds(
        jnp.where(flat, (rise - fall) * norm, 0),
        jnp.where(flat, (2 + rise + fall) * norm, 0),
        jnp.where(flat, 0, (1 + fall) * norm),
        jnp.where(flat, 0, (1 + rise) * norm),
    )
    return _Narrow(usable, Dual(integral, slopes), by_ends)


def _split(a: Array, b: Array, const: _Constants) -> Array:
    """Return the point up to which the left tail is used, beyond it the right one.

    The mean, unless a parameter is below 1: next to the mean the fraction then converges slowly.
    """
    shift = const.split * jnp.sqrt(jnp.maximum(a, b)) * jnp.maximum(0, 1 - jnp.minimum(a, b))
    return (a + shift) / (a + b + 2 * shift)


def _log_power(x: Pair, y: Pair, total: Pair, a: Array, b: Array, log_b: Pair) -> Pair:
    """Return log of x^a y^b / B(a, b) for masses x and y of a total."""
    if is_single(x.high.dtype):
        logs = weighted_logs((exact(a), x), (exact(b), y), (pair_sum(-a, -b), total))
    else:
        logs = weighted_logs(
            (exact(a), exact(x.high / total.high)), (exact(b), exact(y.high / total.high))
        )
    difference = pair_sum(logs.high, -log_b.high)
    return difference.plus(logs.low - log_b.low)


def _log_beta(alpha: Array, beta: Array) -> Pair:
    """Return log B(alpha, beta) by Stirling's series after a fixed shift."""
    start = _constants(alpha.dtype).shift
    terms: list[tuple[Pair, Pair]] = []
    rest = jnp.full_like(alpha + beta, _HALF_LOG_TWO_PI)
    shifts = jnp.zeros_like(rest)
    for z, sign in ((exact(alpha), 1), (exact(beta), 1), (pair_sum(alpha, beta), -1)):
        small = z.high < start
        product = z.high
        for k in range(1, start):
            product = product * (z.high + k)
        shift = jnp.where(small, start, 0).astype(z.high.dtype)
        moved = pair_sum(z.high, shift).plus(z.low)
        inverse = 1 / moved.high
        series = jnp.zeros_like(inverse)
        for coefficient in reversed(_STIRLING):
            series = series * (inverse * inverse) + coefficient
        weight = pair_sum(moved.high, jnp.full_like(inverse, -0.5)).plus(moved.low)
        terms.append((Pair(sign * weight.high, sign * weight.low), moved))
        terms.append((exact(jnp.full_like(inverse, -sign)), exact(jnp.where(small, product, 1))))
        rest = rest + sign * (series * inverse)
        shifts = shifts - sign * shift
    logs = weighted_logs(*terms)
    total = pair_sum(logs.high, shifts)
    return pair_sum(total.high, rest).plus(total.low + logs.low)


def _guard(valid: Array, value: Pair, otherwise: float = 1) -> Pair:
    """Return the value where valid, else a constant."""
    return Pair(jnp.where(valid, value.high, otherwise), jnp.where(valid, value.low, 0))


def _select(first: Array, one: Pair, other: Pair) -> Pair:
    """Return one pair where `first`, else the other."""
    return Pair(jnp.where(first, one.high, other.high), jnp.where(first, one.low, other.low))


def _exponential(valid: Array, value: Pair, scale: Pair) -> Array:
    """Return exp(value - scale) where valid, else 0."""
    power = jnp.exp(jnp.where(valid, value.high - scale.high, 0))
    return jnp.where(valid, power + power * (value.low - scale.low), 0)
