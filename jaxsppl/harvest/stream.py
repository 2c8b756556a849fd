"""A harvest file of any length, written part by part: only one part is in memory."""

import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsppl.atomic import atomic_path
from jaxsppl.contents import Array, digest_of_blocks

if TYPE_CHECKING:
    import xarray as xr

# Rows of a chunk in the file, and numbers that are read back at once.
CHUNK = 4096
BLOCK = 1 << 20


def write_parts(
    parts: "Iterable[xr.Dataset]",
    sizes: Mapping[str, int],
    attrs: Mapping[str, str | int | float],
    path: str | os.PathLike[str],
) -> Path:
    """Write a dataset that comes in parts, as `store.write_dataset` would write the whole.

    Parameters
    ----------
    parts : iterable of xarray.Dataset
        One after another along the dimensions of `sizes`, with the same variables; what has none
        of these dimensions is taken from the first.
    sizes : mapping of str to int
        Total length of each of these dimensions.
    attrs : mapping
        Attributes of the whole.
    path : str or path
        The file.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        When it cannot be written; an existing file then stays as it was.
    """
    import netCDF4

    target = Path(path)
    whole = atomic_path(target, str(attrs.get("schema", "")))
    with whole as temporary, netCDF4.Dataset(temporary, "w") as file:
        begun = dict.fromkeys(sizes, 0)
        for part in parts:
            for key, variable in part.variables.items():
                name = str(key)
                if name not in file.variables:
                    _define(file, part, name, sizes)
                elif not set(sizes) & set(variable.dims):
                    continue
                values = variable.values.astype(object) if variable.dtype.kind in "OU" else variable
                where = tuple(
                    slice(at := begun.get(str(d), 0), at + n) for d, n in variable.sizes.items()
                )
                file.variables[name][where or ...] = np.asarray(values)
            for name in begun:
                begun[name] += part.sizes[name]
        digest = digest_of_blocks(
            (name, variable.dimensions, variable.shape, _blocks(variable))
            for name, variable in file.variables.items()
        )
        file.setncatts({**attrs, "digest": digest, "complete": 1})
    return target


def _define(file: Any, part: "xr.Dataset", name: str, sizes: Mapping[str, int]) -> None:
    """Define one variable as xarray would."""
    variable = part.variables[name]
    for dim, length in variable.sizes.items():
        if dim not in file.dimensions:
            file.createDimension(dim, sizes.get(str(dim), length))
    number = variable.dtype.kind in "fiu"
    packed: dict[str, Any] = {}
    if number and variable.ndim:
        chunks = [min(len(file.dimensions[str(dim)]), CHUNK) for dim in variable.dims]
        packed = {"zlib": True, "complevel": 5, "shuffle": True, "chunksizes": chunks}
    kind = variable.dtype if number else str
    made = file.createVariable(name, kind, variable.dims, fill_value=False, **packed)
    made.set_auto_mask(False)
    if packed:
        made.set_var_chunk_cache(size=4 * BLOCK)  # written in order, so that one chunk is enough
    beside = [
        str(key)
        for key, coord in part.coords.items()
        if key not in part.dims and set(coord.dims) <= set(variable.dims)
    ]
    notes = {"coordinates": " ".join(sorted(beside))} if beside and name in part.data_vars else {}
    made.setncatts({**variable.attrs, **notes})


def _blocks(variable: Any) -> Generator[Array]:
    """Read a variable of an open file block by block."""
    if not variable.shape:
        yield np.asarray(variable[...])
        return
    rows = max(1, BLOCK // max(1, int(np.prod(variable.shape[1:]))))
    for start in range(0, variable.shape[0], rows):
        yield np.asarray(variable[start : start + rows])
