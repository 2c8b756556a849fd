"""Progress of long work on standard error: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TextIO

# Seconds between two lines where there is no terminal.
INTERVAL_S = 15.0


@dataclass(frozen=True)
class Progress:
    """What the work says of itself.

    Attributes
    ----------
    advance : callable
        ``advance(n=1)``: so many more are done.
    update : callable
        ``update(text)``: what is being done now.
    """

    advance: Callable[..., None]
    update: Callable[[str], None]


@contextlib.contextmanager
def progress(
    description: str,
    total: float | None = None,
    *,
    stream: TextIO | None = None,
    interval_s: float = INTERVAL_S,
    quiet: bool = False,
) -> Generator[Progress]:
    """Show how far a piece of work is.

    Parameters
    ----------
    description : str
        What is done, for example "harvest prose".
    total : float, optional
        How many there are; unknown without it.
    stream : text stream, optional
        Standard error by default.
    interval_s : float
        Seconds between two lines where the stream is no terminal.
    quiet : bool
        Show nothing.

    Yields
    ------
    Progress
        `advance(n)` and `update(text)`, to be called from one thread.
    """
    if quiet:
        yield Progress(lambda n=1: None, lambda text: None)
        return
    out = sys.stderr if stream is None else stream
    if out.isatty():
        with _bar(description, total, out) as shown:
            yield shown
    else:
        with _lines(description, total, out, interval_s) as shown:
            yield shown


@contextlib.contextmanager
def _bar(description: str, total: float | None, out: TextIO) -> Generator[Progress]:
    """Show a bar that is redrawn in place."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(file=out)) as bar:
        task = bar.add_task(description, total=total)

        def advance(n: float = 1) -> None:
            """Move the bar."""
            bar.advance(task, n)

        def update(text: str) -> None:
            """Say what is being done now."""
            bar.update(task, description=f"{description}: {text}")

        yield Progress(advance, update)


@contextlib.contextmanager
def _lines(
    description: str, total: float | None, out: TextIO, interval_s: float
) -> Generator[Progress]:
    """Write a line now and then, and one at the end."""
    started = last = time.monotonic()
    done: float = 0
    now = ""

    def say(ending: str) -> None:
        """Write how far it is."""
        of = "" if total is None else f" of {total:,.15g}"
        out.write(f"{description}: {done:,.15g}{of}{ending}\n")
        out.flush()

    def advance(n: float = 1) -> None:
        """Count, and say so when enough time has passed."""
        nonlocal done, last
        done += n
        if time.monotonic() - last >= interval_s:
            last = time.monotonic()
            say(f" after {last - started:.0f} s{now}")

    def update(text: str) -> None:
        """Remember what is being done now, for the next line."""
        nonlocal now
        now = f" ({text})"

    try:
        yield Progress(advance, update)
    except BaseException:
        say(f", stopped after {time.monotonic() - started:.0f} s")
        raise
    say(f" in {time.monotonic() - started:.1f} s{now}")
