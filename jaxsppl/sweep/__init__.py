"""Harvests and a grid -> plan -> engine -> audited result file; optimize.

Called as `jaxsppl.sweep(...)` it is `jaxsppl.sweep.api.sweep`.
"""

from jaxsppl.callable_package import make_callable

make_callable(__name__, "jaxsppl.sweep.api", "sweep")
