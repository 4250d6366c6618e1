"""A loader whose batches come from a background thread, from other ranks or for them; any batch as a tensor of bytes.

Reads batches, ends of passes and errors from the thread, each with the state after it. Returns batches in their order,
and the state after the last one delivered. It is used like the loader it replaces. After a restore, nothing comes that
was read before it.

A batch for another rank is cut into parts (a table of contents, its pickle, the memory of each tensor), which are
copied into one uint8 tensor. Tensors of any dtype and shape, empty ones too, arrive unchanged, and are aligned in the
received memory.
"""

import collections
import contextlib
import dataclasses
import functools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from bridge_data.datamodule.trainer_loaders import RankLoader
from bridge_data.errors import WorkerError, no_iterator
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.even_ends import EvenEnds
from bridge_data.loader.loader import Meter, Timed, open_pool
from bridge_data.loader.metrics import LoaderMetrics, of_all_ranks
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig
from bridge_data.samples.pickling import from_pieces, pieces_by_reference

BATCH, END, ERROR, CLOSED = range(4)


class Arrival(NamedTuple):
    """A batch, the end of a pass, an error or the end of the loader; and the state after it (None for an error)."""

    kind: int
    content: Any
    state: LoaderState | None


class Arrivals:
    """The items that have arrived and are not delivered yet. Restores are numbered; items read before the last
    one are dropped, even if they arrive later.

    `size` bounds how far the thread reads ahead; None for a thread that must never wait for its consumer.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._ready: collections.deque[tuple[int, Arrival]] = collections.deque()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self.restore_number = 0
        self.start: LoaderState | None = None
        self.closed = False

    def begin(self, start: LoaderState) -> None:
        """A restore: drop everything that was not read from `start` on."""
        with self._changed:
            self.restore_number += 1
            self.start = start
            while self._ready and self._ready[0][0] < self.restore_number:
                self._ready.popleft()
            self._changed.notify_all()

    def follow(self, loader: RankLoader, restore_number: int) -> int:
        """The number of the last restore; unless it is `restore_number`, restore `loader` from where that starts."""
        with self._changed:
            newest, start = self.restore_number, self.start
        if newest != restore_number:
            assert start is not None
            loader.restore_state_rank(start)
        return newest

    def close(self) -> None:
        """No more items are wanted."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """No more items will come; `get` raises `error`."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def put(self, restore_number: int, item: Arrival) -> None:
        """Add an item, as soon as there is a free slot; drop it if read before a restore, or if this is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.closed
                    or restore_number < self.restore_number
                    or self._size is None
                    or len(self._ready) < self._size
                )
            )
            if not self.closed and restore_number >= self.restore_number:
                self._ready.append((restore_number, item))
                self._changed.notify_all()

    def get(self) -> Arrival:
        """The next item since the last restore; an error is returned by every call."""
        with self._changed:
            self._changed.wait_for(lambda: self._next_is_current() or self._failure is not None)
            if not self._next_is_current():
                assert self._failure is not None
                raise self._failure
            item = self._ready[0][1]
            if item.kind != ERROR:
                self._ready.popleft()
                self._changed.notify_all()
            return item

    def wait_for_restore(self, restore_number: int) -> None:
        """Wait until there was another restore, or this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.restore_number > restore_number)

    def _next_is_current(self) -> bool:
        return bool(self._ready) and self._ready[0][0] == self.restore_number


_CLOSE_WAIT_S = 10.0


