"""A continued fraction for one tail of the Beta distribution, with derivatives in its parameters.

The fraction is the even part of DLMF 8.17.22,

    z^p (1-z)^q / (I_z(p, q) B(p, q)) = d_0 + c_1 z^2 / (d_1 + c_2 z^2 / (d_2 + ...)),

    c_n = (p+n-1)(p+q+n-1) n (q-n) / (p+2n-1)^2,
    d_n = p + 2n - z [(p+n)(p+q+n) / (p+2n+1) - n (q-n) / (p+2n-1)],

evaluated from the innermost level outwards: one division per level, always the same number of
levels. What lies beyond the last level is replaced by that level's fixed point, which saves about
a sixth of the levels.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

Directions = tuple[tuple[Array | float, Array | float], ...]


class Dual(NamedTuple):
    """A value and its derivatives in the directions that were asked for."""

    value: Array
    slopes: tuple[Array, ...]


def inverse_fraction(
    left: Array, z: Array, a: Array, b: Array, levels: int, directions: Directions = ()
) -> Dual:
    """Return z^p (1-z)^q / (I_z(p, q) B(p, q)), (p, q) = (a, b) where `left`, else (b, a).

    Parameters
    ----------
    left : Array
        Which tail, per element of `z`.
    z : Array
        Distance from that tail's end; at most a little beyond the mean p / (p + q).
    a, b : Array
        Parameters of the Beta distribution, broadcast against `z`.
    levels : int
        Levels of the fraction.
    directions : Directions
        Pairs (da, db): derivatives along these are returned too, with `z` held.

    Returns
    -------
    Dual
        The value and one derivative per direction.
    """
    p = jnp.where(left, a, b)
    along = tuple((jnp.where(left, da, db), jnp.where(left, db, da)) for da, db in directions)
    p_slopes = tuple(dp.astype(z.dtype) for dp, _ in along)
    square = z * z
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    # Few (a, b) for many z: the coefficients are made per pair, for both tails, then chosen.
    shared = 4 * math.prod(shape) <= z.size

    def level(n: Array) -> tuple[Dual, Dual]:
        if not shared:
            return _coefficients(p, jnp.where(left, b, a), n, along)
        return _choose(left, _both_tails(a, b, n, directions))

    def start(numerator: Dual, denominator: Dual) -> Dual:
        f = p + 2 * levels - denominator.value * z
        root = jnp.sqrt(f * f + 4 * numerator.value * square)
        slopes = tuple(
            0.5 * (dp - dd * z + (f * (dp - dd * z) + 2 * dn * square) / root)
            for dp, dn, dd in zip(p_slopes, numerator.slopes, denominator.slopes, strict=True)
        )
        return Dual(0.5 * (f + root), slopes)

    def step(f: Dual, n: Array | int, numerator: Dual, denominator: Dual) -> Dual:
        inverse = 1 / f.value
        ratio = numerator.value * square * inverse
        slopes = tuple(
            dp - dd * z + (dn * square - ratio * df) * inverse
            for dp, dn, dd, df in zip(
                p_slopes, numerator.slopes, denominator.slopes, f.slopes, strict=True
            )
        )
        return Dual((p + 2 * (n - 1) - denominator.value * z) + ratio, slopes)

    f = start(*level(jnp.asarray(levels + 1, z.dtype)))
    if shared and not directions:
        # Unrolled, the compiler keeps the whole fraction of one element in registers.
        rows = jnp.arange(1, levels + 1, dtype=z.dtype).reshape((-1,) + (1,) * len(shape))
        table = _both_tails(a, b, rows, ())
        for n in range(levels, 0, -1):
            f = step(f, n, *_choose(left, jax.tree.map(lambda rows, n=n: rows[n - 1], table)))
        return f

    def body(k: Array, f: Dual) -> Dual:
        n = (levels - k).astype(z.dtype)
        return step(f, n, *level(n))

    return lax.fori_loop(0, levels, body, f)


def _both_tails(a: Array, b: Array, n: Array, directions: Directions) -> list[tuple[Dual, Dual]]:
    """Return the coefficients of the left and of the right tail."""
    mirrored = tuple((db, da) for da, db in directions)
    return [_coefficients(a, b, n, directions), _coefficients(b, a, n, mirrored)]


def _choose(left: Array, tails: list[tuple[Dual, Dual]]) -> tuple[Dual, Dual]:
    """Return the left tail's coefficients where `left`, else the right one's."""
    return jax.tree.map(lambda one, other: jnp.where(left, one, other), *tails)


def _coefficients(p: Array, q: Array, n: Array, directions: Directions) -> tuple[Dual, Dual]:
    """Return c_n and the coefficient of -z in d_(n-1), n >= 1, with derivatives."""

    def plain(p: Array, q: Array) -> tuple[Array, Array]:
        inverse = 1 / (p + (2 * n - 1))
        common = (p + (n - 1)) * (p + q + (n - 1)) * inverse
        first = n == 1  # d_0 has no second part
        rest = (n - 1) * (q - (n - 1)) / jnp.where(first, 1, p + (2 * n - 3))
        return common * (n * (q - n)) * inverse, common - jnp.where(first, 0, rest)

    numerator, denominator = plain(p, q)
    slopes = [jax.jvp(plain, (p, q), (_filled(p, dp), _filled(q, dq)))[1] for dp, dq in directions]
    return (
        Dual(numerator, tuple(slope[0] for slope in slopes)),
        Dual(denominator, tuple(slope[1] for slope in slopes)),
    )


def _filled(like: Array, value: Array | float) -> Array:
    """Return the value in the shape and type of an array."""
    return jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape)
