"""One (model, dataset) pair of a sweep file as plain arrays: its grid, best point and baselines.

Tables and figures both read from here. Nothing is scored: stored numbers are looked up, sliced and
compared. Neither xarray nor matplotlib is imported.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from jaxsppl import parameters
from jaxsppl.choice import Choice
from jaxsppl.errors import ConfigError, SchemaError, suggest
from jaxsppl.schema import Array, Contents

NEUTRAL = "neutral"
DEFAULT = "llama.cpp default"

# Values within this of each other count as the same axis value or the same nll.
_SAME = 1e-9


@dataclass(frozen=True)
class Point:
    """One setting with its stored score.

    Attributes
    ----------
    name : str
        What it is, for example "best" or "neutral".
    values : mapping of str to float
        Parameters that were set; the others are neutral.
    chain : tuple of str
        Stages in the order in which they are applied.
    nll, ood : float
        Negative log-likelihood [nat/token] and out-of-distribution share [1].
    nll_lower, nll_upper : float or None
        Brackets of the unseen tail [nat/token]; None when the sweep has none.
    """

    name: str
    values: Mapping[str, float]
    chain: tuple[str, ...]
    nll: float
    ood: float
    nll_lower: float | None = None
    nll_upper: float | None = None

    def value(self, parameter: str) -> float | None:
        """Return the value of a parameter, its neutral one when it is not set."""
        known = parameters.PARAMETERS.get(parameter)
        return self.values.get(parameter, known.neutral if known else None)


@dataclass(frozen=True)
class Surface:
    """The scores of one model on one dataset over the whole grid.

    Attributes
    ----------
    source : str
        File that it comes from.
    model, dataset : str
        The pair.
    n_token, n_byte : int
        Scored tokens and their UTF-8 bytes.
    plain_nll : float
        Under the model itself [nat/token]; NaN when the file does not say.
    axes : mapping of str to array
        Values of each swept parameter, in the order of the dimensions of `nll`.
    nll, ood : array
        One value for each grid point [nat/token], [1].
    nll_lower, nll_upper : array or None
        Brackets of the unseen tail, like `nll`.
    chain : tuple of str
        Stages in the order in which they are applied.
    epsilon : float
        Probabilities below count as it; NaN while it is still an axis.
    tail : str
        "bound" or "drop".
    best : Point
        The smallest nll.
    baselines : tuple of Point
        Named settings for comparison.
    plateau : array or None
        bool, like `nll`: points that cannot be told from the best; None when the sweep has none.
    choice : Choice
        What the sweep was made to choose by.
    """

    source: str
    model: str
    dataset: str
    n_token: int
    n_byte: int
    plain_nll: float
    axes: Mapping[str, Array]
    nll: Array
    ood: Array
    nll_lower: Array | None
    nll_upper: Array | None
    chain: tuple[str, ...]
    epsilon: float
    tail: str
    best: Point
    baselines: tuple[Point, ...] = ()
    plateau: Array | None = None
    choice: Choice = field(default_factory=Choice)

    def index(self, values: Mapping[str, float]) -> tuple[int, ...]:
        """Return the grid index of a point that is on the grid."""
        return tuple(
            int(np.argmin(np.abs(axis - values[name]))) for name, axis in self.axes.items()
        )

    def baseline(self, name: str) -> Point | None:
        """Return a named setting, None when the file has none of that name."""
        return next((point for point in self.baselines if point.name == name), None)

    def swept(self) -> list[str]:
        """Return the names of the axes that have more than one value."""
        return [name for name, values in self.axes.items() if len(values) > 1]


def surfaces(contents: Contents, source: str) -> list[Surface]:
    """Return every harvested pair of a sweep file.

    Parameters
    ----------
    contents : Contents
        A checked sweep file.
    source : str
        Its name.

    Returns
    -------
    list of Surface
        Model by model, in the file's order; pairs that were not harvested are left out.
    """
    models, datasets = (_texts(contents, name) for name in ("model", "dataset"))
    n_token = contents.array("n_token")
    return [
        _surface(contents, source, (i, j), (model, dataset))
        for i, model in enumerate(models)
        for j, dataset in enumerate(datasets)
        if n_token[i, j] > 0
    ]


def _texts(contents: Contents, name: str) -> list[str]:
    """Return a coordinate of names."""
    return [str(value) for value in contents.array(name).tolist()]


def split_chain(text: object) -> tuple[str, ...]:
    """Return the stages of a comma-joined chain."""
    return tuple(stage for stage in str(text).split(",") if stage)


def _surface(
    contents: Contents, source: str, pair: tuple[int, int], names: tuple[str, str]
) -> Surface:
    """Cut one pair out of a sweep file."""
    axes = {name: contents.array(name).astype(float) for name in contents.variables["nll"][0][2:]}
    bounded = {"nll_lower", "nll_upper"} <= set(contents.variables)
    chain = split_chain(contents.attrs.get("chain", ""))

    def number(name: str) -> float:
        """Return a value of this pair, NaN when the file does not have it."""
        return float(contents.array(name)[pair]) if name in contents.variables else math.nan

    surface = Surface(
        source=source,
        model=names[0],
        dataset=names[1],
        n_token=int(number("n_token")),
        n_byte=int(number("n_byte")),
        plain_nll=number("plain_nll"),
        axes=axes,
        nll=contents.array("nll")[pair],
        ood=contents.array("ood")[pair],
        nll_lower=contents.array("nll_lower")[pair] if bounded else None,
        nll_upper=contents.array("nll_upper")[pair] if bounded else None,
        chain=chain,
        epsilon=float(contents.attrs.get("epsilon", math.nan)),
        tail=str(contents.attrs.get("tail", "drop")),
        best=Point("best", {}, chain, math.nan, math.nan),
        baselines=tuple(_baselines(contents, pair)),
        plateau=_plateau(contents, pair),
        choice=choice_of(contents),
    )
    return replace(surface, best=_stored_best(contents, surface, pair))


def _plateau(contents: Contents, pair: tuple[int, int]) -> Array | None:
    """Return the plateau of a pair, None where it was not, or could not be, found."""
    if "plateau" not in contents.variables or not contents.array("plateau")[pair].any():
        return None
    return contents.array("plateau")[pair].astype(bool)


def choice_of(contents: Contents) -> Choice:
    """Return what is best in a sweep or optimum file."""
    text = str(contents.attrs.get("choice_json", ""))
    return msgspec.json.decode(text, type=Choice) if text else Choice()


def _baselines(contents: Contents, pair: tuple[int, int]) -> list[Point]:
    """Return the named settings of one pair."""
    if not {"baseline", "baseline_nll"} <= set(contents.variables):
        return []
    try:
        described = json.loads(str(contents.attrs.get("baselines_json", "{}")))
    except ValueError as error:
        raise SchemaError(f"baselines_json is not JSON ({error}); make the sweep again") from error
    points: list[Point] = []
    for index, name in enumerate(_texts(contents, "baseline")):
        about: dict[str, Any] = described.get(name, {})

        def number(variable: str, where: tuple[int, ...] = (*pair, index)) -> float | None:
            """Return a value of this setting, None when the file does not have it."""
            key = f"baseline_{variable}"
            return float(contents.array(key)[where]) if key in contents.variables else None

        nll, ood = number("nll"), number("ood")
        points.append(
            Point(
                name,
                {key: float(value) for key, value in about.get("settings", {}).items()},
                tuple(about.get("chain", ())),
                math.nan if nll is None else nll,
                math.nan if ood is None else ood,
                number("nll_lower"),
                number("nll_upper"),
            )
        )
    return points


def _stored_best(contents: Contents, surface: Surface, pair: tuple[int, int]) -> Point:
    """Return the best point with its directly computed score where the file has it."""
    wanted = {"best_value", "best_nll", "best_ood", "parameter"}
    if wanted <= set(contents.variables):
        stored = dict(
            zip(_texts(contents, "parameter"), contents.array("best_value")[pair], strict=True)
        )
        on_grid = set(stored) == set(surface.axes) and all(
            np.isclose(axis, stored[name], rtol=_SAME, atol=_SAME).any()
            for name, axis in surface.axes.items()
        )
        if on_grid:
            point = point_at(surface, surface.index(stored), "best")
            return _moved(
                point, float(contents.array("best_nll")[pair]), contents.array("best_ood")[pair]
            )
    return smallest(surface, "best")


def _moved(point: Point, nll: float, ood: float) -> Point:
    """Replace a point's score by the direct one and carry its brackets along."""
    shift = nll - point.nll
    return replace(
        point,
        nll=nll,
        ood=float(ood),
        nll_lower=None if point.nll_lower is None else point.nll_lower + shift,
        nll_upper=None if point.nll_upper is None else point.nll_upper + shift,
    )


