"""Result files of a config: where they lie, whether they are up to date, and making them."""

import importlib
import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import jaxsppl
from jaxsppl import config, journal, parameters, schema, store
from jaxsppl.bars import counted
from jaxsppl.choice import recipe
from jaxsppl.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.config import Config
    from jaxsppl.report.presets import Preset
    from jaxsppl.sweep.plan import Plan


def sweep_paths(settings: "Config", out: Path | None = None) -> dict[str, Path]:
    """Return the sweep file of each order of the chain.

    Parameters
    ----------
    settings : Config
    out : Path, optional
        The file; ``run.out/NAME.sweep.nc`` by default. With several orders the name of each is
        put before ``.sweep.nc``.

    Returns
    -------
    dict of str to Path
        By the order's name; "" for a single one.
    """
    file = out or Path(settings.run.out) / f"{store.safe_name(settings.name)}.sweep.nc"
    ending = ".sweep.nc" if file.name.endswith(".sweep.nc") else file.suffix
    stem = file.name.removesuffix(ending)
    return {
        name: file.with_name(f"{stem}.{store.safe_name(name)}{ending}") if name else file
        for name in settings.orders()
    }


def input_files(settings: "Config", given: Iterable[str] = ()) -> list[Path]:
    """Return the harvest files that a sweep reads.

    Parameters
    ----------
    settings : Config
    given : iterable of str
        Files, folders or patterns; else those of ``run.input``, else ``run.out/*.harvest.nc``.

    Returns
    -------
    list of Path

    Raises
    ------
    SchemaError
        When nothing matches.
    """
    patterns = list(given) or settings.run.input or [f"{settings.run.out}/*.harvest.nc"]
    return list(dict.fromkeys(file for pattern in patterns for file in store.expand(pattern)))


def plan(settings: "Config", files: Sequence[Path]) -> "dict[str, Plan]":
    """Say how the sweep of each order would be computed, and compute nothing.

    Parameters
    ----------
    settings : Config
    files : sequence of Path
        Harvest files.

    Returns
    -------
    dict of str to Plan
        By the order's name; "" for a single one.
    """
    explain = engine("jaxsppl.sweep.api").explain
    check_grid(settings)
    return {
        name: explain(
            [*files],
            settings.grid,
            chain=order,
            epsilon=settings.objective.epsilon,
            tail=settings.objective.tail,
            level=settings.run.level,
            memory_mib=settings.run.memory_mib,
            tolerance=settings.run.tolerance,
            audit_points=settings.run.audit_points,
        )
        for name, order in settings.orders().items()
    }


def check_grid(settings: "Config") -> None:
    """Raise a ConfigError when a config asks for no sweep."""
    if not settings.grid:
        raise ConfigError(
            f"config '{settings.name}' has no axis; add [grid], for example "
            "--set grid.temperature=[0.5,1]"
        )


def engine(module: str) -> Any:
    """Import a module that loads jax; a Ctrl-C in the midst of that would make jax abort.

    Parameters
    ----------
    module : str
        Its name.

    Returns
    -------
    module
    """
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        return importlib.import_module(module)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sweep_to(
    path: Path, settings: "Config", order: Sequence[str], files: Sequence[Path]
) -> "xr.Dataset":
    """Sweep the grid of a config over harvest files and write the result.

    With `[decide]` it holds the uncertainty and the held-out proof too.

    Parameters
    ----------
    path : Path
        The sweep file.
    settings : Config
    order : sequence of str
        The chain.
    files : sequence of Path
        Harvest files.

    Returns
    -------
    xarray.Dataset
        What was written.
    """
    sweep = engine("jaxsppl.sweep.api").sweep
    check_grid(settings)
    with journal.lock(path), counted("sweep") as progress:
        result = sweep(
            [*files],
            settings.grid,
            chain=order,
            epsilon=settings.objective.epsilon,
            tail=settings.objective.tail,
            level=settings.run.level,
            memory_mib=settings.run.memory_mib,
            tolerance=settings.run.tolerance,
            audit_points=settings.run.audit_points,
            progress=progress,
        )
        if settings.decide is not None:
            result = _decided(result, settings, files)
        choice = settings.objective.choice()
        if not choice.is_plain:
            result = result.assign_attrs(choice_json=msgspec.json.encode(choice).decode())
        result = result.assign_attrs(config_json=config.to_json(settings))
        store.write_dataset(result, path)
    return result


def _decided(result: "xr.Dataset", settings: "Config", files: Sequence[Path]) -> "xr.Dataset":
    """Add what `[decide]` asks for."""
    rules = settings.decide
    if rules is None:
        return result
    presets = _presets(settings)
    if presets:
        place = engine("jaxsppl.sweep.placed").place_settings
        baseline = engine("jaxsppl.sweep.baselines").Baseline
        named = {name: baseline(one.chain, one.settings) for name, one in presets.items()}
        result = place(result, named, [*files])
    with counted("decide") as progress:
        return engine("jaxsppl.sweep.decide").decide(
            result,
            [*files],
            rules,
            settings.objective.choice(),
            level=settings.run.level,
            memory_mib=settings.run.memory_mib,
            progress=progress,
        )


