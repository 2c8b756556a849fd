"""Progress bars for work that reports (done, total), shown from its first report on."""

import contextlib
from collections.abc import Callable, Generator

from jaxsppl.harvest import protocol
from jaxsppl.report.progress import Progress, progress


@contextlib.contextmanager
def counted(description: str) -> Generator[Callable[[int, int], None]]:
    """Give a callback that shows how far a piece of work is, from its first call on.

    Parameters
    ----------
    description : str
        What is done, for example "harvest prose".

    Yields
    ------
    callable
        ``callback(done, total)``.
    """
    with contextlib.ExitStack() as stack:
        bar: Progress | None = None
        before = 0

        def report(done: int, total: int) -> None:
            nonlocal bar, before
            if bar is None:
                bar = stack.enter_context(progress(description, total))
            bar.advance(done - before)
            before = done

        yield report


@contextlib.contextmanager
def harvest_bar(description: str) -> Generator[Callable[[protocol.Progress], None]]:
    """Give a callback for `jaxsppl.harvest`: one bar for each model.

    Parameters
    ----------
    description : str
        What is done, for example "harvest prose".

    Yields
    ------
    callable
        ``callback(progress)``.
    """
    with contextlib.ExitStack() as stack:
        bars: dict[str, Progress] = {}
        before: dict[str, int] = {}

        def report(state: protocol.Progress) -> None:
            if state.model not in bars:
                stack.close()
                bars[state.model] = stack.enter_context(
                    progress(f"{description}, {state.model}", state.total)
                )
            failed = f", {state.failed} failed" if state.failed else ""
            bars[state.model].update(state.note or f"{state.n_token:,} tokens{failed}")
            now = state.done + state.failed
            bars[state.model].advance(now - before.get(state.model, 0))
            before[state.model] = now

        yield report
