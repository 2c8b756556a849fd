"""The uncertainty of a whole grid, in one pass over batches of documents.

Standard errors need only sums over the documents, so every point has one. The familywise threshold
needs the documents' sums themselves: it is taken over the points nearest the best, at most
`MOST_POINTS` of them, and then applied to all.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxsppl.schema import Array
from jaxsppl.sweep import bootstrap

MOST_POINTS = 1000


@dataclass(frozen=True)
class Uncertainty:
    """Of one harvest; the arrays have the shape of the grid, its first axis being epsilon.

    Attributes
    ----------
    nll_se : array
        Standard error of nll [nat/token].
    delta, delta_se : array
        nll above the best point of the same epsilon, and its standard error [nat/token].
    plateau : array
        bool, points that cannot be told from the best.
    critical : float
        Standard errors above the best at which the plateau ends, the largest over epsilon.
    loss, ood : array
        (fold, ...) sums over the documents of each fold.
    weight : array
        (fold,) tokens.
    """

    nll_se: Array
    delta: Array
    delta_se: Array
    plateau: Array
    critical: float
    loss: Array
    ood: Array
    weight: Array


def uncertainty(
    nll: Array,
    batches: Iterable[tuple[Array, Array]],
    weight: Array,
    fold: Array,
    *,
    resamples: int,
    confidence: float,
    seed: int,
) -> Uncertainty:
    """Accumulate the batches of documents of one harvest.

    Parameters
    ----------
    nll : array
        (epsilon, point) of the sweep: it says which points are the best and which lie near.
    batches : iterable of (loss, ood)
        (epsilon, point) sums of each batch.
    weight : array
        (batch,) tokens.
    fold : array
        (batch,) fold of each batch.
    resamples, confidence, seed
        Of the bootstrap.

    Returns
    -------
    Uncertainty
    """
    n, n_fold = len(weight), int(fold.max()) + 1
    rows = np.arange(len(nll))
    known = np.where(np.isnan(nll), np.inf, nll)
    best = np.argmin(known, axis=1)
    near = np.argsort(known, axis=1, kind="stable")[:, :MOST_POINTS]
    kept = np.empty((n, *near.shape))
    loss_of = np.zeros((n_fold, *nll.shape))
    ood_of = np.zeros_like(loss_of)
    squares, products, own_squares, own_products = (np.zeros(nll.shape) for _ in range(4))
    for batch, (loss, ood) in enumerate(batches):
        above = loss - loss[rows, best][:, None]
        squares += np.square(above)
        products += above * weight[batch]
        own_squares += np.square(loss)
        own_products += loss * weight[batch]
        loss_of[fold[batch]] += loss
        ood_of[fold[batch]] += ood
        kept[batch] = np.take_along_axis(above, near, axis=1)
    total = loss_of.sum(axis=0)
    mean = total / weight.sum()
    delta = (total - total[rows, best][:, None]) / weight.sum()
    delta_se = bootstrap.standard_error(squares, products, delta, weight, n)
    drawn = bootstrap.draw_documents(n, resamples, seed)
    limits = [bootstrap.critical_value(kept[:, row], weight, drawn, confidence) for row in rows]
    with np.errstate(invalid="ignore"):
        # Not ">": a single document has no error, and tells no point from the best.
        plateau = ~(delta > np.asarray(limits)[:, None] * delta_se) & np.isfinite(nll)
    return Uncertainty(
        nll_se=bootstrap.standard_error(own_squares, own_products, mean, weight, n),
        delta=delta,
        delta_se=delta_se,
        plateau=plateau,
        critical=max(limits),
        loss=loss_of,
        ood=ood_of,
        weight=np.bincount(fold, weight, n_fold),
    )
