"""What a preset of another program means here: the order of its stages and their parameters.

A word that a preset leaves out has the program's own default. What depends on the text so far
(penalties, DRY) has no law of a single token: it is left out, and said.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from jaxsppl import parameters
from jaxsppl.errors import ConfigError, suggest
from jaxsppl.report.orders import is_off
from jaxsppl.report.preset_files import read_words
from jaxsppl.report.programs import LLAMA_STAGES, PROGRAMS


@dataclass(frozen=True)
class Preset:
    """A setting that a file recommends.

    Attributes
    ----------
    name : str
        Of the file.
    program : str
        Whose words it is in.
    chain : tuple of str
        Stages that act, first applied first.
    settings : mapping of str to float
        Their parameters; the others are neutral.
    left_out : tuple of str
        What the preset sets beyond that, for example ``"repeat_penalty 1.1"``.
    """

    name: str
    program: str
    chain: tuple[str, ...]
    settings: Mapping[str, float]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Form:
    """How a program's words are read: its order, defaults, dialect and units."""

    order: Callable[[Mapping[str, Any]], Iterable[str]]
    defaults: Mapping[str, float] = field(default_factory=dict[str, float])
    dialect: str = parameters.DEFAULT_DIALECT
    unit: Mapping[str, float] = field(default_factory=dict[str, float])


