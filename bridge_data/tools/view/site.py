"""What one `bridge-data view` shows: data, batches, a run; batches are made when they are first looked at."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

from bridge_data.errors import ConfigError
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.tools.oracle import RunOrder
from bridge_data.tools.view.catalog import CatalogSource, DataCatalog, SplitCatalog
from bridge_data.tools.view.histograms import TokenLengths, token_lengths
from bridge_data.tools.view.loss_log import LossLog
from bridge_data.tools.view.named_runs import NamedRun
from bridge_data.tools.view.trainer_batches import BatchSequence

MAX_REPLAYED = 2000
"""Micro-batches that are made again to know which samples a step has, where that is no arithmetic."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """What is left of a run: its saved states, which are put in the sequence of their positions, one of each; and its
    losses (None: no log)."""

    states: Sequence[Checkpoint] = ()
    log: LossLog | None = None

    def __post_init__(self) -> None:
        by_position = {one.state.next_slot: one for one in reversed(self.states)}
        object.__setattr__(self, "states", tuple(by_position[position] for position in sorted(by_position)))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing."""
        return not self.states and self.log is None

    @property
    def num_per_step(self) -> int | None:
        """The micro-batches of the job in each step, as the states say; None if they do not, or it changes."""
        found = {divmod(one.state.next_slot, one.step) for one in self.states if one.step and not one.state.is_finite}
        (number, rest), *others = found or {(0, 0)}
        return number if number and not rest and not others else None


class Site:
    """What there is to look at. `open_run` opens the data of the run when batches are asked for (None: there are no
    batches to show); `has_encoder`: with a task encoder of its own. Where hooks of the run work, `working` is held: its
    readers are for one thread."""

    def __init__(
        self,
        catalog: DataCatalog,
        open_run: Callable[[], NamedRun] | None,
        saved: SavedRun | None = None,
        *,
        has_encoder: bool = False,
    ) -> None:
        self.catalog, self.saved = catalog, saved or SavedRun()
        self.working = threading.Lock()
        self._open_run, self._has_encoder = open_run, has_encoder
        self._opening = threading.RLock()
        self._token_lengths: dict[int, TokenLengths] = {}

    @property
    def title(self) -> str:
        """What is looked at."""
        return str(self.catalog.path)

    @property
    def parts(self) -> list[str]:
        """The names of the split parts."""
        return self.catalog.part_names

    @property
    def pages(self) -> list[tuple[str, str]]:
        """(name, address) of the pages."""
        found = [("Samples", "/samples"), ("Blend", "/blend"), ("Sizes", "/shapes")]
        batches = [] if self._open_run is None else [("Batches", "/batches")]
        return [*found, *batches, *([] if self.saved.is_empty else [("Run", "/run")])]

    @property
    def run(self) -> NamedRun:
        """The data of the run. Raises a ConfigError if there is none, or it cannot be opened."""
        with self._opening:
            return self._run

    @property
    def batches(self) -> BatchSequence:
        """The batches of the run. Raises as `run` does, and a StateError if a state is of other data or settings."""
        with self._opening:
            return self._batches

    @property
    def order(self) -> RunOrder:
        """Which samples each step of the run saw. Raises as `batches` does."""
        with self._opening:
            return self._order

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
        """Check that few enough batches must be made to know which samples micro-batches `numbers` have.

        Raises:
            ConfigError: if packs or groups would have to be made of too many samples.
        """
        dataset = self.run.dataset
        if dataset.batching.packing_buffer_size is None and not dataset.may_multiply:
            return  # by arithmetic
        start = max((slot for one in self.saved.states if (slot := one.state.next_slot) <= numbers[0]), default=0)
        if numbers[0] - start > MAX_REPLAYED:
            raise ConfigError(
                f"micro-batch {numbers[0]}: to know its packs or groups, {numbers[0] - start:,} batches before it "
                f"would be made again, and at most {MAX_REPLAYED:,} are; give --state, a checkpoint shortly before it"
            )

    @functools.cached_property
    def _order(self) -> RunOrder:
        run = self._run
        return RunOrder(run.dataset, schedule=run.schedule, states=[one.state for one in self.saved.states])

    @functools.cached_property
    def _run(self) -> NamedRun:
        if self._open_run is None:
            raise ConfigError("there are no batches to show; give --config")
        return self._open_run()

    @functools.cached_property
    def _batches(self) -> BatchSequence:
        return BatchSequence(self._run.dataset, [one.state for one in self.saved.states])
