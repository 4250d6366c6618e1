"""The progress bar of a long command."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


@contextlib.contextmanager
def progress_bar(what: str, unit: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows how much is done, of how much (None: not known); unless `shown`, it shows nothing."""
    bar: tqdm[Any] | None = None

    def show(done: int, total: int | None) -> None:
        nonlocal bar
        if not shown:
            return
        if bar is None:
            bar = _bar(what, unit)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, unit: str) -> "tqdm[Any]":
    from tqdm import tqdm  # here: it takes as long to import as all that a short command needs

    class Bar(tqdm):
        """A bar without the thread that watches over others, so that processes can be forked while it is shown."""

        monitor_interval = 0

    return Bar(desc=what, unit=f" {unit}")
