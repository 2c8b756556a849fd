"""The sampling law written a second time: NumPy, float64, masks over a full vocabulary.

It shares no line with the package. Chains are lists of (stage, value) in the order of application.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import betainc

Array = np.ndarray[Any, np.dtype[np.float64]]
Chain = Sequence[tuple[str, float]]

# Sums that hit a limit exactly in decimal miss it by rounding in binary.
ROUNDING = 1e-12


def chain_law(logprob: Array, chain: Chain, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """What the pipeline gives each token of a descending row; 0 where it is cut."""
    kept, logit = after_chain(logprob, chain)
    share = np.where(kept, np.exp(logit - logit[kept].max()), 0.0)
    return beta_law(share / share.sum(), alpha, beta)


def after_chain(logprob: Array, chain: Chain) -> tuple[Any, Array]:
    """Mask of the kept tokens, and the logits that are left."""
    logit = np.array(logprob, np.float64)
    kept = np.isfinite(logit)
    for stage, value in chain:
        inside = np.flatnonzero(kept)
        top = logit[inside].max()
        if stage == "temperature":
            if value == 0:
                kept &= logit == top
            else:
                logit = np.where(kept, logit / value, -np.inf)
        elif stage == "top_k" and value > 0:
            kept[inside[int(value) :]] = False
        elif stage == "min_p" and value > 0:
            kept &= logit >= top + np.log(value)
        elif stage == "top_p" and value < 1:
            weight = np.exp(logit[inside] - top)
            weight /= weight.sum()
            running = 0.0
            for place, index in enumerate(inside):
                if place > 0 and running >= value - ROUNDING:
                    kept[index] = False
                running += weight[place]
        elif stage not in ("top_k", "min_p", "top_p"):
            raise KeyError(stage)
    return kept, np.where(kept, logit, -np.inf)


def beta_law(share: Array, alpha: float, beta: float) -> Array:
    """Masses of the tokens' intervals on [0, 1] when the point is drawn from Beta(alpha, beta)."""
    if alpha == beta == 1:
        return share
    before = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    after = np.concatenate([np.cumsum(share[::-1])[::-1][1:], [0.0]])
    below_low, below_high = (betainc(alpha, beta, x.clip(0, 1)) for x in (before, before + share))
    above_low, above_high = (betainc(beta, alpha, x.clip(0, 1)) for x in (after + share, after))
    # Each end seen from the nearer side, so that none is a number close to 1.
    mass = np.where(
        below_high < 0.5,
        below_high - below_low,
        np.where(above_low < 0.5, above_low - above_high, 1 - below_low - above_high),
    )
    return np.where(share > 0, mass, 0.0)


def objective(probability: Array, epsilon: float) -> tuple[float, float]:
    """Epsilon-clipped negative log-likelihood [nat/token] and out-of-distribution share."""
    return (
        float(-np.log(np.maximum(probability, epsilon)).mean()),
        float((probability < epsilon).mean()),
    )
