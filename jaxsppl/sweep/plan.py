"""What a sweep will do, settled before anything is computed: level, blocks, chunks, bytes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from jaxsppl import parameters, schema
from jaxsppl.errors import ConfigError, PlanError, suggest
from jaxsppl.sampling import collocation
from jaxsppl.sampling.binned import BATCH
from jaxsppl.sampling.nodes import Layout, layout
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.rows import split
from jaxsppl.sampling.stages import keeps_interval
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.workers import worker_count

LEVELS = ("auto", "binned", "factored", "direct")
DRAW = ("alpha", "beta", "epsilon")
_MIB = 2**20

# Told how many (token, point) pairs a step has done; and those done so far and in all.
Advance = Callable[[int], None]
Progress = Callable[[int, int], None]

# Arrays of one (scenario, token, point) shape that are alive at once, as measured.
_TEMPORARIES = 14
# Bytes of indices and weights that spreading one interval takes.
_SPREAD = 320
# Bytes that the product takes for a draw, of a row and of each node that is multiplied at once; and
# the draws beyond which nothing is gained when more are taken at once.
_DRAW, _MOST_DRAWS = 16, 8192
# Bytes that a node value takes while it is made.
_VALUE = 8

# Nanoseconds on one core, for the choice of the level and the expected time: a Beta mass, an
# interval, a token by the definition; at level binned the ranks of a token at one temperature, an
# interval spread over nodes, a row that takes it; and operations a nanosecond of the product, whose
# rows reach about a sixth of the nodes with an interval that some draw clips.
_NS_MASS, _NS_INTERVAL, _NS_DIRECT = 110.0, 60.0, 1700.0
_NS_RANKS, _NS_SPREAD, _NS_ROW = 1500.0, 120.0, 20.0
_FLOPS, _REACHED = 80.0, 6
# Parts of a sweep are kept as they are done, so about so much time is lost when it is stopped.
_PART_SECONDS = 20.0


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
    n_draw_axis : int
        How many axes at the end of `order` belong to the draw and the objective.
    n_draw, draws : int
        Draws (alpha x beta x epsilon) in all, and those whose node values are held at once.
    nodes : Layout or None
        Nodes of level "binned".
    shard : int
        Tokens whose prepared blocks stay in memory for all chunks of rows; sums add over shards.
    rows : int
        Values of the slowest axis in a part: what is computed, kept or sent as a whole.
    workers : int
        Threads.
    result_bytes, work_bytes : int
        Size of the result and of what is alive while it is computed [byte].
    seconds : float
        Expected time [s]; an order of magnitude, for the decision to start.
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
    n_draw_axis: int
    n_draw: int
    draws: int
    nodes: Layout | None
    shard: int
    rows: int
    workers: int
    result_bytes: int
    work_bytes: int
    seconds: float

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
    def n_scenario(self) -> int:
        """Tails that are evaluated: the estimate and its brackets, or one."""
        return 3 if self.tail == "bound" else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            **asdict(self),
            "n_point": self.n_point,
            "n_chunk": self.n_chunk,
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
            f"time      about {self.seconds:.2g} s on {self.workers} thread(s)"
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
    refine: float = 1.0,
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
    refine : float
        How much finer the nodes of level "binned" are than by default.

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
    result_bytes, held = _held(axes, n_point, len(models) * len(datasets), scenarios, memory_mib)
    nested, n_draw_axis = _nesting(stages, names)
    sizes = [len(axes[names.index(name)].values) for name in nested]
    counts = _row_counts(stages, axes)
    budget = memory_mib * _MIB - held
    is_one = keeps_interval(stages, names)
    if level == "binned" and not is_one:
        raise ConfigError(
            "level: 'binned' needs a chain that keeps an interval of ranks, and xtc mixes two; use "
            "'auto' or 'factored'"
        )
    nodes = _nodes(axes, epsilon, refine) if level in ("auto", "binned") and is_one else None
    n_draw = n_point // counts[0]
    draws, n_value = (0, 0) if nodes is None else _draws(axes, epsilon, nodes, budget // 3)
    n_token = sum(tokens.n_token for tokens in harvests)
    workers = worker_count()
    seconds = _seconds(n_token, len(harvests), counts, n_draw, draws, n_value, scenarios, nodes)
    chosen, why = _choose(level, seconds, nodes)
    nodes = nodes if chosen == "binned" else None
    most = max(tokens.n_token for tokens in harvests)
    # Each token alone costs its ranks, prefix sums from both sides and the cells of the tail.
    a_token = 8 * (8 * max(tokens.n_rank for tokens in harvests) + 400)
    block = _block(most, budget // 4 // a_token)
    # Prepared, it is its log-probabilities and a few numbers more.
    stored = 8 * (max(tokens.n_rank for tokens in harvests) + 20)
    shard = min(most, max(1, budget // 4 // (stored * block)) * block)
    budget -= shard * stored
    if nodes is None:
        a_point = 8 * scenarios * block * _TEMPORARIES
        chunk = _chunk(sizes, min(max(1, (budget - block * a_token) // a_point), 16384))
        chunk, ranks = _cap_temperature(nested, chunk, block * a_token // 2, budget // 2)
        at_work = max(a_point * math.prod(chunk), ranks)
    else:
        a_row = scenarios * (4 * nodes.n_node + block * _SPREAD + _DRAW * draws)
        table = _VALUE * n_value + workers * _DRAW * BATCH * draws
        room = (budget - block * a_token - table) // (2 * workers * a_row)
        rows = sizes[: len(sizes) - n_draw_axis]
        # Enough rows to share a token's exponentials, few enough for the processor's caches.
        chunk = (*_chunk(rows, max(1, min(room, 128))), *sizes[len(rows) :])
        each = (budget - table) // (2 * workers)
        chunk, ranks = _cap_temperature(nested, chunk, block * a_token // 2, each)
        at_work = table + workers * max(a_row * math.prod(chunk[: len(rows)]), ranks)
    return Plan(
        axes=tuple(axes),
        chain=stages,
        epsilon=epsilon,
        tail=tail,
        level=chosen,
        why=why,
        models=models,
        datasets=datasets,
        n_token=n_token,
        n_pair=len(harvests),
        block=block,
        order=nested,
        chunk=chunk,
        n_draw_axis=n_draw_axis,
        n_draw=n_draw,
        draws=draws,
        nodes=nodes,
        workers=workers,
        shard=shard,
        rows=_rows(sizes, n_draw_axis, chosen, seconds[chosen] / workers * shard / n_token),
        result_bytes=result_bytes,
        work_bytes=block * a_token + shard * stored + (held - result_bytes) + at_work,
        seconds=seconds[chosen] / workers,
    )


def _block(n_token: int, room: int) -> int:
    """Return how many tokens are computed at once, of those that there are and have room."""
    each = len(jax.local_devices())
    most = each * (512 if jax.default_backend() == "cpu" else 8192)
    block = 64 * each
    while block < min(n_token, most) and 2 * block <= room:
        block *= 2
    return block


def _rows(sizes: Sequence[int], n_draw_axis: int, level: str, seconds: float) -> int:
    """Return how many values of the slowest axis make a part of a grid that takes so long."""
    if level == "binned" and n_draw_axis == len(sizes):
        return sizes[0]
    return math.ceil(sizes[0] / math.ceil(max(seconds, 1.0) / _PART_SECONDS))


def _seconds(
    n_token: int,
    n_harvest: int,
    rows: tuple[int, int, int],
    n_draw: int,
    draws: int,
    n_value: int,
    scenarios: int,
    nodes: Layout | None,
) -> dict[str, float]:
    """Return the expected time of each level on one core [s].

    `rows` are the rows, the combinations of their outer axes, and the distinct cuts of each.
    """
    n_row, n_outer, n_cut = rows
    pairs = scenarios * n_token
    n_point = n_row * n_draw
    seconds = {
        "direct": n_token * n_point * _NS_DIRECT,
        "factored": pairs * (n_point * _NS_MASS + n_row * _NS_INTERVAL),
    }
    if nodes is not None:
        parts = math.ceil(n_draw / draws)
        spreading = n_outer * (_NS_RANKS + n_cut * _NS_SPREAD) + n_row * _NS_ROW
        reached = n_row * scenarios * nodes.n_node / _REACHED
        product = 4.0 * n_harvest * reached * n_draw / _FLOPS
        tables = n_value * _NS_MASS * (1 if parts == 1 else parts * n_harvest)
        seconds["binned"] = product + pairs * parts * spreading + tables
    return {level: 1e-9 * value for level, value in seconds.items()}


def _row_counts(stages: Sequence[str], axes: Sequence[Axis]) -> tuple[int, int, int]:
    """Return the rows, the combinations of their outer axes, and the distinct cuts of each."""
    sizes = {axis.name: len(axis.values) for axis in axes if axis.name not in DRAW}
    _, independent = split(stages, list(sizes))
    n_row = math.prod(sizes.values())
    inner = [sizes[name] for name in independent]
    return n_row, n_row // math.prod(inner), 1 + sum(inner)


def _held(
    axes: Sequence[Axis], n_point: int, n_pair: int, scenarios: int, memory_mib: int
) -> tuple[int, int]:
    """Return the size of the result, and of it with one harvest's sums [byte], or refuse it."""
    result = 8 * (scenarios // 3 * 2 + 2) * n_point * n_pair
    held = result + 8 * (scenarios + 5) * n_point
    if held > memory_mib * _MIB * 3 // 4:
        largest = max(axes, key=lambda axis: len(axis.values))
        raise PlanError(
            f"the grid has {n_point:,} points for {n_pair} pair(s) of model and dataset: its "
            f"result and sums take {held / _MIB:,.0f} MiB of the {memory_mib} MiB allowed; thin "
            f"an axis (the longest is {largest.name} with {len(largest.values)}) or raise "
            f"memory_mib to {held * 4 // 3 // _MIB + 1}"
        )
    return result, held


def draw_axes(
    axes: Sequence[Axis], epsilon: float
) -> tuple[schema.Array, schema.Array, schema.Array]:
    """Return the values of alpha, beta and epsilon of a grid.

    Parameters
    ----------
    axes : sequence of Axis
        Of the grid.
    epsilon : float
        For a grid without that axis.

    Returns
    -------
    tuple of array
        (value,) each; 1, 1 and `epsilon` where the grid has no such axis.
    """
    values = {"alpha": (1.0,), "beta": (1.0,), "epsilon": (epsilon,)}
    values |= {axis.name: axis.values for axis in axes if axis.name in DRAW}
    alpha, beta, clips = (np.asarray(values[name], np.float64) for name in DRAW)
    return alpha, beta, clips


def _nodes(axes: Sequence[Axis], epsilon: float, refine: float) -> Layout | None:
    """Return the nodes for the draws of a grid, or None when it has no alpha or beta axis."""
    if not {"alpha", "beta"} & {axis.name for axis in axes}:
        return None
    with float64():
        return layout(*draw_axes(axes, epsilon), refine)


def _draws(axes: Sequence[Axis], epsilon: float, nodes: Layout, room: int) -> tuple[int, int]:
    """Return how many draws are computed at once, and the node values that are held for them.

    All values of beta and epsilon, and as many of alpha as have room [byte]: a token is spread
    anew for each such part.
    """
    alpha, beta, clips = draw_axes(axes, epsilon)
    each, step = beta.size * clips.size, alpha.size

    def n_value() -> int:
        pairs = collocation.points(alpha, nodes.point_step).size
        pairs = min(pairs, step) * collocation.points(beta, nodes.point_step).size
        return pairs * nodes.n_node

    while step > 1 and (step * each > _MOST_DRAWS or _VALUE * n_value() > room):
        step = math.ceil(step / 2)
    return step * each, n_value()


def _choose(level: str, seconds: dict[str, float], nodes: Layout | None) -> tuple[str, str]:
    """Return the level and the reason."""
    if level == "binned" and nodes is None:
        raise ConfigError(
            "level: 'binned' needs an alpha or beta axis; use 'factored' or add one to the grid"
        )
    if level != "auto":
        return level, "as asked"
    if nodes is None:
        return "factored", "exact for each token; nodes need an alpha or beta axis and no xtc"
    cheap = min(("binned", "factored"), key=lambda name: seconds[name])
    words = {
        "binned": f"{nodes.n_node:,} nodes and a matrix product",
        "factored": "exact for each token",
    }
    other = "factored" if cheap == "binned" else "binned"
    return cheap, f"{words[cheap]}; {other} would take about {seconds[other]:.2g} s"


def _nesting(stages: Sequence[str], names: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the axes slowest first and how many of them, at the end, are the draw's.

    Temperature is the slowest wherever it stands in the chain: it alone costs exponentials of all
    ranks, while a truncation costs a look at bounds. Cuts that are independent of each other come
    last, as `jaxsppl.sampling.rows` wants them.
    """
    _, independent = split(stages, names)

    def place(name: str) -> tuple[bool, bool, int]:
        if name in DRAW:
            return True, True, DRAW.index(name)
        first = -1 if name == "temperature" else parameters.position(stages, name)
        return False, name in independent, first

    return tuple(sorted(names, key=place)), sum(name in DRAW for name in names)


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


def _cap_temperature(
    nested: Sequence[str], chunk: tuple[int, ...], each: int, room: int
) -> tuple[tuple[int, ...], int]:
    """Take fewer temperatures at once where their weights of all ranks would exceed the room.

    Each temperature has exponentials and sums of every rank of a block, `each` bytes; nothing
    else in the grid costs that.
    """
    if nested[0] != "temperature":
        return chunk, each
    most = max(1, room // each)
    step = chunk[0] if chunk[0] <= most else most
    return (step, *chunk[1:]), each * step
