"""Small harvests that keep every law of the schema, made from seeded random distributions."""

from typing import Any

import numpy as np
import xarray as xr


def harvest(
    n_token: int = 40,
    n_rank: int = 20,
    n_vocab: int = 200,
    n_document: int = 3,
    seed: int = 0,
    model: str = "tiny",
    dataset: str = "noise",
) -> xr.Dataset:
    """A harvest of a made-up model: Gaussian logits, actual tokens drawn from them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.5, (n_token, n_vocab))
    logprob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-logprob, axis=1)
    actual = np.array([rng.choice(n_vocab, p=np.exp(row) / np.exp(row).sum()) for row in logprob])
    place = np.argmax(order == actual[:, None], axis=1) + 1
    listed = order[:, :n_rank]
    attrs: dict[str, Any] = {
        "schema": "jaxsppl-harvest/1",
        "n_vocab": n_vocab,
        "server": "none",
        "method": "made up",
        "fingerprint": f"{model}-{dataset}-{seed}",
        "complete": 1,
    }
    return xr.Dataset(
        {
            "top_logprob": (
                ("token", "rank"),
                np.take_along_axis(logprob, listed, 1).astype("f4"),
            ),
            "top_token_id": (("token", "rank"), listed.astype("i4")),
            "token_id": ("token", actual.astype("i4")),
            "token_logprob": ("token", logprob[np.arange(n_token), actual].astype("f4")),
            "token_rank": ("token", np.where(place <= n_rank, place, 0).astype("i4")),
            "token_bytes": ("token", rng.integers(1, 9, n_token).astype("i4")),
            "document_index": ("token", np.sort(np.arange(n_token) % n_document).astype("i4")),
            "context_tokens": ("document", np.full(n_document, 5, "i4")),
            "document_sha256": ("document", np.array([f"{i:064x}" for i in range(n_document)])),
        },
        coords={
            "rank": np.arange(1, n_rank + 1, dtype="i4"),
            "document": np.array([f"d{i}" for i in range(n_document)]),
            "model": model,
            "dataset": dataset,
        },
        attrs=attrs,
    )
