"""What `decide` found, under the labels of the sweep file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl import schema
from jaxsppl.choice import Choice, Rules, recipe
from jaxsppl.schema import Array
from jaxsppl.sweep import bootstrap, heldout
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.bootstrap import Resampled
from jaxsppl.sweep.heldout import CHOSEN, Split
from jaxsppl.sweep.plan import Axis
from jaxsppl.sweep.plateau import Uncertainty

if TYPE_CHECKING:
    import xarray as xr

# Samplers are compared with the first of these that the harvest can serve.
REFERENCE = ("llama.cpp default", "neutral")
# What a proof adds to a sweep file.
DIMS = ("setting", "sampler", "end", "fold", "searched")

_OF_GRID = {"nll_se": "nll_se", "nll_delta": "delta", "nll_delta_se": "delta_se"}
_COUNTS = ("n_document", "n_group", "n_choosing", "n_proven", "n_tried")


@dataclass(frozen=True)
class Grid:
    """The grid of a sweep file.

    Attributes
    ----------
    axes : tuple of Axis
        In the order of the file.
    chain : tuple of str
    epsilons : tuple of float
        Values of the epsilon axis, or the only one.
    shown : int
        Place of the epsilon at which settings are chosen and proven.
    tail : str
    tolerance : float
        Of the sweep's audit [nat/token].
    """

    axes: tuple[Axis, ...]
    chain: tuple[str, ...]
    epsilons: tuple[float, ...]
    shown: int
    tail: str
    tolerance: float

    def rows(self, values: Array) -> Array:
        """Return an array of the grid as (epsilon, point)."""
        names = [axis.name for axis in self.axes]
        if "epsilon" in names:
            values = np.moveaxis(values, names.index("epsilon"), 0)
        return values.reshape(len(self.epsilons), -1)

    def whole(self, rows: Array) -> Array:
        """Return (epsilon, point) rows in the shape of the grid."""
        names = [axis.name for axis in self.axes]
        shape = [len(axis.values) for axis in self.axes]
        if "epsilon" not in names:
            return rows.reshape(shape)
        at = names.index("epsilon")
        moved = [shape[at], *shape[:at], *shape[at + 1 :]]
        return np.moveaxis(rows.reshape(moved), 0, at)

    @property
    def searched(self) -> dict[str, tuple[float, ...]]:
        """Return the axes that a choice is made on."""
        return {axis.name: axis.values for axis in self.axes if axis.name != "epsilon"}

    def point(self, place: int) -> dict[str, float]:
        """Return the parameters of a place of a row."""
        shape = [len(values) for values in self.searched.values()]
        at = np.unravel_index(place, shape)
        point = {
            name: values[int(i)]
            for (name, values), i in zip(self.searched.items(), at, strict=True)
        }
        return {**point, "epsilon": self.epsilons[self.shown]}


@dataclass(frozen=True)
class Scored:
    """Settings of one pair on the documents that prove.

    Attributes
    ----------
    names : tuple of str
    loss, ood : array
        (setting, document) summed losses [nat] and counts.
    weight : array
        (document,) tokens.
    """

    names: tuple[str, ...]
    loss: Array
    ood: Array
    weight: Array


@dataclass(frozen=True)
class Decided:
    """What was found out about one pair.

    Attributes
    ----------
    n_document, n_group, n_tried : int
        Documents, groups where these are the unit, and grid points that were chosen from.
    unsure : Uncertainty or None
        None for a single document, as the others.
    settings, samplers : Scored or None
        The chosen settings first, then the baselines; and the compared samplers.
    split : Split or None
    chosen : mapping of int to int
        Place of the point that was chosen without a fold.
    """

    n_document: int
    n_group: int
    n_tried: int
    unsure: Uncertainty | None = None
    settings: Scored | None = None
    samplers: Scored | None = None
    split: Split | None = None
    chosen: Mapping[int, int] = field(default_factory=dict[int, int])


def labelled(
    result: "xr.Dataset",
    grid: Grid,
    found: Mapping[tuple[str, str], Decided],
    rules: Rules,
    choice: Choice,
    baselines: Mapping[str, Baseline],
    tried: Mapping[str, Array],
) -> "xr.Dataset":
    """Put what was found under the labels of the sweep.

    Parameters
    ----------
    result : xarray.Dataset
        The sweep.
    grid : Grid
    found : mapping of (model, dataset) to Decided
    rules : Rules
    choice : Choice
    baselines : mapping of str to Baseline
        Settings that the chosen ones are compared with.
    tried : mapping of str to array
        Places that each sampler tried.

    Returns
    -------
    xarray.Dataset
        As `decide` describes it.
    """
    models, datasets = ([str(n) for n in result[dim].values] for dim in ("model", "dataset"))
    pair_dims = ("model", "dataset")
    grid_dims = (*pair_dims, *(axis.name for axis in grid.axes))
    shape = tuple(len(axis.values) for axis in grid.axes)
    names = (CHOSEN, *baselines)
    samplers = (*tried, *REFERENCE) if tried else ()
    n_fold = max((len(one.chosen) for one in found.values()), default=0)
    pair = (len(models), len(datasets))
    number = {name: np.full((*pair, *shape), np.nan) for name in _OF_GRID}
    plateau = np.zeros((*pair, *shape), np.int8)
    counts = {name: np.zeros(pair, np.int64) for name in _COUNTS}
    critical = np.full(pair, np.nan)
    values = np.full((*pair, n_fold, len(grid.searched)), np.nan)
    for (model, dataset), one in found.items():
        at = models.index(model), datasets.index(dataset)
        for name in ("n_document", "n_group", "n_tried"):
            counts[name][at] = getattr(one, name)
        if one.unsure is None or one.split is None:
            continue
        for name, attribute in _OF_GRID.items():
            number[name][at] = grid.whole(getattr(one.unsure, attribute))
        plateau[at] = grid.whole(one.unsure.plateau)
        critical[at] = one.unsure.critical
        counts["n_choosing"][at] = one.split.n_choosing
        counts["n_proven"][at] = one.split.n_proven
        for row, place in enumerate(one.chosen.values()):
            point = grid.point(place)
            values[(*at, row)] = [point[name] for name in grid.searched]
    variables: dict[str, Any] = {name: (grid_dims, array) for name, array in number.items()}
    variables["plateau"] = (grid_dims, plateau)
    variables |= {name: (pair_dims, array) for name, array in counts.items()}
    variables["plateau_critical"] = (pair_dims, critical)
    variables["chosen_value"] = ((*pair_dims, "fold", "searched"), values)
    coords: dict[str, Any] = {
        "setting": list(names),
        "end": ["low", "high"],
        "fold": np.arange(n_fold),
        "searched": list(grid.searched),
    }
    settings = {pair: one.settings for pair, one in found.items() if one.settings is not None}
    scored, gains = scores(settings, models, datasets, names, CHOSEN, "setting", rules)
    variables |= scored | _macro(gains, models, names, rules)
    if tried:
        compared = {pair: one.samplers for pair, one in found.items() if one.samplers is not None}
        variables |= scores(compared, models, datasets, samplers, None, "sampler", rules)[0]
        coords["sampler"] = list(samplers)
    variables = {
        name: (*of, dict(zip(("units", "long_name"), schema.SWEEP_VARIABLES[name], strict=True)))
        for name, of in variables.items()
    }
    attrs: dict[str, Any] = {
        "decide_json": recipe(rules, choice),
        "settings_json": json.dumps(
            {
                name: {"chain": list(one.chain), "settings": dict(one.settings)}
                for name, one in baselines.items()
            }
        ),
        "decide_epsilon": grid.epsilons[grid.shown],
        "sampler_points": max((len(places) for places in tried.values()), default=0),
    }
    return result.assign(variables).assign_coords(coords).assign_attrs(attrs)


def scores(
    found: Mapping[tuple[str, str], Scored],
    models: Sequence[str],
    datasets: Sequence[str],
    names: Sequence[str],
    reference: str | None,
    dim: str,
    rules: Rules,
) -> tuple[dict[str, Any], dict[str, list[Resampled]]]:
    """Return nll, share and gain of each setting with their intervals, as variables of a file.

    Parameters
    ----------
    found : mapping of (model, dataset) to Scored
    models, datasets, names : sequence of str
        Coordinates; `names` are those of `dim`.
    reference : str or None
        The gain of a setting is what this one gains on it; or, None, for samplers, what each
        gains on the first of `REFERENCE` that the harvest can serve.
    dim : {"setting", "sampler"}
    rules : Rules
        Resamples and confidence.

    Returns
    -------
    tuple
        Dims and values by variable; and each model's gains, resampled, a dataset each.
    """
    prefix = "heldout" if dim == "setting" else dim
    shape = (len(models), len(datasets), len(names))
    out = {name: np.full(shape, np.nan) for name in ("nll", "ood", "gain", "gain_se", "win")}
    ends = {name: np.full((*shape, 2), np.nan) for name in ("nll_interval", "gain_interval")}
    needed = np.full(shape, np.nan)
    gains: dict[str, list[Resampled]] = {}
    for (model, dataset), one in found.items():
        at = models.index(model), datasets.index(dataset)
        # The same resamples for every model on a dataset, others for another dataset.
        drawn = bootstrap.draw_documents(len(one.weight), rules.resamples, [rules.seed, at[1]])
        nll = bootstrap.resample(one.loss.T, one.weight, drawn).estimate(rules.confidence)
        out["nll"][at], out["ood"][at] = nll.value, one.ood.sum(axis=1) / one.weight.sum()
        # No nll is below 0, whatever few documents make of its interval.
        ends["nll_interval"][at] = np.maximum(np.stack([nll.low, nll.high], axis=-1), 0.0)
        if reference is not None:
            gained = one.loss - one.loss[one.names.index(reference)]
        else:
            known = [n for n in REFERENCE if np.isfinite(one.loss[one.names.index(n)]).all()]
            gained = one.loss[one.names.index(known[0])] - one.loss
        resampled = bootstrap.resample(gained.T, one.weight, drawn)
        gains.setdefault(model, []).append(resampled)
        gain = resampled.estimate(rules.confidence)
        out["gain"][at], out["gain_se"][at] = gain.value, gain.se
        out["win"][at] = 1.0 - gain.below
        ends["gain_interval"][at] = np.stack([gain.low, gain.high], axis=-1)
        needed[at] = heldout.documents_needed(
            gain.se, len(one.weight), rules.detect, rules.confidence
        )
    dims = ("model", "dataset", dim)
    variables: dict[str, Any] = {f"{prefix}_{name}": (dims, array) for name, array in out.items()}
    variables |= {f"{prefix}_{name}": ((*dims, "end"), array) for name, array in ends.items()}
    if dim == "setting":
        variables["documents_needed"] = (dims, needed)
    return variables, gains


def _macro(
    gains: Mapping[str, Sequence[Resampled]],
    models: Sequence[str],
    names: Sequence[str],
    rules: Rules,
) -> dict[str, Any]:
    """Return the mean gain over the datasets of each model, every dataset weighing the same."""
    gain = np.full((len(models), len(names)), np.nan)
    win, ends = gain.copy(), np.full((*gain.shape, 2), np.nan)
    for model, parts in gains.items():
        mean = bootstrap.macro_mean(parts).estimate(rules.confidence)
        at = models.index(model)
        gain[at], win[at] = mean.value, 1.0 - mean.below
        ends[at] = np.stack([mean.low, mean.high], axis=-1)
    dims = ("model", "setting")
    return {
        "macro_gain": (dims, gain),
        "macro_win": (dims, win),
        "macro_gain_interval": ((*dims, "end"), ends),
    }
