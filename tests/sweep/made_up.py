"""Harvests of one shape (16 alternatives, 16 tokens of a vocabulary of 16 or 200) and a golden."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from law_reference import chain_law, objective
from law_rows import Array, descending, harvest_of

V, K, SIZE = 200, 16, 30


def rows(seed: int, n_vocab: int = V, n_token: int = SIZE) -> tuple[Array, Array]:
    """Descending rows that sum to 1 as float32 tells them, and actual tokens drawn from them."""
    rng = np.random.default_rng(seed)
    logprob = descending(rng.normal(0, 2.5, (n_token, n_vocab)))
    logprob -= np.log(np.exp(logprob).sum(axis=1, keepdims=True))
    actual = [rng.choice(n_vocab, p=np.exp(row) / np.exp(row).sum()) for row in logprob]
    return logprob.astype(np.float32).astype(np.float64), np.asarray(actual)


def made(
    model: str = "m", dataset: str = "d", *, seed: int = 0, n_vocab: int = V, n_rank: int = K
) -> xr.Dataset:
    """A harvest from such rows."""
    return harvest_of(*rows(seed, n_vocab), n_rank, model=model, dataset=dataset)


def by_hand(
    logprob: Array,
    actual: Array,
    chain: Sequence[tuple[str, float]],
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Any:
    """(token,) probabilities by the second law; the rows hold what exists."""
    return np.array(
        [
            chain_law(row, chain, alpha, beta)[a] if a < len(row) else 0.0
            for row, a in zip(logprob, actual, strict=True)
        ]
    )


def scored(
    logprob: Array, actual: Array, point: dict[str, float], order: Sequence[str]
) -> tuple[float, float]:
    """Return nll [nat/token] and share below epsilon by the second law."""
    chain = [(name, point[name]) for name in order if name in point]
    own = by_hand(logprob, actual, chain, point.get("alpha", 1.0), point.get("beta", 1.0))
    return objective(own, point.get("epsilon", 0.01))