# Other names of our parameters.
_NAMES = {
    "temp": "temperature",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "nsigma": "top_n_sigma",
    "tfs_z": "tfs",
}
# Words whose effect depends on the text so far, and the value that has none.
_HISTORY: dict[str, float] = {
    **dict.fromkeys(("repeat_penalty", "repetition_penalty", "rep_pen"), 1.0),
    **dict.fromkeys(("presence_penalty", "presence_pen", "frequency_penalty", "freq_pen"), 0.0),
    **dict.fromkeys(("encoder_repetition_penalty", "encoder_rep_pen", "guidance_scale"), 1.0),
    **dict.fromkeys(("dry_multiplier", "no_repeat_ngram_size", "penalty_alpha"), 0.0),
    "num_beams": 1.0,
    "min_keep": 0.0,
}
# They replace the whole chain by something that depends on what was drawn before.
_REPLACES = ("mirostat", "mirostat_mode")
_LLAMA_LETTERS = {
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
# As the server of b11549 reads them: it knows no "typical_p", and drops what it does not know.
_LLAMA_NAMES = {
    **{theirs: ours for ours, theirs in LLAMA_STAGES.items()},
    **dict.fromkeys(("typ", "typ-p"), "typical_p"),
    **dict.fromkeys(("nucleus", "top-p"), "top_p"),
    "top-n-sigma": "top_n_sigma",
    "top-k": "top_k",
    "min-p": "min_p",
    "temp": "temperature",
}
_WEBUI = (
    *("temperature", "smoothing", "top_n_sigma", "top_k", "top_p", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "tfs", "top_a", "min_p", "xtc"),
)
_WEBUI_NAMES = {"dynamic_temperature": "temperature", "quadratic_sampling": "smoothing"}


def _llama_order(words: Mapping[str, Any]) -> list[str]:
    """Return the order of llama.cpp: a list of names, a word of letters, or its default."""
    given = words.get("samplers")
    if given is None:
        return [*LLAMA_STAGES]
    if isinstance(given, str):
        return [_LLAMA_LETTERS[letter] for letter in given if letter in _LLAMA_LETTERS]
    names = (name.lower() for name in _names(given, "samplers"))
    return [_LLAMA_NAMES[name] for name in names if name in _LLAMA_NAMES]


def _names(given: Any, word: str) -> list[str]:
    """Return a list of names."""
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{word} is {str(given)[:40]!r}; it is a list of names")
    return [str(part) for part in cast("Iterable[Any]", given)]


def _webui_order(words: Mapping[str, Any]) -> list[str]:
    """Return the order of text-generation-webui, with its `temperature_last`."""
    given = words.get("sampler_priority") or _WEBUI
    parts = given.split() if isinstance(given, str) else _names(given, "sampler_priority")
    order = dict.fromkeys(_WEBUI_NAMES.get(part, part) for part in parts)
    order = [stage for stage in order if stage in _WEBUI]
    if words.get("temperature_last") is True:
        warm = [stage for stage in order if stage in ("temperature", "smoothing")]
        return [stage for stage in order if stage not in warm] + warm
    return order


_LLAMA_DEFAULTS = {"temperature": 0.8, "top_k": 40.0, "top_p": 0.95, "min_p": 0.05}
# text-generation-webui states these two in units of 1e-4.
_SMALL = {"epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4}
_FORMS: dict[str, _Form] = {
    "llama.cpp": _Form(_llama_order, _LLAMA_DEFAULTS),
    "llama-server-json": _Form(_llama_order, _LLAMA_DEFAULTS),
    "vllm": _Form(lambda words: parameters.DIALECTS["vllm"].order, dialect="vllm"),
    "ollama": _Form(
        lambda words: PROGRAMS["ollama"].order or (),
        {"temperature": 0.8, "top_k": 40.0, "top_p": 0.9},
    ),
    "generation_config": _Form(
        lambda words: parameters.DIALECTS["transformers"].order,
        {"top_k": 50.0},
        dialect="transformers",
    ),
    "sillytavern": _Form(_llama_order, unit=_SMALL),
    "webui": _Form(_webui_order, dialect="transformers", unit=_SMALL),
}
FORMATS = tuple(_FORMS)


def import_preset(path: str | os.PathLike[str], form: str | None = None) -> Preset:
    """Read a preset of another program.

    Parameters
    ----------
    path : str or path
        A generation_config.json, a request for llama-server or vLLM (.json), llama.cpp flags, an
        Ollama Modelfile or its options (.json), a text completion preset of SillyTavern (.json) or
        of text-generation-webui (.yaml). Vendors' own words are passed over; null is as absent.
    form : str, optional
        The program, one of `FORMATS`; told from the file by default.

    Returns
    -------
    Preset

    Raises
    ------
    ConfigError
        When the file cannot be read, is for no clear program, holds no number where one belongs,
        or has no law of a single token (mirostat).

    Examples
    --------
    >>> import jaxsppl
    >>> jaxsppl.import_preset("generation_config.json").settings  # doctest: +SKIP
    """
    if form is not None and form not in _FORMS:
        raise ConfigError(f"format '{form}': there is none; {suggest(form, _FORMS)}")
    file = Path(path)
    told, words = read_words(file, form)
    how = _FORMS[told]
    for name in _REPLACES:
        if (_number(words.get(name), file, name) or 0) > 0:
            raise ConfigError(
                f"{file}: {name} is on, which depends on what was drawn before: there is no law of "
                "a single token to score"
            )
    settings = {**how.defaults, **_settings(words, how, file)}
    try:
        order, left_out = [*how.order(words)], list[str]()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if told == "generation_config" and words.get("do_sample") is not True:
        settings = {"temperature": 0.0}
        left_out.append("all but the likeliest token (do_sample is not true)")
    left_out += [
        f"{name} {value:g}"
        for name, neutral in _HISTORY.items()
        if (value := _number(words.get(name), file, name)) is not None and value != neutral
    ]
    acting: dict[str, float] = {}
    for name, value in settings.items():
        known = parameters.PARAMETERS[name]
        if is_off(name, value):
            continue
        if known.stage not in order:
            left_out.append(f"{name} {value:g} (not in its order)")
        elif not known.switch or settings.get(known.switch, 0.0):
            acting[name] = value
    stages = {parameters.PARAMETERS[name].stage for name in acting}
    chain = parameters.check_order(
        [stage for stage in order if stage in stages], acting, str(file), how.dialect
    )
    return Preset(file.stem, told, chain, acting, tuple(left_out))


def _settings(words: Mapping[str, Any], how: _Form, file: Path) -> dict[str, float]:
    """Return the parameters that a file states, each within its range."""
    settings: dict[str, float] = {}
    for word, raw in words.items():
        name = _NAMES.get(word, word)
        known = parameters.PARAMETERS.get(name)
        value = _number(raw, file, word) if known is not None else None
        if known is None or value is None or known.stage in parameters.AFTER_CHAIN:
            continue
        # Like the programs: what lies beyond the range counts as its end.
        value = min(max(value * how.unit.get(name, 1.0), known.lower), known.upper)
        settings[name] = known.check([value], f"{file}: {word}")[0]
    ends = _ends(words, file)
    if ends is not None:
        low, high = ends
        settings |= {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}
    return settings


def _ends(words: Mapping[str, Any], file: Path) -> tuple[float, float] | None:
    """Return the ends of a dynamic temperature that is given by them, None where there is none."""
    for switch, low, high in (
        ("dynatemp", "min_temp", "max_temp"),
        ("dynamic_temperature", "dynatemp_low", "dynatemp_high"),
    ):
        if words.get(switch) is True:
            ends = _number(words.get(low), file, low), _number(words.get(high), file, high)
            lower, upper = (1.0 if end is None else end for end in ends)
            if not 0 <= lower <= upper:
                raise ConfigError(f"{file}: {low} {lower:g} and {high} {upper:g} are in no order")
            return lower, upper
    return None


def _number(raw: Any, file: Path, word: str) -> float | None:
    """Return a number, None for null; other things are refused."""
    if raw is None:
        return None
    try:
        value = math.nan if isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{file}: {word} is {str(raw)[:40]!r}, which is not a number")
    return value
