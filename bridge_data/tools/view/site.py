"""The content of one `bridge-data view`: data, batches, a run so far; batches are made on demand.

Batches are those that the trainer of the run gets: micro-batch m of the job, for any m soon after the beginning, a
saved state, or a batch shown before. Guarantee: the loader makes them, as one rank without workers, in the order of
the whole job.
"""

import collections
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_savable_loader
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.loader.ledger_files import RunLedger
from bridge_data.order.state import LoaderState
from bridge_data.tools.oracle import RunOrder
from bridge_data.tools.oracle.run_sections import skips_of
from bridge_data.tools.view.catalog import CatalogSource, DataCatalog, SplitCatalog
from bridge_data.tools.view.charts import TokenLengths, token_lengths
from bridge_data.tools.view.named_runs import NamedRun
from bridge_data.tools.view.saved_run import SavedRun

Key = TypeVar("Key")
Made = TypeVar("Made")

MAX_STEPS = 200
"""Maximum batches made to reach the one shown."""

KEPT_BATCHES = 8
"""Batches kept in memory."""

STATE_EVERY = 16
"""Batches between states that are kept for going back."""


class BatchSequence:
    """The micro-batches of a job, in any order. Any thread may use it.

    `states` are saved states of the run. The beginning needs none, unless the run was dealt to another number of lanes
    since; `first` is the first micro-batch that can be shown.

    Raises:
        StateError: if a state is of other data or settings.
    """

    def __init__(self, dataset: LaneDataset, states: Sequence[LoaderState] = ()) -> None:
        self.dataset = dataset = dataset.changed(skips=skips_of(dataset, states))
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
        """Go to the known state before batch `number`."""
        state = self._states[number]
        if state is None:
            self._loader = get_savable_loader(self.dataset)
        else:
            self._loader.restore_state_rank(state)
        self._next, self._iterator = number, iter(self._loader)


MAX_REPLAYED = 2000
"""Maximum micro-batches made again to find the samples of a step if arithmetic cannot."""


class _Latest(Generic[Key, Made]):
    """Caches the result of `make` for the last key."""

    def __init__(self, make: Callable[[Key], Made]) -> None:
        self._make = make
        self._found: tuple[Key, Made] | None = None

    def of(self, key: Key) -> Made:
        """The result for a key, from the cache if it is the last one."""
        if self._found is None or self._found[0] != key:
            self._found = key, self._make(key)
        return self._found[1]


class Site:
    """All content to show. `open_run` opens the data of the run when batches are requested, with the lanes and sizes of
    its states (None: there are no batches to show); `name`: its name; `has_encoder`: with its own task encoder.
    `read_saved` reads the output of the run so far (None: there is no run). `working` is held while hooks of the run
    are running: its readers are not thread-safe."""

    def __init__(
        self,
        catalog: DataCatalog,
        open_run: Callable[[SavedRun], NamedRun] | None,
        read_saved: Callable[[], SavedRun] | None = None,
        *,
        has_encoder: bool = False,
        name: str = "",
    ) -> None:
        self.catalog, self.saved = catalog, SavedRun()
        self.run_name = name or f"The run of {catalog.path}"
        self.working = threading.Lock()
        self._has_run, self._read_saved = open_run is not None, read_saved
        self._has_encoder, self._is_named = has_encoder, bool(name)
        self._opening = threading.RLock()
        self._token_lengths: dict[int, TokenLengths] = {}
        self._run: _Latest[object, NamedRun] = _Latest(lambda _: self._opened(open_run))
        self._batches = _Latest(_batch_sequence)
        self._order = _Latest(_run_order)
        self.refresh()

    def refresh(self) -> None:
        """Read the current output of the run. Raises as `read_saved` does."""
        if self._read_saved is not None:
            self.saved = self._read_saved()

    @property
    def title(self) -> str:
        """The name of the data or run shown."""
        return f"{self.run_name} · {self.catalog.path}" if self._is_named else str(self.catalog.path)

    @property
    def parts(self) -> list[str]:
        """The names of the split parts."""
        return self.catalog.part_names

    @property
    def pages(self) -> list[tuple[str, str]]:
        """(name, address) of the pages."""
        found = [("Samples", "/samples"), ("Blend", "/blend"), ("Sizes", "/shapes")]
        batches = [("Batches", "/batches")] if self._has_run else []
        return [*([("Run", "/run")] if self.has_saved else []), *found, *batches]

    @property
    def has_saved(self) -> bool:
        """Whether a run is shown, even one without any output yet."""
        return self._read_saved is not None

    @property
    def run(self) -> NamedRun:
        """The data of the run. Raises a ConfigError if there is none, or it cannot be opened."""
        with self._opening:
            return self._run.of((self.saved.num_lanes, self.saved.num_per_step))

    @property
    def batches(self) -> BatchSequence:
        """The batches of the run. Raises as `run` does, and a StateError if a state is of other data or settings."""
        with self._opening:
            return self._batches.of((self.run, self.saved.states))

    @property
    def order(self) -> RunOrder:
        """The order of the run: the samples of each step. Raises as `batches` does."""
        with self._opening:
            return self._order.of((self.run, self.saved.states, self.saved.ledger))

    def token_lengths(self, split: SplitCatalog, source: CatalogSource) -> TokenLengths | None:
        """The tokens of samples of a source, as the run encodes them; None if the run has no encoder, or other data."""
        if not self._has_encoder or not self.reads(split):
            return None
        with self.working:
            if source.number not in self._token_lengths:
                self._token_lengths[source.number] = token_lengths(self.run.dataset, source.number)
            return self._token_lengths[source.number]

    def reads(self, split: SplitCatalog) -> bool:
        """Whether the samples of a split part are those of the run, under the same numbers."""
        wanted = [(source.path, source.split_part, source.num_samples) for source in self.run.dataset.plan.sources]
        return wanted == [(source.path, split.name, source.num_samples) for source in split.sources]

    def check_replay(self, numbers: range) -> None:
        """Check that finding the samples of micro-batches `numbers` needs few enough batches.

        Raises:
            ConfigError: if packs or groups would need too many samples.
        """
        dataset, ledger = self.run.dataset, self.saved.ledger
        if dataset.batching.packing_buffer_size is None and not dataset.may_multiply:
            return  # by arithmetic
        if ledger is not None and all(map(ledger.has, numbers)):
            return
        start = max((slot for one in self.saved.states if (slot := one.state.next_slot) <= numbers[0]), default=0)
        if numbers[0] - start > MAX_REPLAYED:
            raise ConfigError(
                f"micro-batch {numbers[0]}: to know its packs or groups, {numbers[0] - start:,} batches before it "
                f"would be made again, and at most {MAX_REPLAYED:,} are; give --state, a checkpoint shortly before it"
            )

    def _opened(self, open_run: Callable[[SavedRun], NamedRun] | None) -> NamedRun:
        if open_run is None:
            raise ConfigError("there are no batches to show; give --config")
        return open_run(self.saved)


def _states(saved: Sequence[Checkpoint]) -> list[LoaderState]:
    return [one.state for one in saved]


def _batch_sequence(key: tuple[NamedRun, Sequence[Checkpoint]]) -> BatchSequence:
    run, saved = key
    return BatchSequence(run.dataset, _states(saved))


def _run_order(key: tuple[NamedRun, Sequence[Checkpoint], RunLedger | None]) -> RunOrder:
    run, saved, ledger = key
    return RunOrder(run.dataset, schedule=run.schedule, states=_states(saved), records=ledger)
