"""Blocks and harvests from probability vectors that a test names."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from jaxsppl.sampling import direct, factored
from jaxsppl.sampling.candidates import Candidates, candidates
from jaxsppl.sampling.tail import with_tail

Array = np.ndarray[Any, Any]


def descending(logprob: Array) -> Array:
    """Rows sorted from the likeliest to the least likely."""
    return -np.sort(-np.asarray(logprob, np.float64), axis=-1)


def cut(logprob: Array, actual: Array, n_rank: int) -> tuple[Array, Array, Array]:
    """Listed log-probabilities, the actual tokens' own, and their 1-based ranks (0 = outside)."""
    actual = np.asarray(actual)
    own = np.take_along_axis(logprob, actual[:, None], axis=1)[:, 0]
    return logprob[:, :n_rank], own, np.where(actual < n_rank, actual + 1, 0)


def block_of(
    logprob: Array,
    actual: Array,
    n_rank: int | None = None,
    *,
    bound: bool = False,
    n_vocab: int | None = None,
) -> Candidates:
    """A block from descending (token, V) rows, in the precision that is in force."""
    width = logprob.shape[1]
    listed = cut(logprob, actual, n_rank or width)
    return _block(*listed, n_vocab=(n_vocab or width) if bound else 0)


@partial(jax.jit, static_argnames="n_vocab")
def _block(top: Array, own: Array, rank: Array, n_vocab: int) -> Candidates:
    """Compiled, so that a shape costs once."""
    block = candidates(top, own, rank)
    return with_tail(block, n_vocab) if n_vocab else block


# Compiling is most of the time of these tests, and optimized code would not pay it back.
QUICK = {"xla_backend_optimization_level": 0}
_compiled = partial(jax.jit, static_argnames="chain", compiler_options=QUICK)


# The way of the grid: bounds of ranks, prefix sums, intervals.
_fast = _compiled(factored.probabilities)
_slow = _compiled(direct.probabilities)


def fast(block: Candidates, chain: Sequence[str], values: Mapping[str, float]) -> Array:
    """(scenario, token) probabilities by stages and draw."""
    return np.asarray(_fast(block, tuple(chain), arrays(values)))


def slow(block: Candidates, chain: Sequence[str], values: Mapping[str, float]) -> Array:
    """(scenario, token) probabilities by the direct definition."""
    return np.asarray(_slow(block, tuple(chain), arrays(values)))


Way = Callable[[Candidates, Sequence[str], Mapping[str, float]], Array]
BOTH: tuple[Way, ...] = (fast, slow)


def each_actual(probability: Sequence[float], size: int = 0) -> tuple[Array, Array]:
    """One row for each token of a vector, which is the actual one in its row.

    Filled up to `size` rows and ranks, so that vectors of any length share a compiled shape.
    """
    size = size or len(probability)
    row = np.full(size, -np.inf)
    row[: len(probability)] = np.log(np.asarray(probability, np.float64))
    return np.tile(row, (size, 1)), np.arange(size) % len(probability)


def arrays(values: Mapping[str, float]) -> dict[str, Any]:
    """Parameters as JAX scalars in the precision that is in force."""
    return {name: jnp.asarray(float(value)) for name, value in values.items()}


def harvest_of(
    logprob: Array,
    actual: Array,
    n_rank: int | None = None,
    *,
    n_vocab: int | None = None,
    model: str = "made",
    dataset: str = "up",
) -> xr.Dataset:
    """A harvest that keeps the schema, from descending (token, V) rows."""
    n_token, width = logprob.shape
    n_rank = n_rank or width
    top, own, rank = cut(logprob, actual, n_rank)
    absent = ~np.isfinite(top)
    ids = np.where(absent, -1, np.arange(n_rank))
    return xr.Dataset(
        {
            "top_logprob": (("token", "rank"), top.astype("f4")),
            "top_token_id": (("token", "rank"), ids.astype("i4")),
            "token_id": ("token", np.asarray(actual).astype("i4")),
            "token_logprob": ("token", own.astype("f4")),
            "token_rank": ("token", rank.astype("i4")),
            "token_bytes": ("token", (1 + np.arange(n_token) % 5).astype("i4")),
            "document_index": ("token", np.zeros(n_token, "i4")),
            "context_tokens": ("document", np.zeros(1, "i4")),
            "document_sha256": ("document", np.array(["0" * 64])),
        },
        coords={
            "rank": np.arange(1, n_rank + 1, dtype="i4"),
            "document": np.array(["d0"]),
            "model": model,
            "dataset": dataset,
        },
        attrs={
            "schema": "jaxsppl-harvest/1",
            "n_vocab": n_vocab or width,
            "complete": 1,
        },
    )
