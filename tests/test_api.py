"""The public names: what they are, and that importing them loads nothing heavy."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import jaxsppl

PUBLIC = {
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
}
HEAVY = {"jax", "xarray", "matplotlib", "datasets", "aiohttp", "netCDF4", "numpy", "optax"}


def run(code: str) -> str:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_the_public_names_are_these_and_each_exists() -> None:
    assert set(jaxsppl.__all__) == PUBLIC
    assert dir(jaxsppl) == sorted(PUBLIC)
    for name in PUBLIC - {"__version__"}:
        value = getattr(jaxsppl, name)
        assert callable(value), name
        assert value.__doc__, name


def test_another_name_is_refused_as_any_module_does() -> None:
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        _ = jaxsppl.swep


def test_the_version_is_the_one_that_is_installed() -> None:
    assert version("jaxsppl") == jaxsppl.__version__


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = set(json.loads(run("import jaxsppl, sys, json; print(json.dumps([*sys.modules]))")))
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("verb", ["sweep", "harvest"])
@pytest.mark.parametrize(
    "before",
    [
        "import jaxsppl",
        "import jaxsppl.sweep.api, jaxsppl.harvest.runner",
        "from jaxsppl.sweep import api; from jaxsppl.harvest import runner",
        "import jaxsppl.sweep.api as api; import jaxsppl.harvest.runner as runner",
        "import jaxsppl; jaxsppl.sweep; jaxsppl.harvest; import jaxsppl.sweep.api",
        "from jaxsppl import *",
    ],
)
def test_a_room_is_its_verb_whatever_was_imported_first(before: str, verb: str) -> None:
    """Called wrongly on purpose: the function's own complaint shows who answers."""
    code = f"""
{before}
import inspect, jaxsppl
from jaxsppl import {verb}
assert {verb} is jaxsppl.{verb}
names = [*inspect.signature(jaxsppl.{verb}).parameters]
try:
    jaxsppl.{verb}()
except TypeError as error:
    print(names[0], "missing" in str(error) and "{verb}()" in str(error))
"""
    first = {"sweep": "harvests", "harvest": "passages"}[verb]
    assert run(code).split() == [first, "True"]


def test_the_modules_of_a_room_stay_within_reach() -> None:
    code = "import jaxsppl.sweep.api as a, jaxsppl; print(jaxsppl.sweep.api is a)"
    assert run(code).strip() == "True"
