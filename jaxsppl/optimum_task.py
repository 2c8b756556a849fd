"""The optimum file of a config or of harvest files: what is optimized, and making the file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxsppl
from jaxsppl import config, journal, parameters, schema, store
from jaxsppl.atomic import check_target
from jaxsppl.axes import axis
from jaxsppl.bars import counted
from jaxsppl.choice import Choice, Rules, recipe
from jaxsppl.errors import ConfigError, SchemaError
from jaxsppl.results import engine, harvest_identity, input_files, presets_of

if TYPE_CHECKING:
    from jaxsppl.config import Config
    from jaxsppl.report.presets import Preset

# What is optimized where nothing is said.
_USUAL = ("temperature", "alpha", "beta")


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
    choice : Choice
        What is best.
    rules : Rules or None
        How the optimum is proven on held-out documents.
    presets : mapping of str to Preset
        What it is compared with there, beside the usual settings.
    config_json : str
        The config, to be kept in the file.
    epsilon, tail, starts, seed, pooled, method, max_steps, bounds, memory_mib
        As in `jaxsppl.optimize`.
    """

    path: Path
    files: tuple[Path, ...]
    over: tuple[str, ...]
    fixed: Mapping[str, float]
    values: Mapping[str, list[float]]
    order: tuple[str, ...]
    choice: Choice
    rules: Rules | None
    presets: Mapping[str, "Preset"]
    config_json: str
    epsilon: float
    tail: str
    starts: int
    seed: int
    pooled: bool
    method: str
    max_steps: int
    bounds: Mapping[str, tuple[float, float]]
    memory_mib: int

    def recipe(self) -> str:
        """Return what decides the numbers, as text: it is kept in the file."""
        decisive = {
            "over": [*self.over],
            "fixed": dict(self.fixed),
            "values": dict(self.values),
            "chain": [*self.order],
            "objective": self.choice.words(),
            "decide": None if self.rules is None else recipe(self.rules, self.choice),
            "presets": {
                name: [*one.chain, dict(one.settings)] for name, one in self.presets.items()
            },
            "epsilon": self.epsilon,
            "tail": self.tail,
            "starts": self.starts,
            "seed": self.seed,
            "pooled": self.pooled,
            "method": self.method,
            "max_steps": self.max_steps,
            "bounds": dict(self.bounds),
            "version": jaxsppl.__version__,
            "harvests": sorted(harvest_identity(file) for file in self.files),
        }
        return json.dumps(decisive, sort_keys=True)

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

        check_target(self.path, schema.OPTIMUM)
        if csv is not None:
            check_target(csv)
        optimize = engine("jaxsppl.sweep.optimize").optimize
        baseline = engine("jaxsppl.sweep.baselines").Baseline
        with journal.lock(self.path), counted("optimize") as progress:
            result = optimize(
                [*self.files],
                over=self.over,
                fixed=self.fixed,
                values=self.values,
                chain=self.order,
                epsilon=self.epsilon,
                tail=self.tail,
                choice=self.choice,
                rules=self.rules,
                baselines={
                    name: baseline(one.chain, one.settings) for name, one in self.presets.items()
                },
                starts=self.starts,
                seed=self.seed,
                pooled=self.pooled,
                method=self.method,
                max_steps=self.max_steps,
                bounds=self.bounds,
                memory_mib=self.memory_mib,
                progress=progress,
            )
            result = result.assign_attrs(recipe_json=self.recipe(), config_json=self.config_json)
            store.write_dataset(result, self.path)
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
    method: str | None = None,
    bounds: Mapping[str, str] | None = None,
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
        Parameters; those of the config, else temperature, alpha and beta with the config's other
        axes of several values.
    fixed : mapping, optional
        Parameters that are held, beside the config's axes of one value. Of parameters that no
        gradient moves, as top_k, the values of the config's axis are tried one by one.
    starts, seed : int, optional
        Those of the config by default.
    pooled : bool
        Whether all datasets of a model are optimized together too.
    method : str, optional
        "lbfgs" or "adam"; that of the config by default.
    bounds : mapping, optional
        Limits as ``low:high``, beside those of the config.
    out : Path, optional
        The file; ``run.out/NAME.optimum.nc`` by default.

    Returns
    -------
    OptimizeTask

    Raises
    ------
    ConfigError
        For an unknown parameter, or when one that a gradient moves has several values and is not
        optimized: it is not clear which one to hold.
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
    asked = over or settings.optimize.over
    names = list(asked or _USUAL)
    for name in names:
        parameters.parameter(name, "--over")
    held = {
        name: axis(name, _number(value), f"--fixed {name}")[0]
        for name, value in (fixed or {}).items()
    }
    limits = {name: _limits(name, text) for name, text in (bounds or {}).items()}
    values: dict[str, list[float]] = {}
    for name, listed in settings.grid.items():
        if name in held or name == "epsilon":
            continue
        if name not in names and len(listed) == 1:
            held[name] = listed[0]
        elif not parameters.is_smooth(name):
            values[name] = listed
            names += [name] if name not in names else []
        elif name not in names and not asked:
            names.append(name)
        elif name not in names:
            raise ConfigError(
                f"config '{settings.name}': grid.{name} has {len(listed)} values and is not "
                f"optimized; hold one, for example --fixed {name}={listed[0]:g}"
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
            parameters.default_order(used, settings.chain.dialect) if order is None else order,
            used,
            "chain",
        ),
        choice=settings.objective.choice(),
        rules=settings.decide,
        presets=presets_of(settings),
        config_json=config.to_json(settings),
        epsilon=settings.objective.epsilon,
        tail=settings.objective.tail,
        starts=settings.optimize.starts if starts is None else starts,
        seed=settings.optimize.seed if seed is None else seed,
        pooled=pooled or settings.optimize.pooled,
        method=settings.optimize.method if method is None else method,
        max_steps=settings.optimize.max_steps,
        bounds={**settings.optimize.bounds, **limits},
        memory_mib=settings.run.memory_mib,
    )


def _limits(name: str, text: str) -> tuple[float, float]:
    """Return the limits that ``low:high`` stands for."""
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError as error:
        raise ConfigError(f"--bounds {name}={text}: write {name}=low:high") from error


def _number(value: float | str) -> float | str:
    """Return the number that a text stands for, or the text, which the check then names."""
    try:
        return float(value)
    except ValueError:
        return value
