"""The batches of a run as its trainer gets them, one after the other, from the beginning or from a saved state.

Enters: a `LaneDataset`, perhaps a state. Leaves: micro-batch m of the job, for any m that has been reached before or is
near. Guarantee: it is the loader that makes them, of one rank without workers; that is the sequence of the whole job.
"""

import collections
import threading
from collections.abc import Iterator
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_savable_loader

MAX_STEPS = 200
"""Batches that are made in order to show one."""

KEPT_BATCHES = 8
"""Batches that stay in memory."""

STATE_EVERY = 16
"""Batches between the states that are kept to go back."""


class BatchSequence:
    """The micro-batches of a job from number `first` on. Any thread may use it.

    Raises:
        StateError: if `state` is of other data or settings.
    """

    def __init__(self, dataset: LaneDataset, state: dict[str, Any] | None = None) -> None:
        self.dataset = dataset
        self._loader: SavableDataLoader = get_savable_loader(dataset)
        if state is not None:
            self._loader.restore_state_rank(state)
        self.first = 0 if state is None else int(state["next_slot"])
        self._next = self.first
        self._states: dict[int, dict[str, Any]] = {} if state is None else {self.first: state}
        self._iterator: Iterator[Any] = iter(self._loader)
        self._kept: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> Any:
        """Micro-batch `number` of the job.

        Raises:
            ConfigError: if it is before the first, or too far from those that were seen. LookupError: if the data end
            before it.
        """
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
            if number < self.first:
                raise ConfigError(f"batch {number}: the state that was given begins with batch {self.first}")
            if number < self._next:
                self._go_back(number)
            if number - self._next >= MAX_STEPS:
                raise ConfigError(
                    f"batch {number}: it takes {number - self._next:,} batches before it, and at most {MAX_STEPS} are "
                    "made; start with --state, a checkpoint shortly before it"
                )
            while True:
                batch = self._advance()
                if self._next > number:
                    return batch

    def _advance(self) -> Any:
        number = self._next
        if number % STATE_EVERY == 0:
            self._states.setdefault(number, self._loader.save_state_rank())
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise LookupError(f"the data end before batch {number}") from None
        self._next = number + 1
        self._kept[number] = batch
        while len(self._kept) > KEPT_BATCHES:
            self._kept.popitem(last=False)
        return batch

    def _go_back(self, number: int) -> None:
        """Go to the last kept state before batch `number`."""
        start = max((known for known in self._states if known <= number), default=None)
        if start is None:
            self._loader = get_savable_loader(self.dataset)
            self._next = 0
        else:
            self._loader.restore_state_rank(self._states[start])
            self._next = start
        self._iterator = iter(self._loader)
