"""Held-out proof: settings are chosen on some documents and scored once on the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsppl.choice import FEW_UNITS, Choice
from jaxsppl.schema import Array
from jaxsppl.sweep.documents import MOST_BATCHES, Documents, shuffled

CHOSEN = "chosen"
_POWER = 0.8
# The studentised interval is wider than Student's, by as much as two documents fewer would make it.
_STUDENTISED = 2

# A setting's (document,) summed losses and counts; the setting is a place of the grid.
Score = Callable[[int], tuple[Array, Array]]


@dataclass(frozen=True)
class Split:
    """Which documents choose and which prove; whole documents only.

    Attributes
    ----------
    batch : array
        (document,) batch of each document: a grid is scored by batch.
    fold : array
        (batch,) fold of each batch.
    proven : tuple of int
        Folds that are held out, each in its turn.
    """

    batch: Array
    fold: Array
    proven: tuple[int, ...]

    @property
    def document_fold(self) -> Array:
        """Return the (document,) fold of each document."""
        return self.fold[self.batch]

    @property
    def n_proven(self) -> int:
        """Return how many documents prove."""
        return int(np.isin(self.document_fold, self.proven).sum())

    @property
    def n_choosing(self) -> int:
        """Return how many documents choose, at least, each time."""
        sizes = np.bincount(self.document_fold)
        return int(len(self.batch) - max(sizes[fold] for fold in self.proven))


def make_split(
    documents: Documents, *, split: str, fraction: float, folds: int, seed: int
) -> Split:
    """Split documents; only their texts and the seed decide who goes where.

    Parameters
    ----------
    documents : Documents
        At least two; or groups, which then stay together.
    split : {"folds", "test"}
        Every fold is held out once; or one part is.
    fraction : float
        Share of the documents that is held out by "test".
    folds : int
        Number of folds, fewer when there are fewer documents.
    seed : int

    Returns
    -------
    Split
    """
    n = len(documents)
    fold_of = np.empty(n, np.int64)
    if split == "folds":
        n_fold = min(folds, n)
        fold_of[shuffled(documents, seed)] = np.arange(n) % n_fold
    else:
        n_fold, n_test = 2, min(max(round(fraction * n), 1), n - 1)
        fold_of[shuffled(documents, seed)] = np.arange(n) >= n_test
    batch, fold = np.empty(n, np.int64), list[int]()
    turn = np.argsort(shuffled(documents, seed))
    for one in range(n_fold):
        members = np.flatnonzero(fold_of == one)
        quota = min(len(members), max(1, round(MOST_BATCHES * len(members) / n)))
        # By the turn of the shuffle, so that the file's order decides nothing.
        batch[members[np.argsort(turn[members])]] = len(fold) + np.arange(len(members)) % quota
        fold += [one] * quota
    return Split(batch, np.asarray(fold), tuple(range(n_fold)) if split == "folds" else (0,))


def choose(
    loss: Array,
    ood: Array,
    weight: Array,
    proven: Sequence[int],
    choice: Choice,
    among: Array | None = None,
) -> dict[int, int]:
    """Choose a grid point for each held-out fold, from the other folds alone.

    Parameters
    ----------
    loss, ood : array
        (fold, point) sums over the documents of each fold.
    weight : array
        (fold,) tokens.
    proven : sequence of int
        Folds that are held out.
    choice : Choice
        What is best.
    among : array, optional
        Places that were tried; all by default.

    Returns
    -------
    dict of int to int
        Place of the chosen point, by fold.
    """
    chosen: dict[int, int] = {}
    for fold in proven:
        # Summed, not subtracted from the total: nothing of the fold must leave a trace.
        rest = np.arange(len(weight)) != fold
        columns = slice(None) if among is None else among
        tokens = weight[rest].sum()
        place = choice.index(
            loss[rest][:, columns].sum(axis=0) / tokens, ood[rest][:, columns].sum(axis=0) / tokens
        )
        chosen[fold] = place if among is None else int(among[place])
    return chosen


def held_out_sums(split: Split, chosen: Mapping[int, int], score: Score) -> tuple[Array, Array]:
    """Return the sums of each proving document under the setting that was chosen without it.

    Parameters
    ----------
    split : Split
    chosen : mapping of int to int
        Place of the grid by fold.
    score : callable
        (document,) summed losses and counts of a place of the grid.

    Returns
    -------
    loss, ood : array
        (document,) of all documents, NaN for those that prove nothing.
    """
    loss = np.full(len(split.batch), np.nan)
    ood = np.full(len(split.batch), np.nan)
    for fold, place in chosen.items():
        where = split.document_fold == fold
        of_all, counts = score(place)
        loss[where], ood[where] = of_all[where], counts[where]
    return loss, ood


def documents_needed(se: Array, n_document: int, difference: float, confidence: float) -> Array:
    """Return how many such documents show a difference with a power of 80 %.

    Parameters
    ----------
    se : array
        Standard error of the paired difference, from `n_document` documents [nat/token].
    n_document : int
    difference : float
        What is to be seen [nat/token].
    confidence : float
        Of the two-sided interval that has to exclude 0.

    Returns
    -------
    array
        Numbers of documents, at least `FEW_UNITS`; NaN where the error is not known.

    Notes
    -----
    The error is itself an estimate, from few documents perhaps much too small. The quantile of the
    noncentral t in place of the sum of two normal quantiles makes the power right on average over
    such estimates (Julious and Owen, Pharmaceutical Statistics 5, 2006).
    """
    from scipy import stats

    sure = stats.norm.isf((1.0 - confidence) / 2.0)
    reach = stats.nct.ppf(_POWER, n_document - 1, sure)
    n = np.square(reach * se / difference) * n_document
    # Guenther's correction: so will be the error that the interval is made of.
    return np.maximum(np.ceil(n + sure**2 / 2.0 + _STUDENTISED), FEW_UNITS)
