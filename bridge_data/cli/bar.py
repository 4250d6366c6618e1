"""The progress bar of a long command."""

import contextlib
from collections.abc import Callable, Iterator

from tqdm import tqdm


class _Bar(tqdm):
    """A bar without the thread that watches over others, so that processes can be forked while it is shown."""

    monitor_interval = 0


@contextlib.contextmanager
def progress_bar(what: str, unit: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows how much is done, of how much (None: not known); unless `shown`, it shows nothing."""
    bar: _Bar | None = None

    def show(done: int, total: int | None) -> None:
        nonlocal bar
        if bar is None:
            bar = _Bar(desc=what, unit=f" {unit}", disable=not shown)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
