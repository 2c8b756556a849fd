"""What `compare` found, under labels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl import __version__, schema
from jaxsppl.choice import Rules
from jaxsppl.schema import Array
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.bootstrap import Resampled, macro_mean

if TYPE_CHECKING:
    import xarray as xr

# The model itself, nothing cut and nothing clipped.
PLAIN = "the model itself"
MEAN = "mean of datasets"
UNITS = ("token", "byte", "character")
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 100.0)

_ABSOLUTE = {"token": "nll", "byte": "bits_per_byte", "character": "bits_per_character"}
_MEANS = ("kl_lower", "kl_upper", "same_top", "unshared")
_OF_SETTING = ("clipped_kl", "overlap")
# Between which values a quantity lies: no end of an interval is beyond.
_RANGE: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("same_top", "unshared", "overlap"), (0.0, 1.0)),
    **dict.fromkeys(("nll", "bits_per_byte", "bits_per_character"), (0.0, np.inf)),
    **dict.fromkeys(("kl_lower", "kl_upper"), (0.0, np.inf)),
}
_WORDS = {
    "nll": ("nat/token", "negative log-likelihood per token of the model's own tokenizer"),
    "bits_per_byte": ("bit/byte", "the same per byte of text"),
    "bits_per_character": ("bit/character", "the same per character of text"),
    "ood": ("1", "share of tokens whose probability is below epsilon"),
    "to_model": ("", "difference to the reference model under the same setting"),
    "to_setting": ("", "difference to the first setting of the same model"),
    "kl_lower": ("nat/token", "KL divergence from the reference model, at least"),
    "kl_upper": ("nat/token", "KL divergence from the reference model, at most"),
    "same_top": ("1", "share of positions where both models have the same likeliest token"),
    "unshared": ("1", "mass that the reference model gives to what is not listed by both"),
    "clipped_kl": ("nat/token", "how much higher the nll of the reference's text is, expected"),
    "overlap": ("1", "probability that the same token can be drawn from both"),
    "kl_percentile": ("nat", "percentiles over positions of kl_lower"),
    "change_percentile": ("nat", "percentiles of the change of the actual token's log-probability"),
}


@dataclass(frozen=True)
class Pair:
    """A model under a setting: its resampled ratios by unit, and its share below epsilon."""

    by_unit: Mapping[str, Resampled]
    ood: float


@dataclass(frozen=True)
class Compared:
    """What was found on one dataset, by (model, setting) or model."""

    n_document: int
    n_group: int
    alone: Mapping[tuple[str, str], Pair]
    to_model: Mapping[tuple[str, str], Resampled]
    to_setting: Mapping[tuple[str, str], Resampled]
    divergence: Mapping[str, Mapping[str, Any]]


def labelled(
    found: Mapping[str, Compared],
    models: Sequence[str],
    settings: Sequence[str],
    reference: str,
    unit: str,
    epsilon: float,
    tail: str,
    rules: Rules,
    chosen: Mapping[str, Baseline],
    sources: Sequence[Mapping[str, str]],
    alternatives: int,
) -> "xr.Dataset":
    """Put comparisons under their labels, the mean over datasets last.

    Parameters
    ----------
    found : mapping of str to Compared
        By dataset.
    models, settings : sequence of str
    reference : str
        The model that the others are compared with.
    unit : str
        Of the differences.
    epsilon, tail, rules, chosen
        As in `compare`.
    sources : sequence of mapping
        Model, dataset, fingerprint and source of each harvest.
    alternatives : int
        Listed alternatives of each token, the fewest of all harvests.

    Returns
    -------
    xarray.Dataset
    """
    import xarray as xr

    datasets = [*found, *([MEAN] if len(found) > 1 else [])]
    table = _Table(models, settings, datasets, rules.confidence)
    for model in models:
        for setting in settings:
            parts = {d: one for d, one in found.items() if (model, setting) in one.alone}
            for u, name in _ABSOLUTE.items():
                ratios = {d: one.alone[model, setting].by_unit[u] for d, one in parts.items()}
                table.put(name, model, setting, ratios)
            for dataset, one in parts.items():
                table.number("ood", model, setting, dataset, one.alone[model, setting].ood)
            for name in ("to_model", "to_setting"):
                pairs = {
                    d: getattr(one, name)[model, setting]
                    for d, one in parts.items()
                    if (model, setting) in getattr(one, name)
                }
                table.put(name, model, setting, pairs)
            for name in _OF_SETTING:
                table.put(name, model, setting, _of(found, model, f"{name} {setting}"))
        for name in _MEANS:
            table.put(name, model, None, _of(found, model, name))
        for dataset, one in found.items():
            if model in one.divergence:
                table.percentiles("kl_percentile", model, dataset, one.divergence[model]["kl"])
                change = one.divergence[model]["change"]
                table.percentiles("change_percentile", model, dataset, change)
    units = {"token": "nat/token", "byte": "bit/byte", "character": "bit/character"}[unit]
    variables = {
        name: (dims, values, _attrs(name, units)) for name, (dims, values) in table.arrays.items()
    }
    for name, words in (
        ("n_document", "documents that all models have"),
        ("n_group", schema.SWEEP_VARIABLES["n_group"][1]),
    ):
        count = [getattr(one, name) for one in found.values()]
        # Of the mean: datasets of different units have none in common.
        in_all = [sum(count) if all(count) else 0] if len(found) > 1 else []
        counts = np.asarray([*count, *in_all])
        variables[name] = (("dataset",), counts, {"units": "1", "long_name": words})
    coords = {
        "model": [*models],
        "setting": [*settings],
        "dataset": datasets,
        "end": ["low", "high"],
        "percentile": [*PERCENTILES],
    }
    attrs = {
        "schema": schema.COMPARISON,
        "reference": reference,
        "unit": unit,
        "epsilon": epsilon,
        "tail": tail,
        "confidence": rules.confidence,
        "resamples": rules.resamples,
        "seed": rules.seed,
        "cluster": rules.cluster,
        "settings_json": json.dumps(
            {n: {"chain": [*s.chain], "settings": dict(s.settings)} for n, s in chosen.items()}
        ),
        "alternatives": alternatives,
        "harvests_json": json.dumps([*sources]),
        "version": __version__,
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _of(found: Mapping[str, Compared], model: str, name: str) -> dict[str, Resampled]:
    """Return a mean divergence by dataset, where the tokenizer is the same and it is known."""
    return {
        dataset: one.divergence[model]["means"][name]
        for dataset, one in found.items()
        if model in one.divergence and name in one.divergence[model]["means"]
    }


def _attrs(name: str, units: str) -> dict[str, str]:
    """Return unit and meaning of a variable."""
    for suffix, meaning in (
        ("_interval", ", interval"),
        ("_win", ", probability that it is below 0"),
    ):
        if name.endswith(suffix):
            unit, words = _WORDS[name.removesuffix(suffix)]
            return {
                "units": "1" if suffix == "_win" else unit or units,
                "long_name": words + meaning,
            }
    unit, words = _WORDS[name]
    return {"units": unit or units, "long_name": words}


class _Table:
    """Arrays that are filled place by place; NaN where nothing is known."""

    def __init__(
        self,
        models: Sequence[str],
        settings: Sequence[str],
        datasets: Sequence[str],
        confidence: float,
    ) -> None:
        self.places = {"model": [*models], "setting": [*settings], "dataset": [*datasets]}
        self.confidence = confidence
        self.arrays: dict[str, tuple[tuple[str, ...], Array]] = {}

    def put(
        self, name: str, model: str, setting: str | None, parts: Mapping[str, Resampled]
    ) -> None:
        """Put a ratio of each dataset, its interval, and their mean where all datasets have it."""
        whole = {**parts}
        several = [dataset for dataset in self.places["dataset"] if dataset != MEAN]
        if len(several) > 1 and set(parts) == set(several):
            whole[MEAN] = macro_mean([*parts.values()])
        for dataset in self.places["dataset"]:
            if dataset not in whole:
                self.number(name, model, setting, dataset, np.nan)
                continue
            one = whole[dataset].estimate(self.confidence)
            self.number(name, model, setting, dataset, float(one.value))
            least, most = _RANGE.get(name, (-np.inf, np.inf))
            ends = [min(max(float(value), least), most) for value in (one.low, one.high)]
            for end, value in enumerate(ends):
                self.number(f"{name}_interval", model, setting, dataset, value, end)
            if name.startswith("to_"):
                self.number(f"{name}_win", model, setting, dataset, float(one.below))

    def number(
        self,
        name: str,
        model: str,
        setting: str | None,
        dataset: str,
        value: float,
        end: int | None = None,
    ) -> None:
        """Put one number."""
        dims = ("model", *(() if setting is None else ("setting",)), "dataset")
        at = [self.places["model"].index(model)]
        at += [] if setting is None else [self.places["setting"].index(setting)]
        at.append(self.places["dataset"].index(dataset))
        self._array(name, dims, () if end is None else (("end", 2),))[
            (*at, *(() if end is None else (end,)))
        ] = value

    def percentiles(self, name: str, model: str, dataset: str, values: Array) -> None:
        """Put the percentiles of values over positions."""
        array = self._array(name, ("model", "dataset"), (("percentile", len(PERCENTILES)),))
        at = self.places["model"].index(model), self.places["dataset"].index(dataset)
        array[at] = np.percentile(values, PERCENTILES)

    def _array(self, name: str, dims: tuple[str, ...], more: tuple[tuple[str, int], ...]) -> Array:
        """Return an array, made when it is first asked for."""
        if name not in self.arrays:
            shape = [*(len(self.places[dim]) for dim in dims), *(size for _, size in more)]
            self.arrays[name] = (*dims, *(dim for dim, _ in more)), np.full(shape, np.nan)
        return self.arrays[name][1]
