"""What a sweep will do, settled before anything is computed: level, blocks, chunks, bytes."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxsppl import parameters
from jaxsppl.errors import ConfigError, PlanError, suggest
from jaxsppl.sweep.data import TokenArrays

LEVELS = ("auto", "factored", "direct")
_MIB = 2**20

# Arrays of one (scenario, token, point) shape that are alive at once, as measured.
_TEMPORARIES = 14
# Nanoseconds a (scenario, token, point), and a (token, point) of the direct level; for `seconds`.
_NS = {"factored": 40.0, "direct": 3000.0}


@dataclass(frozen=True)
class Axis:
    """A swept parameter and its values."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """A sweep before it is computed; the engine executes exactly this.

    Attributes
    ----------
    axes : tuple of Axis
        In the order of the result's dimensions.
    chain : tuple of str
        Stages, first applied first.
    epsilon : float
        Smallest probability that counts as itself, unless `epsilon` is an axis.
    tail : str
        "bound" or "drop".
    level : str
        Engine level.
    why : str
        Why this level.
    models, datasets : tuple of str
        Labels of the result.
    n_token : int
        Tokens of all harvests.
    n_pair : int
        Harvests.
    block : int
        Tokens that are computed at once.
    order : tuple of str
        Axes as the engine nests them, slowest first.
    chunk : tuple of int
        Points along each of `order` that are computed at once.
    result_bytes, work_bytes : int
        Size of the result and of what is alive while it is computed [byte].
    """

    axes: tuple[Axis, ...]
    chain: tuple[str, ...]
    epsilon: float
    tail: str
    level: str
    why: str
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    n_token: int
    n_pair: int
    block: int
    order: tuple[str, ...]
    chunk: tuple[int, ...]
    result_bytes: int
    work_bytes: int

    @property
    def n_point(self) -> int:
        """Points of the grid."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def n_chunk(self) -> int:
        """Chunks that the grid is cut into."""
        sizes = {axis.name: len(axis.values) for axis in self.axes}
        return math.prod(
            math.ceil(sizes[name] / step) for name, step in zip(self.order, self.chunk, strict=True)
        )

    @property
    def seconds(self) -> float:
        """Expected time on two cores [s]; an order of magnitude, for the decision to start."""
        scenarios = 3 if self.tail == "bound" else 1
        return self.n_point * self.n_token * scenarios * _NS[self.level] * 1e-9

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            **asdict(self),
            "n_point": self.n_point,
            "n_chunk": self.n_chunk,
            "seconds": self.seconds,
        }

    def text(self) -> str:
        """Return the plan in words."""
        axes = "\n".join(
            f"  {axis.name:<16} {len(axis.values):>6}   {axis.values[0]:g} .. {axis.values[-1]:g}"
            for axis in self.axes
        )
        return (
            f"points    {self.n_point:,} of each of {self.n_pair} harvest(s), "
            f"{self.n_token:,} tokens\n"
            f"axes\n{axes}\n"
            f"chain     {' -> '.join(self.chain) or '(empty)'} -> draw\n"
            f"objective epsilon {self.epsilon:g}, tail '{self.tail}'\n"
            f"level     {self.level}: {self.why}\n"
            f"blocks    {self.block:,} tokens x {math.prod(self.chunk):,} points, "
            f"{self.n_chunk:,} chunk(s) of the grid\n"
            f"memory    {self.work_bytes / _MIB:,.0f} MiB at work, "
            f"{self.result_bytes / _MIB:,.1f} MiB result\n"
            f"time      about {self.seconds:.2g} s on two cores"
        )


