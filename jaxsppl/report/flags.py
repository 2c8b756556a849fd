"""The flags to type for llama-server: a chosen point in the server's own words.

Flag names and defaults are those of llama.cpp b11549 and were the same in b10434.
"""

from collections.abc import Mapping, Sequence

from jaxsppl import parameters
from jaxsppl.errors import ConfigError

# llama.cpp names one stage differently.
_STAGES = {
    "top_n_sigma": "top_n_sigma",
    "top_k": "top_k",
    "typical_p": "typ_p",
    "typ_p": "typ_p",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc": "xtc",
    "temperature": "temperature",
}
_FLAGS = {
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "typical_p": "--typical",
    "top_n_sigma": "--top-nsigma",
    "xtc_probability": "--xtc-probability",
    "xtc_threshold": "--xtc-threshold",
    "dynatemp_range": "--dynatemp-range",
    "dynatemp_exponent": "--dynatemp-exp",
}
# llama-server starts with temperature 0.8, top_k 40, top_p 0.95, min_p 0.05: silence means these.
_NEUTRAL = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
# How one scores a text is no setting of a server.
_SCORING = ("epsilon",)
DRAW_NEUTRAL = {"alpha": 1.0, "beta": 1.0}


def obstacles(settings: Mapping[str, float], chain: Sequence[str]) -> list[str]:
    """Return what llama.cpp cannot express of a setting.

    Parameters
    ----------
    settings : mapping of str to float
        Parameters of the point; the others are neutral.
    chain : sequence of str
        Stages in the order in which they are applied.

    Returns
    -------
    list of str
        For example ``["alpha 0.8"]``; empty when the point can be run.
    """
    missing = [f"stage {stage}" for stage in chain if stage not in _STAGES]
    for name, value in settings.items():
        if name in _FLAGS or name in _SCORING:
            continue
        known = parameters.PARAMETERS.get(name)
        if known is None or value != known.neutral:
            missing.append(f"{name} {value:g}")
    return missing


def llama_server_flags(settings: Mapping[str, float], chain: Sequence[str]) -> str:
    """Return the flags that make llama-server sample with a setting.

    Parameters
    ----------
    settings : mapping of str to float
        Parameters of the point; the others are neutral.
    chain : sequence of str
        Stages in the order in which they are applied.

    Returns
    -------
    str
        For example ``--samplers "top_k;temperature" --temp 0.9 --top-k 20 --top-p 1 --min-p 0``.
        The four parameters whose default in llama-server is not neutral are always stated. A
        request that brings its own values overrides them.

    Raises
    ------
    ConfigError
        When llama.cpp cannot express the point; the message names what stands in the way.
    """
    missing = obstacles(settings, chain)
    if missing:
        raise ConfigError(
            f"llama.cpp has no {', '.join(missing)}; choose the best point without it "
            "(alpha = beta = 1 is plain sampling)"
        )
    # Without any stage llama-server draws at temperature 1, which this says in a way it parses.
    stages = ";".join(_STAGES[stage] for stage in chain) or "temperature"
    used = {key: value for key, value in settings.items() if key in _FLAGS and _acts(key, chain)}
    values = {**_NEUTRAL, **used}
    words = [f'--samplers "{stages}"']
    words += [f"{_FLAGS[name]} {_number(name, value)}" for name, value in values.items()]
    return " ".join(words)


def _acts(name: str, chain: Sequence[str]) -> bool:
    """Return whether the stage of a parameter is in the chain; without it the value is idle."""
    known = parameters.PARAMETERS.get(name)
    return known is None or known.stage in chain


def _number(name: str, value: float) -> str:
    """Write a value without exponent or needless digits."""
    if name == "top_k":
        return str(int(value))
    if name == "top_n_sigma" and value <= 0:
        return "-1"
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text or "0"
