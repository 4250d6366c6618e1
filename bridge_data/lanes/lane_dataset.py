"""`LaneDataset`: a plan, an order and a task encoder as one data set, which has the lanes of a job.

It is a description: what the lanes read, in which order, and what is done to it, with methods that return a changed
one. It holds no data, and can be sent to worker processes. What is done with it has modules of its own: `run_states`
begins, checks and reshards states, `lane_opening` opens readers, lanes and makers, `passes` counts the batches of a
pass, `restoring` makes a sample again from its key. What each process makes for itself on first use (`opened`,
`passes`) is left out of copies and pickles.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypedDict, Unpack

from bridge_data import storage
from bridge_data.data import RawSample
from bridge_data.errors import ConfigError, ErrorHandler, no_random_access
from bridge_data.extensions import Feature
from bridge_data.lanes import lane_opening, run_states
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_opening import OpenSources
from bridge_data.lanes.maker import Batching, EncodingMaker, Watch, Work
from bridge_data.lanes.maker_wrappers import MakerWrapper
from bridge_data.lanes.pack_source import PackSources
from bridge_data.lanes.passes import PassLength
from bridge_data.lanes.restoring import Restorer
from bridge_data.options import check_integer
from bridge_data.order import SampleRef
from bridge_data.order.cursor import BlendRule
from bridge_data.order.extras import LaneExtras, StateExtra, extras_of
from bridge_data.order.plan_order import PlanOrder, ShuffleSettings
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import StepSkips
from bridge_data.plan import Plan
from bridge_data.plan.blending import SAMPLES
from bridge_data.replacement import replacement
from bridge_data.task import TaskEncoder
from bridge_data.task.observer import Observer
from bridge_data.task.stores import CachePool, NoCachePool
from bridge_data.topology import WorkerConfig

_COST_WEIGHTS = Feature[Callable[[Plan, TaskEncoder[Any, Any, Any, Any], Batching], BlendRule]]("cost_weights")
"""Draws from the sources of a plan by shares of the cost that its weights count."""

OF_SAMPLES = ("torch", "numpy.random", "PIL.Image")
"""The modules that lanes import on first use, if samples are more than texts and numbers."""

_OF_PROCESS = frozenset({"opened", "passes", "_fingerprint"})


class Changes(TypedDict, total=False):
    """What `LaneDataset.changed` may change; `LaneDataset` says what each is."""

    plan: Plan
    order: PlanOrder
    batching: Batching
    task_encoder: TaskEncoder[Any, Any, Any, Any]
    worker_config: WorkerConfig
    pack_sources: PackSources
    wrappers: tuple[MakerWrapper, ...]
    extras: tuple[StateExtra, ...]
    skips: StepSkips | None
    cache_pool: CachePool
    make_observer: Callable[[Sequence[int]], Observer] | None
    finite: bool
    repeats: float | Fraction
    virtual_epoch_length: int
    begins_anew: bool


class LaneDataset:
    """The lanes of one job over one plan; in validation order if `shuffle` is None.

    Made by `get_train_dataset` and `get_val_dataset`; iterate it through `get_loader` or `get_savable_loader`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        shuffle: ShuffleSettings | None,
        batching: Batching,
        task_encoder: TaskEncoder[Any, Any, Any, Any],
        worker_config: WorkerConfig,
        virtual_epoch_length: int = 0,
    ) -> None:
        if not isinstance(worker_config, WorkerConfig):
            raise ConfigError(
                f"worker_config={worker_config!r}: expected a WorkerConfig, such as "
                "WorkerConfig.default_worker_config(num_workers=4)"
            )
        check_integer("virtual_epoch_length", virtual_epoch_length, 0)
        self.plan = plan
        self.batching = batching
        self.task_encoder = task_encoder
        if shuffle is not None:
            worker_config = worker_config.for_samples(plan.num_samples, batching.batch_size or 1)
        self.worker_config = worker_config
        self.virtual_epoch_length = virtual_epoch_length
        self.cache_pool: CachePool = NoCachePool()
        """The cache that cookers get."""
        self.wrappers: tuple[MakerWrapper, ...] = ()
        """Around what makes the samples of each lane, the first innermost."""
        self.bare_keys = replacement().as_energon
        """Whether the `__key__` of a sample is without its shard."""
        self.make_observer: Callable[[Sequence[int]], Observer] | None = None
        """Called once in each process that runs lanes, with the keys of the sources."""
        self.finite = shuffle is None or not shuffle.repeat
        """Whether the data of the lanes end."""
        self.begins_anew = False
        """Whether a pass that `virtual_epoch_length` ends is followed by the same one."""
        self.repeats: float | Fraction = 1
        """How often a pass over finite data repeats them, exactly: when the lanes end, it restarts them."""
        self.skips: StepSkips | None = None
        """Steps to skip, in addition to those in a restored state. Not for data that end."""
        self.pack_sources = PackSources()
        """Opens the pack sources of the lanes, if samples are packed."""
        self._shuffle = shuffle
        self.order = self.order_of(plan, batching)
        """Which samples each lane draws."""
        asked = {name: needed_by for source in plan.sources for name, needed_by in source.asks_for.items()}
        self.extras: tuple[StateExtra, ...] = extras_of(asked, plan.sources, self.source_ids) if asked else ()
        """What features do in the lanes, and keep in the states."""
        self.check_hooks()  # here rather than in a worker

    __getitem__ = no_random_access

    def __len__(self) -> int:
        """The batches that this rank gets in a pass; of endless data without `virtual_epoch_length`, in an epoch.

        Exact for `virtual_epoch_length`, and for data that end, after a whole number of repetitions, without packing,
        grouping, or hooks that skip samples or make several of one. Else an estimate: with packs it counts samples, and
        of shuffled data with over a million chunks, lanes have about equal shares. For endless data it is the same on
        all ranks, so that their epochs end together.
        """
        return self.passes.num_batches()

    def __bool__(self) -> bool:
        return True  # also if this rank has no batches

    # ----- what it is -------------------------------------------------------------------------------------------------

    @property
    def source_ids(self) -> list[str]:
        """What states and restore keys call the sources: their fingerprints, made unique."""
        return self.order.source_ids

    @property
    def is_packing(self) -> bool:
        """Whether samples are packed."""
        return self.batching.packing_buffer_size is not None

    @property
    def is_remote(self) -> bool:
        """Whether samples are read from a store."""
        return any(source.is_remote for source in self.plan.sources)

    @property
    def may_multiply(self) -> bool:
        """Whether hooks may make more batches than the samples fill, as generators and grouping do."""
        return self.opened.hooks(self.task_encoder).may_multiply

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that lanes import on first use: none if the samples are text and numbers.

        Workers share what is imported before they are forked: over 100 MB each for torch.
        """
        opened = self.opened
        is_plain = not opened.hooks(self.task_encoder).does and all(reader.is_plain for reader in opened.readers)
        return *(() if is_plain else OF_SAMPLES), *self.pack_sources.modules

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for saved cursors to mean the same samples."""
        return dict(self._fingerprint)

    @functools.cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return {
            **self.order.fingerprint(),
            **dataclasses.asdict(self.batching),
            **(self.pack_sources.fingerprint(self) if self.is_packing else {}),
        }

    def check_hooks(self) -> None:
        """Check that the hooks of the encoder fit together, and to packing.

        Raises:
            ConfigError: if they do not.
        """
        self.opened.hooks(self.task_encoder).check(packing=self.is_packing)

    def describe(self, ref: SampleRef) -> str:
        """A sample in words: its key, data set, epoch and number."""
        if not 0 <= ref.source < len(self.plan.sources):
            return str(ref)  # a worker was killed while it wrote this
        source = self.plan.sources[ref.source]
        key = source.key_or_place(ref.index)
        storage.close_files()  # a trainer that only describes what killed its workers reads nothing else
        return f"{key} of {source.name} (epoch {ref.epoch}, index {ref.index})"

    # ----- changed ----------------------------------------------------------------------------------------------------

    def changed(self, **changes: Unpack[Changes]) -> "LaneDataset":
        """The same data set, but for these attributes. It opens its own handles, as a worker does.

        Raises:
            TypeError: for another attribute.
        """
        if unknown := changes.keys() - Changes.__annotations__.keys():
            raise TypeError(f"a LaneDataset is not changed by {', '.join(sorted(unknown))}")
        vars(made := copy.copy(self)).update(changes)
        return made

    def observed(self, make_observer: Callable[[Sequence[int]], Observer]) -> "LaneDataset":
        """The same data set; in each process, the `Observer` that `make_observer` makes is called around each stage."""
        return self.changed(make_observer=make_observer)

    def first(self, num_micro_batches: int) -> "LaneDataset":
        """The same data set, ending after `num_micro_batches` of the whole job: see `PassLength`."""
        batching = dataclasses.replace(self.batching, max_micro_batches=num_micro_batches)
        return self.changed(batching=batching, finite=True)

    def on_ranks(self, config: WorkerConfig) -> "LaneDataset":
        """The same data set for the ranks of `config`."""
        return self.changed(worker_config=config, pack_sources=self.pack_sources.for_ranks(config.world_size))

    def batched(
        self, batch_size: int, *, drop_last: bool, task_encoder: TaskEncoder[Any, Any, Any, Any]
    ) -> "LaneDataset":
        """The same data set in batches of `batch_size`, as another task encoder makes them.

        Raises:
            ConfigError: if what was added to it does not allow this encoder.
        """
        config = self.worker_config
        if self._shuffle is not None:
            config = config.for_samples(self.plan.num_samples, batch_size or 1)
        batching = dataclasses.replace(self.batching, batch_size=batch_size, drop_last=drop_last)
        changed = self.changed(task_encoder=task_encoder, batching=batching, worker_config=config)
        changed = changed.changed(order=changed.order_of(self.plan, batching))
        return changed.changed(pack_sources=self.pack_sources.batched(changed))

    def order_of(self, plan: Plan, batching: Batching) -> PlanOrder:
        """The order of a plan with the shuffle settings and the seed of this one."""
        seed, size, unit = self.worker_config.seed_offset, batching.batch_size or 1, plan.weight_unit
        rule: BlendRule | None = None
        if unit != SAMPLES and self._shuffle is not None:
            rule = _COST_WEIGHTS.get(needed_by=f"weight_unit: {unit}")(plan, self.task_encoder, batching)
        return PlanOrder(plan, seed, self._shuffle, size, rule)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_PROCESS}

    # ----- states -----------------------------------------------------------------------------------------------------

    def new_state(self, num_lanes: int | None = None) -> LoaderState:
        """The state before the first sample, of this rank's lanes; `num_lanes` in all, by default as configured."""
        return run_states.first_state(self, num_lanes)

    def check_state(self, data: LoaderState | dict[str, Any], *, strict: bool = True) -> LoaderState:
        """The lanes of this rank from a saved state, its own or a merged one.

        Without `strict`, weights, added data sets and the batch size may differ, if packs keep the order of lanes;
        differences are logged.
        If the ranks cannot share the saved lanes equally, or `WorkerConfig.num_lanes` asks for another number, the
        rest of the epochs in progress is resharded; that needs a state with all lanes. A state saved at the end of a
        pass becomes the start of the next one.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes that are needed.
        """
        return run_states.checked_state(self, data, strict=strict)

    @functools.cached_property
    def passes(self) -> PassLength:
        """How many batches a pass has, and whether the lanes begin again after their end."""
        return PassLength(self)

    # ----- opening ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def opened(self) -> OpenSources:
        """What this process has opened of it."""
        return OpenSources(self)

    def lane(
        self,
        lane: int,
        state: LoaderState,
        watch: Watch | None = None,
        *,
        wrappers: Sequence[MakerWrapper] = (),
        work: Work | None = None,
    ) -> Lane:
        """Lane number `lane` at its position in `state`; `watch` is called with each sample before it is read, and its
        samples are made inside these `wrappers`, too."""
        return lane_opening.open_lane(self, lane, state, watch, wrappers=wrappers, work=work)

    def work(self, handler: ErrorHandler | None = None, watch: Watch | None = None) -> Work:
        """A lane's own hooks (they count failures) over the readers that all lanes of this process share."""
        return Work(self.maker(handler, watch), packing=self.is_packing)

    def maker(
        self, handler: ErrorHandler | None = None, watch: Watch | None = None, *, ahead: bool = False
    ) -> EncodingMaker:
        """A maker for one lane; with `ahead`, of samples of any, one by one, that raises failures."""
        return lane_opening.new_maker(self, handler, watch, ahead=ahead)

    def restore_sample(self, key: Any) -> Any:
        """The sample, pack or batch with the `__restore_key__` `key`, made again from the data: bit-identical, if
        data, settings and hooks are unchanged. Failures go to `WorkerConfig.restore_error_handler`.

        Raises:
            ConfigError: if the key is invalid, or of other data.
            SampleError: if the hooks skip it.
        """
        handler = self.worker_config.restore_error_handler
        extras = LaneExtras(self.extras, 0, self.new_state()) if self.extras else None
        return Restorer(self.work(handler), self.order.sizes, extras).restore(key)

    def raw_samples(self, num_samples: int) -> list[RawSample]:
        """The first samples of this rank's first lane, as stored."""
        state, readers = self.new_state(), self.opened.readers
        drawn = self.order.cursor(next(iter(state.lanes)), state).take(num_samples)
        return [readers[ref.source].read(ref.index) for _, ref in drawn]
