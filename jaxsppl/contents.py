"""A result file as plain arrays with named dimensions, and the digest that tells it from others."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Contents:
    """A file as plain arrays with named dimensions.

    Attributes
    ----------
    sizes : mapping of str to int
        Length of each dimension.
    variables : mapping of str to (dims, array)
        Data variables and coordinates alike.
    attrs : mapping of str to str, int or float
        Global attributes.
    """

    sizes: Mapping[str, int]
    variables: Mapping[str, tuple[tuple[str, ...], Array]]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def array(self, name: str) -> Array:
        """Return the values of one variable."""
        return self.variables[name][1]


def digest(contents: Contents) -> str:
    """Return the SHA-256 over names, dims, shapes and values of every variable.

    Parameters
    ----------
    contents : Contents
        The file; attributes do not count.

    Returns
    -------
    str
        Hexadecimal digest; it does not depend on the byte order, chunking or compression.
    """
    return digest_of_blocks(
        (name, dims, values.shape, [values]) for name, (dims, values) in contents.variables.items()
    )


Blocks = tuple[str, tuple[str, ...], tuple[int, ...], Iterable[Array]]


def digest_of_blocks(variables: Iterable[Blocks]) -> str:
    """Return the digest of variables whose values come in blocks along their first dimension.

    Parameters
    ----------
    variables : iterable of (name, dims, shape, blocks)

    Returns
    -------
    str
    """
    total = hashlib.sha256()
    for name, dims, shape, blocks in sorted(variables, key=lambda variable: variable[0]):
        total.update(f"{name}{dims}{shape}".encode())
        between = b""
        for values in blocks:
            if values.dtype.kind in "OUS":
                total.update(between)
                total.update("\0".join(str(value) for value in values.ravel().tolist()).encode())
                between = b"\0"
            else:
                little = values.astype(values.dtype.newbyteorder("<"), copy=False)
                total.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
    return total.hexdigest()
