"""The batches of a run as its trainer gets them, from the beginning or from saved states on.

Enters: a `LaneDataset`, perhaps states. Leaves: micro-batch m of the job, for any m soon after the beginning, a state,
or one that was seen. Guarantee: it is the loader that makes them, of one rank without workers; that is the sequence of
the whole job.
"""

import collections
import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_savable_loader
from bridge_data.order.state import LoaderState
from bridge_data.tools.oracle.stretches import edits_of

MAX_STEPS = 200
"""Batches that are made in order to show one."""

KEPT_BATCHES = 8
"""Batches that stay in memory."""

STATE_EVERY = 16
"""Batches between the states that are kept to go back."""


class BatchSequence:
    """The micro-batches of a job, in any order. Any thread may use it.

    `states` are saved states of the run. The beginning is known without one, unless the run was dealt to another number
    of lanes since; `first` is the first micro-batch that can be shown.

    Raises:
        StateError: if a state is of other data or settings.
    """

    def __init__(self, dataset: LaneDataset, states: Sequence[LoaderState] = ()) -> None:
        self.dataset = dataset = copy.copy(dataset)
        dataset.edits = edits_of(dataset, states)
        self._states: dict[int, dict[str, Any] | None] = {state.next_slot: state.to_dict() for state in states}
        lanes = {dataset.worker_config.num_lanes} | {num_lanes for s in states for num_lanes, _ in s.generations}
        if len(lanes) == 1:
            self._states.setdefault(0, None)
        self.first = min(self._states)
        self._loader: SavableDataLoader = get_savable_loader(dataset)
        self._iterator: Iterator[Any] = iter(())
        self._next = -1
        self._kept: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()
        for number in sorted(self._states, reverse=True):
            self._go_to(number)

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
                raise ConfigError(
                    f"batch {number}: the first that can be shown is {self.first}, that of the first state"
                )
            start = max(known for known in self._states if known <= number)
            if not start <= self._next <= number:
                self._go_to(start)
            if number - self._next >= MAX_STEPS:
                raise ConfigError(
                    f"batch {number}: it takes {number - self._next:,} batches before it, and at most {MAX_STEPS} are "
                    "made; give --state, a checkpoint shortly before it"
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

    def _go_to(self, number: int) -> None:
        """Go to the state before batch `number`, which is known."""
        state = self._states[number]
        if state is None:
            self._loader = get_savable_loader(self.dataset)
        else:
            self._loader.restore_state_rank(state)
        self._next, self._iterator = number, iter(self._loader)
