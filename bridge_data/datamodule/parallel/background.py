"""A loader whose batches a thread brings: from other ranks, or to them.

Enters: what a thread puts into an inbox. Leaves: batches, and the state after the last one handed out. Guarantee: it is
used as the loader that it stands for.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch

from bridge_data import samples
from bridge_data.datamodule.parallel.arrivals import END, Arrival, Arrivals
from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.loader_config import Ends
from bridge_data.loader.position import EvenEnds

_CLOSE_WAIT_S = 10.0


class Reading(Protocol):
    """What a thread reads: a `SavableDataLoader`, or a loader of this module around one."""

    @property
    def skipped(self) -> dict[str, int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def save_state_rank(self) -> dict[str, Any]: ...
    def restore_state_rank(self, state: dict[str, Any]) -> None: ...
    def wait_for_workers(self, timeout_s: float = 300) -> bool: ...
    def close(self) -> None: ...


class BackgroundLoader:
    """The batches that the thread `run` puts into `inbox`.

    `loader` is what the thread reads, and closes at its end; None if it only receives. Such a thread starts at once,
    others with the first draw. `pin` says that batches come unpinned and are to be pinned. With `ends` "even" the ranks
    agree, in the groups of `dataset` and in the thread that draws, on how many batches a pass has. `run` must not refer
    to this object. Use it from one thread at a time.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        loader: Reading | None,
        inbox: Arrivals,
        run: Callable[[], None],
        *,
        pin: bool,
        ends: Ends = "uneven",
    ) -> None:
        self.dataset = dataset
        self._ends = EvenEnds(dataset) if ends == "even" else None
        self._loader = loader
        self._inbox = inbox
        self._pin = pin and torch.cuda.is_available()
        self._state = dataset.new_state().to_dict()
        self._fetched: Arrival | None = None
        self.is_within_step = False
        """Whether the last batch came with the state before it: the rest of a step that was drawn at once will come."""
        self._thread = threading.Thread(target=run, name=f"bridge_data {type(self).__name__}", daemon=True)
        self._close = weakref.finalize(self, _close, inbox, self._thread, loader)
        if loader is None:
            self._thread.start()  # the rank that reads is not to wait until this one draws

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self)

    def __len__(self) -> int:
        if not self.dataset.virtual_epoch_length:
            raise TypeError("this loader has no length; virtual_epoch_length ends iterations after so many batches")
        return self.dataset.virtual_epoch_length

    @property
    def skipped(self) -> dict[str, int]:
        """Samples that this rank, as a reader, has left out, by stage; it is ahead by the batches that lie ready. Empty
        on a rank that does not read."""
        return {} if self._loader is None else dict(self._loader.skipped)

    def save_state_rank(self) -> dict[str, Any]:
        """The position after the last batch handed out on this rank."""
        return self._state

    def restore_state_rank(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go to a saved position, of this replica's rank or merged from all.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes of this rank.
        """
        self._state = self.dataset.check_state(state, strict=strict).to_dict()
        self._fetched, self.is_within_step = None, False
        self._inbox.begin(self._state)

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Wait until the next batch comes from a worker of the reader, unless it has begun to read; True if it will."""
        if self._loader is None or self._thread.ident is not None:
            return True
        return self._loader.wait_for_workers(timeout_s)

    def close(self) -> None:
        """End the thread, and the reader's workers. Batches handed out stay valid, the state can be saved."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetch(self) -> Arrival:
        """The next item, which stays the next one until `_hand_out`."""
        if self._fetched is not None:
            return self._fetched
        if not self._close.alive:
            raise WorkerError("this loader is closed")
        if self._thread.ident is None:
            self._thread.start()
        item = self._inbox.get()
        if item.state is None:
            raise item.content
        self._fetched = item
        return item

    def _hand_out(self, item: Arrival) -> Any:
        """The content of an item, noted as handed out; `StopIteration` if it is the end of a pass."""
        assert item.state is not None
        self._fetched = None
        self.is_within_step = item.kind != END and item.state["next_slot"] == self._state["next_slot"]
        self._state = item.state
        if item.kind == END:
            raise StopIteration
        return samples.pin(item.content) if self._pin else item.content


class _Pass(Iterator[Any]):
    """One pass, to the end of the thread's; with even ends, to that of the longest."""

    def __init__(self, loader: BackgroundLoader) -> None:
        self._loader, self._over = loader, False

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        loader, ends = self._loader, self._loader._ends
        item = loader._fetch()
        own = None if item.kind == END or item.state is None else item.state["next_slot"]
        if ends is not None:
            agreed = ends.agree(None if own is None else item.content, own)
            if agreed != own:
                loader._state = {**loader._state, "next_slot": agreed}
                return ends.empty_batch()
        self._over = item.kind == END
        return loader._hand_out(item)


def _close(inbox: Arrivals, thread: threading.Thread, loader: Reading | None) -> None:
    """End the thread; if other ranks do not end theirs, the wait for them is cut short."""
    inbox.close()
    if thread.ident is None and loader is not None:
        loader.close()
    elif thread is not threading.current_thread():
        thread.join(_CLOSE_WAIT_S)
