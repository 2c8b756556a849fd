"""The labelled optimum dataset: what was found on each harvest, under its labels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from jaxsppl import schema
from jaxsppl.choice import Rules, recipe
from jaxsppl.sweep import curvature, descent
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.documents import Documents
from jaxsppl.sweep.engine import Means
from jaxsppl.sweep.optimum_proof import Proven, labelled_proof
from jaxsppl.sweep.search import Ends, Problem
from jaxsppl.sweep.starts import Space

if TYPE_CHECKING:
    import xarray as xr

# Two optima closer than this are one [nat/token].
SAME = 1e-6

_WORDS: dict[str, tuple[str, str]] = {
    "initial": ("1", "parameters of the start"),
    "optimum": ("1", "parameters where the search from that start ended"),
    "goal": ("1", "what was minimised, by the attribute choice_json; NaN beyond a limit"),
    "nll": ("nat/token", "epsilon-clipped negative log-likelihood there, on all tokens"),
    "ood": ("1", "share of tokens whose probability there is below epsilon"),
    "status": ("", "how the search ended: " + ", ".join(descent.STATUS)),
    "n_step": ("1", "evaluations of the objective and its gradient, those on a sample included"),
    "basin": ("1", "number of the optimum that the start reached, 0 = the best"),
    "best_value": ("1", "parameters of the best start"),
    "best_nll": ("nat/token", "its nll, by the direct definition"),
    "best_nll_lower": ("nat/token", "its favourable bracket of the unseen tail"),
    "best_nll_upper": ("nat/token", "its unfavourable bracket of the unseen tail"),
    "best_ood": ("1", "its out-of-distribution share, by the direct definition"),
    "n_at_best": ("1", "starts within 1e-6 of the best, in the goal"),
    "n_basin": ("1", "different optima that were reached, 1e-6 apart or more in the goal"),
    "std_error": (
        "1",
        "standard error of the best value from the curvature, documents independent",
    ),
    "correlation": ("1", "correlation of the errors of two parameters"),
    "n_token": ("1", "scored tokens"),
    "n_document": ("1", "documents, taken as independent but for groups"),
    "n_group": ("1", "groups of documents that are drawn whole; 0 = each document by itself"),
    "n_byte": ("byte", "UTF-8 bytes of the scored tokens"),
    "plain_nll": ("nat/token", "negative log-likelihood under the model itself, nothing clipped"),
}


@dataclass(frozen=True)
class Found:
    """What was found on one harvest.

    Attributes
    ----------
    tokens : TokenArrays
        The harvest.
    initial, optimum : array
        (start, over) values of the parameters.
    point : mapping of str to float
        All parameters of the best start, `epsilon` among them.
    ends : Ends
        The searches.
    best : int
        The best start.
    exact : Means
        The best start by the direct definition.
    errors : Errors
        Of its smooth parameters.
    units : Documents or None
        What is taken as independent; None for a part of a harvest.
    proof : Proven or None
        On held-out documents.
    """

    tokens: TokenArrays
    initial: schema.Array
    optimum: schema.Array
    point: Mapping[str, float]
    ends: Ends
    best: int
    exact: Means
    errors: curvature.Errors
    units: Documents | None = None
    proof: Proven | None = None


def labelled(
    results: Sequence[Found],
    problem: Problem,
    space: Space,
    tail: str,
    seed: int,
    rules: Rules | None,
    baselines: Mapping[str, Baseline],
) -> "xr.Dataset":
    """Put the results of all harvests under their labels.

    Parameters
    ----------
    results : sequence of Found
        One a harvest, all with the same number of starts.
    problem : Problem
        What was minimised.
    space : Space
        What was searched.
    tail : str
        "bound" or "drop".
    seed : int
        Of the starts.
    rules : Rules or None
        Of the proof.
    baselines : mapping of str to Baseline
        What it compares with.

    Returns
    -------
    xarray.Dataset
        Pairs that were not harvested are NaN, with n_token 0 and an empty status.
    """
    import jax
    import xarray as xr

    from jaxsppl import __version__

    models = tuple(dict.fromkeys(one.tokens.model for one in results))
    datasets = tuple(dict.fromkeys(one.tokens.dataset for one in results))
    pair, start, parameter = ("model", "dataset"), ("start",), ("parameter",)
    dims: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("initial", "optimum"), (*pair, *start, *parameter)),
        **dict.fromkeys(("goal", "nll", "ood", "status", "n_step", "basin"), (*pair, *start)),
        **dict.fromkeys(("best_value", "std_error"), (*pair, *parameter)),
        "correlation": (*pair, *parameter, "other_parameter"),
    }
    sizes = {
        "model": len(models),
        "dataset": len(datasets),
        "start": len(results[0].ends.nll),
        "parameter": len(space.over),
        "other_parameter": len(space.over),
    }
    arrays: dict[str, schema.Array] = {}
    for found in results:
        at = models.index(found.tokens.model), datasets.index(found.tokens.dataset)
        for name, value in _values(found, problem, space, tail).items():
            kind = np.asarray(value).dtype.kind
            if name not in arrays:
                shape = [sizes[dim] for dim in dims.get(name, pair)]
                empty = {"f": np.nan, "U": "", "i": -1 if name == "basin" else 0}[kind]
                arrays[name] = np.full(shape, empty, {"U": object, "i": np.int64}.get(kind))
            arrays[name][at] = value
    arrays["status"] = arrays["status"].astype(str)
    variables: dict[str, Any] = {
        name: (dims.get(name, pair), array, _attributes(name)) for name, array in arrays.items()
    }
    coords: dict[str, Any] = {
        "model": list(models),
        "dataset": list(datasets),
        "start": np.arange(sizes["start"]),
        "parameter": list(space.over),
        "other_parameter": list(space.over),
    }
    kept = {} if problem.choice.is_plain else {"choice_json": msgspec.json.encode(problem.choice)}
    attrs: dict[str, Any] = {
        **{name: text.decode() for name, text in kept.items()},
        "schema": schema.OPTIMUM,
        "chain": ",".join(problem.chain),
        "epsilon": problem.fixed["epsilon"],
        "tail": tail,
        "fixed_json": json.dumps(dict(sorted(space.fixed.items()))),
        "bounds_json": json.dumps(dict(zip(space.smooth, space.bounds, strict=True))),
        "values_json": json.dumps(
            {
                name: sorted({row[index] for row in space.combinations})
                for index, name in enumerate(space.listed)
            }
        ),
        "method": problem.method,
        "tolerance": problem.tolerance,
        "max_steps": problem.max_steps,
        "seed": seed,
        "harvests_json": json.dumps(
            [
                {
                    "model": one.tokens.model,
                    "dataset": one.tokens.dataset,
                    "fingerprint": one.tokens.fingerprint,
                    "source": one.tokens.source,
                }
                for one in results
            ]
        ),
        "version": __version__,
        "jax_version": jax.__version__,
    }
    proven = {(r.tokens.model, r.tokens.dataset): r.proof for r in results if r.proof is not None}
    if rules is not None:
        attrs["decide_json"] = recipe(rules, problem.choice)
        if proven:
            more = labelled_proof(proven, models, datasets, space.over, baselines, rules)
            for mapping, added in zip((variables, coords, attrs), more, strict=True):
                mapping.update(added)
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _values(found: Found, problem: Problem, space: Space, tail: str) -> dict[str, Any]:
    """Return the variables of one harvest."""
    ends = found.ends
    basin = _basins(ends.value)
    goal = np.where(np.isfinite(ends.value), ends.value, np.nan)
    smooth = [space.over.index(name) for name in space.smooth]
    std_error = np.full(len(space.over), np.nan)
    std_error[smooth] = found.errors.std_error
    correlation = np.full((len(space.over), len(space.over)), np.nan)
    correlation[np.ix_(smooth, smooth)] = found.errors.correlation
    brackets = {"best_nll_lower": found.exact.lower, "best_nll_upper": found.exact.upper}
    return {
        "initial": found.initial,
        "optimum": found.optimum,
        **({} if problem.choice.is_plain else {"goal": goal}),
        "nll": np.where(np.isfinite(ends.nll), ends.nll, np.nan),
        "ood": np.where(np.isfinite(ends.nll), ends.ood, np.nan),
        "status": [descent.STATUS[status] for status in ends.status.tolist()],
        "n_step": ends.n_step,
        "basin": basin,
        "best_value": found.optimum[found.best],
        "best_nll": float(found.exact.nll),
        "best_ood": float(found.exact.ood),
        **(brackets if tail == "bound" else {}),
        "n_at_best": int((basin == 0).sum()),
        "n_basin": int(basin.max()) + 1,
        "std_error": std_error,
        "correlation": correlation,
        "n_token": found.tokens.n_token,
        "n_document": 0 if found.units is None else found.units.n_document,
        "n_group": 0 if found.units is None else found.units.n_group,
        "n_byte": found.tokens.n_byte,
        "plain_nll": found.tokens.plain_nll,
    }


def _basins(value: schema.Array) -> schema.Array:
    """Return the number of the optimum of each start, 0 = the best, -1 = no end that counts."""
    basin = np.full(value.shape, -1, np.int64)
    floor, number = -np.inf, -1
    for index in np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable"):
        if not np.isfinite(value[index]):
            break
        if value[index] > floor + SAME:
            floor, number = value[index], number + 1
        basin[index] = number
    return basin


def _attributes(name: str) -> dict[str, str]:
    """Return unit and meaning of a variable."""
    units, long_name = _WORDS[name]
    return {"units": units, "long_name": long_name}
