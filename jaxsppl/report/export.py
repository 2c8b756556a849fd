"""A setting in the words of a program: flags, a request, or a file, so that it samples that law.

What the program would otherwise fill in with a value that is not neutral is stated too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsppl import parameters
from jaxsppl.errors import ConfigError
from jaxsppl.report.orders import Step, active_steps, rearranged
from jaxsppl.report.programs import LLAMA_STAGES, Program, program

# Values closer than this were not translated.
_SAME = 1e-12


@dataclass(frozen=True)
class Exported:
    """A setting for one program.

    Attributes
    ----------
    form : str
        The format, a key of `PROGRAMS`.
    text : str
        What to type, or the content of the file.
    settings : mapping of str to value
        The same in the program's own words.
    notes : tuple of str
        What to know about it: values that were translated, conditions.
    """

    form: str
    text: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...]


def obstacles(
    settings: Mapping[str, float], chain: Sequence[str], form: str = "llama.cpp"
) -> list[str]:
    """Return what a program cannot express of a setting.

    Parameters
    ----------
    settings : mapping of str to float
        Parameters of the point; the others are neutral.
    chain : sequence of str
        Stages in the order in which they are applied.
    form : str
        The format, a key of `PROGRAMS`.

    Returns
    -------
    list of str
        For example ``["alpha 0.8"]``; empty when the program can run the point.
    """
    return _translated(settings, chain, program(form))[1]


def export(settings: Mapping[str, float], chain: Sequence[str], form: str) -> Exported:
    """Write a setting for a program.

    Parameters
    ----------
    settings : mapping of str to float
        Parameters of the point; the others are neutral.
    chain : sequence of str
        Stages in the order in which they are applied.
    form : str
        "llama.cpp" (flags), "llama-server-json" (fields of a request), "vllm" (fields of a
        request), "ollama" (lines of a Modelfile), "generation_config" (a file for transformers),
        "sillytavern" (a text completion preset).

    Returns
    -------
    Exported

    Raises
    ------
    ConfigError
        When the program cannot express the point; the message names what stands in the way.
    """
    one = program(form)
    steps, missing = _translated(settings, chain, one)
    if missing:
        raise ConfigError(
            f"{one.name} has no {', '.join(missing)}; choose the best point without it "
            "(alpha = beta = 1 is plain sampling)"
        )
    values = {name: value for step in steps for name, value in step.values.items()}
    notes = [
        f"{name} {settings[name]:g} became {value:.6g}: the same law in the order of {one.name}"
        for name, value in values.items()
        if abs(value - settings[name]) > _SAME and len(steps) > 1
    ]
    if one.caveat and len(steps) > 1:
        notes.append(one.caveat)
    order = [LLAMA_STAGES[stage] for stage in chain if stage in LLAMA_STAGES] or ["temperature"]
    told: dict[str, Any] = {**one.always, **_words(one, values)}
    if form == "llama.cpp":
        return Exported(form, _flags(told, order), {"--samplers": order, **told}, tuple(notes))
    if form in ("llama-server-json", "sillytavern"):
        told = {"samplers": order, **told}
    if form == "sillytavern":
        told |= _sillytavern(values, order)
    if form == "generation_config":
        greedy = values.get("temperature") == 0
        told = {"do_sample": False} if greedy else {"do_sample": True, **told}
    if form == "ollama":
        lines = [f"PARAMETER {name} {_number(value)}" for name, value in told.items()]
        return Exported(form, "\n".join(lines), told, tuple(notes))
    return Exported(form, json.dumps(told, indent=2), told, tuple(notes))


def llama_server_flags(settings: Mapping[str, float], chain: Sequence[str]) -> str:
    """Return the flags that make llama-server sample with a setting; see `export`.

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
        A request that brings its own values overrides them.
    """
    return export(settings, chain, "llama.cpp").text


def _translated(
    settings: Mapping[str, float], chain: Sequence[str], one: Program
) -> tuple[list[Step], list[str]]:
    """Return the steps as the program applies them, and what stands in the way."""
    known = parameters.PARAMETERS
    # A variant ("top_k@transformers") is what one program means by a name, and no other.
    own = parameters.DIALECTS[one.dialect].variants.values() if one.dialect else ()
    chain = [parameters.base_name(stage) if stage in own else stage for stage in chain]
    missing = [
        f"stage {stage}"
        for stage in chain
        if stage not in parameters.stage_names() or parameters.base_name(stage) != stage
    ]
    for name, value in settings.items():
        if name not in known or (known[name].stage == "draw" and value != known[name].neutral):
            missing.append(f"{name} {value:g}")
    steps = active_steps(chain, settings)
    for step in steps:
        missing += [f"{n} {value:g}" for n, value in step.values.items() if n not in one.keys]
    if missing:
        return [], missing
    if one.order is not None:
        steps, missing = rearranged(steps, one.order)
    for step in steps:
        for name, value in step.values.items():
            low, high = one.lowest.get(name, value), one.highest.get(name, value)
            greedy = name == "temperature" and value == 0
            if not low <= value <= high and not greedy:
                missing.append(f"{name} {value:g}")
    return steps, missing


def _words(one: Program, values: Mapping[str, float]) -> dict[str, Any]:
    """Return values under the program's names; counts as whole numbers."""
    words: dict[str, Any] = {}
    for name, value in values.items():
        known = parameters.PARAMETERS[name]
        words[one.keys[name]] = int(value) if known.integer else float(value)
    return words


def _sillytavern(values: Mapping[str, float], order: list[str]) -> dict[str, Any]:
    """Return what SillyTavern says in a way of its own: the dynamic temperature by its ends."""
    last = order[-1:] == ["temperature"]
    extent = values.get("dynatemp_range", 0.0)
    if extent <= 0:
        return {"dynatemp": False, "temperature_last": last}
    middle = values.get("temperature", 1.0)
    return {
        "dynatemp": True,
        "min_temp": max(0.0, middle - extent),
        "max_temp": middle + extent,
        "temperature_last": last,
    }


def _flags(told: Mapping[str, Any], order: Sequence[str]) -> str:
    """Return the command-line flags, the order first."""
    words = [f'--samplers "{";".join(order)}"']
    return " ".join([*words, *(f"{flag} {_number(value)}" for flag, value in told.items())])


def _number(value: float) -> str:
    """Write a value without exponent or needless digits."""
    return f"{value:.12f}".rstrip("0").rstrip(".") or "0"
