"""The progress bar of a long command."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


SHOWN_AFTER_S = 0.5
"""What is done sooner needs no bar."""


@contextlib.contextmanager
def progress_bar(what: str, unit: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows how much is done, of how much (None: not known); unless `shown`, it shows nothing."""
    bar: tqdm[Any] | None = None
    started = time.time()

    def show(done: int, total: int | None) -> None:
        nonlocal bar
        if not shown or (bar is None and time.time() - started < SHOWN_AFTER_S):
            return
        if bar is None:
            bar = _bar(what, unit, started)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, unit: str, started: float) -> "tqdm[Any]":
    from tqdm import tqdm  # here: it takes as long to import as all that a short command needs

    class Bar(tqdm):
        """A bar without the thread that watches over others, so that processes can be forked while it is shown."""

        monitor_interval = 0

    bar = Bar(desc=what, unit=f" {unit}")
    bar.start_t = started
    return bar