def make_plan(
    harvests: Sequence[TokenArrays],
    axes: Sequence[Axis],
    *,
    chain: Sequence[str] | None,
    epsilon: float,
    tail: str,
    level: str,
    memory_mib: int,
) -> Plan:
    """Settle how a sweep is computed.

    Parameters
    ----------
    harvests : sequence of TokenArrays
        The data.
    axes : sequence of Axis
        Swept parameters.
    chain : sequence of str or None
        Order of the stages; None is llama.cpp's of what is swept.
    epsilon : float
        Smallest probability that counts as itself.
    tail : str
        "bound" or "drop".
    level : str
        One of `LEVELS`.
    memory_mib : int
        Memory that the computation and the result may take [MiB].

    Returns
    -------
    Plan

    Raises
    ------
    ConfigError
        For an unknown level or stage, or a chain without a swept parameter's stage.
    PlanError
        When the result does not fit the memory.
    """
    names = [axis.name for axis in axes]
    order = parameters.default_order(names) if chain is None else chain
    stages = parameters.check_order(order, names)
    if level not in LEVELS:
        raise ConfigError(f"level: there is no level '{level}'; {suggest(level, LEVELS)}")
    models = tuple(dict.fromkeys(tokens.model for tokens in harvests))
    datasets = tuple(dict.fromkeys(tokens.dataset for tokens in harvests))
    scenarios = 3 if tail == "bound" else 1
    n_point = math.prod(len(axis.values) for axis in axes)
    variables = 4 if tail == "bound" else 2
    result_bytes = 8 * variables * n_point * len(models) * len(datasets)
    if result_bytes > memory_mib * _MIB // 2:
        largest = max(axes, key=lambda axis: len(axis.values))
        raise PlanError(
            f"the grid has {n_point:,} points for {len(models) * len(datasets)} pair(s) of "
            f"model and dataset: the result takes {result_bytes / _MIB:,.0f} MiB, more than half "
            f"of the {memory_mib} MiB allowed; thin an axis (the longest is {largest.name} with "
            f"{len(largest.values)}) or raise memory_mib to {2 * result_bytes // _MIB + 1}"
        )
    most = max(tokens.n_token for tokens in harvests)
    widest = max(tokens.n_rank for tokens in harvests)
    budget = memory_mib * _MIB - result_bytes
    # Each token alone costs its ranks, prefix sums from both sides and the cells of the tail.
    fixed = 8 * (8 * widest + 400)
    block = 64
    while block < 512 and block < most and 2 * block * fixed < budget // 4:
        block *= 2
    a_point = 8 * scenarios * block * _TEMPORARIES
    room = max(1, (budget - block * fixed) // a_point)
    chosen, why = _level(level)
    nested = _nesting(stages, names)
    chunk = _chunk([len(axes[names.index(name)].values) for name in nested], min(room, 16384))
    return Plan(
        axes=tuple(axes),
        chain=stages,
        epsilon=epsilon,
        tail=tail,
        level=chosen,
        why=why,
        models=models,
        datasets=datasets,
        n_token=sum(tokens.n_token for tokens in harvests),
        n_pair=len(harvests),
        block=block,
        order=nested,
        chunk=chunk,
        result_bytes=result_bytes,
        work_bytes=block * fixed + a_point * math.prod(chunk),
    )


def _level(level: str) -> tuple[str, str]:
    """Return the level and the reason."""
    if level == "auto":
        return "factored", "exact for each token"
    return level, "as asked"


def _nesting(stages: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the axes slowest first: the chain's in its order, then the draw's, then epsilon."""
    last = ["alpha", "beta", "epsilon"]

    def place(name: str) -> int:
        if name in last:
            return len(stages) + last.index(name)
        return stages.index(parameters.parameter(name).stage)

    return tuple(sorted(names, key=place))


def _chunk(sizes: Sequence[int], room: int) -> tuple[int, ...]:
    """Cut the slow axes until a chunk has at most `room` points, in pieces of equal length."""
    chunk: list[int] = []
    for size in reversed(sizes):
        step = max(1, min(size, room))
        pieces = math.ceil(size / step)
        step = math.ceil(size / pieces)
        chunk.append(step)
        room //= step
    return tuple(reversed(chunk))
