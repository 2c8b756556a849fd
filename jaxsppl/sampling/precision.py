"""Double precision for a block of code, without touching JAX's global switch."""

from contextlib import AbstractContextManager
from typing import Any

import jax
from jax import experimental


def float64() -> AbstractContextManager[Any]:
    """Return a context manager inside which JAX computes in 64 bits (this thread only).

    JAX moved the manager from `jax.experimental` to its top level; both places are handled, and
    the process-wide flag stays as the caller set it. Arrays made inside keep their type outside,
    but every operation on them has to happen inside.

    Returns
    -------
    AbstractContextManager
        Enter it with `with float64(): ...`.
    """
    manager: Any = getattr(jax, "enable_x64", None)
    if manager is None:  # older JAX
        manager = getattr(experimental, "enable_x64", None)
    return manager(True)
