"""The only reading and writing of result files: NetCDF, checked when it is opened."""

import contextlib
import glob
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from jaxsppl import schema
from jaxsppl.atomic import NETCDF, atomic_path
from jaxsppl.errors import ConfigError, MissingFileError, SchemaError

if TYPE_CHECKING:
    import xarray as xr

    Harvests: TypeAlias = (
        str | os.PathLike[str] | xr.Dataset | Iterable[str | os.PathLike[str] | xr.Dataset]
    )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, without translating line ends.

    Parameters
    ----------
    path : Path
        The file.
    text : str
        Its content.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_dataset(dataset: "xr.Dataset", path: str | os.PathLike[str]) -> Path:
    """Write a dataset atomically as NetCDF, with the digest of its values and `complete = 1`.

    Parameters
    ----------
    dataset : xarray.Dataset
        Its attributes hold strings and numbers only.
    path : str or path
        The file; an existing one is replaced in one step, also while another process reads it.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        When it cannot be written, or a file of another kind is there, which stays as it was.
    """
    target = Path(path)
    encoding: dict[str, dict[str, Any]] = {
        str(name): {"zlib": True, "complevel": 5, "shuffle": True}
        for name, variable in dataset.variables.items()
        if variable.ndim and variable.dtype.kind in "fiu"
    }
    for name in dataset.variables:
        encoding.setdefault(str(name), {})["_FillValue"] = None
    marked = dataset.assign_attrs(digest=schema.digest(contents_of(dataset)), complete=1)
    with atomic_path(target, str(marked.attrs.get("schema", NETCDF))) as temporary:
        marked.to_netcdf(temporary, engine="netcdf4", format="NETCDF4", encoding=encoding)
    return target


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write plain arrays, for results that are not finished; atomic.

    Parameters
    ----------
    path : Path
        The file.
    arrays : mapping of str to array
    """
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def read_arrays(path: Path) -> dict[str, schema.Array] | None:
    """Read what `write_arrays` wrote; None where there is no such file or it is not whole.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict of str to array, or None
    """
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def remove_arrays(folder: Path) -> None:
    """Remove a folder of such files; what else lies there stays.

    Parameters
    ----------
    folder : Path
        It need not exist.
    """
    for file in folder.glob("*.npz"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()


def contents_of(dataset: "xr.Dataset") -> schema.Contents:
    """Return a dataset as plain arrays.

    Parameters
    ----------
    dataset : xarray.Dataset

    Returns
    -------
    schema.Contents
    """
    variables = {
        str(name): (tuple(str(d) for d in variable.dims), np.asarray(variable.values))
        for name, variable in dataset.variables.items()
    }
    return schema.Contents({str(k): v for k, v in dataset.sizes.items()}, variables, dataset.attrs)


def read_contents(path: str | os.PathLike[str]) -> schema.Contents:
    """Read a NetCDF file into plain arrays, without xarray.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    schema.Contents

    Raises
    ------
    MissingFileError
        When it does not exist.
    SchemaError
        When it is not a readable NetCDF file.
    """
    import netCDF4

    name = Path(path)
    if name.is_dir():
        raise MissingFileError(f"{name}: it is a folder; name a file in it")
    if not name.is_file():
        raise MissingFileError(f"{name}: there is no such file; make it first, or name another")
    try:
        with netCDF4.Dataset(name, "r") as file:
            file.set_auto_mask(False)
            sizes = {key: len(dim) for key, dim in file.dimensions.items()}
            variables: dict[str, tuple[tuple[str, ...], schema.Array]] = {
                key: (tuple(variable.dimensions), np.asarray(variable[...]))
                for key, variable in file.variables.items()
            }
            attrs = {key: file.getncattr(key) for key in file.ncattrs()}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"{name}: it is not a readable NetCDF file ({error}); give a file that jaxsppl wrote"
        ) from error
    return schema.Contents(sizes, variables, attrs)


def to_dataset(contents: schema.Contents, schema_variables: Iterable[str] = ()) -> "xr.Dataset":
    """Return plain arrays as a labelled dataset.

    Parameters
    ----------
    contents : schema.Contents
        The file.
    schema_variables : iterable of str
        Variables that are coordinates though they are no dimension.

    Returns
    -------
    xarray.Dataset
    """
    import xarray as xr

    scalar = set(schema_variables)
    coords = {
        key: _labels(dims, values)
        for key, (dims, values) in contents.variables.items()
        if dims == (key,) or key in scalar
    }
    data = {
        key: _labels(dims, values)
        for key, (dims, values) in contents.variables.items()
        if key not in coords
    }
    return xr.Dataset(data, coords=coords, attrs=dict(contents.attrs))


def _opened(contents: schema.Contents, schema_variables: Iterable[str] = ()) -> "xr.Dataset":
    """Return a checked file without its digest: a slice is whole too, and has another one."""
    dataset = to_dataset(contents, schema_variables)
    dataset.attrs.pop("digest", None)
    return dataset


def _labels(dims: tuple[str, ...], values: schema.Array) -> "xr.Variable":
    """Return a variable; text read as objects becomes fixed-width strings."""
    import xarray as xr

    return xr.Variable(dims, values.astype(str) if values.dtype.kind in "OS" else values)


def read_harvest(path: str | os.PathLike[str]) -> "xr.Dataset":
    """Read and check one harvest file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    xarray.Dataset
        In memory; the file is closed.

    Raises
    ------
    SchemaError
        When it is not a whole harvest.
    """
    contents = read_contents(path)
    schema.check_harvest(contents, str(path))
    return _opened(contents, schema.HARVEST_COORDS).assign_attrs(source=str(path))


def read_sweep(path: str | os.PathLike[str]) -> "xr.Dataset":
    """Read and check one sweep file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    SchemaError
        When it is not a whole sweep.
    """
    contents = read_contents(path)
    schema.check_sweep(contents, str(path))
    return _opened(contents)


def expand(pattern: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a path, a folder or a glob, sorted.

    Parameters
    ----------
    pattern : str or path
        ``out/*.harvest.nc``, ``out`` (its harvest files) or one file.

    Returns
    -------
    list of Path

    Raises
    ------
    MissingFileError
        When nothing matches.
    """
    text = os.fspath(pattern)
    found = sorted(Path(name) for name in glob.glob(text, recursive=True))  # noqa: PTH207
    if len(found) == 1 and found[0].is_dir():
        found = sorted(found[0].glob("*.harvest.nc"))
    if not found:
        raise MissingFileError(f"no harvest file matches '{text}'; harvest first or name the files")
    return found


