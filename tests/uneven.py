"""Harvests whose documents are of uneven length."""

import numpy as np
import xarray as xr
from small import harvest


def uneven(n_document: int = 9, seed: int = 0, n_token: int = 270, **labels: str) -> xr.Dataset:
    """Documents whose lengths are as 1 to 2 to 3, in turn."""
    whole = harvest(n_token=n_token, n_rank=16, n_document=n_document, seed=seed, **labels)
    ends = np.cumsum(1.0 + np.arange(n_document) % 3)
    index = np.searchsorted(ends / ends[-1], (0.5 + np.arange(n_token)) / n_token)
    return whole.assign(document_index=("token", index.astype("i4")))
