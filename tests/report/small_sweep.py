"""A small sweep file whose numbers can be followed by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

BASELINES = {
    "neutral": {"chain": [], "settings": {}},
    "llama.cpp default": {
        "chain": ["top_k", "top_p", "min_p", "temperature"],
        "settings": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    },
}
GRID: dict[str, Sequence[float]] = {
    "temperature": (0.0, 0.5, 1.0, 1.5, 2.0),
    "min_p": (0.0, 0.02, 0.1),
    "top_k": (0, 10, 40),
    "alpha": (0.5, 1.0, 2.0),
}
# Where the bowl below has its bottom.
BOTTOM = {"temperature": 1.0, "min_p": 0.02, "top_k": 10.0, "alpha": 2.0, "beta": 1.0}


def bowl(grid: Mapping[str, Sequence[float]], level: float) -> np.ndarray:
    """nll that rises by 0.1 for each step away from the bottom, on every axis."""
    steps = []
    for name, values in grid.items():
        at = int(np.argmin(np.abs(np.asarray(values, float) - BOTTOM.get(name, values[0]))))
        steps.append(0.1 * np.abs(np.arange(len(values)) - at))
    total: Any = level
    for place, step in enumerate(steps):
        total = total + step.reshape([-1 if i == place else 1 for i in range(len(steps))])
    return np.asarray(total)


def sweep(
    grid: Mapping[str, Sequence[float]] = GRID,
    *,
    models: Sequence[str] = ("alpaca",),
    datasets: Sequence[str] = ("prose", "code"),
    missing: Sequence[tuple[str, str]] = (),
    bounded: bool = True,
    **attrs: Any,
) -> xr.Dataset:
    """A sweep of the bowl: level 2.0 for the first pair, 0.25 more for each further one."""
    params = list(grid)
    shape = (len(models), len(datasets), *(len(grid[name]) for name in params))
    nll = np.full(shape, np.nan)
    n_token = np.zeros(shape[:2], "i8")
    best_value = np.full((*shape[:2], len(params)), np.nan)
    level = 2.0
    for i, model in enumerate(models):
        for j, dataset in enumerate(datasets):
            if (model, dataset) not in missing:
                nll[i, j] = bowl(grid, level)
                n_token[i, j] = 1000
                flat = np.unravel_index(np.argmin(nll[i, j]), shape[2:])
                best_value[i, j] = [grid[p][k] for p, k in zip(params, flat, strict=True)]
            level += 0.25
    here = np.where(n_token > 0, 1.0, np.nan)
    best = np.nanmin(nll.reshape(*shape[:2], -1), axis=2, initial=np.inf) * here
    pair, whole = ("model", "dataset"), ("model", "dataset", *params)
    baseline = np.stack([best + 0.5, best + 0.125], axis=-1)
    data: dict[str, Any] = {
        "nll": (whole, nll),
        "ood": (whole, np.clip((3.0 - nll) / 10, 0, 1)),
        "n_token": (pair, n_token),
        "n_byte": (pair, 4 * n_token),
        "plain_nll": (pair, math.log(16) * here),
        "best_nll": (pair, best),
        "best_ood": (pair, 0.25 * here),
        "best_value": ((*pair, "parameter"), best_value),
        "baseline_nll": ((*pair, "baseline"), baseline),
        "baseline_ood": ((*pair, "baseline"), np.stack([0.125 * here, 0.2 * here], axis=-1)),
    }
    if bounded:
        data["nll_lower"] = (whole, nll - 0.05)
        data["nll_upper"] = (whole, nll + 0.1)
        data["baseline_nll_lower"] = ((*pair, "baseline"), baseline - 0.05)
        data["baseline_nll_upper"] = ((*pair, "baseline"), baseline + 0.05)
    order = [name for name in ("top_k", "min_p", "temperature") if name in params]
    about: dict[str, Any] = {
        "schema": "jaxsppl-sweep/1",
        "chain": ",".join(order),
        "epsilon": 0.01,
        "tail": "bound" if bounded else "drop",
        "level": "factored",
        "audit_points": 64,
        "audit_nll": 2e-7,
        "baselines_json": json.dumps(BASELINES),
        **attrs,
    }
    if "epsilon" in params:
        del about["epsilon"]
    coords = {
        "model": list(models),
        "dataset": list(datasets),
        "parameter": params,
        "baseline": list(BASELINES),
        **{name: np.asarray(values, float) for name, values in grid.items()},
    }
    return xr.Dataset(data, coords=coords, attrs=about)
