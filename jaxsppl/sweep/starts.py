"""What is optimized: the box of the smooth parameters, the values of the others, where to start.

Smooth parameters are searched by gradient inside a box, some of them (`parameters.by_log`) in their
logarithms, which make steps relative. The limits are kept by projection and not by a logit: that
would flatten the gradient near them, so that an optimum at a limit looks like one inside.
Parameters of truncations have a derivative of zero almost everywhere; they are enumerated.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.errors import ConfigError, suggest

_MOST_COMBINATIONS = 1024
_FEWEST_STARTS = 2
# Points of the coarse grid, with few and with many combinations of the others; and at most in all.
_GRID, _THIN_GRID, _MOST_GRID = 5, 3, 128


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes
    ----------
    over : tuple of str
        All optimized parameters, in the order asked for.
    smooth : tuple of str
        Those searched by gradient.
    bounds : tuple of (float, float)
        Their limits.
    listed : tuple of str
        Those that are enumerated.
    combinations : tuple of tuple of float
        Every combination of the enumerated values.
    fixed : mapping of str to float
        Parameters that are held.
    """

    over: tuple[str, ...]
    smooth: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    listed: tuple[str, ...]
    combinations: tuple[tuple[float, ...], ...]
    fixed: Mapping[str, float]

    @property
    def lower(self) -> schema.Array:
        """Lower limits as coordinates."""
        return self.coordinates([low for low, _ in self.bounds])

    @property
    def upper(self) -> schema.Array:
        """Upper limits as coordinates."""
        return self.coordinates([high for _, high in self.bounds])

    def coordinates(self, values: Sequence[float]) -> schema.Array:
        """Return the coordinates of values of the smooth parameters."""
        logs = parameters.by_log(self.smooth)
        return np.asarray(
            [np.log(value) if log else value for value, log in zip(values, logs, strict=True)],
            float,
        )

    def n_start(self, starts: int) -> int:
        """Return how many starts there are: as asked, or at least two of each combination."""
        if len(self.combinations) == 1:
            return starts
        return len(self.combinations) * max(_FEWEST_STARTS, -(-starts // len(self.combinations)))

    def values(self, place: schema.Array, combination: schema.Array) -> schema.Array:
        """Return (start, over) values from (start, smooth) coordinates and enumerated values."""
        limits = np.asarray(self.bounds).reshape(-1, 2).T
        # The exponential of a limit's logarithm may lie one rounding error beyond it.
        smooth = np.clip(np.where(parameters.by_log(self.smooth), np.exp(place), place), *limits)
        columns = {
            **{name: smooth[:, index] for index, name in enumerate(self.smooth)},
            **{name: combination[:, index] for index, name in enumerate(self.listed)},
        }
        return np.stack([columns[name] for name in self.over], axis=-1)


def make_space(
    over: Sequence[str],
    fixed: Mapping[str, float] | None,
    bounds: Mapping[str, tuple[float, float]] | None,
    values: Mapping[str, Sequence[float]] | None,
    n_rank: int,
) -> Space:
    """Check what is to be optimized.

    Parameters
    ----------
    over : sequence of str
        Optimized parameters.
    fixed : mapping of str to float, optional
        Held parameters.
    bounds : mapping of str to (float, float), optional
        Other limits of smooth parameters.
    values : mapping of str to sequence of float, optional
        Other values of enumerated parameters.
    n_rank : int
        The fewest alternatives of any harvest: listed top_k values above it are left out.

    Returns
    -------
    Space

    Raises
    ------
    ConfigError
        For a parameter that is unknown, named twice, both optimized and fixed, or cannot be
        optimized; for limits or values that are not allowed.
    """
    names = (over,) if isinstance(over, str) else tuple(over)
    if not names:
        raise ConfigError("over: it is empty; name at least one parameter, for example temperature")
    for name in names:
        if parameters.parameter(name, "over").stage == "objective":
            raise ConfigError(
                f"over: '{name}' is part of the objective and cannot be optimized; sweep it"
            )
        if names.count(name) > 1:
            raise ConfigError(f"over: '{name}' is named twice; name each parameter once")
    held: dict[str, float] = {}
    for name, value in (fixed or {}).items():
        parameter = parameters.parameter(name, "fixed")
        if parameter.stage == "objective":
            raise ConfigError(f"fixed: give '{name}' as its own argument, {name}={value}")
        if name in names:
            raise ConfigError(
                f"fixed: '{name}' is both optimized and fixed; leave it out of one of the two"
            )
        held[name] = parameter.check([value], f"fixed.{name}")[0]
    smooth = tuple(name for name in names if parameters.is_smooth(name))
    listed = tuple(name for name in names if name not in smooth)
    for where, given, allowed in (("bounds", bounds, smooth), ("values", values, listed)):
        for name in given or {}:
            if name not in allowed:
                raise ConfigError(
                    f"{where}: '{name}' has none, since it is not among the parameters optimized "
                    f"{'by gradient' if where == 'bounds' else 'by enumeration'}; "
                    f"{suggest(name, allowed)}"
                )
    limits = tuple(
        _limits(name, (bounds or {}).get(name, parameters.parameter(name).search))
        for name in smooth
    )
    lists = [_listed(name, (values or {}).get(name), n_rank) for name in listed]
    combinations = tuple(itertools.product(*lists))
    if len(combinations) > _MOST_COMBINATIONS:
        raise ConfigError(
            f"values: {len(combinations)} combinations of {', '.join(listed)} are more than "
            f"{_MOST_COMBINATIONS}; give fewer values, or sweep these parameters"
        )
    return Space(names, smooth, limits, listed, combinations, held)


def _limits(name: str, given: Any) -> tuple[float, float]:
    """Check the limits of a smooth parameter."""
    parameter = parameters.parameter(name, "bounds")
    try:
        low, high = given
    except (TypeError, ValueError):
        raise ConfigError(
            f"bounds.{name}: {given!r} is not allowed; give (lowest, highest)"
        ) from None
    low, high = parameter.check([low, high], f"bounds.{name}")
    if not low < high or (parameter.by_log and low <= 0):
        above = "above 0 and " if parameter.by_log else ""
        raise ConfigError(
            f"bounds.{name}: ({low:g}, {high:g}) is not allowed; the lowest is {above}below the "
            "highest" + ("; 0 is no limit of a smooth search: sweep it" if above else "")
        )
    return low, high


def _listed(name: str, given: Sequence[float] | None, n_rank: int) -> list[float]:
    """Return the checked values of an enumerated parameter."""
    if given is None:
        usual = parameters.parameter(name, "values").usual
        given = [value for value in usual if not (name == "top_k" and value > n_rank)]
        if not given:
            raise ConfigError(f"values: '{name}' has no usual values; give them in `values`")
    return parameters.parameter(name, "values").check(
        np.atleast_1d(given).tolist(), f"values.{name}"
    )


def coarse_grid(space: Space) -> schema.Array:
    """Return (point, smooth) coordinates of a coarse grid in the box, without its faces.

    Parameters
    ----------
    space : Space

    Returns
    -------
    array
        Five values of each coordinate; fewer where there are many combinations or coordinates.
    """
    n = _GRID if len(space.combinations) <= 8 else _THIN_GRID
    n = min(n, max(2, int(_MOST_GRID ** (1 / max(len(space.smooth), 1)))))
    inner = (np.arange(n) + 0.5) / n
    axes = [low + (high - low) * inner for low, high in zip(space.lower, space.upper, strict=True)]
    if not axes:
        return np.zeros((1, 0))
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)


def latin_hypercube(rng: np.random.Generator, n: int, space: Space) -> schema.Array:
    """Return (start, smooth) coordinates, one in each of `n` layers of each coordinate.

    Parameters
    ----------
    rng : numpy.random.Generator
    n : int
        Starts.
    space : Space

    Returns
    -------
    array
    """
    layers = [rng.permutation(n) for _ in space.smooth]
    jitter = rng.random((len(layers), n))
    unit = (np.asarray(layers, np.float64).reshape(len(layers), n) + jitter) / max(n, 1)
    return space.lower + (space.upper - space.lower) * unit.T


def starting_places(
    space: Space, grid_value: schema.Array, per_combination: int, rng: np.random.Generator
) -> schema.Array:
    """Return where the starts of one combination lie: neutral, the best grid points, hypercube.

    Parameters
    ----------
    space : Space
    grid_value : array
        (point,) what is minimised on `coarse_grid`, NaN or inf where it is not finite.
    per_combination : int
        Starts of this combination.
    rng : numpy.random.Generator

    Returns
    -------
    array
        (start, smooth) coordinates.
    """
    neutral = [
        min(max(parameters.PARAMETERS[name].neutral, low), high)
        for name, (low, high) in zip(space.smooth, space.bounds, strict=True)
    ]
    places = [space.coordinates(neutral)]
    n_grid = min(max(1, per_combination // 8), grid_value.size, per_combination - 1)
    order = np.argsort(np.where(np.isfinite(grid_value), grid_value, np.inf), kind="stable")
    places += list(coarse_grid(space)[order[:n_grid]])
    rest = per_combination - len(places)
    return np.concatenate([np.stack(places), latin_hypercube(rng, rest, space)])
