"""What a file is, and whether it is whole: result files, configs, prepared folders.

Neither jax nor xarray is imported, so that the answer comes at once.
"""

import math
import os
from pathlib import Path

import numpy as np

from jaxsppl import config, schema, store
from jaxsppl.errors import SchemaError, suggest
from jaxsppl.plural import plural

_RESULTS = ("*.harvest.nc", "*.sweep.nc", "*.optimum.nc", "*.comparison.nc")


def check(path: str | os.PathLike[str]) -> str:
    """Check a file or folder that jaxsppl reads.

    Parameters
    ----------
    path : str or path
        A harvest, sweep, optimum or comparison file, a sweep config (.toml), a folder of
        passages, or a folder with result files, each of which is then checked.

    Returns
    -------
    str
        What it is, in a few words, with the digest of a result file and what made it.

    Raises
    ------
    SchemaError
        When a file is missing, not whole, or not what it says it is.
    ConfigError
        When a config has a mistake.
    TextError
        When a folder holds nothing that jaxsppl knows.
    """
    place = Path(path)
    if place.is_dir():
        return _check_folder(place)
    if place.suffix == ".toml":
        return _check_config(place)
    contents = store.read_contents(place)
    return "; ".join([_check_result(contents, place), *_made_by(contents)])


def _check_result(contents: schema.Contents, place: Path) -> str:
    """Check a result file."""
    kind = str(contents.attrs.get("schema", ""))
    if kind == schema.HARVEST:
        schema.check_harvest(contents, str(place))
        return (
            f"harvest of '{contents.array('model')}' on '{contents.array('dataset')}', "
            f"{plural(contents.sizes['token'], 'token')} of "
            f"{plural(contents.sizes['document'], 'document')}, "
            f"{plural(contents.sizes['rank'], 'alternative')}"
        )
    if kind == schema.SWEEP:
        schema.check_sweep(contents, str(place))
        dims, nll = contents.variables["nll"]
        points = int(np.prod(nll.shape[2:], dtype=np.int64))
        pairs = int((contents.array("n_token") > 0).sum())
        axes = ", ".join(dims[2:]) or "nothing"
        return f"sweep over {axes}: {plural(points, 'point')}, {plural(pairs, 'harvest')}"
    if kind == schema.OPTIMUM:
        schema.check_optimum(contents, str(place))
        names = ", ".join(str(name) for name in contents.array("parameter").tolist())
        return f"optimum over {names} from {plural(contents.sizes['start'], 'start')}"
    if kind == schema.COMPARISON:
        schema.check_comparison(contents, str(place))
        models, settings = (plural(contents.sizes[dim], dim) for dim in ("model", "setting"))
        return f"comparison of {models} under {settings}"
    if not kind:
        raise SchemaError(f"{place}: it has no attribute 'schema'; jaxsppl did not write it")
    kinds = (schema.HARVEST, schema.SWEEP, schema.OPTIMUM, schema.COMPARISON)
    raise SchemaError(f"{place}: its schema '{kind}' is not known; {suggest(kind, kinds)}")


def _made_by(contents: schema.Contents) -> list[str]:
    """Return what tells a file from others, and what made it."""
    known = (
        ("digest", "SHA-256 of the values"),
        ("version", "jaxsppl"),
        ("jax_version", "JAX"),
    )
    attrs = contents.attrs
    return [f"{words} {attrs[name]}" for name, words in known if attrs.get(name)]


def _check_folder(folder: Path) -> str:
    """Check a folder of passages, or every result file of a folder."""
    from jaxsppl.texts.folder import load_passages

    files = sorted(file for pattern in _RESULTS for file in folder.glob(pattern))
    if not files:
        passages = load_passages(folder)
        return f"{plural(len(passages), 'passage')} of '{passages[0].dataset}'"
    for file in files:
        check(file)
    return plural(len(files), "result file")


def _check_config(file: Path) -> str:
    """Check a sweep config."""
    from jaxsppl.texts.prepare import check_name

    found = config.load(file)
    for name in found.texts.datasets:
        check_name(name)
    grids = [found.axes(order) for order in found.orders().values()]
    grids = grids if found.chain.own_axes else grids[:1]
    points = sum(math.prod(len(values) for values in grid.values()) for grid in grids)
    parts = [f"{plural(points, 'point')} over {', '.join(found.grid)}"] if found.grid else []
    parts += [
        f"order {name + ' ' if name else ''}({', '.join(order) or 'empty'})"
        for name, order in found.orders().items()
    ]
    parts += [f"datasets {', '.join(found.texts.datasets)}"] if found.texts.datasets else []
    return f"config '{found.name}': {'; '.join(parts)}"
