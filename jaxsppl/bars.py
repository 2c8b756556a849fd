"""Progress bars for work that reports (done, total), shown from its first report on."""

import contextlib
from collections.abc import Callable, Generator

from jaxsppl.report.progress import Progress, progress


@contextlib.contextmanager
def counted(description: str) -> Generator[Callable[[int, int], None]]:
    """Give a callback that shows how far a piece of work is; nothing is shown before its first call.

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
