"""Blocks of tokens over the local devices: each device sums its own tokens, then the sums add up.

With one device nothing is changed. With several, a block is as many times longer and its token
axis is sharded: programs over tokens are split by the compiler, and node sums have one buffer a
device, so that numbers move between devices only once, at the end.
"""

from collections.abc import Iterator
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsppl.sampling import binned
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.nodes import Spread

_TOKEN = "token"


def device_count() -> int:
    """Return the number of local devices, which share the tokens of a block.

    Returns
    -------
    int
    """
    return len(jax.local_devices())


@lru_cache(maxsize=1)
def _mesh() -> Mesh:
    """Return the local devices in a row."""
    return jax.make_mesh(
        (device_count(),), (_TOKEN,), (AxisType.Auto,), devices=jax.local_devices()
    )


def _sharding(*axes: str | None) -> NamedSharding:
    """Return how an array lies over the devices; without axes every device has all of it."""
    return NamedSharding(_mesh(), PartitionSpec(*axes))


def shared(blocks: Iterator[Candidates]) -> Iterator[Candidates]:
    """Lay the tokens of blocks over the devices.

    Parameters
    ----------
    blocks : iterator of Candidates
        Of a length that the number of devices divides.

    Yields
    ------
    Candidates
    """
    for block in blocks:
        if device_count() == 1:
            yield block
            continue
        n_token = block.weight.size
        # All but the cells of the tail, which are fewer than any block has tokens.
        yield jax.tree.map(
            lambda leaf, n=n_token: jax.device_put(
                leaf, _sharding(_TOKEN) if leaf.shape[:1] == (n,) else _sharding()
            ),
            block,
        )


class NodeSums:
    """The sums of level `binned` that a chunk of rows collects from its blocks of tokens.

    Parameters
    ----------
    n_row, n_scenario, n_node : int
        Rows of the chunk, scenarios of the tail, and nodes.
    """

    def __init__(self, n_row: int, n_scenario: int, n_node: int) -> None:
        self._n_node = n_node
        place = {"device": _sharding(_TOKEN)} if device_count() > 1 else {}
        many = device_count()
        self._total = jnp.zeros(many * n_row * n_scenario * n_node, jnp.float32, **place)
        self._cut = jnp.zeros((many * n_row, n_scenario), jnp.float32, **place)

    def add(self, where: Spread, which: Array) -> None:
        """Add a block.

        Parameters
        ----------
        where, which
            As `binned.spread_rows` gives them.
        """
        add = binned.accumulate if device_count() == 1 else _accumulate_shared
        self._total, self._cut = add(self._total, self._cut, where, which, n_node=self._n_node)
        jax.block_until_ready(self._cut)

    def all(self) -> tuple[Array, Array]:
        """Return what `binned.accumulate` would have collected on one device.

        Returns
        -------
        tuple of Array
            Node sums and tokens below epsilon whatever the draw, on the first device.
        """
        many = device_count()
        if many == 1:
            return self._total, self._cut
        sums = _over_devices(self._total, many), _over_devices(self._cut, many)
        return jax.device_put(sums, jax.local_devices()[0])


@lru_cache(maxsize=8)
def _shared_program(n_node: int) -> jax.stages.Wrapped:
    """Return `binned.accumulate` with the tokens and the sums split over the devices."""
    tokens = PartitionSpec(None, None, None, _TOKEN)
    own = PartitionSpec(_TOKEN)

    def add(total: Array, cut: Array, where: Spread, which: Array) -> tuple[Array, Array]:
        return binned.accumulate(total, cut, where, which, n_node=n_node)

    program = jax.shard_map(
        add,
        mesh=_mesh(),
        in_specs=(own, own, tokens, tokens),
        out_specs=(own, own),
    )
    return jax.jit(program, donate_argnums=(0, 1))


def _accumulate_shared(
    total: Array, cut: Array, where: Spread, which: Array, *, n_node: int
) -> tuple[Array, Array]:
    """Do as `binned.accumulate`, on every device for its own tokens."""
    return _shared_program(n_node)(total, cut, where, which)


@partial(jax.jit, static_argnames="many")
def _over_devices(values: Array, many: int) -> Array:
    """Return the sum of what each device holds."""
    return values.reshape(many, -1, *values.shape[1:]).sum(axis=0)
