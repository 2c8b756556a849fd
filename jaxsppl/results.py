"""Result files of a config: where they lie, whether they are up to date, and making them."""

import contextlib
import importlib
import json
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import jaxsppl
from jaxsppl import config, journal, parameters, schema, store
from jaxsppl.atomic import check_target
from jaxsppl.bars import counted
from jaxsppl.choice import recipe
from jaxsppl.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    import xarray as xr

    from jaxsppl.config import Config
    from jaxsppl.report.presets import Preset
    from jaxsppl.sweep.plan import Plan

_HELD = (signal.SIGINT, signal.SIGTERM)


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
    MissingFileError
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
            settings.axes(order),
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


@contextlib.contextmanager
def stoppable(progress: Callable[[int, int], None]) -> Generator[Callable[[int, int], None]]:
    """Let a Ctrl-C stop a computation where that tells its progress; a second one at once.

    Raised within a callback of jax's own code it could become another error, or an abort.

    Parameters
    ----------
    progress : callable
        Told (done, total).

    Yields
    ------
    callable
        To be called in its place.

    Raises
    ------
    KeyboardInterrupt
        At the call that follows a Ctrl-C or a polite kill, or at the end of the block.
    """
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    def told(done: int, total: int) -> None:
        progress(done, total)
        if came:
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    # Only where a signal would raise anyway: a caller's own handlers stay.
    raising = [one for one in _HELD if signal.getsignal(one) is signal.default_int_handler]
    before = {one: signal.signal(one, note) for one in raising if is_main}
    try:
        yield told
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if came:
        raise KeyboardInterrupt


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
    # Not by blocking the signals: threads that NumPy has started take them then, and Python raises
    # in the main thread all the same.
    with stoppable(lambda done, total: None):
        return importlib.import_module(module)


def sweep_to(
    path: Path,
    settings: "Config",
    order: Sequence[str],
    files: Sequence[Path],
    dask: str | None = None,
) -> "xr.Dataset":
    """Sweep the grid of a config over harvest files and write the result.

    With `[decide]` it holds the uncertainty and the held-out proof too; a sweep that lacks only
    these is not computed again.

    Parameters
    ----------
    path : Path
        The sweep file.
    settings : Config
    order : sequence of str
        The chain.
    files : sequence of Path
        Harvest files.
    dask : str, optional
        Where to compute, as for `jaxsppl.sweep`.

    Returns
    -------
    xarray.Dataset
        What was written. Until then finished parts lie beside it, in ``PATH.parts``.
    """
    unfinished = path.with_name(f"{path.name}.parts")
    check_grid(settings)
    check_target(path, schema.SWEEP)
    if dask is not None:
        engine("jaxsppl.sweep.scale").check_address(dask)
    with journal.lock(path):
        if settings.decide is not None and _is_swept(path, settings, order, files):
            result = store.read_sweep(path)
        else:
            sweep = engine("jaxsppl.sweep.api").sweep
            with counted("sweep") as bar, stoppable(bar) as progress:
                result = sweep(
                    [*files],
                    settings.axes(order),
                    chain=order,
                    epsilon=settings.objective.epsilon,
                    tail=settings.objective.tail,
                    level=settings.run.level,
                    memory_mib=settings.run.memory_mib,
                    tolerance=settings.run.tolerance,
                    audit_points=settings.run.audit_points,
                    progress=progress,
                    unfinished=unfinished,
                    dask=dask,
                )
            result = _described(result, settings)
            store.write_dataset(result, path)
        store.remove_arrays(unfinished)
        if settings.decide is not None:
            result = _described(_decided(result, settings, files), settings)
            store.write_dataset(result, path)
    return result


def _described(result: "xr.Dataset", settings: "Config") -> "xr.Dataset":
    """Note the config and its objective."""
    choice = settings.objective.choice()
    kept = "" if choice.is_plain else msgspec.json.encode(choice).decode()
    return result.assign_attrs(choice_json=kept, config_json=config.to_json(settings))


def _decided(result: "xr.Dataset", settings: "Config", files: Sequence[Path]) -> "xr.Dataset":
    """Add what `[decide]` asks for."""
    rules = settings.decide
    if rules is None:
        return result
    presets = presets_of(settings)
    if presets:
        place = engine("jaxsppl.sweep.placed").place_settings
        baseline = engine("jaxsppl.sweep.baselines").Baseline
        named = {name: baseline(one.chain, one.settings) for name, one in presets.items()}
        result = place(result, named, [*files])
    with counted("decide") as bar, stoppable(bar) as progress:
        return engine("jaxsppl.sweep.decide").decide(
            result,
            [*files],
            rules,
            settings.objective.choice(),
            level=settings.run.level,
            memory_mib=settings.run.memory_mib,
            progress=progress,
        )


def presets_of(settings: "Config") -> dict[str, "Preset"]:
    """Read the presets that `[decide]` names.

    Parameters
    ----------
    settings : Config

    Returns
    -------
    dict of str to Preset
    """
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
    return _is_swept(path, settings, order, files) and _decided_the_same_way(
        store.read_contents(path), settings
    )


def _is_swept(path: Path, settings: "Config", order: Sequence[str], files: Sequence[Path]) -> bool:
    """Return whether a sweep file has the config's grid, proven or not."""
    try:
        contents = store.read_contents(path)
        schema.check_sweep(contents, str(path))
    except SchemaError:
        return False
    grid = {name: contents.array(name).tolist() for name in contents.variables["nll"][0][2:]}
    tolerance = float(contents.attrs.get("tolerance", np.inf))
    return (
        list(grid.items()) == list(settings.axes(order).items())
        and tolerance <= settings.run.tolerance
        and _made_the_same_way(contents, settings, order, files)
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
        for name, one in presets_of(settings).items()
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
        own = json.loads(str(attrs.get("user_stages_json", "{}")))
        made_from = sorted(
            (str(entry["model"]), str(entry["dataset"]), str(entry["fingerprint"]))
            for entry in json.loads(str(attrs.get("harvests_json", "[]")))
        )
    except (ValueError, KeyError, TypeError):
        return False
    return (
        attrs.get("version") == jaxsppl.__version__
        and attrs.get("chain") == ",".join(order)
        and own == parameters.user_stages(order)
        and attrs.get("tail") == settings.objective.tail
        and (epsilon == settings.objective.epsilon or "epsilon" in settings.grid)
        and made_from == sorted(harvest_identity(file) for file in files)
    )


def harvest_identity(file: Path) -> tuple[str, str, str]:
    """Return what tells harvests apart: model, dataset, and the fingerprint of the content.

    Parameters
    ----------
    file : Path

    Returns
    -------
    tuple of str
    """
    contents = store.read_contents(file)
    attrs = contents.attrs
    mark = attrs.get("digest") or schema.digest(contents)
    return str(contents.array("model")), str(contents.array("dataset")), str(mark)
