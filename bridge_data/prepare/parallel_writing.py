"""Writing a data set with a function: it makes samples of items in parallel processes; they are written in order.

Enters: items, and a function that makes samples of one; or the samples themselves. Leaves: the folder that a
`ShardWriter` leaves. Guarantee: the files are the same for any number of processes, and after any number of
interruptions. An exception stops the run, and names the item.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.options import takes_options
from bridge_data.prepare.executors import Executor, LocalProcesses
from bridge_data.prepare.part_encoding import EncodedSample, encode_sample
from bridge_data.prepare.shard_writer import ShardWriter
from bridge_data.prepare.written_keys import ItemOrigin

logger = logging.getLogger("bridge_data")

ITEMS_OF_TASK = 8
"""Items sent to a process at once."""

_MAX_SHOWN = 200
"""Maximum characters of an item in a message."""

Make = Callable[[Any], Any]
"""From an item to a sample, to several, or to None for no sample."""


class WriterOptions(TypedDict, total=False):
    """Options of `write`; those of `ShardWriter`, which explains them."""

    split: Mapping[str, float] | None
    split_by: Literal["key", "shard"]
    max_bytes: int
    max_samples: int
    sample_type: str | type[Any] | None
    field_map: Mapping[str, str] | None
    rank: int
    world_size: int


@takes_options(ShardWriter)
def write(
    source: Iterable[Mapping[str, Any]] | Make,
    path: str | os.PathLike[str],
    *,
    items: Iterable[Any] | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
    progress: bool | None = None,
    **options: Unpack[WriterOptions],
) -> int:
    """Write the samples that `source` holds, or makes from `items`, to the data set in the folder `path`.

    Returns the number of samples. If it is interrupted, the same call resumes: the function is not called again for
    items whose samples are stored, but again for items of which it made none. If the call has finished before and the
    number of items is known, it only logs that.

    Args:
        source: samples for `ShardWriter.write`; or a function that makes from an item one sample, several (a
            list or a generator, held in memory together), or None. It may raise `SkipSample`.
        items: what the function is called with, in this order. Each rank gets all, and rank r takes every
            `world_size`-th from number r on.
        num_workers: processes that make and encode samples. They are forked, so any function will do; if this process
            already runs threads, threads are used.
        executor: makes and encodes samples instead of these processes, such as `RayTasks()`, whose workers get function
            and items; this process writes.
        progress: show a progress bar; None: if standard error is a terminal.
        **options: `WriterOptions`.

    Raises:
        ConfigError: for wrong settings. SampleError: naming the item, if the function fails, or makes what cannot be
        stored. DatasetError: if a key occurs twice, or nothing can be written.
    """
    make, items = _made_of(source, items)
    executor = executor or LocalProcesses(num_workers)
    writer = ShardWriter(path, **options)
    writer.num_items = len(items) if isinstance(items, Sized) else None
    num_finished = writer.num_finished()
    if num_finished is not None:
        logger.warning("%s: was written by the same call already; to write it again, remove it", writer.path)
        return num_finished
    config = writer.config
    with writer, _progress_bar(progress, items) as show:
        finished = writer.finished_items
        show(len(finished))
        mine = itertools.islice(enumerate(items), config.rank, None, config.world_size)
        waiting = (numbered for numbered in mine if numbered[0] not in finished)
        num_empty = 0
        for done in _all_made(make, waiting, executor):
            for sample in done.samples:
                writer.write_encoded(sample, ItemOrigin(done.number, len(done.samples)))
            num_empty += not done.samples
            show(1)
    if num_empty:
        logger.warning("%s: %d items gave no sample", writer.path, num_empty)
    return writer.num_samples


def _made_of(source: Any, items: Iterable[Any] | None) -> tuple[Make, Iterable[Any]]:
    """(function, what it is called with)."""
    if items is None:
        if isinstance(source, (str, bytes, Mapping)) or not isinstance(source, Iterable):
            hint = "; give the items that the function is called with: items=[...]" if callable(source) else ""
            raise ConfigError(f"source={source!r}: expected samples, or a function{hint}")
        return _unchanged, source
    if not callable(source):
        raise ConfigError(f"source={source!r}: expected a function of an item, as there are `items`")
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise ConfigError(f"items={items!r}: expected a list, or another iterable")
    return source, items


def _unchanged(sample: Any) -> Any:
    return sample


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """The samples of item `number`; or why there are none: a message, and the traceback."""

    number: int
    samples: Sequence[EncodedSample] = ()
    failure: tuple[str, str] | None = None


def _all_made(make: Make, items: Iterable[tuple[int, Any]], executor: Executor) -> Iterator[_Made]:
    """The samples of each item, in order; the first failure is raised."""
    tasks = _tasks(items, 1 if executor.num_workers == 1 else ITEMS_OF_TASK)
    try:
        with contextlib.closing(executor.map(partial(_make_all, make), tasks, what="made samples")) as made:
            for done in itertools.chain.from_iterable(made):
                if done.failure is not None:
                    message, trace = done.failure
                    error = SampleError(message)
                    error.add_note(trace)
                    raise error
                yield done
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        if type(error.__cause__).__name__ != "_RemoteTraceback":
            raise  # of `items`
        raise ConfigError(
            f"items: cannot be sent to the processes that make samples of them: {type(error).__name__}: {error}. Give "
            "what can be pickled, such as paths or numbers, and open the rest in the function; or num_workers=1"
        ) from error


def _tasks(items: Iterable[tuple[int, Any]], size: int) -> Iterator[list[tuple[int, Any]]]:
    remaining = iter(items)
    while task := list(itertools.islice(remaining, size)):
        yield task


def _make_all(make: Make, items: list[tuple[int, Any]]) -> list[_Made]:
    """The samples of some items, up to the first that fails."""
    found: list[_Made] = []
    for number, item in items:
        found.append(_make(make, number, item))
        if found[-1].failure is not None:
            break
    return found


def _make(make: Make, number: int, item: Any) -> _Made:
    try:
        made = make(item)
        samples = [] if made is None else [made] if isinstance(made, Mapping) else made
        return _Made(number, [encode_sample(sample) for sample in samples])
    except SkipSample:
        return _Made(number)
    except Exception as error:
        message = f"item {number}, {_shown(repr, item)}: {type(error).__name__}: {_shown(str, error, 10 * _MAX_SHOWN)}"
        return _Made(number, (), (message, traceback.format_exc()))


def _shown(text_of: Callable[[Any], str], value: Any, num_shown: int = _MAX_SHOWN) -> str:
    """The text of a value of the user, whose methods may fail."""
    try:
        text = text_of(value)
    except Exception as error:
        return f"a {type(value).__name__} without a text ({type(error).__name__})"
    return text if len(text) <= num_shown else f"{text[:num_shown]}…"


@contextlib.contextmanager
def _progress_bar(wanted: bool | None, items: Iterable[Any]) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of newly finished items."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda more: None
        return
    from tqdm import tqdm  # imported here: slow, and not always needed

    class ItemBar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # it would start a thread, after which no process is forked

    with ItemBar(total=len(items) if isinstance(items, Sized) else None, desc="writing", unit=" items") as bar:

        def show(more: int) -> None:
            bar.update(more)

        yield show
