"""Let `jaxsppl.sweep` and `jaxsppl.harvest` be a room of the house and its main verb at once.

Importing `jaxsppl.sweep.engine` makes Python set the attribute `sweep` of `jaxsppl` to the package,
whatever stood there before. A plain function of the same name would therefore be replaced by the
package as soon as anything in it is imported. So the package itself answers calls: there is one
object, the order of imports does not matter, and `import jaxsppl.sweep.engine as engine` works.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, verb: str) -> None:
    """Make calls of a package go to one of its functions, which is imported at the first call.

    Parameters
    ----------
    package : str
        Full name of the package, which is being imported.
    module : str
        Full name of the module that holds the function.
    verb : str
        The function's name.
    """

    class CallablePackage(ModuleType):
        """A package that is called as its main function."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module), verb)(*args, **kwargs)

        @property
        def __signature__(self) -> inspect.Signature:
            """Return the function's signature, for help() and editors."""
            return inspect.signature(getattr(importlib.import_module(module), verb))

    sys.modules[package].__class__ = CallablePackage
