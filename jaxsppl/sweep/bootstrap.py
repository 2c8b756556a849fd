"""Paired cluster bootstrap of ratios: whole documents are drawn again, never single tokens.

A mean per token (or byte) is a ratio, summed loss / summed weight. All resamples are one matrix
product: how often each document was drawn, times its sums. Intervals are studentised, because
percentiles cover too little; of fewer than `FEW` documents too few resamples differ, and Student's
distribution takes their place. `docs/statistics.md` has the coverage of all three. A "document" is
whatever is drawn whole: a group of documents where a harvest has groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl.schema import Array

# Documents below which resamples say too little.
FEW = 5
# What rounding leaves of the terms of a sum of squares where all documents agree.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Estimate:
    """A ratio, or a difference of two, with its uncertainty; arrays of one shape.

    Attributes
    ----------
    value, se : array
        The ratio and its standard error; NaN for a single document.
    low, high : array
        Ends of the interval.
    below : array
        Probability that the ratio is below 0, in agreement with the interval: above 1 - tail where
        the interval lies below 0. Ties count half; never 0 or 1, which no resamples can show.
    """

    value: Array
    se: Array
    low: Array
    high: Array
    below: Array


@dataclass(frozen=True)
class Resampled:
    """Ratios of the documents themselves and of every resample, each with its standard error.

    Attributes
    ----------
    value, se : array
        Shape (...).
    values, errors : array
        Shape (resample, ...).
    freedom : array
        Degrees of freedom of `se`, shape (...) or ().
    few : bool
        Whether there are fewer than `FEW` documents (of some dataset).
    """

    value: Array
    se: Array
    values: Array
    errors: Array
    freedom: Array
    few: bool

    def estimate(self, confidence: float) -> Estimate:
        """Return the interval of some confidence, both tails alike."""
        from scipy import stats

        tail = (1.0 - confidence) / 2.0
        student = np.asarray(stats.t.ppf(1.0 - tail, self.freedom))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.value == 0, 0.0, -self.value / self.se)
        early, late = -student, student
        below = np.asarray(stats.t.cdf(t, self.freedom))
        edge = 0.5 / (len(self.values) + 1)
        if not self.few:
            drawn = _studentised(self)
            lowest = np.quantile(drawn, tail, axis=0, method="lower")
            highest = np.quantile(drawn, 1.0 - tail, axis=0, method="higher")
            # What only one document shows vanishes from many resamples, which then know no error.
            early = np.where(np.isfinite(lowest), lowest, early)
            late = np.where(np.isfinite(highest), highest, late)
            share = (drawn > -t).mean(axis=0) + 0.5 * (drawn == -t).mean(axis=0)
            below = np.where(np.isnan(t), np.nan, share)
        low, high = self.value - late * self.se, self.value - early * self.se
        return Estimate(self.value, self.se, low, high, np.clip(below, edge, 1.0 - edge))


def draw_documents(n_document: int, resamples: int, seed: int | Sequence[int]) -> Array:
    """Draw documents with replacement, as many as there are.

    Parameters
    ----------
    n_document : int
        Number of documents.
    resamples : int
        Number of resamples.
    seed : int or sequence of int
        Of the draw.

    Returns
    -------
    array
        (resample, document) float64, how often each document was drawn.
    """
    rng = np.random.default_rng(seed)
    even = np.full(n_document, 1.0 / n_document)
    return rng.multinomial(n_document, even, size=resamples).astype(np.float64)


def resample(loss: Array, weight: Array, drawn: Array) -> Resampled:
    """Return summed loss over summed weight for the documents and for each resample.

    Parameters
    ----------
    loss : array
        (document, ...) sums of each document, or differences of sums.
    weight : array
        (document,) tokens or bytes of each document.
    drawn : array
        (resample, document) as `draw_documents` gives it; the same for all that is compared.

    Returns
    -------
    Resampled
    """
    value, se = _ratios(loss, weight, np.ones((1, len(weight))))
    values, errors = _ratios(loss, weight, drawn)
    n = len(weight)
    # A single document leaves nothing to judge by: everything about it is NaN.
    freedom = np.asarray(n - 1.0 if n > 1 else np.nan)
    return Resampled(value[0], se[0], values, errors, freedom, n < FEW)


def resample_difference(
    one: tuple[Array, Array], other: tuple[Array, Array], drawn: Array
) -> Resampled:
    """Return the difference of two ratios whose weights need not agree.

    Parameters
    ----------
    one, other : (loss, weight)
        (document,) sums of each document, of the same documents; for example the losses of two
        models and the bytes that each was scored on.
    drawn : array
        (resample, document).

    Returns
    -------
    Resampled
    """
    if np.array_equal(one[1], other[1]):
        return resample(one[0] - other[0], one[1], drawn)  # the same, and nothing cancels
    sums = np.stack([*one, *other], axis=1)
    products = (sums[:, :, None] * sums[:, None, :]).reshape(len(sums), 16)
    n = len(sums)

    def ratios(counts: Array) -> tuple[Array, Array]:
        """Return differences and standard errors of some resamples."""
        loss, weight, other_loss, other_weight = (counts @ sums).T
        value, beside = loss / weight, other_loss / other_weight
        # A document's residual is linear in its four sums.
        slope = np.stack([1 / weight, -value / weight, -1 / other_weight, beside / other_weight], 1)
        squares = (counts @ products).reshape(-1, 4, 4)
        residual = np.einsum("bi,bij,bj->b", slope, squares, slope)
        size = np.einsum("bi,bij,bj->b", np.abs(slope), np.abs(squares), np.abs(slope))
        residual = np.where(residual <= _ROUNDING * size, 0.0, residual)
        with np.errstate(divide="ignore", invalid="ignore"):
            return value - beside, np.sqrt(residual * np.divide(n, n - 1.0))

    value, se = ratios(np.ones((1, n)))
    freedom = np.asarray(n - 1.0 if n > 1 else np.nan)
    return Resampled(value[0], se[0], *ratios(drawn), freedom, n < FEW)


def macro_mean(parts: Sequence[Resampled]) -> Resampled:
    """Return the mean of ratios over datasets that were drawn independently.

    Parameters
    ----------
    parts : sequence of Resampled
        One a dataset, of one shape.

    Returns
    -------
    Resampled
    """
    n = len(parts)

    def root(errors: list[Array]) -> Array:
        """Return the standard error of a mean of independent parts."""
        return np.sqrt(np.sum(np.square(errors), axis=0)) / n

    variances = np.square([part.se for part in parts])
    # Satterthwaite's degrees of freedom; where nothing varies any number will do.
    each = sum(np.square(v) / part.freedom for v, part in zip(variances, parts, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(each == 0, 1.0, np.square(variances.sum(axis=0)) / each)
    return Resampled(
        np.mean([part.value for part in parts], axis=0),
        root([part.se for part in parts]),
        np.mean([part.values for part in parts], axis=0),
        root([part.errors for part in parts]),
        freedom,
        any(part.few for part in parts),
    )


def critical_value(loss: Array, weight: Array, drawn: Array, confidence: float) -> float:
    """Return how many standard errors the largest of many differences reaches by chance.

    In either direction: that the best was picked makes all differences to it positive.

    Parameters
    ----------
    loss : array
        (document, point) differences to the best point.
    weight : array
        (document,) tokens of each document.
    drawn : array
        (resample, document).
    confidence : float
        Share of resamples in which no point's difference exceeds it.

    Returns
    -------
    float
        Quantile of the largest deviation in standard errors (max-t), infinite for one document.

    Notes
    -----
    With few documents the errors of single resamples are wild, and their largest ratio is wilder.
    So the deviations are divided by the documents' own errors, and that these are estimated from
    few documents is made up for by the step from a normal quantile to Student's.
    """
    from scipy import stats

    n = len(weight)
    if n < 2:
        return np.inf
    (value,), (se,) = _ratios(loss, weight, np.ones((1, n)))
    off = np.abs((drawn @ loss) / (drawn @ weight)[:, None] - value)
    # Resamples vary by (n - 1) / n of what the documents' errors say.
    t = np.divide(off, se, out=np.zeros_like(off), where=se > 0) * np.sqrt(n / (n - 1.0))
    normal = np.quantile(t.max(axis=1), confidence, method="higher")
    return float(stats.t.isf(stats.norm.sf(normal), n - 1))


def standard_error(
    squares: Array, products: Array, ratio: Array, weight: Array, n: float | Array
) -> Array:
    """Return the standard error of a ratio from sums over documents.

    Parameters
    ----------
    squares, products : array
        Sums of loss^2 and of loss x weight.
    ratio : array
        Summed loss over summed weight.
    weight : array
        (document,) weights.
    n : float
        Number of documents.

    Returns
    -------
    array
        By linearisation: the deviation of the documents' residuals, loss - ratio x weight.
    """
    return _error(squares, products, ratio, np.square(weight).sum(), weight.sum(), n)


def _ratios(loss: Array, weight: Array, drawn: Array) -> tuple[Array, Array]:
    """Return (resample, ...) ratios and standard errors."""
    n = len(weight)
    flat = loss.reshape(n, -1)
    total = (drawn @ weight)[:, None]
    value = (drawn @ flat) / total
    squares, products = drawn @ np.square(flat), drawn @ (flat * weight[:, None])
    se = _error(squares, products, value, (drawn @ np.square(weight))[:, None], total, n)
    shape = (len(drawn), *loss.shape[1:])
    return value.reshape(shape), se.reshape(shape)


def _error(
    squares: Array,
    products: Array,
    ratio: Array,
    weights: Array,
    total: Array,
    n: float | Array,
) -> Array:
    """Return standard errors; `weights` is the sum of the squared weights."""
    residual = squares - 2.0 * ratio * products + np.square(ratio) * weights
    noise = _ROUNDING * (squares + np.square(ratio) * weights)
    residual = np.where(residual <= noise, 0.0, residual)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(residual * np.divide(n, n - 1.0)) / total


def _studentised(drawn: Resampled) -> Array:
    """Return (resample, ...) deviations in standard errors; 0 where both vanish."""
    off = drawn.values - drawn.value
    # The same sum in another order is no deviation.
    off = np.where(np.abs(off) <= 1e-12 * (1.0 + np.abs(drawn.value)), 0.0, off)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(off == 0, 0.0, off / drawn.errors)
