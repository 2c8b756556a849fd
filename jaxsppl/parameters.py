"""The sampling parameters: the names of the axes, their ranges and neutral values, and the order.

Neither jax nor xarray is imported, so that a config is checked at once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    switch : str
        The parameter without which this one has no effect, or "". `neutral` is then the value that
        it takes when it is not given.
    on_above : float or None
        Values other than the neutral one lie above it.
    usual : tuple of float
        Values that people set, for an enumeration.
    search : tuple of float, or None
        Limits of a search by gradient; None where the objective is piecewise constant in it.
    by_log : bool
        Whether such a search moves its logarithm.
    """

    name: str
    stage: str
    neutral: float
    lower: float
    upper: float
    summary: str
    open_lower: bool = False
    integer: bool = False
    switch: str = ""
    on_above: float | None = None
    usual: tuple[float, ...] = ()
    search: tuple[float, float] | None = None
    by_log: bool = False

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
            if self.on_above is not None and number != self.neutral:
                below = number <= self.on_above
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
        if self.on_above is not None:
            low = f"above {self.on_above:g}, or {self.neutral:g} (off),"
        return f"a number {low}" + (f" and at most {self.upper:g}" if self.upper < math.inf else "")


def _table(*parameters: Parameter) -> dict[str, Parameter]:
    """Index parameters by name."""
    return {parameter.name: parameter for parameter in parameters}


