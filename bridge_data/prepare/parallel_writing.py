"""Writing a data set with a function: it makes samples of items in parallel processes; they are written in order.

Reads items, and a function that makes samples of one; or the samples themselves. Returns the number of samples, in the
folder that a `ShardWriter` leaves. The files are the same for any number of processes, and after any number of
interruptions. `write` is for programs, and is stopped by an exception, which names the item; a conversion is the same
loop, `write_made`, over the records of a source.
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
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.options import takes_options
from bridge_data.prepare.executors import Executor, LocalProcesses
from bridge_data.prepare.part_encoding import EncodedSample, encode_sample
from bridge_data.prepare.shard_writer import ItemOrigin, MadeOf, ShardWriter

logger = logging.getLogger("bridge_data")

ITEMS_OF_TASK = 8
"""Items sent to a process at once."""

_MAX_SHOWN = 200
"""Maximum characters of an item in a message."""

Task = TypeVar("Task")

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

    >>> write(lambda number: {"__key__": f"{number:06}", "txt": f"document {number}"}, "texts", items=range(100))
    100

    Args:
        source: samples for `ShardWriter.write`; or a function that makes from an item one sample, several (a
            list or a generator, held in memory together), or None. It may raise `SkipSample`.
        items: what the function is called with, in this order. Each rank gets all, and rank r takes every
            `world_size`-th from number r on.
        num_workers: processes that make and encode samples. They are forked, so any function will do; if this process
            already runs threads, threads are used.
        executor: makes and encodes samples instead of these processes, such as `RayTasks()` of the plug-in `ray`, whose
            workers get function and items; this process writes.
        progress: show a progress bar; None: if standard error is a terminal.
        **options: `WriterOptions`.

    Raises:
        ConfigError: for wrong settings.
        SampleError: naming the item, if the function fails, or makes what cannot be stored.
        DatasetError: if a key occurs twice, or nothing can be written.
    """
    make, items = _made_of(source, items)
    executor = executor or LocalProcesses(num_workers)
    writer = ShardWriter(path, **options)
    writer.made_of = MadeOf(len(items) if isinstance(items, Sized) else None)
    num_finished = writer.num_finished()
    if num_finished is not None:
        logger.warning("%s: was written by the same call already; to write it again, remove it", writer.path)
        return num_finished
    rank, world_size, num_empty = writer.config.rank, writer.config.world_size, 0
    with writer, _progress_bar(progress, items) as show:
        finished = writer.finished_items
        show(len(finished))

        def accept(made: Made) -> Sequence[EncodedSample]:
            nonlocal num_empty
            if made.reason:
                error = SampleError(f"{made.where}: {made.reason}")
                error.add_note(made.trace)
                raise error
            num_empty += not made.samples
            show(1)
            return made.samples

        mine = itertools.islice(enumerate(items), rank, None, world_size)
        tasks = in_tasks(
            (numbered for numbered in mine if numbered[0] not in finished),
            1 if executor.num_workers == 1 else ITEMS_OF_TASK,
        )
        write_made(writer, partial(_make_all, make), tasks, executor, accept)
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
class Made:
    """What was made of item `number`, which `where` names in messages: samples, none if it is left out by choice; or
    the reason why it is broken, and the traceback, if there is one."""

    number: int
    where: str = ""
    samples: Sequence[EncodedSample] = ()
    reason: str = ""
    trace: str = ""


def write_made(
    writer: ShardWriter,
    make: Callable[[list[Task]], list[Made]],
    tasks: Iterable[list[Task]],
    executor: Executor,
    accept: Callable[[Made], Sequence[EncodedSample]],
) -> None:
    """Write what `make` makes of each task, in processes of `executor`, in the order of the tasks. `accept` is called
    with what was made of each item, and returns the samples to write, or raises."""
    try:
        with contextlib.closing(executor.map(make, tasks, what="made samples")) as results:
            for made in itertools.chain.from_iterable(results):
                for sample in accept(made):
                    writer.write_encoded(sample, ItemOrigin(made.number, len(made.samples)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        if type(error.__cause__).__name__ != "_RemoteTraceback":
            raise  # of `items`
        raise ConfigError(
            f"items: cannot be sent to the processes that make samples of them: {type(error).__name__}: {error}. Give "
            "what can be pickled, such as paths or numbers, and open the rest in the function; or num_workers=1"
        ) from error


def in_tasks(items: Iterable[Task], size: int) -> Iterator[list[Task]]:
    """The items in lists of `size`, which one process gets at once."""
    remaining = iter(items)
    while task := list(itertools.islice(remaining, size)):
        yield task


def _make_all(make: Make, items: list[tuple[int, Any]]) -> list[Made]:
    """What is made of some items, up to the first that fails."""
    found: list[Made] = []
    for number, item in items:
        found.append(_make(make, number, item))
        if found[-1].reason:
            break
    return found


def _make(make: Make, number: int, item: Any) -> Made:
    try:
        made = make(item)
        samples = [] if made is None else [made] if isinstance(made, Mapping) else made
        return Made(number, samples=[encode_sample(sample) for sample in samples])
    except SkipSample:
        return Made(number)
    except Exception as error:
        reason = f"{type(error).__name__}: {_shown(str, error, 10 * _MAX_SHOWN)}"
        return Made(number, f"item {number}, {_shown(repr, item)}", reason=reason, trace=traceback.format_exc())


def _shown(text_of: Callable[[Any], str], value: Any, num_shown: int = _MAX_SHOWN) -> str:
    """The text of a value of the user, whose methods may fail."""
    try:
        text = text_of(value)
    except Exception as error:
        return f"a {type(value).__name__} without a text ({type(error).__name__})"
    return text if len(text) <= num_shown else f"{text[:num_shown]}…"


@contextlib.contextmanager
def _progress_bar(wanted: bool | None, items: Iterable[Any]) -> Iterator[Callable[[int], object]]:
    """A function to call with the number of newly finished items."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda more: None
        return
    from tqdm import tqdm  # imported here: slow, and not always needed

    class ItemBar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # it would start a thread, after which no process is forked

    with ItemBar(total=len(items) if isinstance(items, Sized) else None, desc="writing", unit=" items") as bar:
        yield bar.update