def point_at(surface: Surface, index: tuple[int, ...], name: str) -> Point:
    """Return a grid point with its stored score.

    Parameters
    ----------
    surface : Surface
    index : tuple of int
        One for each axis.
    name : str
        What to call it.

    Returns
    -------
    Point
    """
    lower, upper = surface.nll_lower, surface.nll_upper
    return Point(
        name,
        {key: float(axis[at]) for (key, axis), at in zip(surface.axes.items(), index, strict=True)},
        surface.chain,
        float(surface.nll[index]),
        float(surface.ood[index]),
        None if lower is None else float(lower[index]),
        None if upper is None else float(upper[index]),
    )


def smallest(surface: Surface, name: str) -> Point:
    """Return the grid point with the smallest stored nll; NaN never wins."""
    flat = int(np.nanargmin(surface.nll))
    return point_at(surface, tuple(int(i) for i in np.unravel_index(flat, surface.nll.shape)), name)


def restrict(surface: Surface, values: Mapping[str, float]) -> Surface:
    """Return the surface with some axes held at one of their values.

    Parameters
    ----------
    surface : Surface
    values : mapping of str to float
        Axis to value; the axis stays, with that value only.

    Returns
    -------
    Surface
        Its best point is the best of what is left.

    Raises
    ------
    ConfigError
        When there is no such axis or it does not have the value.
    """
    if not values:
        return surface
    taken = [slice(None)] * len(surface.axes)
    axes = dict(surface.axes)
    for name, value in values.items():
        if name not in axes:
            raise ConfigError(
                f"select {name}: {surface.source} has no axis '{name}'; {suggest(name, axes)}"
            )
        at = int(np.argmin(np.abs(axes[name] - value)))
        if not math.isclose(axes[name][at], value, rel_tol=_SAME, abs_tol=_SAME):
            near = ", ".join(
                f"{v:g}" for v in sorted(axes[name], key=lambda v, w=value: abs(v - w))[:3]
            )
            raise ConfigError(
                f"select {name}={value:g}: the axis has no such value; near are {near}"
            )
        taken[list(axes).index(name)] = slice(at, at + 1)
        axes[name] = axes[name][at : at + 1]
    cut = tuple(taken)
    smaller = replace(
        surface,
        axes=axes,
        nll=surface.nll[cut],
        ood=surface.ood[cut],
        nll_lower=None if surface.nll_lower is None else surface.nll_lower[cut],
        nll_upper=None if surface.nll_upper is None else surface.nll_upper[cut],
        plateau=None if surface.plateau is None else surface.plateau[cut],
        epsilon=float(values.get("epsilon", surface.epsilon)),
    )
    if smaller.nll.shape == surface.nll.shape:
        return replace(smaller, best=surface.best)
    if np.isnan(smaller.nll).all():
        raise ConfigError(f"{surface.source}: no point of this selection has a score")
    return replace(smaller, best=smallest(smaller, "best"))


