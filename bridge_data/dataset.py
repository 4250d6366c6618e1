"""Data sets: a plan, an order and a task encoder, put together into lanes.

Enters: a path and the settings of a run. Leaves: a `LaneDataset`, which makes any lane of the job from nothing or
from a saved state. It holds no data and no handles, so it travels to worker processes as it is.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge_data.decode import SampleLoader
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.index import ShardReader
from bridge_data.lane import Batching, Lane
from bridge_data.order import SampleRef
from bridge_data.plan import Plan, load_plan
from bridge_data.plan_order import PlanOrder, Shuffle
from bridge_data.state import LaneState, LoaderState
from bridge_data.task import DefaultTaskEncoder, Hooks, TaskEncoder, is_overridden
from bridge_data.work import Work
from bridge_data.worker import WorkerConfig

MAX_BARREN = 1_000
"""Samples in a row that even the smallest share of a source may lose to filters before a lane calls it an error."""


class LaneDataset:
    """The lanes of one job over one plan; in validation order if `shuffle` is None.

    Made by `get_train_dataset` and `get_val_dataset`; iterate it through `get_loader` or `get_savable_loader`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        shuffle: Shuffle | None,
        batching: Batching,
        task_encoder: TaskEncoder[Any, Any, Any, Any],
        worker_config: WorkerConfig,
        virtual_epoch_length: int = 0,
    ) -> None:
        if batching.batch_size is None and is_overridden(task_encoder, "batch_group_criterion"):
            raise ConfigError(
                f"{type(task_encoder).__name__} groups samples into batches (batch_group_criterion), but batch_size is "
                "None, which makes a batch of each sample; give the default batch size"
            )
        if virtual_epoch_length < 0:
            raise ConfigError(f"virtual_epoch_length={virtual_epoch_length}: expected 0 (none) or more")
        self.plan = plan
        self.batching = batching
        self.task_encoder = task_encoder
        self.worker_config = worker_config
        self.virtual_epoch_length = virtual_epoch_length
        self.finite = shuffle is None or not shuffle.repeat
        """Whether the lanes end by themselves."""
        self._order = PlanOrder(plan, worker_config.seed_offset, shuffle, batching.batch_size or 1)
        self._work()  # finds contradictory hooks now rather than in a worker

    @property
    def source_names(self) -> list[str]:
        """The unique names of the sources in states and restore keys."""
        return self._order.source_names

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for saved cursors to mean the same samples."""
        return self._order.fingerprint() | dataclasses.asdict(self.batching)

    def new_state(self) -> LoaderState:
        """The state before the first sample, of the lanes of this rank."""
        config = self.worker_config
        lanes: dict[int, LaneState] = {lane: {} for lane in config.lanes}
        return LoaderState(self.fingerprint(), [self._order.first_generation(config.num_lanes)], 0, lanes)

    def check_state(self, data: dict[str, Any], *, strict: bool = True) -> LoaderState:
        """The lanes of this rank out of a saved state, its own or a merged one.

        Without `strict`, weights, added data sets and the batch size may differ; what differs is logged.
        If the ranks cannot share the saved lanes equally, or `WorkerConfig.num_lanes` asks for another number, what is
        left of the epochs in progress is dealt anew; that takes a state with all lanes.

        Raises:
            StateError: if the state is not of this data and these settings, or lacks lanes that are needed.
        """
        state = LoaderState.from_dict(data)
        if strict:
            state.check(self.fingerprint())
        else:
            state = self._order.migrated(state, self.fingerprint())
        config = self.worker_config
        asked = config.num_lanes if config.num_lanes_given else state.num_lanes
        if state.num_lanes % config.world_size or asked != state.num_lanes:
            state = self._order.redealt(state, config.num_lanes)
        return state.of_rank(config)

    def lane(self, lane: int, state: LoaderState, watch: Callable[[SampleRef], None] | None = None) -> Lane:
        """The lane with number `lane`, where `state` has it; `watch` is called with each sample before it is read."""
        batching = self.batching
        if batching.max_micro_batches is not None:
            limit = -(-max(0, batching.max_micro_batches - lane) // state.num_lanes)
            batching = dataclasses.replace(batching, max_micro_batches=limit)
        sizes = [source.num_samples for source in self.plan.sources]
        return Lane(
            self._order.cursor(lane, state.generations),
            self._work(),
            batching,
            barren_limits=[max(min(size, MAX_BARREN), -(-size // state.num_lanes)) for size in sizes],
            state=state.lanes.get(lane) or None,
            watch=watch,
        )

    def describe(self, ref: SampleRef) -> str:
        """A sample in words: its key, data set, epoch and number."""
        source = self.plan.sources[ref.source]
        try:
            key = ShardReader(source.shards).read(ref.index, ()).full_key
        except DatasetError:
            key = source.shards.names[source.shards.locate(ref.index)[0]]  # where even the key cannot be read
        return f"{key} of {source.name} (epoch {ref.epoch}, index {ref.index})"

    def _work(self) -> Work:
        """A lane's own hooks (they count failures) over the loaders that all lanes of this process share."""
        config = self.worker_config
        hooks = Hooks(self.task_encoder, config.seed_offset, config.global_error_handler, f"rank {config.rank}")
        packing = self.batching.packing_buffer_size is not None
        return Work(self._loaders, self._order.source_names, self._order.source_keys, hooks, packing=packing)

    @functools.cached_property
    def _loaders(self) -> list[SampleLoader]:
        return [SampleLoader(source, self.task_encoder.decoder) for source in self.plan.sources]

    def __getstate__(self) -> dict[str, Any]:
        """Handles stay behind; a worker makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_loaders"}


def _batching(batch_size: int | None, drop_last: bool, packing_buffer_size: int | None, limit: int | None) -> Batching:
    for name, value in (("batch_size", batch_size), ("packing_buffer_size", packing_buffer_size), ("limit", limit)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: expected at least 1, or None")
    return Batching(
        batch_size=batch_size, drop_last=drop_last, packing_buffer_size=packing_buffer_size, max_micro_batches=limit
    )


def get_train_dataset(
    path: str | Path,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int = 1,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    repeat: bool = True,
) -> LaneDataset:
    """The training data at `path`: a prepared folder, or a metadataset YAML.

    Args:
        split_part: the part of the split, `train` by default.
        batch_size: samples (with packing: packs) of a micro-batch; None for single samples.
        batch_drop_last: leave out a last batch that is not full, where the data ends at all.
        packing_buffer_size: samples among which `select_samples_to_pack` chooses; None for no packing.
        shuffle_buffer_size: how many samples should at least be mixed; no buffer exists, the order itself is mixed.
        max_samples_per_sequence: samples read from one place in sequence; None for whole shards.
        virtual_epoch_length: batches of this rank after which one iteration ends, 0 for never.
        shuffle_over_epochs_multiplier: shuffle so many epochs together.
        task_encoder: the user's hooks; a `DefaultTaskEncoder` if None.
        repeat: go on for ever; else one epoch.

    Raises:
        ConfigError: for wrong settings. DatasetError: if the data cannot be opened.
    """
    return LaneDataset(
        load_plan(path, split_part=split_part, training=True),
        shuffle=Shuffle(
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            epochs_per_shuffle=shuffle_over_epochs_multiplier,
            repeat=repeat,
        ),
        batching=_batching(batch_size, batch_drop_last, packing_buffer_size, None),
        task_encoder=DefaultTaskEncoder() if task_encoder is None else task_encoder,
        worker_config=worker_config,
        virtual_epoch_length=virtual_epoch_length,
    )


def get_val_dataset(
    path: str | Path,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
) -> LaneDataset:
    """The validation data at `path`: every sample once, in the order of the data, then the end.

    Args:
        limit: micro-batches of the whole job after which it ends; None for all.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    return LaneDataset(
        load_plan(path, split_part=split_part, training=False),
        shuffle=None,
        batching=_batching(batch_size, batch_drop_last, packing_buffer_size, limit),
        task_encoder=DefaultTaskEncoder() if task_encoder is None else task_encoder,
        worker_config=worker_config,
    )