PARAMETERS: dict[str, Parameter] = _table(
    Parameter(
        "temperature", "temperature", 1.0, 0.0, 100.0, "divides the log-probabilities; 0 is greedy",
        search=(0.05, 5.0), by_log=True,
    ),
    Parameter(
        "dynatemp_range", "temperature", 0.0, 0.0, 100.0,
        "how far entropy moves the temperature up and down; 0 is off",
        usual=(0.0, 0.25, 0.5, 0.75, 1.0), search=(0.0, 2.0),
    ),
    Parameter(
        "dynatemp_exponent", "temperature", 1.0, 0.0, 100.0, "bends the way from entropy to it",
        switch="dynatemp_range", usual=(0.5, 1.0, 2.0), search=(0.1, 10.0), by_log=True,
    ),
    Parameter(
        "smoothing_factor", "smoothing", 0.0, 0.0, 100.0,
        "new logits fall with the squared distance from the likeliest; 0 is off",
        usual=(0.0, 0.1, 0.2, 0.3, 0.5, 1.0), search=(0.01, 10.0), by_log=True,
    ),
    Parameter(
        "smoothing_curve", "smoothing", 1.0, 1.0, 3.0, "how much of that is cubic; 1 is none",
        switch="smoothing_factor", usual=(1.0, 1.5, 2.0, 3.0), search=(1.0, 3.0),
    ),
    Parameter(
        "top_k", "top_k", 0.0, 0.0, 2**31 - 1, "keeps the k likeliest; 0 is off", integer=True,
        usual=(0, 5, 10, 20, 40, 80),
    ),
    Parameter(
        "top_p", "top_p", 1.0, 0.0, 1.0, "keeps the likeliest until their mass reaches p",
        usual=(1.0, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5),
    ),
    Parameter(
        "min_p", "min_p", 0.0, 0.0, 1.0, "keeps tokens of at least p times the likeliest one",
        usual=(0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3),
    ),
    Parameter(
        "typical_p", "typical_p", 1.0, 0.0, 1.0,
        "keeps the tokens whose surprise is nearest the entropy until their mass passes p",
        usual=(1.0, 0.99, 0.95, 0.9, 0.7, 0.5, 0.2),
    ),
    Parameter(
        "top_n_sigma", "top_n_sigma", 0.0, -1.0, 1e3,
        "keeps logits within n standard deviations of the largest; at most 0 is off",
        usual=(0.0, 0.5, 1.0, 1.5, 2.0, 3.0),
    ),
    Parameter(
        "xtc_probability", "xtc", 0.0, 0.0, 1.0,
        "how often all but the last of the tokens above the threshold are left out",
        usual=(0.0, 0.1, 0.25, 0.5), search=(0.0, 1.0),
    ),
    Parameter(
        "xtc_threshold", "xtc", 0.1, 0.0, 1.0, "the threshold; above 0.5 is off",
        switch="xtc_probability", usual=(0.05, 0.1, 0.2, 0.3),
    ),
    Parameter(
        "epsilon_cutoff", "epsilon_cutoff", 0.0, 0.0, 1.0, "keeps probabilities of at least this",
        usual=(0.0, 3e-4, 1e-3, 3e-3, 0.01, 0.03),
    ),
    Parameter(
        "eta_cutoff", "eta_cutoff", 0.0, 0.0, 1.0,
        "likewise, but lower where the entropy is high",
        usual=(0.0, 3e-4, 1e-3, 3e-3, 0.01, 0.03),
    ),
    Parameter(
        "top_h", "top_h", 1.0, 0.0, 1.0,
        "keeps the likeliest while their entropy is within this share of all; 1 is off",
        usual=(1.0, 0.9, 0.7, 0.5, 0.4, 0.2),
    ),
    Parameter(
        "p_less", "p_less", 0.0, 0.0, 1e3,
        "order k of the threshold (sum p^k)^(1/(k-1)); 2 is the paper's, 0 is off",
        on_above=1.0, usual=(0.0, 2.0, 3.0),
    ),
    Parameter(
        "p_less_norm", "p_less_norm", 0.0, 0.0, 1.0,
        "1 keeps tokens above the threshold of p-less-norm, 0 is off",
        integer=True, usual=(0.0, 1.0),
    ),
    Parameter(
        "min_k", "min_k", 0.0, 0.0, 1e6,
        "cuts at the steepest relative fall, tau as given; 0 is off", usual=(0.0, 1.0, 3.0, 10.0),
    ),
    Parameter(
        "tfs", "tfs", 1.0, 0.0, 1.0, "tail free: keeps this share of the curvature; 1 is off",
        usual=(1.0, 0.99, 0.97, 0.95, 0.9, 0.5),
    ),
    Parameter(
        "top_a", "top_a", 0.0, 0.0, 1.0, "keeps tokens of at least a times the square of the top",
        usual=(0.0, 0.05, 0.1, 0.2, 0.4),
    ),
    Parameter(
        "skew", "skew", 0.0, -10.0, 10.0,
        "raises the drawn point to exp(-s): s > 0 favours the tail",
        usual=(-0.5, -0.2, 0.0, 0.2, 0.5), search=(-3.0, 3.0),
    ),
    Parameter(
        "alpha", "draw", 1.0, 0.0, 1e3, "first shape of the Beta draw", open_lower=True,
        search=(0.05, 50.0), by_log=True,
    ),
    Parameter(
        "beta", "draw", 1.0, 0.0, 1e3, "second shape of the Beta draw", open_lower=True,
        search=(0.05, 50.0), by_log=True,
    ),
    Parameter(
        "epsilon", "objective", 0.01, 0.0, 1.0, "probabilities below count as it", open_lower=True
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """What a program means by the names of stages.

    Attributes
    ----------
    order : tuple of str
        Its own order of the stages; a chain given by hand may take any.
    variants : mapping of str to str
        Stages that decide differently there, and their names here.
    """

    order: tuple[str, ...]
    variants: Mapping[str, str] = field(default_factory=dict[str, str])


# samplers.md 1 to 4. llama.cpp's order ends with what other programs have and it has not.
DIALECTS: dict[str, Dialect] = {
    "llama.cpp": Dialect(
        ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "epsilon_cutoff", "eta_cutoff",
         "top_h", "p_less", "p_less_norm", "min_k", "tfs", "top_a", "xtc", "temperature",
         "smoothing", "skew")
    ),
    "vllm": Dialect(("temperature", "min_p", "top_k", "top_p")),
    "transformers": Dialect(
        ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff",
         "eta_cutoff"),
        {"top_k": "top_k@transformers", "typical_p": "typical_p@transformers"},
    ),
    "sglang": Dialect(("temperature", "top_k", "top_p", "min_p"), {"top_p": "top_p@sglang"}),
}  # fmt: skip
DEFAULT_DIALECT = "llama.cpp"
DEFAULT_ORDER: tuple[str, ...] = DIALECTS[DEFAULT_DIALECT].order
# Stages that users have registered, with a digest of each function.
USER_STAGES: dict[str, str] = {}
# Reshapes the draw itself, so that no stage can come after it.
LAST_STAGE = "skew"
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


def is_smooth(name: str) -> bool:
    """Return whether a parameter can be searched by gradient."""
    return parameter(name).search is not None


def by_log(names: Iterable[str]) -> list[bool]:
    """Return which of some smooth parameters are searched in their logarithms."""
    return [PARAMETERS[name].by_log for name in names]