def at_one_epsilon(surface: Surface) -> Surface:
    """Hold epsilon where the baselines were scored, or near; scores of two epsilons do not compare.

    Parameters
    ----------
    surface : Surface

    Returns
    -------
    Surface
        Unchanged when epsilon is no axis. Baselines scored at another epsilon are left out.
    """
    axis = surface.axes.get("epsilon")
    if axis is None:
        return surface
    usual = parameters.PARAMETERS["epsilon"].neutral
    wanted = next((p.values["epsilon"] for p in surface.baselines if "epsilon" in p.values), usual)
    # The ratio, not the difference, says how near two epsilons are.
    nearest = float(axis[int(np.argmin(np.abs(np.log(axis / wanted))))])
    held = restrict(surface, {"epsilon": nearest})
    kept = tuple(
        p
        for p in surface.baselines
        if math.isclose(p.values.get("epsilon", usual), nearest, rel_tol=_SAME)
    )
    return replace(held, baselines=kept)


def best_of_slice(surface: Surface, values: Mapping[str, float], name: str) -> Point | None:
    """Return the best point with some axes held, or None when an axis lacks that value.

    Parameters
    ----------
    surface : Surface
    values : mapping of str to float
        Axis to value; parameters that are no axis are ignored.
    name : str
        What to call the point.

    Returns
    -------
    Point or None
    """
    held = {key: value for key, value in values.items() if key in surface.axes}
    try:
        return replace(restrict(surface, held).best, name=name)
    except ConfigError:
        return None


def effective_order(name: str, values: Array) -> list[int]:
    """Return the indices that sort an axis from the strictest value to off.

    Parameters
    ----------
    name : str
        The parameter. For `top_k` and `top_n_sigma` the value 0 is off and comes last.
    values : array
        Its values.

    Returns
    -------
    list of int
    """
    off_is_low = name in ("top_k", "top_n_sigma")
    keys = [math.inf if off_is_low and value <= 0 else float(value) for value in values]
    return sorted(range(len(keys)), key=keys.__getitem__)


def value_text(name: str, value: float | None) -> str:
    """Return a parameter's value for people: short, and "off" for a truncation that is off."""
    if value is None:
        return "-"
    known = parameters.PARAMETERS.get(name)
    shapes = ("temperature", "draw", "objective")
    if known is not None and known.stage not in shapes and value == known.neutral:
        return "off"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.6g}"


def bits_per_byte(plain_nll: float, n_token: int, n_byte: int) -> float | None:
    """Return the model's bits per byte of text.

    Parameters
    ----------
    plain_nll : float
        [nat/token].
    n_token, n_byte : int
        Scored tokens and their UTF-8 bytes.

    Returns
    -------
    float or None
        None when there are no bytes or no nll.
    """
    if n_byte <= 0 or math.isnan(plain_nll):
        return None
    return plain_nll * n_token / n_byte / math.log(2)
