"""The sampling parameters: the names of the axes, their ranges and neutral values, and the order.

Neither jax nor xarray is imported, so that a config is checked at once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jaxsppl.errors import ConfigError, suggest


@dataclass(frozen=True)
class Parameter:
    """One sampling parameter, which is also the name of an axis.

    Attributes
    ----------
    name : str
        Name in configs, files and plots.
    stage : str
        Stage of the chain that it belongs to; "draw" and "objective" stand after the chain.
    neutral : float
        Value at which the stage changes nothing.
    lower, upper : float
        Allowed range, both ends included unless `open_lower`.
    open_lower : bool
        True when `lower` itself is not allowed.
    integer : bool
        True when only whole numbers make sense.
    summary : str
        One line for help texts.
    """

    name: str
    stage: str
    neutral: float
    lower: float
    upper: float
    summary: str
    open_lower: bool = False
    integer: bool = False

    def check(self, values: Iterable[float], where: str) -> list[float]:
        """Return the values as floats, or say which one is not allowed.

        Parameters
        ----------
        values : iterable of float
            Values of the axis.
        where : str
            Path of the setting, for the message.

        Returns
        -------
        list of float
            The values, in the order given.

        Raises
        ------
        ConfigError
            When a value is not a finite number in the range, or is given twice.
        """
        checked: list[float] = []
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise ConfigError(
                    f"{where}: {value!r} is not a number; give numbers for '{self.name}'"
                )
            try:
                number = float(value)
            except OverflowError:  # an integer of hundreds of digits
                number = math.inf
            below = number <= self.lower if self.open_lower else number < self.lower
            if not math.isfinite(number) or below or number > self.upper:
                raise ConfigError(
                    f"{where}: {number} is not allowed; '{self.name}' is {self.range_text()}"
                )
            if self.integer and number != int(number):
                raise ConfigError(
                    f"{where}: {number} is not allowed; '{self.name}' is a whole number"
                )
            checked.append(number)
        if not checked:
            raise ConfigError(
                f"{where}: the axis is empty; give at least one value for '{self.name}'"
            )
        ordered = sorted(checked)
        repeated = [one for one, other in pairwise(ordered) if one == other]
        if repeated:
            raise ConfigError(
                f"{where}: {repeated[0]} is given twice; values of '{self.name}' differ"
            )
        return checked

    def range_text(self) -> str:
        """Return the allowed range in words."""
        low = f"above {self.lower:g}" if self.open_lower else f"at least {self.lower:g}"
        return f"a number {low}" + (f" and at most {self.upper:g}" if self.upper < math.inf else "")


def _table(*parameters: Parameter) -> dict[str, Parameter]:
    """Index parameters by name."""
    return {parameter.name: parameter for parameter in parameters}


PARAMETERS: dict[str, Parameter] = _table(
    Parameter(
        "temperature", "temperature", 1.0, 0.0, 100.0, "divides the log-probabilities; 0 is greedy"
    ),
    Parameter(
        "top_k", "top_k", 0.0, 0.0, 2**31 - 1, "keeps the k likeliest; 0 is off", integer=True
    ),
    Parameter("top_p", "top_p", 1.0, 0.0, 1.0, "keeps the likeliest until their mass reaches p"),
    Parameter(
        "min_p", "min_p", 0.0, 0.0, 1.0, "keeps tokens of at least p times the likeliest one"
    ),
    Parameter("alpha", "draw", 1.0, 0.0, 1e3, "first shape of the Beta draw", open_lower=True),
    Parameter("beta", "draw", 1.0, 0.0, 1e3, "second shape of the Beta draw", open_lower=True),
    Parameter(
        "epsilon", "objective", 0.01, 0.0, 1.0, "probabilities below count as it", open_lower=True
    ),
)

# llama.cpp's own order of the stages that exist here (samplers.md 1): temperature comes last.
DEFAULT_ORDER: tuple[str, ...] = ("top_k", "top_p", "min_p", "temperature")
TAILS = ("bound", "drop")
AFTER_CHAIN = ("draw", "objective")


def parameter(name: str, where: str = "grid") -> Parameter:
    """Return the parameter of that name.

    Parameters
    ----------
    name : str
        Name of the parameter.
    where : str
        Path of the setting, for the message.

    Returns
    -------
    Parameter

    Raises
    ------
    ConfigError
        When there is none; the message lists the near names.
    """
    if name not in PARAMETERS:
        near = suggest(str(name), PARAMETERS)
        raise ConfigError(f"{where}: there is no parameter '{name}'; {near}")
    return PARAMETERS[name]


def stage_names() -> list[str]:
    """Return the names of the chain's stages."""
    return sorted({p.stage for p in PARAMETERS.values()} - set(AFTER_CHAIN))


def check_order(order: Iterable[str], used: Iterable[str], where: str = "chain") -> tuple[str, ...]:
    """Return the chain's order after checking its names and that every used parameter has a stage.

    Parameters
    ----------
    order : iterable of str
        Names of stages, first applied first; one may stand twice.
    used : iterable of str
        Parameters that are swept or fixed.
    where : str
        Path of the setting, for the message.

    Returns
    -------
    tuple of str

    Raises
    ------
    ConfigError
        For an unknown stage, or a used parameter whose stage is not in the chain: it would
        silently have no effect.
    """
    if isinstance(order, str) or not isinstance(order, Iterable):
        raise ConfigError(f"{where}: {order!r} is no list; give the stages, as ['temperature']")
    names = tuple(order)
    known = stage_names()
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: there is no stage '{name}'; {suggest(str(name), known)}")
    for name in used:
        stage = parameter(name).stage
        if stage not in AFTER_CHAIN and stage not in names:
            given = ", ".join(names) or "empty"
            raise ConfigError(
                f"{where}: '{name}' is set, but its stage '{stage}' is not in the chain ({given}); "
                f"add '{stage}' where it belongs"
            )
    return names


def default_order(used: Iterable[str]) -> tuple[str, ...]:
    """Return llama.cpp's order restricted to the stages whose parameters are used.

    Parameters
    ----------
    used : iterable of str
        Parameters that are swept or fixed.

    Returns
    -------
    tuple of str
    """
    stages = {parameter(name).stage for name in used}
    return tuple(stage for stage in DEFAULT_ORDER if stage in stages)


def check_whole(value: int, where: str) -> None:
    """Raise a ConfigError unless a value is a whole number of at least 0.

    Parameters
    ----------
    value : int
        The value.
    where : str
        Its name, for the message.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ConfigError(f"{where}: {value!r} is not allowed; it is a whole number of at least 0")


def check_positive(value: float, where: str) -> None:
    """Raise a ConfigError unless a value is a finite number above 0.

    Parameters
    ----------
    value : float
        The value.
    where : str
        Its name, for the message.
    """
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{where}: {value!r} is not allowed; it is a number above 0")
