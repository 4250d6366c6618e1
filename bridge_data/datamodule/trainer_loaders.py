"""The loaders of a rank as trainers use them: training is endless, and saved and restored for all ranks at once; every
evaluation starts at the first sample.

Reads a data set of this data-parallel rank, and process groups. `rank_loader` returns the loader of this rank: of its
own lanes, or one that shares batches with other ranks. `EnergonDataloader` returns its batches for training, endlessly.
The state of rank 0 has all lanes of the job, so any number of ranks can be restored from it. It is the position after
the last batch delivered, even if the consumer prefetches: batches that were prefetched and never delivered come again.
`ValidationDataloader` returns one pass at a time for Lightning, batches without end for Megatron, which only calls
`next`.
"""

import collections
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from bridge_data.datamodule.parallel.groups import groups_beside, is_first_of_replica
from bridge_data.datamodule.shared_states import check_agreement, distribute_state, gather_whole_state
from bridge_data.errors import DatasetError, StateError
from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.factory import open_loader, with_extras
from bridge_data.loader.loader import LATE_STATES
from bridge_data.loader.metrics import LoaderMetrics
from bridge_data.order.state import LoaderState, as_one_value
from bridge_data.plan import Source
from bridge_data.run_options import LoaderConfig, Share
from bridge_data.samples.collation import with_tensors

T = TypeVar("T")


class RankLoader(Protocol):
    """A loader of one rank: that of its own lanes (`SavableDataLoader`), or by a plug-in, which shares batches between
    ranks. Batches and states are the same, whichever rank reads."""

    @property
    def is_within_step(self) -> bool:
        """Whether the last batch came with the state before it, because the rest of its step is still to come."""

    @property
    def is_idle(self) -> bool:
        """Whether this rank gets no batches, so that it has no position either."""

    @property
    def dataset(self) -> LaneDataset: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def metrics(self, *, of_job: bool = False) -> LoaderMetrics: ...
    def snapshot(self) -> LoaderState: ...
    def save_state_rank(self) -> dict[str, Any]: ...
    def restore_state_rank(self, state: LoaderState | dict[str, Any], *, strict: bool = True) -> None: ...
    def wait_for_workers(self, timeout_s: float = 300) -> bool: ...
    def close(self) -> None: ...


_SHARE = Feature[Callable[[LaneDataset, LoaderConfig, Share, Any, Any], RankLoader]]("share")


def rank_loader(
    dataset: LaneDataset, config: LoaderConfig, share: Share, pg_collection: Any, balancing: Any = None
) -> RankLoader:
    """The loader of this rank. All ranks of its data-, tensor- and context-parallel groups must call it, and with
    "broadcast" or `balancing` (see the plug-in `balance`) all of the job, in the same order.

    Raises:
        ConfigError: if the ranks of the replica are not known, balanced ranks should end evenly, or what shares batches
            is not installed.
        StateError: on all of these ranks, if data, settings, or what they have found beside the data differ.
    """
    groups = groups_beside(pg_collection) if share == "replicate" else ()
    check_agreement(dataset, groups)
    is_validation = dataset.order.shuffle is None
    if not is_validation:  # extras are in the positions of all ranks, also of those that record nothing
        dataset = with_extras(dataset, config)
    if is_validation or (share == "replicate" and not is_first_of_replica(pg_collection)):
        no_recorders: dict[str, Any] = dict.fromkeys(config.options_of_extras.values())
        config = dataclasses.replace(config, **no_recorders)
    if share == "replicate" and balancing is None:
        return open_loader(dataset, config)
    shared = _SHARE.get(needed_by="balance" if share == "replicate" else f"share={share!r}")
    return shared(dataset, config, share, pg_collection, balancing)


