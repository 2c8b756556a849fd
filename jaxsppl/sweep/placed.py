"""Named settings put on a finished sweep: scored by the definition on the sweep's own harvests."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl import store
from jaxsppl.errors import ConfigError
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.data import TokenArrays, token_arrays
from jaxsppl.sweep.engine import direct_means

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.store import Harvests

# Tokens that are computed at once.
_BLOCK = 512


def place_settings(
    result: "xr.Dataset", named: Mapping[str, Baseline], harvests: "Harvests"
) -> "xr.Dataset":
    """Score settings on the harvests of a sweep and put them beside its baselines.

    Parameters
    ----------
    result : xarray.Dataset
        As `jaxsppl.sweep` gives it.
    named : mapping of str to Baseline
        The settings; one of a name that is there already replaces it.
    harvests : dataset, path, glob, or an iterable of these
        Those that the sweep was made from.

    Returns
    -------
    xarray.Dataset
        The sweep with the settings along `baseline`: tables and figures show them by name.

    Raises
    ------
    ConfigError
        When the harvests are not those of the sweep.
    SchemaError
        When a harvest is not there or breaks its schema.
    PlanError
        When a top_k exceeds the harvested alternatives.
    """
    made_from = _made_from(result)
    epsilon = float(result.attrs.get("baseline_epsilon", result.attrs.get("epsilon", np.nan)))
    tail = str(result.attrs["tail"])
    labels = [*dict.fromkeys([*result["baseline"].values.tolist(), *named])]
    wider = result.reindex(baseline=labels)
    scores = {
        name: wider[f"baseline_{name}"].values.copy()
        for name in ("nll", "nll_lower", "nll_upper", "ood")
        if f"baseline_{name}" in wider
    }
    for tokens in _checked(made_from, harvests):
        at = (
            result["model"].values.tolist().index(tokens.model),
            result["dataset"].values.tolist().index(tokens.dataset),
        )
        for name, one in named.items():
            point = {**one.settings, "epsilon": epsilon}
            means = direct_means(tokens, [point], chain=one.chain, tail=tail, block=_BLOCK)[0]
            found = {"nll_lower": means.lower, "nll_upper": means.upper, "ood": means.ood}
            for key, value in {"nll": means.nll, **found}.items():
                if key in scores:
                    scores[key][(*at, labels.index(name))] = float(value)
    placed: dict[Any, Any] = {
        f"baseline_{key}": (wider[f"baseline_{key}"].dims, array, wider[f"baseline_{key}"].attrs)
        for key, array in scores.items()
    }
    about = json.loads(str(result.attrs.get("baselines_json", "{}")))
    about |= {
        name: {"chain": [*one.chain], "settings": dict(one.settings)} for name, one in named.items()
    }
    return wider.assign(placed).assign_attrs(baselines_json=json.dumps(about))


def _made_from(result: "xr.Dataset") -> dict[tuple[str, str], dict[str, str]]:
    """Return what a sweep says of its harvests, by model and dataset."""
    return {
        (str(entry["model"]), str(entry["dataset"])): entry
        for entry in json.loads(str(result.attrs.get("harvests_json", "[]")))
    }


def _checked(
    made_from: Mapping[tuple[str, str], Mapping[str, str]], harvests: "Harvests"
) -> list[TokenArrays]:
    """Return the harvests as arrays, if they are exactly those of the sweep."""
    given = {
        (one.model, one.dataset): one
        for one in (token_arrays(harvest) for harvest in store.harvests(harvests))
    }
    for pair, entry in made_from.items():
        if pair not in given or given[pair].fingerprint != entry["fingerprint"]:
            raise ConfigError(
                f"the harvest of model '{pair[0]}' on dataset '{pair[1]}' that the sweep was made "
                "from is not among those given, or has changed; name it with --input or sweep again"
            )
    return [given[pair] for pair in made_from]
