"""The network half: servers, requests, journal -> harvest files. Never imports jax.

Called as `jaxsppl.harvest(...)` it is `jaxsppl.harvest.runner.harvest`.
"""

from jaxsppl.callable_package import make_callable

make_callable(__name__, "jaxsppl.harvest.runner", "harvest")
