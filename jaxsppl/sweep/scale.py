"""A sweep on several machines, through dask.distributed: map over parts, reduce in a tree.

A task is a part of the grid on a shard of tokens. Shards travel once to the workers that need
them; what comes back are sums of the size of the part's grid, added in a tree on the workers.
A worker that is lost costs the tasks it had: Dask gives them to another.
"""

import contextlib
import importlib.util
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsppl.errors import ConfigError
from jaxsppl.sweep.data import TokenArrays
from jaxsppl.sweep.engine import Sums
from jaxsppl.sweep.parts import Evaluate, Finished, Here, Part, of_part, parts_of, together
from jaxsppl.sweep.plan import Advance, Plan

if TYPE_CHECKING:
    from distributed import Client

# How many sums a task of the tree adds, and how often a failing task is tried again.
_FAN = 8
_RETRIES = 3


@contextlib.contextmanager
def evaluator(dask: str | None, finished: Finished | None) -> Generator[Evaluate]:
    """Give what evaluates plans, here or on a cluster.

    Parameters
    ----------
    dask : str or None
        ``"tcp://host:port"`` of a scheduler, the path of a scheduler file, ``"local:N"`` for N
        processes on this machine, or None for this process.
    finished : Finished or None
        Where finished parts are kept.

    Yields
    ------
    callable
        (plan, tokens, advance) -> Sums.

    Raises
    ------
    ConfigError
        When Dask is not installed, the address means nothing, or no scheduler answers.
    """
    if dask is None:
        yield Here(finished)
        return
    with _client(dask) as client:
        yield _There(client, finished)


def check_address(dask: str) -> None:
    """Check what a sweep through Dask is given, without connecting.

    Parameters
    ----------
    dask : str
        As for `evaluator`.

    Raises
    ------
    ConfigError
        When Dask is not installed or the address means nothing.
    """
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(
            f"dask: '{dask}' needs dask.distributed; install it with: pip install 'jaxsppl[dask]'"
        )
    kind, _, number = dask.partition(":")
    if kind == "local":
        if not number.isdecimal() or not 1 <= int(number) <= 1024:
            raise ConfigError(f"dask: '{dask}' is not allowed; write local:4 for 4 processes")
    elif "://" not in dask and not Path(dask).is_file():
        raise ConfigError(
            f"dask: '{dask}' is no address; write tcp://host:port, a scheduler file, or local:4"
        )


@contextlib.contextmanager
def _client(dask: str) -> Generator["Client"]:
    """Connect to a scheduler, or start one with processes of its own."""
    check_address(dask)
    from distributed import Client, LocalCluster

    kind, _, number = dask.partition(":")
    with contextlib.ExitStack() as stack:
        if kind == "local":
            # Dask's page for people on any free port: its usual one may be another cluster's.
            cluster = LocalCluster(
                n_workers=int(number), threads_per_worker=1, dashboard_address="127.0.0.1:0"
            )
            place: dict[str, Any] = {"address": stack.enter_context(cluster)}
        else:
            place = {"address" if "://" in dask else "scheduler_file": dask}
        try:
            client = stack.enter_context(Client(**place, timeout=20))
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(
                f"dask: no scheduler answers at '{dask}' ({error}); start one with: dask scheduler"
            ) from error
        yield client


class _There:
    """Evaluates plans on the workers of a cluster."""

    def __init__(self, client: "Client", finished: Finished | None) -> None:
        self._client = client
        self._finished = finished

    def __call__(self, plan: Plan, tokens: TokenArrays, advance: Advance) -> Sums:
        """Evaluate a plan's grid on one harvest, as `Here` does."""
        from distributed.client import FutureCancelledError

        n_worker = max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        plan = _for_workers(plan, tokens.n_token, n_worker)
        rows: dict[tuple[int, int], list[Part]] = defaultdict(list)
        for part in parts_of(plan, tokens.n_token):
            rows[part.rows.start, part.rows.stop].append(part)
        found: list[tuple[Part, Sums]] = []
        for place, parts in [*rows.items()]:
            whole = Part(parts[0].rows, slice(0, tokens.n_token))
            sums = self._finished.get(plan, tokens, whole) if self._finished else None
            if sums is not None:
                found.append((whole, sums))
                advance(_pairs(plan, tokens, whole))
                del rows[place]
        for attempt in range(_RETRIES + 1):
            if not rows:
                break
            try:
                for whole, sums in self._computed(plan, tokens, [*rows.values()]):
                    if self._finished:
                        self._finished.put(plan, tokens, whole, sums)
                    found.append((whole, sums))
                    advance(_pairs(plan, tokens, whole))
                    del rows[whole.rows.start, whole.rows.stop]
            except FutureCancelledError:
                # A worker is lost, and with it the only copy of tokens that were sent there.
                if attempt == _RETRIES:
                    raise
        return together(plan, found)

    def _computed(
        self, plan: Plan, tokens: TokenArrays, rows: Sequence[Sequence[Part]]
    ) -> Iterator[tuple[Part, Sums]]:
        """Send the tokens, and yield the sums of rows as they are done."""
        from distributed import as_completed

        shards = {
            part.tokens.start: self._client.scatter(tokens.take(part.tokens), hash=False)
            for part in rows[0]
        }
        waiting: dict[Any, Part] = {}
        for parts in rows:
            futures = [
                self._client.submit(
                    _task, plan, shards[part.tokens.start], part, pure=False, retries=_RETRIES
                )
                for part in parts
            ]
            while len(futures) > 1:
                futures = [
                    self._client.submit(_added, futures[i : i + _FAN], pure=False, retries=_RETRIES)
                    for i in range(0, len(futures), _FAN)
                ]
            waiting[futures[0]] = Part(parts[0].rows, slice(0, tokens.n_token))
        for future in as_completed(waiting):
            yield waiting.pop(future), future.result()


def _for_workers(plan: Plan, n_token: int, n_worker: int) -> Plan:
    """Return the plan cut so finely that every worker has some parts, and a lost one costs little.

    Rows first, which need no sum afterwards, then tokens.
    """
    n_row = next(len(axis.values) for axis in plan.axes if axis.name == plan.order[0])
    wanted = 4 * n_worker
    is_cut = plan.level != "binned" or plan.n_draw_axis < len(plan.order)
    rows = min(plan.rows, max(1, n_row // wanted)) if is_cut else n_row
    pieces = -(-n_row // rows) * -(-n_token // plan.shard)
    shard = plan.shard
    while pieces < wanted and shard > 4 * plan.block:
        shard = -(-shard // (2 * plan.block)) * plan.block
        pieces = -(-n_row // rows) * -(-n_token // shard)
    return replace(plan, rows=rows, shard=shard)


def _pairs(plan: Plan, tokens: TokenArrays, part: Part) -> int:
    """Return how many (token, point) pairs a part has."""
    own_plan, own_tokens = of_part(plan, tokens, part)
    return own_plan.n_point * own_tokens.n_token


# Node values stay in the worker's process for the next task of the same plan.
_here = Here()


def _task(plan: Plan, shard: TokenArrays, part: Part) -> Sums:
    """Compute a part on a worker, with as many threads as Dask gives it."""
    from distributed import get_worker

    threads = get_worker().state.nthreads
    plan = replace(plan, workers=threads)
    own = Part(part.rows, slice(0, shard.n_token))
    return _here.part(plan, shard, own, lambda _: None)


def _added(sums: Sequence[Sums]) -> Sums:
    """Add sums on a worker."""
    return sum(sums[1:], start=sums[0])
