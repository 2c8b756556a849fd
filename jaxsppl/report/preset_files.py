"""Preset files as the words that they set, whatever their syntax: JSON, YAML, flags, a Modelfile.

Nothing of a file is ever run. Which program it is for is told by the words that only that one has.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from jaxsppl.errors import ConfigError

# Programs by words that no other has, the surest first.
_TELLTALES: tuple[tuple[str, frozenset[str]], ...] = (
    ("sillytavern", frozenset({"temp", "rep_pen", "temperature_last"})),
    (
        "llama-server-json",
        frozenset({"samplers", "n_predict", "repeat_last_n", "dynatemp_range", "top_n_sigma"})
        | {"cache_prompt", "n_probs", "mirostat_eta"},
    ),
    ("ollama", frozenset({"num_predict", "num_ctx", "num_gpu"})),
    (
        "generation_config",
        frozenset({"transformers_version", "do_sample", "eos_token_id", "bos_token_id"})
        | {"pad_token_id", "_from_model_config"},
    ),
    ("vllm", frozenset({"max_tokens", "repetition_penalty", "min_tokens", "best_of"})),
)
# Where a file keeps its settings one level down, and what that says of the program.
_INSIDE = {
    "options": "ollama",
    "generation_settings": "llama-server-json",
    "default_generation_settings": "llama-server-json",
    "sampling_params": "vllm",
    "params": "",
    "preset": "sillytavern",
}
_FLAGS = {
    "--temp": "temperature",
    "--dynatemp-exp": "dynatemp_exponent",
    "--typical": "typical_p",
    "--top-nsigma": "top_n_sigma",
    "--sampling-seq": "samplers",
    "--sampler-seq": "samplers",
}
_MOST_BYTES = 4_000_000


def read_words(path: str | os.PathLike[str], form: str | None = None) -> tuple[str, dict[str, Any]]:
    """Read a preset file.

    Parameters
    ----------
    path : str or path
        The file.
    form : str, optional
        The program that it is for; told from the file by default.

    Returns
    -------
    str
        The program: a key of `programs.PROGRAMS`, or "webui" for text-generation-webui.
    dict of str to value
        What the file sets, in the program's words; null stands for what it leaves open.

    Raises
    ------
    ConfigError
        When the file cannot be read, or it is not clear which program it is for.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file}: {file.stat().st_size:,} bytes are no preset")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a preset file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: it is not text ({error.reason}); name a preset file") from error
    if file.suffix.lower() in (".yaml", ".yml"):
        return form or "webui", _yaml(text, file)
    if file.suffix.lower() == ".json" or text.lstrip().startswith(("{", "[")):
        return _json(text, file, form)
    if re.search(r"^\s*PARAMETER\s", text, re.MULTILINE | re.IGNORECASE):
        return form or "ollama", _modelfile(text)
    words = _flags(text, file)
    if not words:
        raise ConfigError(
            f"{file}: it has no sampling flags, no PARAMETER and is no JSON or YAML file; presets "
            "are read as .json, .yaml, a Modelfile, or llama.cpp flags"
        )
    return form or "llama.cpp", words


def _json(text: str, file: Path, form: str | None) -> tuple[str, dict[str, Any]]:
    """Return program and words of a JSON file."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: it is not valid JSON: {error}") from error
    words = _mapping(data, file)
    for key, says in _INSIDE.items():
        if isinstance(words.get(key), dict):
            form = form or says or None
            words = _mapping(words[key], file)
    if form is None and file.name == "generation_config.json":
        form = "generation_config"
    if form is None:
        told = (name for name, sure in _TELLTALES if sure & set(words))
        form = next(told, None)
    if form is None:
        raise ConfigError(
            f"{file}: it does not say which program it is for, and their orders differ; give "
            "--format, for example --format vllm"
        )
    return form, words


def _yaml(text: str, file: Path) -> dict[str, Any]:
    """Return the words of a YAML file."""
    import yaml

    try:
        return _mapping(yaml.safe_load(text), file)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: it is not valid YAML: {error}") from error


def _mapping(data: Any, file: Path) -> dict[str, Any]:
    """Return a file's content when it is names with values."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{file}: it holds no names with values; is it a preset?")
    return {str(key): value for key, value in cast("Mapping[Any, Any]", data).items()}


def _modelfile(text: str) -> dict[str, Any]:
    """Return the parameters of an Ollama Modelfile."""
    lines = re.findall(r"^\s*PARAMETER\s+(\S+)\s+(.+?)\s*$", text, re.MULTILINE | re.IGNORECASE)
    return {str(name): value for name, value in lines}


def _flags(text: str, file: Path) -> dict[str, Any]:
    """Return the sampling flags of a command line or script."""
    try:
        parts = shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"{file}: a quotation is not closed in it ({error})") from error
    words: dict[str, Any] = {}
    for at, part in enumerate(parts):
        flag, sign, value = part.partition("=")
        if not flag.startswith("--"):
            continue
        name = _FLAGS.get(flag, flag.removeprefix("--").replace("-", "_"))
        said = value if sign else parts[at + 1] if at + 1 < len(parts) else None
        # The flag takes names where a request takes a list; letters are one word in both.
        names = flag == "--samplers" and said is not None
        words[name] = said.split(";") if names and said else said
    known = {"temperature", "samplers", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma"}
    return words if known & set(words) else {}
