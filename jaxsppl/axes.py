"""Values of parameters as people write them: axes of a grid, and settings as ``name=value``."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from jaxsppl import parameters
from jaxsppl.errors import ConfigError


def axis(name: str, spec: Any, where: str) -> list[float]:
    """Return the values of an axis.

    Parameters
    ----------
    name : str
        The parameter.
    spec : float, list of float, or mapping
        One value, the values, ``{start, stop, num}``, ``{start, stop, step}`` (the stop is
        included when a step meets it) or ``{geomspace = [first, last, num]}``.
    where : str
        Path of the setting, for messages.

    Returns
    -------
    list of float

    Raises
    ------
    ConfigError
        When the parameter does not exist or a value is not allowed.
    """
    parameter = parameters.parameter(name, where.removesuffix(f".{name}"))
    if isinstance(spec, Mapping):
        return parameter.check(_spaced(cast("Mapping[str, Any]", spec), where), where)
    if isinstance(spec, (str, bytes)) or not isinstance(spec, Iterable):
        return parameter.check([cast("float", spec)], where)
    return parameter.check(cast("Iterable[float]", spec), where)


def setting(entries: Iterable[str], where: str) -> dict[str, float]:
    """Return the setting that ``name=value`` entries stand for.

    Parameters
    ----------
    entries : iterable of str
        For example ``min_p=0.05``; each parameter once.
    where : str
        The flag, for messages.

    Returns
    -------
    dict of str to float

    Raises
    ------
    ConfigError
        When an entry has another form, a parameter does not exist or stands twice, or a value is
        not allowed.
    """
    values: dict[str, float] = {}
    for entry in entries:
        name, sign, text = (part.strip() for part in entry.partition("="))
        try:
            value = float(text)
        except ValueError:
            sign, value = "", 0.0
        if not sign:
            raise ConfigError(
                f"{where} {entry.strip()}: write name=value, for example temperature=0.8"
            )
        if name in values:
            raise ConfigError(f"{where} {entry.strip()}: '{name}' is given twice; give one value")
        values[name] = parameters.parameter(name, where).check([value], f"{where} {name}")[0]
    return values


_FORMS = "write {start, stop, num}, {start, stop, step} or {geomspace = [first, last, num]}"
_MOST = 1_000_000


def _spaced(spec: Mapping[str, Any], where: str) -> list[float]:
    """Expand an axis that is given by its ends."""
    keys = set(spec)
    if keys == {"geomspace"} and isinstance(spec["geomspace"], list):
        numbers = _numbers(spec["geomspace"], where)
        if len(numbers) == 3 and numbers[0] > 0 and numbers[1] > 0:
            first, last, count = numbers
            steps = _fractions(count, where)
            return [_tidy(first * (last / first) ** step) for step in steps]
        raise ConfigError(
            f"{where}: geomspace takes [first, last, num] with ends above 0; {_FORMS}"
        )
    if keys == {"start", "stop", "num"}:
        start, stop, count = _numbers([spec["start"], spec["stop"], spec["num"]], where)
        return [_tidy(start + (stop - start) * step) for step in _fractions(count, where)]
    if keys == {"start", "stop", "step"}:
        start, stop, step = _numbers([spec["start"], spec["stop"], spec["step"]], where)
        if step <= 0 or stop < start or (stop - start) / step > _MOST:
            raise ConfigError(
                f"{where}: step {step} does not lead from {start} to {stop}; {_FORMS}"
            )
        # A hair more than the quotient, so that 0 .. 2.5 by 0.05 holds 2.5 in spite of rounding.
        count = math.floor((stop - start) / step + 1e-9) + 1
        return [_tidy(start + index * step) for index in range(count)]
    raise ConfigError(f"{where}: an axis has no form {{{', '.join(sorted(keys))}}}; {_FORMS}")


def _numbers(values: list[Any], where: str) -> list[float]:
    """Return finite numbers."""
    for value in values:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise ConfigError(f"{where}: {value!r} is not a finite number; {_FORMS}")
    return [float(value) for value in values]


def _fractions(count: float, where: str) -> list[float]:
    """Return evenly spaced places from 0 to 1."""
    if count != int(count) or not 1 <= count <= _MOST:
        raise ConfigError(f"{where}: num is {count:g}; it is a whole number from 1 to {_MOST}")
    return [index / max(count - 1, 1) for index in range(int(count))]


def _tidy(value: float) -> float:
    """Drop the last binary digits, so that an axis reads 0.15 and not 0.15000000000000002."""
    return float(f"{value:.12g}")
