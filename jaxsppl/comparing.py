"""A comparison as the command line asks for it: settings by name, as numbers or from files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsppl import parameters
from jaxsppl.axes import setting
from jaxsppl.choice import Rules
from jaxsppl.errors import ConfigError, suggest
from jaxsppl.results import engine

if TYPE_CHECKING:
    import xarray as xr

DEFAULTS = ("neutral", "llama.cpp default")


def compare_files(
    harvests: Sequence[str],
    settings: Sequence[str] = (),
    *,
    reference: str | None = None,
    unit: str = "auto",
    epsilon: float = 0.01,
    tail: str = "bound",
    dialect: str = parameters.DEFAULT_DIALECT,
    texts: Sequence[str] = (),
    rules: Rules | None = None,
) -> "xr.Dataset":
    """Compare harvest files under settings that are given as text.

    Parameters
    ----------
    harvests : sequence of str
        Files, folders or patterns.
    settings : sequence of str
        Each the name of a known setting, ``name=value,...``, or a preset file of another program.
    reference, unit, epsilon, tail, rules
        As in `jaxsppl.compare`.
    dialect : str
        Order and rules of the settings given as ``name=value``.
    texts : sequence of str
        Folders of the passages, which tell the documents' characters.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    ConfigError, SchemaError, TextError
        For a setting that means nothing, or what `jaxsppl.compare` refuses.
    """
    module = engine("jaxsppl.sweep.compare")
    chosen = {
        text: _setting(text, dialect, module.KNOWN, module.Baseline)
        for text in settings or DEFAULTS
    }
    result = module.compare(
        [*harvests],
        chosen,
        reference=reference,
        unit=unit,
        epsilon=epsilon,
        tail=tail,
        rules=rules,
        characters=_characters(texts),
    )
    asked = {"setting": [*chosen], "dialect": [dialect], "texts": [*texts]}
    return result.assign_attrs(asked_json=json.dumps(asked))


def _setting(text: str, dialect: str, known: dict[str, Any], baseline: Any) -> Any:
    """Return the setting that a text stands for."""
    from jaxsppl.report.presets import import_preset

    if text in known:
        return known[text]
    if Path(text).is_file():
        preset = import_preset(text)
        return baseline(preset.chain, preset.settings)
    if "=" not in text:
        raise ConfigError(
            f"--setting {text}: it is no known setting and no file; {suggest(text, known)}, or "
            "write name=value,..."
        )
    values = setting(text.split(","), "--setting")
    return baseline(parameters.default_order(values, dialect), values)


def _characters(folders: Sequence[str]) -> dict[str, int]:
    """Return the characters of each passage by the digest of its bytes."""
    from jaxsppl.texts.folder import load_passages

    return {
        passage.sha256: len(passage.continuation)
        for folder in folders
        for passage in load_passages(folder)
    }