class EnergonDataloader(Iterator[Any]):
    """An endless iterator over a loader, for Megatron's `RerunDataIterator` and for Lightning; `before_first` is called
    before its first batch.

    With `by_pass`, an iteration ends where a pass through data that end does, and the next one is the next pass.

    Raises:
        DatasetError: from `next`, if the loader yields nothing.
    """

    by_pass = False

    def __init__(
        self, dataloader: RankLoader, *, strict: bool = True, before_first: Callable[[], None] | None = None
    ) -> None:
        self.dataloader, self._before_first = dataloader, before_first
        self._strict = strict
        self._cycle = _Cycle(dataloader)
        self._num_delivered: Callable[[], int] | None = None
        self._num_in_step: Callable[[], int] = int
        self._num_before, self._num_drawn = 0, 0
        # The states before each batch of the current step, then before each batch not delivered yet.
        self._states: collections.deque[LoaderState] = collections.deque()
        self.num_handed_out_before = 0
        """How many micro-batches the job had handed out at the last restore; skipped ones are not among them."""
        self.num_draws = 0
        """Batches drawn from this object."""

    def __iter__(self) -> "EnergonDataloader":
        self._take_back()
        return self

    def __next__(self) -> Any:
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self.num_draws += 1
        take = self._cycle.next_in_pass if self.by_pass else self._cycle.__next__
        if self._num_delivered is None:
            return take()
        self._forget_whole_steps()
        before = self.dataloader.snapshot()
        batch = take()
        self._states.append(before)
        self._num_drawn += 1
        return batch

    def __len__(self) -> int:
        if not self.dataloader.dataset.virtual_epoch_length:
            raise TypeError("this loader is endless; virtual_epoch_length ends iterations after that many batches")
        return len(self.dataloader)

    @property
    def skipped(self) -> dict[str, int]:
        """Samples that this rank has skipped, by hook."""
        return dict(self.dataloader.skipped)

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Counts since this loader was made; `of_job`: of all data-parallel ranks, which must all call it."""
        return self.dataloader.metrics(of_job=of_job)

    def restore_sample(self, key: Any) -> Any:
        """The batch, pack or sample with the `__restore_key__` `key`, made again in this process; the position stays.

        Raises:
            ConfigError: if the key is invalid, or of other data.
            SampleError: if the hooks skip it.
        """
        return with_tensors(self.dataloader.dataset.restore_sample(key))

    def follow(self, num_delivered: Callable[[], int], num_in_step: Callable[[], int] = int) -> None:
        """From now on, `num_delivered` counts the delivered batches, because the consumer prefetches; the last
        `num_in_step` of them belong to a step that is not complete.

        Batches that an earlier consumer drew without delivering them are drawn again.
        """
        self._take_back()
        self._num_delivered, self._num_in_step = num_delivered, num_in_step
        self._begin_count()

    def save_state(self) -> dict[str, Any]:
        """The position after the last batch delivered, or before the first of an incomplete step, as plain
        data: on data-parallel rank 0 that of the whole job, on the others that of their own lanes; empty on a rank that
        gets no batches. All ranks must call it, after the same number of batches.

        Raises:
            StateError: on all ranks, if they are not at the same batch.
        """
        if self.dataloader.is_idle:
            return {}
        self._forget_whole_steps()
        own = self._states[0] if self._states else self.dataloader.snapshot()
        if not self._states and self.dataloader.is_within_step:
            warnings.warn(
                "the position is saved within a step, which balanced ranks draw as a whole: it is the one at the "
                "start of the step, so its batches come again after a restore. Save after whole steps; "
                "if this was one, the trainer's steps are not those of global_batch_size and rampup_batch_size",
                stacklevel=2,
            )
        dataset = self.dataloader.dataset
        return gather_whole_state(own, dataset.worker_config, dataset.extras).to_dict()

    def state_dict(self) -> dict[str, Any]:
        """The state of `save_state` as one value, for `torch.distributed.checkpoint` and loops of your own; all ranks
        must call it. Empty while Lightning trains with the DataModule, whose state has the position."""
        if self._num_delivered is not None:
            return {}
        if not self.dataloader.dataset.virtual_epoch_length and (warn_if_late := LATE_STATES.find()) is not None:
            warn_if_late()
        state = self.save_state()
        return as_one_value(state) if state else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, as `restore_state`; nothing if that is empty."""
        if state_dict:
            self.restore_state(state_dict)

    def restore_state(self, state: LoaderState | dict[str, Any] | None, *, strict: bool | None = None) -> None:
        """Restore a saved position. All data-parallel ranks must call it, each with what it saved, or with the state of
        the whole job, or with None if it has no state. A rank with the whole state sends the others what they lack.

        With `strict=False`, weights and added data sets may differ; differences are logged. None: as `strict` of this
        loader, which is `strict_restore` of the DataModule.

        Raises:
            StateError: if the state is of other data or settings; on all ranks, if their states are of different steps,
                if lanes are missing and no rank has the whole state, or if what they have found beside it differs.
        """
        dataset = self.dataloader.dataset
        check_agreement(dataset)
        own = distribute_state(state, dataset.worker_config)
        strict = self._strict if strict is None else strict
        if not strict:
            self._check_batch_size(own)
        self._restore(own, strict=strict)
        self.num_handed_out_before = own.num_handed_out

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Wait until the workers have loaded the dataset, as the first batch does; False if that takes longer, or there
        are none.

        Raises:
            WorkerError: if a worker cannot load it.
        """
        return self.dataloader.wait_for_workers(timeout_s)

    def close(self) -> None:
        """End the worker processes; delivered batches stay valid."""
        self.dataloader.close()

    def _check_batch_size(self, state: LoaderState) -> None:
        size = self.dataloader.dataset.batching.batch_size
        if (saved := state.fingerprint.get("batch_size", size)) != size:
            raise StateError(
                f"the state has micro-batches of {saved}, this run of {size}: steps and consumed samples are counted "
                "in micro-batches, so their size must stay; change global_batch_size instead"
            )

    def _restore(self, state: LoaderState, *, strict: bool = True) -> None:
        self.dataloader.restore_state_rank(state, strict=strict)
        self._cycle = _Cycle(self.dataloader)
        self._begin_count()

    def _begin_count(self) -> None:
        self._states.clear()
        self._num_drawn = 0
        self._num_before = 0 if self._num_delivered is None else self._num_delivered()

    def _take_back(self) -> None:
        if num_undelivered := self._num_undelivered():
            if num_undelivered > len(self._states):
                raise StateError(
                    f"the trainer was set back by {num_undelivered} batches or more without the state of its "
                    f"data, of which the last {len(self._states)} can be drawn again: load a checkpoint that was saved "
                    "with this DataModule, or give the trainer another one"
                )
            self._restore(self._states[-num_undelivered])

    def _num_undelivered(self) -> int:
        if self._num_delivered is None:
            return 0
        return max(self._num_drawn - (self._num_delivered() - self._num_before), 0)

    def _forget_whole_steps(self) -> None:
        num_needed = self._num_undelivered() + self._num_in_step()
        while len(self._states) > num_needed:
            self._states.popleft()


def cyclic_iter(iter: Iterable[T]) -> Iterator[T]:
    """The items of `iter`, endlessly: after the last, the first again.

    An exception does not end it: the next call continues, if `iter` itself can.

    Raises:
        DatasetError: if two passes in a row have no item, as when `iter` can be iterated only once.
    """
    return _Cycle(iter)


class _Cycle(Iterator[T]):
    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterable = iterable
        self._pass: Iterator[T] | None = None
        self._num_passes = 0

    def __next__(self) -> T:
        if self._pass is not None:
            try:
                return next(self._pass)
            except StopIteration:
                pass
        return self._first_of_pass()

    def next_in_pass(self) -> T:
        """The next item; StopIteration once after the last of each pass."""
        if self._pass is None:
            return self._first_of_pass()
        try:
            return next(self._pass)
        except StopIteration:
            self._pass = None
            raise

    def _first_of_pass(self) -> T:
        for _ in range(2):  # the first pass after a restore may start at its end
            self._pass = iter(self._iterable)
            self._num_passes += 1
            try:
                return next(self._pass)
            except StopIteration:
                pass
        raise DatasetError(
            f"passes {self._num_passes - 1} and {self._num_passes} through the {type(self._iterable).__name__} yielded "
            "nothing, so this would never end. Check that this rank has data, and that it can be iterated more "
            "than once"
        )


class ValidationDataloader(Iterator[Any]):
    """The batches of a finite loader; `iter` and `restart` go to the first one.

    With `cyclic`, it also starts over after the last batch, after `eval_batches` draws (None: no limit), and when there
    was training in between: when `num_trained` has changed since the last draw.

    Raises:
        DatasetError: from `next`, if `cyclic` and there is no batch for this rank.
    """

    def __init__(
        self,
        dataloader: RankLoader,
        *,
        cyclic: bool,
        eval_batches: int | None = None,
        num_trained: Callable[[], int] = int,
    ) -> None:
        self.dataloader = dataloader
        self.cyclic = cyclic
        self._eval_batches, self._num_trained = eval_batches, num_trained
        self._trained_before = num_trained()
        self._start = dataloader.snapshot()
        self._pass = iter(dataloader)
        self._num_drawn = self._num_in_pass = 0

    def __iter__(self) -> "ValidationDataloader":
        self.restart()
        return self

    def __len__(self) -> int:
        """The batches of an evaluation. Raises a TypeError as `len` of a loader does, and if `cyclic`."""
        if self.cyclic:
            raise TypeError("this loader is endless; len(loader.dataloader) has the batches of one evaluation")
        return len(self.dataloader)

    def __bool__(self) -> bool:
        return True  # also if this rank has no batches

    def __next__(self) -> Any:
        trained = self._num_trained()
        if self.cyclic and (self._num_drawn == self._eval_batches or trained != self._trained_before):
            self.restart()
        self._trained_before = trained
        try:
            batch = next(self._pass)
        except StopIteration:
            if not self.cyclic:
                raise
            batch = self._first_again()
        self._num_drawn += 1
        self._num_in_pass += 1
        return batch

    def restart(self) -> None:
        """Go to the first batch: a new evaluation starts."""
        self._num_drawn = 0
        self._begin_pass()

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Counts since this loader was made; `of_job`: of all data-parallel ranks, which must all call it."""
        return self.dataloader.metrics(of_job=of_job)

    def close(self) -> None:
        """End the worker processes; delivered batches stay valid."""
        self.dataloader.close()

    def _begin_pass(self) -> None:
        if self._num_in_pass:  # batches prefetched at the start are still valid
            self.dataloader.restore_state_rank(self._start)
        self._pass, self._num_in_pass = iter(self.dataloader), 0

    def _first_again(self) -> Any:
        self._begin_pass()
        try:
            return next(self._pass)
        except StopIteration:
            config = self.dataloader.dataset.worker_config
            raise DatasetError(
                f"the validation data has no batch for data-parallel rank {config.rank} of {config.world_size}: it has "
                "fewer micro-batches than there are ranks. Give it more samples, or a smaller micro_batch_size"
            ) from None


def distinct_names(sources: Sequence[Source]) -> list[str]:
    """A unique name for each source: its own (`photos/val`). If several have the same name, it is preceded by enough
    folders to distinguish them, or, for the same data, followed by a number."""
    names = [source.name for source in sources]
    for name in {name for name in names if names.count(name) > 1}:
        same = [number for number, other in enumerate(names) if other == name]
        paths = [(*sources[number].path.rstrip("/").split("/"), sources[number].split_part) for number in same]
        depth = 2
        while len({path[-depth:] for path in paths}) < len({*paths}):
            depth += 1
        for number, path in zip(same, paths, strict=True):
            names[number] = "/".join(path[-depth:])
    return [
        f"{name} ({before + 1})" if (before := names[:number].count(name)) else name
        for number, name in enumerate(names)
    ]
