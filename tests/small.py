"""Small files that keep every law of the schema, made from seeded random numbers."""

from typing import Any

import numpy as np
import xarray as xr

from jaxsppl import schema


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


def sweep_file() -> xr.Dataset:
    """A sweep of two models and datasets, one pair of which was not harvested."""
    dims = ("model", "dataset", "temperature", "min_p")
    rng = np.random.default_rng(0)
    nll = rng.uniform(1, 3, (2, 2, 4, 3))
    nll[1, 1] = np.nan
    return xr.Dataset(
        {
            "nll": (dims, nll),
            "ood": (dims, np.where(np.isnan(nll), np.nan, rng.uniform(0, 1, nll.shape))),
            "n_token": (dims[:2], np.array([[9, 8], [7, 0]])),
            "n_byte": (dims[:2], np.array([[30, 25], [22, 0]])),
            "plain_nll": (dims[:2], np.array([[2.0, 2.1], [2.2, np.nan]])),
        },
        coords={
            "model": ["a", "b"],
            "dataset": ["x", "y"],
            "temperature": [0.0, 0.5, 1.0, 1.5],
            "min_p": [0.0, 0.1, 0.2],
        },
        attrs={"schema": schema.SWEEP, "chain": "min_p,temperature", "epsilon": 0.01},
    )


def optimum_file() -> xr.Dataset:
    """An optimum of two parameters from three starts."""
    start = ("model", "dataset", "start")
    values = np.ones((1, 1, 3, 2))
    return xr.Dataset(
        {
            "initial": ((*start, "parameter"), values),
            "optimum": ((*start, "parameter"), values),
            "nll": (start, np.full((1, 1, 3), 2.0)),
            "ood": (start, np.full((1, 1, 3), 0.1)),
            "status": (start, np.array([[["converged"] * 3]])),
            "n_step": (start, np.full((1, 1, 3), 4)),
        },
        coords={"model": ["a"], "dataset": ["x"], "parameter": ["temperature", "alpha"]},
        attrs={"schema": schema.OPTIMUM},
    )
