"""Measure how well sampling settings fit a language model, on real text, all settings at once.

The public API by name. Each name is imported when it is first used: `import jaxsppl` takes
milliseconds and loads neither jax nor xarray.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsppl.choice import Choice as Choice
    from jaxsppl.choice import Rules as Rules
    from jaxsppl.config import Config as Config
    from jaxsppl.config import load as load_config
    from jaxsppl.errors import JaxspplError as JaxspplError
    from jaxsppl.harvest.kld import import_kld as import_kld
    from jaxsppl.harvest.runner import harvest as harvest
    from jaxsppl.report.page import write_report as write_report
    from jaxsppl.report.plots import plot as plot
    from jaxsppl.report.presets import import_preset as import_preset
    from jaxsppl.sampling.custom import stage as stage
    from jaxsppl.store import open_harvest as open_harvest
    from jaxsppl.store import read_sweep as open_sweep
    from jaxsppl.store import write_dataset as save
    from jaxsppl.sweep.api import explain as explain
    from jaxsppl.sweep.api import sweep as sweep
    from jaxsppl.sweep.api import token_probabilities as token_probabilities
    from jaxsppl.sweep.compare import compare as compare
    from jaxsppl.sweep.decide import decide as decide
    from jaxsppl.sweep.explained import explain_token as explain_token
    from jaxsppl.sweep.optimize import optimize as optimize
    from jaxsppl.texts.folder import load_passages as load_passages
    from jaxsppl.texts.prepare import prepare as prepare

__version__ = "0.1.0"

__all__ = (
    "Choice",
    "Config",
    "JaxspplError",
    "Rules",
    "__version__",
    "compare",
    "decide",
    "explain",
    "explain_token",
    "harvest",
    "import_kld",
    "import_preset",
    "load_config",
    "load_passages",
    "open_harvest",
    "open_sweep",
    "optimize",
    "plot",
    "prepare",
    "save",
    "stage",
    "sweep",
    "token_probabilities",
    "write_report",
)

# `harvest` and `sweep` are packages that answer calls (jaxsppl.callable_package says why).
_HOME: dict[str, tuple[str, str]] = {
    "Choice": ("jaxsppl.choice", "Choice"),
    "Config": ("jaxsppl.config", "Config"),
    "JaxspplError": ("jaxsppl.errors", "JaxspplError"),
    "Rules": ("jaxsppl.choice", "Rules"),
    "compare": ("jaxsppl.sweep.compare", "compare"),
    "decide": ("jaxsppl.sweep.decide", "decide"),
    "explain": ("jaxsppl.sweep.api", "explain"),
    "explain_token": ("jaxsppl.sweep.explained", "explain_token"),
    "harvest": ("jaxsppl.harvest", ""),
    "import_kld": ("jaxsppl.harvest.kld", "import_kld"),
    "import_preset": ("jaxsppl.report.presets", "import_preset"),
    "load_config": ("jaxsppl.config", "load"),
    "load_passages": ("jaxsppl.texts.folder", "load_passages"),
    "open_harvest": ("jaxsppl.store", "open_harvest"),
    "open_sweep": ("jaxsppl.store", "read_sweep"),
    "optimize": ("jaxsppl.sweep.optimize", "optimize"),
    "plot": ("jaxsppl.report.plots", "plot"),
    "prepare": ("jaxsppl.texts.prepare", "prepare"),
    "save": ("jaxsppl.store", "write_dataset"),
    "stage": ("jaxsppl.sampling.custom", "stage"),
    "sweep": ("jaxsppl.sweep", ""),
    "token_probabilities": ("jaxsppl.sweep.api", "token_probabilities"),
    "write_report": ("jaxsppl.report.page", "write_report"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'jaxsppl' has no attribute '{name}'")
    module, attribute = _HOME[name]
    value = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