class BackgroundLoader:
    """The batches that the thread `run` puts into `arrivals`.

    The thread reads `loader`; None if it only receives. Such a thread starts at once, others with the first draw. When
    `run` returns or raises, the loader is closed; an error reaches the consumer after the batches before it, as a
    `WorkerError` that begins with `failure`. Unless `config.ends` is "uneven", the ranks take equally many batches, and
    agree on them in the groups of `dataset` and in the thread that draws. `run` must not refer to this object. Use it
    from one thread at a time.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        loader: RankLoader | None,
        arrivals: Arrivals,
        run: Callable[[], None],
        failure: str,
        config: LoaderConfig,
    ) -> None:
        self.dataset = dataset
        self.even_ends = (
            None if config.ends == "uneven" else EvenEnds(dataset, functools.partial(open_pool, dataset, config))
        )
        self._loader = loader
        self._arrivals = arrivals
        self._fetched: Arrival | None = None
        self._meter = Meter(dataset.worker_config.rank)
        self._go_to(dataset.new_state())
        self.is_within_step = False
        thread = functools.partial(_run, run, arrivals, loader, failure)
        self._thread = threading.Thread(target=thread, name=f"bridge_data {type(self).__name__}", daemon=True)
        self._close = weakref.finalize(self, _close, arrivals, self._thread, loader)
        if loader is None:
            self._thread.start()  # the rank that reads must not wait until this one draws

    is_idle = False
    __next__ = no_iterator

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self)

    def __len__(self) -> int:
        if not self.dataset.virtual_epoch_length:
            raise TypeError("this loader has no length; virtual_epoch_length ends iterations after that many batches")
        return self.dataset.virtual_epoch_length

    @property
    def skipped(self) -> dict[str, int]:
        """Samples that this rank has skipped as a reader, by stage, including those of prefetched batches. Empty on a
        rank that does not read."""
        return {} if self._loader is None else dict(self._loader.skipped)

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Counts since this loader was made; `of_job`: of all data-parallel ranks, which must all call it.

        Batches and waits are those of this rank. Samples and all else are what it has read, also for other ranks and
        ahead of the batches delivered: nothing on a rank that does not read.
        """
        own, meter = LoaderMetrics() if self._loader is None else self._loader.metrics(), self._meter
        own = dataclasses.replace(own, batches=meter.batches, elapsed_s=meter.elapsed_s, wait_s=meter.wait_s)
        return of_all_ranks(own, self.dataset.worker_config) if of_job else own

    def save_state_rank(self) -> dict[str, Any]:
        """The position after the last batch delivered on this rank."""
        return self._state.to_dict()

    def snapshot(self) -> LoaderState:
        """The same as an object, as that of `SavableDataLoader`."""
        return self._state

    def restore_state_rank(self, state: LoaderState | dict[str, Any], *, strict: bool = True) -> None:
        """Restore a saved position, of this replica's rank or merged from all.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes of this rank.
        """
        self._go_to(self.dataset.restored_state(state, strict=strict))
        self._fetched, self.is_within_step = None, False
        self._arrivals.begin(self._state)

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Wait until the next batch comes from a worker of the reader, unless it reads already; True if it will."""
        if self._loader is None or self._thread.ident is not None:
            return True
        return self._loader.wait_for_workers(timeout_s)

    def close(self) -> None:
        """End the thread and the reader's workers. Delivered batches stay valid, and the state can be saved."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_to(self, state: LoaderState) -> None:
        self._state = state
        if self.even_ends is not None:
            self.even_ends.begin(state)

    def _begin_pass(self) -> None:
        """Before the first step of a pass: continue from its start, if the pass before is over."""
        if self.even_ends is not None and self._state.ended:
            self._go_to(self.dataset.new_state(self._state.num_lanes))

    def _fetch_end(self) -> Arrival:
        """The end of this pass; batches before it are dropped."""
        while (item := self._fetch()).kind != END:
            self._fetched = None
        return item

    def _check_open(self) -> None:
        if not self._close.alive:
            raise WorkerError("this loader is closed")

    def _fetch(self) -> Arrival:
        """The next item. It stays the next one until `_deliver`."""
        if self._fetched is not None:
            return self._fetched
        if self._thread.ident is None:
            self._thread.start()
        item = self._arrivals.get()
        if item.state is None:
            raise item.content
        self._fetched = item
        return item

    def _deliver(self, item: Arrival) -> Any:
        """The content of an item, which counts as delivered; `StopIteration` if it is the end of a pass."""
        assert item.state is not None
        self._fetched = None
        self.is_within_step = item.kind != END and item.state.micro_batch_index == self._state.micro_batch_index
        self._state = item.state
        if item.kind == END:
            raise StopIteration
        self._meter.batches += 1
        return item.content


