"""Sweep configs: TOML -> frozen structs, with overrides; every mistake names its path.

The order of precedence is flag (`--set table.key=value`), environment (`JAXSPPL_TABLE_KEY`), file,
default.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from jaxsppl import parameters
from jaxsppl.axes import axis
from jaxsppl.choice import Choice, Rules
from jaxsppl.errors import ConfigError, suggest
from jaxsppl.modules import load_modules


class Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[texts]`: what is cut into passages; `datasets` maps a dataset's name to its source."""

    datasets: dict[str, str] = {}
    column: str = "text"
    prefix_chars: int = 600
    continuation_chars: int = 1100
    minimum_chars: int = 200
    whole: bool = False
    prefix_column: str | None = None
    group_column: str | None = None
    limit: int = 30
    seed: int = 0


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[server]`: who gives the log-probabilities."""

    url: str | list[str] = []
    protocol: Literal["auto", "llama.cpp", "vllm", "sglang", "openai", "transformers"] = "auto"
    models: list[str] = []
    all_models: bool = False
    alternatives: int = 100
    method: Literal["auto", "token-grammar", "one-token"] = "auto"
    statistics: bool = False
    window: int = 0
    stride: int = 0
    chat: bool = False
    timeout_s: float = 600.0
    patience_s: float = 300.0


class Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[chain]`: the order of the stages; without one, the dialect's order of what is swept.

    `orders` gives several by name, to be compared: each makes its own sweep file. With `own_axes`
    each sweeps the parameters of its own stages only, so that samplers can be compared. `modules`
    are Python files, beside the config, with samplers of the user (`jaxsppl.stage`).
    """

    dialect: Literal["llama.cpp", "vllm", "transformers", "sglang"] = "llama.cpp"
    modules: list[str] = []
    order: list[str] | None = None
    orders: dict[str, list[str]] = {}
    own_axes: bool = False


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[objective]`: how the text is scored, and which score is best (`jaxsppl.choice`)."""

    epsilon: float = 0.01
    tail: Literal["bound", "drop"] = "bound"
    ood_weight: float = 0.0
    ood_max: float | None = None
    nll_max: float | None = None

    def choice(self) -> Choice:
        """Return what is best."""
        return Choice(self.ood_weight, self.ood_max, self.nll_max)


class Optimize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[optimize]`: which parameters are optimized, within which bounds, from how many starts.

    The values that are tried of the others are their axes in `[grid]`.
    """

    over: list[str] = []
    starts: int = 32
    seed: int = 0
    method: Literal["lbfgs", "adam"] = "lbfgs"
    max_steps: int = 200
    bounds: dict[str, tuple[float, float]] = {}
    pooled: bool = False


class Decide(Rules, frozen=True, forbid_unknown_fields=True):
    """`[decide]`: how a choice is proven; `presets` maps names to files of further settings."""

    presets: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[run]`: files and policy; nothing here changes a number."""

    out: str = "out"
    input: list[str] = []
    level: Literal["auto", "binned", "factored", "direct"] = "auto"
    memory_mib: int = 1024
    tolerance: float = 1e-4
    audit_points: int = 64


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole sweep config; `grid` maps each parameter to the values of its axis."""

    name: str = "sweep"
    texts: Texts = Texts()
    server: Server = Server()
    chain: Chain = Chain()
    grid: dict[str, list[float]] = {}
    objective: Objective = Objective()
    optimize: Optimize = Optimize()
    decide: Decide | None = None
    run: Run = Run()

    def urls(self) -> list[str]:
        """Return the servers' addresses as a list."""
        return [self.server.url] if isinstance(self.server.url, str) else list(self.server.url)

    def order(self) -> tuple[str, ...]:
        """Return the chain's order: the given one, or the dialect's of what is swept."""
        return next(iter(self.orders().values()))

    def orders(self) -> dict[str, tuple[str, ...]]:
        """Return every order that is to be swept by its name; a single one has the name ""."""
        used, dialect = [*self.grid, *self.optimize.over], self.chain.dialect
        if self.chain.own_axes:
            return {
                name: parameters.check_order(order, self.axes(order), "chain", dialect)
                for name, order in self.chain.orders.items()
            }
        if not self.chain.orders and self.chain.order is None:
            return {"": parameters.default_order(used, dialect)}
        named = self.chain.orders or {"": self.chain.order or []}
        return {
            name: parameters.check_order(order, used, "chain", dialect)
            for name, order in named.items()
        }

    def axes(self, order: Sequence[str]) -> dict[str, list[float]]:
        """Return the axes that an order sweeps: all, or with `own_axes` those of its stages.

        Parameters
        ----------
        order : sequence of str
            The chain.

        Returns
        -------
        dict of str to list of float
        """
        if not self.chain.own_axes:
            return self.grid
        stages = {*parameters.AFTER_CHAIN, *map(parameters.base_name, order)}
        known = parameters.PARAMETERS
        return {name: axis for name, axis in self.grid.items() if known[name].stage in stages}