def _presets(settings: "Config") -> dict[str, "Preset"]:
    """Read the presets that `[decide]` names."""
    from jaxsppl.report.presets import import_preset

    files = settings.decide.presets if settings.decide is not None else {}
    return {name: import_preset(file) for name, file in files.items()}


def sweep_is_current(
    path: Path, settings: "Config", order: Sequence[str], files: Sequence[Path]
) -> bool:
    """Return whether a sweep file is whole and holds what the config asks for.

    Parameters
    ----------
    path : Path
        The sweep file.
    settings : Config
    order : sequence of str
        The chain.
    files : sequence of Path
        Harvest files.

    Returns
    -------
    bool
    """
    try:
        contents = store.read_contents(path)
        schema.check_sweep(contents, str(path))
    except SchemaError:
        return False
    grid = {name: contents.array(name).tolist() for name in contents.variables["nll"][0][2:]}
    tolerance = float(contents.attrs.get("tolerance", np.inf))
    return (
        list(grid.items()) == list(settings.grid.items())
        and tolerance <= settings.run.tolerance
        and _made_the_same_way(contents, settings, order, files)
        and _decided_the_same_way(contents, settings)
    )


def _decided_the_same_way(contents: schema.Contents, settings: "Config") -> bool:
    """Return whether a result is proven by the config's rules, beside the same presets."""
    rules, choice = settings.decide, settings.objective.choice()
    kept = "" if choice.is_plain else msgspec.json.encode(choice).decode()
    if contents.attrs.get("choice_json", "") != kept:
        return False
    if rules is None:
        return True
    try:
        named = json.loads(str(contents.attrs.get("baselines_json", "{}")))
    except ValueError:
        return False
    presets = {
        name: {"chain": [*one.chain], "settings": dict(one.settings)}
        for name, one in _presets(settings).items()
    }
    return contents.attrs.get("decide_json") == recipe(rules, choice) and all(
        named.get(name) == one for name, one in presets.items()
    )


def _made_the_same_way(
    contents: schema.Contents, settings: "Config", order: Sequence[str], files: Sequence[Path]
) -> bool:
    """Return whether a result has the config's chain and objective and these harvests."""
    attrs = contents.attrs
    epsilon = float(attrs.get("epsilon", np.nan))
    try:
        made_from = sorted(
            (str(entry["model"]), str(entry["dataset"]), str(entry["fingerprint"]))
            for entry in json.loads(str(attrs.get("harvests_json", "[]")))
        )
    except (ValueError, KeyError, TypeError):
        return False
    return (
        attrs.get("version") == jaxsppl.__version__
        and attrs.get("chain") == ",".join(order)
        and attrs.get("tail") == settings.objective.tail
        and (epsilon == settings.objective.epsilon or "epsilon" in settings.grid)
        and made_from == sorted(_identity(file) for file in files)
    )


def _identity(file: Path) -> tuple[str, str, str]:
    """Return what tells harvests apart: model, dataset, and the fingerprint of the content."""
    contents = store.read_contents(file)
    attrs = contents.attrs
    mark = attrs.get("digest") or schema.digest(contents)
    return str(contents.array("model")), str(contents.array("dataset")), str(mark)


# Parameters that a gradient moves; the values of all others are tried one by one.
SMOOTH = ("temperature", "alpha", "beta")