def open_harvest(source: "Harvests") -> "xr.Dataset | list[xr.Dataset]":
    """Open harvest files as checked labelled datasets.

    Parameters
    ----------
    source : str, path, xarray.Dataset, or an iterable of these
        A file, a folder, a glob, or datasets that are already open.

    Returns
    -------
    xarray.Dataset or list of xarray.Dataset
        One dataset (dims ``token, rank, document``; log-probabilities in nat) when the source
        stands for one, else a list.

    Raises
    ------
    MissingFileError
        When nothing matches.
    SchemaError
        When a file breaks its schema.
    ConfigError
        When nothing is given, something else, or one (model, dataset) twice.

    Examples
    --------
    >>> import jaxsppl
    >>> harvest = jaxsppl.open_harvest("out/smollm2.prose.harvest.nc")  # doctest: +SKIP
    """
    datasets = harvests(source)
    return datasets[0] if len(datasets) == 1 else datasets


def harvests(source: "Harvests") -> "list[xr.Dataset]":
    """Open harvests as `open_harvest` does, always as a list.

    Parameters
    ----------
    source : str, path, xarray.Dataset, or an iterable of these

    Returns
    -------
    list of xarray.Dataset

    Raises
    ------
    MissingFileError, SchemaError, ConfigError
        As `open_harvest`.
    """
    import xarray as xr

    one = (str, os.PathLike, xr.Dataset)
    many = isinstance(source, Iterable) and not isinstance(source, Mapping)
    entries = [source] if isinstance(source, one) or not many else list(source)
    datasets: list[xr.Dataset] = []
    for entry in entries:
        if not isinstance(entry, one):
            raise ConfigError(
                f"a {type(entry).__name__} is no harvest; give a file's name, a dataset, or a list"
            )
        if isinstance(entry, xr.Dataset):
            schema.check_harvest(contents_of(entry), str(entry.attrs.get("source", "dataset")))
            datasets.append(entry)
        else:
            datasets.extend(read_harvest(path) for path in expand(entry))
    if not datasets:
        raise ConfigError("no harvest was given; name at least one file or dataset")
    pairs = [(str(d["model"].values), str(d["dataset"].values)) for d in datasets]
    for pair in pairs:
        if pairs.count(pair) > 1:
            raise ConfigError(
                f"two harvests are of model '{pair[0]}' on dataset '{pair[1]}'; give one"
            )
    return datasets


def safe_name(text: str) -> str:
    """Return a name that is safe as a file name everywhere.

    Parameters
    ----------
    text : str
        A model or dataset name, for example ``ollama://deepseek-r1:7b``.

    Returns
    -------
    str
        Letters, digits, ``. _ -`` only, never empty, hidden or a path; texts that would fall
        together get a short hash.
    """
    import hashlib
    import re

    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:100]
    if cleaned == text:
        return cleaned
    return f"{cleaned or 'name'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def fingerprint(value: Any, encode: Callable[[Any], Any] | None = None) -> str:
    """Return a digest of what changes the numbers of a run.

    Parameters
    ----------
    value : JSON value
        Nested mappings, lists, strings, numbers.
    encode : callable, optional
        Turns other objects into JSON values.

    Returns
    -------
    str
        16 hexadecimal digits; the order of keys does not matter.
    """
    import hashlib

    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, default=encode)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
