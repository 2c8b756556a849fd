"""Independent pieces of work in threads.

XLA runs most of these programs on one core, and releases Python's lock meanwhile: as many threads
as cores keep all of them busy. On other devices one thread is enough. The pieces do not share sums,
so the numbers do not depend on the number of threads.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax

from jaxsppl.sampling.precision import float64

T = TypeVar("T")


def worker_count() -> int:
    """Return how many threads serve the default device.

    Returns
    -------
    int
    """
    # Several devices take turns in one order only; two threads could wait for each other.
    is_one = jax.default_backend() == "cpu" and len(jax.local_devices()) == 1
    return min(os.cpu_count() or 1, 16) if is_one else 1


def in_threads(work: Callable[..., T], pieces: Iterable[tuple[object, ...]], count: int) -> list[T]:
    """Do independent pieces of work, in float64.

    Parameters
    ----------
    work : callable
        Called with the members of each piece.
    pieces : iterable of tuple
        Arguments of each call.
    count : int
        Number of threads.

    Returns
    -------
    list
        Results in the order of the pieces.
    """

    def one(piece: tuple[object, ...]) -> T:
        # The precision in force belongs to the thread.
        with float64():
            return work(*piece)

    if count == 1:
        return [one(piece) for piece in pieces]
    pool = ThreadPoolExecutor(count)
    try:
        futures = [pool.submit(one, piece) for piece in pieces]
        return [future.result() for future in futures]
    finally:
        # An interrupt may come at any moment, also before the last piece was handed in.
        pool.shutdown(wait=True, cancel_futures=True)
