"""Sums of weighted logarithms with an error far below the rounding of float32.

In float32, `alpha log x` alone loses 5 digits at `alpha = 100`: the product is rounded where the
exponential needs its last places. Here a number is an unevaluated sum `high + low` of two float32
(about 47 bits), made with error-free sums and products. float64 needs none of this, so there the
same functions are the plain formulas with `low = 0`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_LN2_HIGH = 0.693145751953125  # 17 bits: its product with an exponent is exact in float32
_LN2_LOW = 1.428606820309417e-06
_HALF_MANTISSA = -4096  # 0xfffff000: drops the lower 12 bits of a float32
_SQRT_HALF_BITS = 0x3F3504F3
# 1/(2k+1) of the series of atanh, after its leading term.
_ATANH = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)


class Pair(NamedTuple):
    """An unevaluated sum of two floats, the second far smaller than the first."""

    high: Array
    low: Array

    def plus(self, small: Array) -> "Pair":
        """Return the pair with a small number added to its lower part."""
        return Pair(self.high, self.low + small)


def exact(x: Array) -> Pair:
    """Return a float as a pair."""
    return Pair(x, jnp.zeros_like(x))


def is_single(dtype: object) -> bool:
    """Return whether a floating type is too short to go without pairs."""
    return dtype != jnp.float64


def pair_sum(x: Array, y: Array) -> Pair:
    """Return x + y without rounding (float32), or rounded once (float64)."""
    total = x + y
    if not is_single(total.dtype):
        return Pair(total, jnp.zeros_like(total))
    part = total - x
    return Pair(total, (x - (total - part)) + (y - part))


def _product(x: Array, y: Array) -> Pair:
    """Return x y without rounding, from halves of 12 bits (bit masks: safe under fused ops)."""
    x, y = jnp.broadcast_arrays(x, y)
    xh, yh = _upper_half(x), _upper_half(y)
    xl, yl = x - xh, y - yh
    product = x * y
    return Pair(product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl)


def _upper_half(x: Array) -> Array:
    """Return x with the lower half of its mantissa cleared."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(bits & jnp.int32(_HALF_MANTISSA), jnp.float32)


def _log(value: Pair) -> Pair:
    """Return the logarithm of a normal float32 pair 2^e m, log m = 2 atanh((m-1)/(m+1))."""
    bits = lax.bitcast_convert_type(value.high, jnp.int32)
    exponent = (bits - jnp.int32(_SQRT_HALF_BITS)) >> 23
    mantissa = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32)
    rest = value.low * lax.bitcast_convert_type((127 - exponent) << 23, jnp.float32)
    e = exponent.astype(jnp.float32)
    top, bottom = mantissa - 1, pair_sum(mantissa, jnp.ones_like(mantissa))
    z = top / bottom.high
    back = _product(z, bottom.high)
    z_low = ((top - back.high) - back.low + rest - z * (bottom.low + rest)) / bottom.high
    square = z * z
    series = jnp.zeros_like(z)
    for coefficient in reversed(_ATANH):
        series = (series + coefficient) * square
    head = pair_sum(e * _LN2_HIGH, 2 * z)
    return Pair(head.high, head.low + (e * _LN2_LOW + 2 * (z_low + z * series)))


@jax.custom_jvp
def weighted_logs(*terms: tuple[Pair, Pair]) -> Pair:
    """Return sum_k weight_k log(value_k).

    Parameters
    ----------
    *terms : tuple[Pair, Pair]
        Weights and positive values, broadcast against each other, all of one floating type.
        float32 values have to be normal numbers.

    Returns
    -------
    Pair
        The sum; in float32 good to 1e-9 per unit of weight.
    """
    if not is_single(terms[0][1].high.dtype):
        total = sum((w.high * jnp.log(v.high) for w, v in terms[1:]), start=_plain(terms[0]))
        return Pair(total, jnp.zeros_like(total))
    high, low = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
    for weight, value in terms:
        logarithm = _log(value)
        product = _product(weight.high, logarithm.high)
        high, carry = pair_sum(high, product.high)
        low = low + (
            carry + product.low + weight.high * logarithm.low + weight.low * logarithm.high
        )
    return pair_sum(high, low)


@weighted_logs.defjvp
def _weighted_logs_jvp(primals: Any, tangents: Any) -> tuple[Pair, Pair]:
    """Return the sum and its change, the latter in plain arithmetic (bit masks have no slope)."""
    total = weighted_logs(*primals)
    change = jnp.zeros_like(total.high)
    for (weight, value), (d_weight, d_value) in zip(primals, tangents, strict=True):
        change = change + d_weight.high * jnp.log(value.high)
        change = change + weight.high * d_value.high / value.high
    return total, exact(change)


def _plain(term: tuple[Pair, Pair]) -> Array:
    """Return weight times logarithm of one term in plain arithmetic."""
    return term[0].high * jnp.log(term[1].high)
