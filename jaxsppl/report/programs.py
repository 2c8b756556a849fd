"""The programs that a setting can be given to: their words, fixed orders, limits and defaults.

Sources, read or run: llama.cpp b11549 (the same in b10434), vLLM 0.x's V1 engine, Ollama's own
engine (`sample/samplers.go`), transformers 5.24, SillyTavern's text completion presets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxsppl.errors import ConfigError, suggest


@dataclass(frozen=True)
class Program:
    """What a program can sample, and in which words it is told.

    Attributes
    ----------
    name : str
        As people call it.
    keys : mapping of str to str
        Our name of a parameter to the program's; a parameter that is missing cannot be set.
    order : tuple of str or None
        The stages in the only order that the program knows; None where the order is free.
    always : mapping of str to value
        Everything else that is stated, in the program's words: what is not neutral there by
        default, or may have been changed by a model's file or a flag.
    lowest, highest : mapping of str to float
        The limits of our parameters, where the program has narrower ones.
    caveat : str
        What a reader must know, "" for nothing.
    dialect : str
        The dialect whose variants of stages are the program's own, "" for none.
    """

    name: str
    keys: Mapping[str, str]
    order: tuple[str, ...] | None = None
    always: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lowest: Mapping[str, float] = field(default_factory=dict[str, float])
    highest: Mapping[str, float] = field(default_factory=dict[str, float])
    caveat: str = ""
    dialect: str = ""


# llama.cpp names one stage differently; SillyTavern passes these names on.
LLAMA_STAGES = {
    "top_n_sigma": "top_n_sigma",
    "top_k": "top_k",
    "typical_p": "typ_p",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc": "xtc",
    "temperature": "temperature",
}
_LLAMA_SERVER = {
    "temperature": "temperature",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exponent": "dynatemp_exponent",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
}
_TRANSFORMERS = (
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
)
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

PROGRAMS: dict[str, Program] = {
    "llama.cpp": Program(
        "llama.cpp",
        {
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
        },
        # llama-server starts with 0.8, 40, 0.95, 0.05: silence means these.
        always={"--temp": 1.0, "--top-k": 0, "--top-p": 1.0, "--min-p": 0.0},
    ),
    "llama-server-json": Program(
        "llama-server",
        _LLAMA_SERVER,
        always={
            "temperature": 1.0,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "typical_p": 1.0,
            "top_n_sigma": -1.0,
            "xtc_probability": 0.0,
            "xtc_threshold": 0.1,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "dry_multiplier": 0.0,
            "mirostat": 0,
            "min_keep": 0,
        },
    ),
    "vllm": Program(
        "vLLM",
        {"temperature": "temperature", "min_p": "min_p", "top_k": "top_k", "top_p": "top_p"},
        order=("temperature", "min_p", "top_k", "top_p"),
        # The model's generation_config.json sets other defaults, so all are stated.
        always={"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **_PENALTIES},
        lowest={"temperature": 0.01, "top_p": 1e-6},
        highest={"temperature": 2.0},
    ),
    "ollama": Program(
        "Ollama",
        {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"},
        order=("top_k", "temperature", "top_p", "min_p"),
        always={
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        },
        caveat=(
            "this is the order of Ollama's own engine; models that it still hands to llama.cpp "
            "apply the temperature last"
        ),
    ),
    "generation_config": Program(
        "transformers",
        {name: name for name in _TRANSFORMERS},
        order=_TRANSFORMERS,
        # The default of top_k is 50.
        always={"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
        dialect="transformers",
    ),
    "sillytavern": Program(
        "SillyTavern",
        {
            "temperature": "temp",
            "top_k": "top_k",
            "top_p": "top_p",
            "min_p": "min_p",
            "typical_p": "typical_p",
            "top_n_sigma": "nsigma",
            "xtc_probability": "xtc_probability",
            "xtc_threshold": "xtc_threshold",
            "dynatemp_exponent": "dynatemp_exponent",
            "dynatemp_range": "dynatemp",
        },
        always={
            "temp": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "typical_p": 1.0,
            "top_a": 0.0,
            "tfs": 1.0,
            "epsilon_cutoff": 0.0,
            "eta_cutoff": 0.0,
            "nsigma": 0.0,
            "smoothing_factor": 0.0,
            "smoothing_curve": 1.0,
            "skew": 0.0,
            "xtc_probability": 0.0,
            "xtc_threshold": 0.1,
            "dynatemp": False,
            "dynatemp_exponent": 1.0,
            "rep_pen": 1.0,
            "freq_pen": 0.0,
            "presence_pen": 0.0,
            "encoder_rep_pen": 1.0,
            "no_repeat_ngram_size": 0,
            "dry_multiplier": 0.0,
            "mirostat_mode": 0,
            "min_keep": 0,
            "do_sample": True,
        },
        caveat="the order holds where SillyTavern talks to llama.cpp",
    ),
}


def program(form: str) -> Program:
    """Return the program of a format.

    Parameters
    ----------
    form : str
        A key of `PROGRAMS`.

    Returns
    -------
    Program

    Raises
    ------
    ConfigError
        When there is none; the message lists the near names.
    """
    if form not in PROGRAMS:
        raise ConfigError(f"format '{form}': there is none; {suggest(form, PROGRAMS)}")
    return PROGRAMS[form]