TABLES: dict[str, type[msgspec.Struct]] = {
    "texts": Texts,
    "server": Server,
    "chain": Chain,
    "objective": Objective,
    "optimize": Optimize,
    "decide": Decide,
    "run": Run,
}
_KEYS = (*Config.__struct_fields__,)


def load(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read a sweep config.

    Parameters
    ----------
    path : str or path
        The TOML file.
    overrides : iterable of str
        ``table.key=value`` entries; the value is TOML, or else taken as text.
    environment : mapping, optional
        Where ``JAXSPPL_TABLE_KEY`` is looked up; the process's environment by default.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        When the file cannot be read or a key or value is not allowed; the message names the path
        of the key and the near names.
    """
    file = Path(path)
    try:
        raw = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a sweep config (TOML)") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: it is not valid TOML: {error}") from error
    raw.setdefault("name", file.stem)
    apply_environment(raw, os.environ if environment is None else environment)
    for override in overrides:
        apply_override(raw, override)
    chain = raw.get("chain")
    if isinstance(chain, dict) and "modules" in chain:
        # Before the names are checked, since these files add some.
        load_modules(
            cast("dict[str, Any]", chain)["modules"], file.parent, f"{file}: chain.modules"
        )
    return build(raw, str(file))


def apply_environment(raw: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Set what the environment says, for example ``JAXSPPL_SERVER_URL``, in a raw config.

    Parameters
    ----------
    raw : dict
        Parsed TOML, changed in place.
    environment : mapping of str to str
        Environment variables.
    """
    keys = {table: struct.__struct_fields__ for table, struct in TABLES.items()}
    keys["grid"] = (*parameters.PARAMETERS,)
    for table, names in keys.items():
        for key in names:
            value = environment.get(f"JAXSPPL_{table}_{key}".upper())
            if value is not None:
                _set(raw, (table, key), value, f"JAXSPPL_{table}_{key}".upper())


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one ``table.key=value`` in a raw config.

    Parameters
    ----------
    raw : dict
        Parsed TOML, changed in place.
    override : str
        For example ``grid.min_p=[0, 0.05]``.

    Raises
    ------
    ConfigError
        When it has no ``=`` or no key.
    """
    key, sign, value = override.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not sign or not all(parts):
        raise ConfigError(
            f"--set {override}: write table.key=value, for example grid.min_p=[0,0.05]"
        )
    _set(raw, parts, value.strip(), f"--set {override}")


def _set(raw: dict[str, Any], parts: tuple[str, ...], text: str, where: str) -> None:
    """Set a nested key to a TOML value, or to the text itself when it is not TOML."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table: dict[str, Any] = raw
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: '{part}' is a value, not a table")
        table = cast("dict[str, Any]", inner)
    table[parts[-1]] = value


def build(raw: Mapping[str, Any], where: str = "config") -> Config:
    """Check a parsed config and return it as frozen structs with expanded axes.

    Parameters
    ----------
    raw : mapping
        Parsed TOML.
    where : str
        Name of the file, for messages.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        As `load`.
    """
    _check_keys(raw, _KEYS, where, "")
    for table, struct in TABLES.items():
        inner = raw.get(table, {})
        if isinstance(inner, Mapping):
            _check_keys(
                cast("Mapping[str, Any]", inner), struct.__struct_fields__, where, table + "."
            )
    grid = raw.get("grid", {})
    if not isinstance(grid, Mapping):
        raise ConfigError(f"{where}: grid: write [grid] with one line a parameter")
    axes = {
        str(name): axis(str(name), spec, f"{where}: grid.{name}")
        for name, spec in cast("Mapping[str, Any]", grid).items()
    }
    try:
        config = msgspec.convert({**raw, "grid": axes}, Config)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`") or "top level"
        raise ConfigError(f"{where}: {key}: {_in_words(message, key)}") from error
    _check_values(config, where)
    return config


_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "text",
}


def _in_words(message: str, key: str) -> str:
    """Return a message of msgspec in the words of a TOML file, with the values that are allowed."""
    table, _, name = key.partition(".")
    hints = get_type_hints(TABLES[table]) if table in TABLES else {}
    if get_origin(hints.get(name)) is Literal:
        given = message.removeprefix("Invalid enum value ").strip("'")
        return f"'{given}' is not allowed; {suggest(given, get_args(hints[name]))}"
    types = re.fullmatch("Expected `(.*)`, got `(.*)`", message)
    if types is None:
        return message[0].lower() + message[1:]
    expected, got = (
        " or ".join(_TYPES.get(part, part) for part in group.split(" | ") if part != "null")
        for group in types.groups()
    )
    return f"it is {got}; give {expected}"


def _check_keys(table: Mapping[str, Any], allowed: Iterable[str], where: str, prefix: str) -> None:
    """Refuse a key that does not exist, with the near names."""
    names = list(allowed)
    for key in table:
        if key not in names:
            if "key" in key.lower() and prefix == "server.":
                raise ConfigError(
                    f"{where}: {prefix}{key}: a key never stands in a file; set JAXSPPL_API_KEY"
                )
            raise ConfigError(
                f"{where}: {prefix}{key}: there is no such key; {suggest(key, names)}"
            )


def _check_values(config: Config, where: str) -> None:
    """Check ranges and the relations between tables."""
    used = [*config.grid, *config.optimize.over]
    for name in config.optimize.over:
        parameters.parameter(name, f"{where}: optimize.over")
    for name, (low, high) in config.optimize.bounds.items():
        place = f"{where}: optimize.bounds"
        parameters.parameter(name, place).check([low, high], f"{place}.{name}")
        if low > high:
            raise ConfigError(f"{place}.{name}: {low:g} is above {high:g}; write [lowest, highest]")
    if config.chain.order is not None and config.chain.orders:
        raise ConfigError(f"{where}: chain: give order or orders, not both")
    if config.chain.order is not None:
        parameters.check_order(config.chain.order, used, f"{where}: chain.order")
    for name, order in config.chain.orders.items():
        own = config.axes(order) if config.chain.own_axes else used
        parameters.check_order(order, own, f"{where}: chain.orders.{name}")
    if config.chain.own_axes:
        _check_own_axes(config, where)
    if config.chain.order is None and not config.chain.orders:
        parameters.default_order(used, config.chain.dialect)
    parameters.parameter("epsilon").check([config.objective.epsilon], f"{where}: objective.epsilon")
    config.objective.choice().check(f"{where}: objective.")
    if config.decide is not None:
        config.decide.check(f"{where}: decide.")
    least: dict[str, tuple[float, float]] = {
        "texts.prefix_chars": (config.texts.prefix_chars, 0),
        "texts.continuation_chars": (config.texts.continuation_chars, 1),
        "texts.minimum_chars": (config.texts.minimum_chars, 1),
        "texts.limit": (config.texts.limit, 1),
        "texts.seed": (config.texts.seed, 0),
        "server.alternatives": (config.server.alternatives, 1),
        "server.window": (config.server.window, 0),
        "server.stride": (config.server.stride, 0),
        "server.timeout_s": (config.server.timeout_s, 1),
        "server.patience_s": (config.server.patience_s, 0),
        "optimize.starts": (config.optimize.starts, 1),
        "optimize.seed": (config.optimize.seed, 0),
        "optimize.max_steps": (config.optimize.max_steps, 1),
        "run.memory_mib": (config.run.memory_mib, 16),
        "run.audit_points": (config.run.audit_points, 1),
    }
    for key, (value, lowest) in least.items():
        if not lowest <= value < 2**31:
            raise ConfigError(f"{where}: {key}: {value} is not allowed; it is at least {lowest:g}")
    if not config.run.tolerance > 0:
        raise ConfigError(
            f"{where}: run.tolerance: {config.run.tolerance} is not allowed; it is above 0"
        )


def _check_own_axes(config: Config, where: str) -> None:
    """Refuse axes that no order sweeps, and orders that sweep none."""
    if not config.chain.orders:
        raise ConfigError(f"{where}: chain.own_axes: whose? add [chain.orders] with one a sampler")
    swept = {name for order in config.chain.orders.values() for name in config.axes(order)}
    idle = [name for name in config.grid if name not in swept]
    if idle:
        raise ConfigError(
            f"{where}: grid.{idle[0]}: no order of [chain.orders] has its stage "
            f"'{parameters.parameter(idle[0]).stage}'; add one, or leave the axis out"
        )
    for name, order in config.chain.orders.items():
        if config.grid and not config.axes(order):
            raise ConfigError(f"{where}: chain.orders.{name}: it has no axis; add one to [grid]")
    if config.optimize.over:
        raise ConfigError(
            f"{where}: chain.own_axes: the optimum has one chain; leave out [optimize] or own_axes"
        )


def to_json(config: Config) -> str:
    """Return the config as JSON text, for a file's attributes; no address keeps a password.

    Parameters
    ----------
    config : Config

    Returns
    -------
    str
    """
    urls = [_without_credentials(url) for url in config.urls()]
    server = msgspec.structs.replace(config.server, url=urls)
    return msgspec.json.encode(msgspec.structs.replace(config, server=server)).decode()


def _without_credentials(url: str) -> str:
    """Return the address without user name and password."""
    place = urlsplit(url).netloc
    return url.replace(place, place.rpartition("@")[2], 1) if "@" in place else url