@dataclass(frozen=True)
class OptimizeTask:
    """An optimum file that is to be made.

    Attributes
    ----------
    path : Path
        The file.
    files : tuple of Path
        Harvest files.
    over : tuple of str
        Parameters that are optimized.
    fixed : mapping of str to float
        Parameters that are held.
    values : mapping of str to list of float
        What is tried of the parameters that no gradient can move.
    order : tuple of str
        The chain.
    epsilon, tail, starts, seed, pooled, memory_mib
        As in `jaxsppl.optimize`.
    """

    path: Path
    files: tuple[Path, ...]
    over: tuple[str, ...]
    fixed: Mapping[str, float]
    values: Mapping[str, list[float]]
    order: tuple[str, ...]
    epsilon: float
    tail: str
    starts: int
    seed: int
    pooled: bool
    memory_mib: int

    def recipe(self) -> str:
        """Return what decides the numbers, as text: it is kept in the file."""
        recipe = {
            "over": [*self.over],
            "fixed": dict(self.fixed),
            "values": dict(self.values),
            "chain": [*self.order],
            "epsilon": self.epsilon,
            "tail": self.tail,
            "starts": self.starts,
            "seed": self.seed,
            "pooled": self.pooled,
            "version": jaxsppl.__version__,
            "harvests": sorted(_identity(file) for file in self.files),
        }
        return json.dumps(recipe, sort_keys=True)

    def is_current(self) -> bool:
        """Return whether the file is there, whole, and made by this recipe."""
        try:
            contents = store.read_contents(self.path)
            schema.check_optimum(contents, str(self.path))
        except SchemaError:
            return False
        return contents.attrs.get("recipe_json") == self.recipe()

    def write(self, csv: Path | None = None) -> None:
        """Optimize and write the file, and every start as CSV when asked for."""
        from jaxsppl.report import csvfile

        optimize = engine("jaxsppl.sweep.optimize").optimize
        with journal.lock(self.path), counted("optimize") as progress:
            result = optimize(
                [*self.files],
                over=self.over,
                fixed=self.fixed,
                values=self.values,
                chain=self.order,
                epsilon=self.epsilon,
                tail=self.tail,
                starts=self.starts,
                seed=self.seed,
                pooled=self.pooled,
                memory_mib=self.memory_mib,
                progress=progress,
            )
            store.write_dataset(result.assign_attrs(recipe_json=self.recipe()), self.path)
        if csv is not None:
            csvfile.write_optimum(store.read_contents(self.path), csv)


def optimize_task(
    sources: Sequence[str] = (),
    settings: "Config | None" = None,
    *,
    overrides: Iterable[str] = (),
    inputs: Iterable[str] = (),
    over: Sequence[str] | None = None,
    fixed: Mapping[str, float | str] | None = None,
    starts: int | None = None,
    seed: int | None = None,
    pooled: bool = False,
    out: Path | None = None,
) -> OptimizeTask:
    """Put together what is optimized: a config, harvest files, or a config with some changes.

    Parameters
    ----------
    sources : sequence of str
        One config (.toml), or harvest files, folders and patterns.
    settings : Config, optional
        Instead of a config file.
    overrides, inputs : iterable of str
        As in `config.load` and `input_files`.
    over : sequence of str, optional
        Parameters; those of the config, else temperature, alpha and beta.
    fixed : mapping, optional
        Parameters that are held, beside the config's axes of one value. Of top_k, min_p and
        top_p the values of the config's axis are tried one by one.
    starts, seed : int, optional
        Those of the config by default.
    pooled : bool
        Whether all datasets of a model are optimized together too.
    out : Path, optional
        The file; ``run.out/NAME.optimum.nc`` by default.

    Returns
    -------
    OptimizeTask

    Raises
    ------
    ConfigError
        For an unknown parameter, or when temperature, alpha or beta have several values and are
        not optimized: it is not clear which one to hold.
    """
    given = [*inputs]
    if settings is None and any(source.endswith(".toml") for source in sources):
        if len(sources) > 1:
            raise ConfigError("optimize takes one config, or harvest files; not several kinds")
        settings = config.load(sources[0], overrides)
    elif settings is None:
        raw: dict[str, Any] = {"name": "harvests"}
        for override in overrides:
            config.apply_override(raw, override)
        settings = config.build(raw, "optimize")
        given = [*sources, *given]
    if over is not None and not over:
        raise ConfigError("--over: it is empty; name at least one parameter, as temperature")
    names = list(over or settings.optimize.over or SMOOTH)
    for name in names:
        parameters.parameter(name, "--over")
    held = {
        name: config.axis(name, _number(value), f"--fixed {name}")[0]
        for name, value in (fixed or {}).items()
    }
    values: dict[str, list[float]] = {}
    for name, axis in settings.grid.items():
        if name in held or name == "epsilon":
            continue
        if name not in names and len(axis) == 1:
            held[name] = axis[0]
        elif name not in SMOOTH:
            values[name] = axis
            names += [name] if name not in names else []
        elif name not in names:
            raise ConfigError(
                f"config '{settings.name}': grid.{name} has {len(axis)} values and is not "
                f"optimized; hold one, for example --fixed {name}={axis[0]:g}"
            )
    used = [*names, *held]
    order = settings.order() if settings.chain.order or settings.chain.orders else None
    return OptimizeTask(
        path=out or Path(settings.run.out) / f"{store.safe_name(settings.name)}.optimum.nc",
        files=tuple(input_files(settings, given)),
        over=tuple(names),
        fixed=held,
        values=values,
        order=parameters.check_order(
            parameters.default_order(used) if order is None else order, used, "chain"
        ),
        epsilon=settings.objective.epsilon,
        tail=settings.objective.tail,
        starts=settings.optimize.starts if starts is None else starts,
        seed=settings.optimize.seed if seed is None else seed,
        pooled=pooled,
        memory_mib=settings.run.memory_mib,
    )


def _number(value: float | str) -> float | str:
    """Return the number that a text stands for, or the text, which the check then names."""
    try:
        return float(value)
    except ValueError:
        return value