class _Pass(Timed[Any]):
    """One pass, to the end of the thread's pass; with even ends, to the end of the longest on any rank."""

    def __init__(self, loader: BackgroundLoader) -> None:
        super().__init__(loader._meter)
        self._loader, self._begun, self._over = loader, False, False

    def _next(self) -> Any:
        if self._over:
            raise StopIteration
        loader = self._loader
        loader._check_open()
        item = loader._fetch() if loader.even_ends is None else loader.even_ends.fetched(loader._fetch)
        if not self._begun:
            self._begun = True
            loader._begin_pass()
        if loader.even_ends is not None:
            own = (None, None) if item.kind == END else (item.content, _slot_after(item))
            step = loader.even_ends.step(loader._state.micro_batch_index, *own)
            if step is None:
                item = loader._fetch_end()
            elif step.filling is not None:
                loader._state = dataclasses.replace(loader._state, micro_batch_index=step.end)
                return step.filling
        self._over = item.kind == END
        return loader._deliver(item)


def _slot_after(item: Arrival) -> int:
    assert item.state is not None
    return item.state.micro_batch_index


def _run(run: Callable[[], None], arrivals: Arrivals, loader: RankLoader | None, failure: str) -> None:
    """The thread."""
    try:
        with contextlib.nullcontext() if loader is None else contextlib.closing(loader):
            run()
    except Exception as error:
        failed = WorkerError(f"{failure}: {error}")
        failed.__cause__ = error
        arrivals.fail(failed)


def _close(arrivals: Arrivals, thread: threading.Thread, loader: RankLoader | None) -> None:
    """End the thread; do not wait long for other ranks to end theirs."""
    arrivals.close()
    if thread.ident is None and loader is not None:
        loader.close()
    elif thread is not threading.current_thread():
        thread.join(_CLOSE_WAIT_S)


_ALIGNMENT = 64


def to_parts(value: Any) -> list[memoryview]:
    """The parts of `value`, uncopied; each is padded so that the next one is aligned.

    Raises:
        WorkerError: if it cannot be pickled.
    """
    try:
        # As memory of NumPy's: views of a `PickleBuffer` crash CPython 3.11 and 3.12 when the garbage collector frees
        # them in a cycle, such as that of an error with the frame that kept it.
        parts = [np.frombuffer(part.raw(), np.uint8).data for part in pieces_by_reference(value)]
    except Exception as error:
        shown = value.content if isinstance(value, Arrival) else value
        raise WorkerError(f"{shown!r:.200} cannot be sent to another rank: {error!r}") from error
    table = pickle.dumps([part.nbytes for part in parts])
    head = len(table).to_bytes(8, "little") + table
    padded = [memoryview(head), _padding(len(head))]
    for part in parts:
        padded += [part, _padding(part.nbytes)]
    return padded


def num_bytes(parts: list[memoryview]) -> int:
    """The length of the tensor for these parts."""
    return sum(part.nbytes for part in parts)


def filled(parts: list[memoryview]) -> torch.Tensor:
    """A copy of the parts in a uint8 tensor of their length."""
    content = torch.empty(num_bytes(parts), dtype=torch.uint8)
    target, offset = content.numpy().data, 0
    for part in parts:
        target[offset : offset + part.nbytes] = part
        offset += part.nbytes
    return content


def from_bytes(content: torch.Tensor) -> Any:
    """The value in a filled tensor, which shares its memory."""
    memory = content.numpy().data
    offset = 8 + int.from_bytes(memory[:8], "little")
    sizes = pickle.loads(memory[8:offset])
    parts = []
    for size in sizes:
        offset += -offset % _ALIGNMENT
        parts.append(memory[offset : offset + size])
        offset += size
    return from_pieces(parts)


def _padding(size: int) -> memoryview:
    return memoryview(bytes(-size % _ALIGNMENT))
