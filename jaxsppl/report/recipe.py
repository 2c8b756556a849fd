"""How to make a result again: the config and the commands that give exactly its numbers."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxsppl import schema, store
from jaxsppl.report.surface import choice_of, split_chain

# The dataset of an optimum over all harvests of a model together.
POOLED = "pooled"


@dataclass(frozen=True)
class Recipe:
    """What to do for the same numbers.

    Attributes
    ----------
    config_name : str
        Name of the config file.
    config : str
        Its content (TOML).
    commands : tuple of str
        For a POSIX shell, in order.
    """

    config_name: str
    config: str
    commands: tuple[str, ...]


def harvests_of(contents: schema.Contents) -> list[dict[str, str]]:
    """Return what a sweep or optimum says of its harvests: model, dataset, fingerprint, source.

    Parameters
    ----------
    contents : Contents

    Returns
    -------
    list of dict
    """
    try:
        found = json.loads(str(contents.attrs.get("harvests_json", "[]")))
        return [{key: str(value) for key, value in entry.items()} for entry in found]
    except (ValueError, AttributeError, TypeError):
        return []


def sweep_recipe(contents: schema.Contents, file: str) -> Recipe:
    """Return how a sweep is made again.

    Parameters
    ----------
    contents : Contents
        A checked sweep file.
    file : str
        Its name.

    Returns
    -------
    Recipe
    """
    attrs = contents.attrs
    grid = {name: contents.array(name).tolist() for name in contents.variables["nll"][0][2:]}
    tables: dict[str, Mapping[str, Any]] = {
        "chain": _chain(contents),
        "grid": grid,
        "objective": _objective(contents, attrs.get("baseline_epsilon", 0.01)),
        "run": {"level": attrs.get("level", "auto"), "tolerance": attrs.get("tolerance", 1e-4)},
    }
    tables |= _decide(tables, attrs)
    name = store.safe_name(file.removesuffix(".sweep.nc"))
    made = ["jaxsppl", "sweep", f"{name}.toml", *_inputs(contents), "--out", f"{name}.sweep.nc"]
    shown = ["jaxsppl", "show", f"{name}.sweep.nc"]
    commands = (made, [*shown, "--front"], [*shown, "--json"])
    return Recipe(f"{name}.toml", toml_text(tables), tuple(shlex.join(one) for one in commands))


def optimum_recipe(contents: schema.Contents, file: str) -> Recipe:
    """Return how an optimum is made again.

    Parameters
    ----------
    contents : Contents
        A checked optimum file.
    file : str
        Its name.

    Returns
    -------
    Recipe
    """
    attrs = contents.attrs
    held, tried, bounds = (
        json.loads(str(attrs.get(f"{name}_json", "{}"))) for name in ("fixed", "values", "bounds")
    )
    over = [str(name) for name in contents.array("parameter").tolist()]
    tables: dict[str, Mapping[str, Any]] = {
        "chain": _chain(contents),
        "grid": {**{name: [value] for name, value in held.items()}, **tried},
        "objective": _objective(contents, 0.01),
        "optimize": {
            "over": over,
            "starts": contents.sizes["start"],
            **{name: attrs[name] for name in ("seed", "method", "max_steps") if name in attrs},
            "bounds": bounds,
            "pooled": POOLED in contents.array("dataset").tolist(),
        },
    }
    tables |= _decide(tables, attrs)
    name = store.safe_name(file.removesuffix(".optimum.nc"))
    made = ["jaxsppl", "optimize", f"{name}.toml", *_inputs(contents)]
    made += ["--out", f"{name}.optimum.nc", "--csv", f"{name}.csv"]
    return Recipe(f"{name}.toml", toml_text(tables), (shlex.join(made),))


def comparison_commands(contents: schema.Contents, file: str) -> list[str]:
    """Return how a comparison is made again, and shown.

    Parameters
    ----------
    contents : Contents
        A checked comparison file.
    file : str
        Its name.

    Returns
    -------
    list of str
        Only the second where Python made it: its settings have no words on a command line.
    """
    attrs, name = contents.attrs, store.safe_name(file.removesuffix(".comparison.nc"))
    shown = shlex.join(["jaxsppl", "show", file])
    try:
        asked = json.loads(str(attrs["asked_json"]))
    except (KeyError, ValueError):
        return [shown]
    made = ["jaxsppl", "compare", *(one["source"] for one in harvests_of(contents))]
    for flag, words in asked.items():
        made += [f"--{flag}", *words] if words else []
    kept = "reference unit epsilon tail resamples confidence seed cluster"
    for flag in kept.split():
        made += [f"--{flag}", str(attrs[flag])]
    return [shlex.join([*made, "--out", f"{name}.comparison.nc"]), shown]


def setting_command(
    harvest: str,
    values: Mapping[str, float],
    chain: Sequence[str],
    epsilon: float,
    tail: str,
    modules: Sequence[str] = (),
) -> str:
    """Return a command that prints nll and ood of one setting by the definition.

    Parameters
    ----------
    harvest : str
        The harvest file.
    values : mapping of str to float
        Parameters; those whose stage is not in the chain have no effect and are left out.
    chain : sequence of str
        Stages, first applied first.
    epsilon, tail
        As in `jaxsppl.sweep`.
    modules : sequence of str
        Python files with samplers of the user.

    Returns
    -------
    str
    """
    given = "".join(f", {name}={value!r}" for name, value in values.items())
    own = "".join(f"runpy.run_path({_text(file)}); " for file in modules)
    code = (
        f"import jaxsppl, numpy as np{', runpy' if own else ''}; {own}"
        f"p = jaxsppl.token_probabilities({_text(harvest)}, chain={_value([*chain])}, "
        f"tail={_text(tail)}{given}).values; "
        f"print(-np.log(np.maximum(p, {epsilon!r})).mean(), (p < {epsilon!r}).mean())"
    )
    return shlex.join(["python", "-c", code])


def modules_of(contents: schema.Contents) -> list[str]:
    """Return the Python files with the user's own samplers that the config of a result named.

    Parameters
    ----------
    contents : Contents

    Returns
    -------
    list of str
    """
    return (_asked(contents.attrs).get("chain") or {}).get("modules") or []


def _inputs(contents: schema.Contents) -> list[str]:
    """Return the flag that names the harvest files; pooled ones have no file of their own."""
    files = [one["source"] for one in harvests_of(contents) if one.get("source")]
    return ["--input", *files] if files else []


def _chain(contents: schema.Contents) -> dict[str, Any]:
    """Return the table [chain]."""
    order = [*split_chain(contents.attrs.get("chain", ""))]
    return {"order": order, "modules": modules_of(contents) or None}


def _objective(contents: schema.Contents, epsilon: Any) -> dict[str, Any]:
    """Return the table [objective]."""
    attrs = contents.attrs
    scored = {"epsilon": attrs.get("epsilon", epsilon), "tail": attrs.get("tail", "bound")}
    return scored | vars(choice_of(contents))


def _decide(
    tables: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Return the table [decide], and [objective] with what it chose by; {} without a proof."""
    rules = json.loads(str(attrs.get("decide_json", "{}")))
    if not rules:
        return {}
    objective = {**tables["objective"], **rules.pop("choice", {})}
    presets = (_asked(attrs).get("decide") or {}).get("presets")
    return {
        "objective": objective,
        "decide": {**rules, "words": None, "presets": presets or None},
    }


def _asked(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that the file was made from, {} when it does not say."""
    try:
        return json.loads(str(attrs.get("config_json", "{}")))
    except ValueError:
        return {}


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as TOML.

    Parameters
    ----------
    tables : mapping of str to mapping
        Keys and values of each table; a value that is None is left out, and so is an empty table.

    Returns
    -------
    str
    """
    parts = [
        "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())])
        for name, table in (
            (name, {key: value for key, value in table.items() if value is not None})
            for name, table in tables.items()
        )
        if table
    ]
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    """Return a value as TOML; numbers as the shortest text that reads back the same."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        inner = ", ".join(f"{_text(key)} = {_value(one)}" for key, one in pairs)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(one) for one in cast('list[Any]', value))}]"
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _text(text: str) -> str:
    """Return a text as TOML and Python have it: as JSON but for surrogates and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