def stage_names() -> list[str]:
    """Return the names of the chain's stages, variants of dialects included."""
    variants = {name for dialect in DIALECTS.values() for name in dialect.variants.values()}
    return sorted(({p.stage for p in PARAMETERS.values()} | variants) - set(AFTER_CHAIN))


def base_name(stage: str) -> str:
    """Return the stage that a variant is one of: "top_p" for "top_p@sglang"."""
    return stage.partition("@")[0]


def position(chain: Sequence[str], name: str) -> int:
    """Return the place in a chain of the first stage that a parameter belongs to.

    Parameters
    ----------
    chain : sequence of str
        Names of stages, the parameter's among them.
    name : str
        The parameter.

    Returns
    -------
    int
    """
    return [base_name(stage) for stage in chain].index(parameter(name).stage)


def _dialect(name: str) -> Dialect:
    """Return a dialect, or say which there are."""
    if name not in DIALECTS:
        raise ConfigError(f"dialect: there is no dialect '{name}'; {suggest(str(name), DIALECTS)}")
    return DIALECTS[name]


def check_order(
    order: Iterable[str],
    used: Iterable[str],
    where: str = "chain",
    dialect: str = DEFAULT_DIALECT,
) -> tuple[str, ...]:
    """Return the chain's order after checking its names and that every used parameter has a stage.

    Parameters
    ----------
    order : iterable of str
        Names of stages, first applied first; one may stand twice.
    used : iterable of str
        Parameters that are swept or fixed.
    where : str
        Path of the setting, for the message.
    dialect : str
        What the names mean; a stage that decides differently there is replaced by its variant,
        for example "top_p" by "top_p@sglang".

    Returns
    -------
    tuple of str

    Raises
    ------
    ConfigError
        For an unknown stage, one that cannot stand where it does, or a used parameter whose stage
        is not in the chain or whose switch is not used: it would silently have no effect.
    """
    if isinstance(order, str) or not isinstance(order, Iterable):
        raise ConfigError(f"{where}: {order!r} is no list; give the stages, as ['temperature']")
    variants = _dialect(dialect).variants
    names = tuple(variants.get(name, name) for name in order)
    known = stage_names()
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: there is no stage '{name}'; {suggest(str(name), known)}")
    if LAST_STAGE in names[:-1]:
        raise ConfigError(f"{where}: '{LAST_STAGE}' bends the draw itself; put it at the end, once")
    bases = {base_name(name) for name in names}
    listed = list(used)
    for name in listed:
        one = parameter(name)
        if one.stage not in (*AFTER_CHAIN, *bases):
            given = ", ".join(names) or "empty"
            raise ConfigError(
                f"{where}: '{name}' is set, but its stage '{one.stage}' is not in the chain "
                f"({given}); add '{one.stage}' where it belongs"
            )
    _check_switches(listed)
    return names


def _check_switches(used: Sequence[str]) -> None:
    """Refuse a parameter that has no effect since another is not used."""
    for name in used:
        switch = parameter(name).switch
        if switch and switch not in used:
            raise ConfigError(
                f"{name}: it is set, but has no effect without '{switch}'; set that too"
            )


def default_order(used: Iterable[str], dialect: str = DEFAULT_DIALECT) -> tuple[str, ...]:
    """Return a dialect's order restricted to the stages whose parameters are used.

    Parameters
    ----------
    used : iterable of str
        Parameters that are swept or fixed.
    dialect : str
        One of `DIALECTS`.

    Returns
    -------
    tuple of str
        With the dialect's variants of the stages.

    Raises
    ------
    ConfigError
        When that program has no such stage.
    """
    listed = list(used)
    _check_switches(listed)
    stages = {parameter(name).stage: name for name in listed}
    spoken = _dialect(dialect)
    known = spoken.order
    if dialect == DEFAULT_DIALECT:
        # What users add stands with the other cuts, before xtc and the temperature.
        place = known.index("xtc")
        known = (*known[:place], *USER_STAGES, *known[place:])
    for stage, name in stages.items():
        if stage not in (*known, *AFTER_CHAIN):
            raise ConfigError(
                f"dialect: {dialect} has no '{stage}', which '{name}' needs; give the chain "
                "yourself, in the order you want, or leave the dialect out"
            )
    return tuple(spoken.variants.get(name, name) for name in known if name in stages)


def user_stages(chain: Iterable[str]) -> dict[str, str]:
    """Return the user's own stages of a chain with the digests of their functions."""
    return {name: USER_STAGES[name] for name in chain if name in USER_STAGES}


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
