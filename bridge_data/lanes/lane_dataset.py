"""`LaneDataset`: a plan, an order and a task encoder as one data set, which has the lanes of a job, and their states.

It is a description: what the lanes read, in which order, and what is done to it, with methods that return a changed
one. It holds no data, and can be sent to worker processes. What each process makes for itself on first use (`opened`,
`passes`) is left out of copies and pickles.

Reads states, plain or as objects. Returns the state from which this rank begins or goes on, and lanes and makers of
samples at a position of it; raises `StateError` if a state is of other data or settings, or lacks lanes that are
needed. Samples are read by the lanes; by key or number, where one is asked for; and to reshard lanes of which
micro-batches are skipped.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any, TypedDict, Unpack

from bridge_data import storage
from bridge_data.data import RawSample
from bridge_data.data.blocks import BlockBudget, BlockRule
from bridge_data.decode import open_source_reader
from bridge_data.errors import ConfigError, ErrorHandler, no_random_access
from bridge_data.extensions import Feature
from bridge_data.lanes.lane import Lane, PackSource, SampleFeed, Upcoming
from bridge_data.lanes.maker import Batcher, Batching, EncodingMaker, Maker, Watch
from bridge_data.lanes.maker_wrappers import AheadMaker, KeepsSamples, LaneView, MakerWrapper, UpcomingSamples, wrapped
from bridge_data.lanes.pack_source import PackSources
from bridge_data.lanes.passes import PassLength
from bridge_data.lanes.reading import READ_AHEAD, plan_blocks, plan_runs
from bridge_data.order import SampleRef
from bridge_data.order.blends import BlendRule
from bridge_data.order.extras import LaneExtras, StateExtra, begun, extras_of, resharded_extras
from bridge_data.order.plan_order import Numbering, PlanOrder, ShuffleSettings
from bridge_data.order.state import Generation, LaneState, LoaderState, has_started, num_lanes_after, parse_state
from bridge_data.order.step_skips import StepSkips
from bridge_data.plan import Plan
from bridge_data.plan.blending import SAMPLES
from bridge_data.replacement import replacement
from bridge_data.samples import CrudeSample
from bridge_data.task import EncoderHooks, Hooks, SourceCook, TaskEncoder, hook_of
from bridge_data.task.observer import Observer
from bridge_data.task.stores import CachePool, NoCachePool
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

_COST_WEIGHTS = Feature[Callable[[Plan, TaskEncoder[Any, Any, Any, Any], Batching], BlendRule]]("cost_weights")
"""Draws from the sources of a plan by shares of the cost that its weights count."""

_RESTORED = Feature[Callable[[Batcher, Sequence[int], LaneExtras | None, Any], Any]]("restored")
"""What the batcher made of sources of these sizes, by its restore key."""

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
        asked = {name: needed_by for source in plan.sources for name, needed_by in source.needed_extras.items()}
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
        self.opened.hooks(self.task_encoder)

    def describe(self, ref: SampleRef) -> str:
        """A sample in words: its key, data set, epoch and number."""
        if not 0 <= ref.source < len(self.plan.sources):
            return str(ref)  # a worker was killed while it wrote this
        source = self.plan.sources[ref.source]
        key = source.key_or_place(ref.index)
        storage.close_files()  # a trainer that only describes what killed its workers reads nothing else
        return f"{key} of {source.name} (epoch {ref.epoch}, index {ref.index})"

    # ----- changed ----------------------------------------------------------------------------------------------------

    def changed(self, **changes: Unpack[Changes]) -> LaneDataset:
        """The same data set, but for these attributes. It opens its own handles, as a worker does.

        Raises:
            TypeError: for another attribute.
        """
        if unknown := changes.keys() - Changes.__annotations__.keys():
            raise TypeError(f"a LaneDataset is not changed by {', '.join(sorted(unknown))}")
        vars(made := copy.copy(self)).update(changes)
        return made

    def observed(self, make_observer: Callable[[Sequence[int]], Observer]) -> LaneDataset:
        """The same data set; in each process, the `Observer` that `make_observer` makes is called around each stage."""
        return self.changed(make_observer=make_observer)

    def first(self, num_micro_batches: int) -> LaneDataset:
        """The same data set, ending after `num_micro_batches` of the whole job: see `PassLength`."""
        batching = dataclasses.replace(self.batching, max_micro_batches=num_micro_batches)
        return self.changed(batching=batching, finite=True)

    def on_ranks(self, config: WorkerConfig) -> LaneDataset:
        """The same data set for the ranks of `config`."""
        return self.changed(worker_config=config, pack_sources=self.pack_sources.for_ranks(config.world_size))

    def batched(
        self, batch_size: int, *, drop_last: bool, task_encoder: TaskEncoder[Any, Any, Any, Any]
    ) -> LaneDataset:
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
        config = self.worker_config
        num_lanes = num_lanes or config.num_lanes
        lanes: dict[int, LaneState] = {lane: {} for lane in range(config.rank, num_lanes, config.world_size)}
        generation = self.order.first_generation(num_lanes)
        return self._with_skips_and_extras(LoaderState(self.fingerprint(), [generation], 0, lanes))

    def restored_state(self, saved: LoaderState | dict[str, Any], *, strict: bool = True) -> LoaderState:
        """The state with which this rank goes on from a saved one, its own or a merged one: of its own lanes.

        Without `strict`, weights, added data sets and the batch size may differ, if packs keep the order of lanes;
        differences are logged.
        If the ranks cannot share the saved lanes equally, or `WorkerConfig.num_lanes` asks for another number, the
        rest of the epochs in progress is resharded; that needs a state with all lanes. A state saved at the end of a
        pass becomes the start of the next one. Steps to skip and extras of this data set are added.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes that are needed.
        """
        state = parse_state(saved)
        if strict or not self.pack_sources.keeps_order:
            state.check(self.fingerprint())
        else:
            state = self.order.migrated(state, self.fingerprint())
        state = self._with_skips_and_extras(state)
        config = self.worker_config
        num_lanes = num_lanes_after(config, state.num_lanes)
        if state.ended or (self.finite and self._is_over(state)):
            new = self.new_state(num_lanes)
            goes_on = not state.ended and self.passes.is_repeated_after(state, even=True)
            return self.repeated_state(new, state) if goes_on else new
        if self.is_packing:
            self.pack_sources.check(self, state)
        if num_lanes != state.num_lanes:
            if config.rank == 0 and not (self.is_packing and self.pack_sources.are_planned):
                logger.warning(
                    "resharded from %d to %d lanes: the rest of the epochs in progress comes in another order, each "
                    "sample once",
                    state.num_lanes,
                    num_lanes,
                )
            state = self.resharded_state(state, num_lanes, range(config.rank, num_lanes, config.world_size))
        return state.of_rank(config.rank, config.world_size)

    def repeated_state(self, first: LoaderState, last: LoaderState) -> LoaderState:
        """The state `first`, before the first batch, in a pass that continues with it after `last`."""
        repetition = last.repetition + 1 if self.repeats < math.inf else 0
        first = dataclasses.replace(first, epoch_batches=last.epoch_batches, repetition=repetition)
        if not repetition or not self.extras:
            return first
        if first.num_lanes != last.num_lanes:
            extras = resharded_extras(last, self.extras)
            return self._with_skips_and_extras(dataclasses.replace(first, extras=extras))
        kept: dict[int, LaneState] = {
            lane: {"extras": last.lanes[lane]["extras"]} for lane in first.lanes if "extras" in last.lanes[lane]
        }
        lanes: dict[int, LaneState] = {lane: kept.get(lane, {}) for lane in first.lanes}
        return self._with_skips_and_extras(dataclasses.replace(first, extras=last.extras, lanes=lanes))

    def resharded_state(self, state: LoaderState, num_lanes: int, lanes: Collection[int]) -> LoaderState:
        """A whole state converted to `num_lanes` lanes, of which only `lanes` are computed."""
        state.check_complete()
        if state.skips is not None:
            state = self._after_skips(state)
        extras = resharded_extras(state, self.extras)
        if self.is_packing:
            made = self.pack_sources.resharded(self, state, num_lanes, lanes)
        else:
            made = self.order.resharded(state, num_lanes, lanes)
        return dataclasses.replace(made, extras=extras)

    def _is_over(self, state: LoaderState) -> bool:
        """Whether finite data are over, as far as known without reading: all lanes are here, and none has any left."""
        if len(state.lanes) < state.num_lanes:
            return False
        below_limit = [lane for lane in state.lanes if state.num_made(lane) < self.passes.limit_of(lane, state)]
        if self.is_packing:
            return self.pack_sources.have_ended(self, state, below_limit)
        return self.order.have_ended(state, below_limit)

    def _after_skips(self, state: LoaderState) -> LoaderState:
        """`state` after each lane has made and discarded its skipped micro-batches before that of the state."""
        lanes, num_discarded = dict(state.lanes), 0
        for lane, index in state.next_indexes(lanes).items():
            missing = range(index, state.micro_batch_index, state.num_lanes)
            if missing:
                behind = self.lane(lane, state)
                for _ in missing:
                    behind.next()
                lanes[lane], num_discarded = behind.state(), num_discarded + len(missing)
        if num_discarded:
            logger.info("made and discarded %d micro-batches of skipped steps, to reshard the lanes", num_discarded)
        return dataclasses.replace(state, lanes=lanes)

    def _with_skips_and_extras(self, state: LoaderState) -> LoaderState:
        """`state`, from which a run goes on that also skips the steps in `skips`, and has these `extras`.

        Raises:
            ConfigError: for steps to skip, if the data end.
            StateError: if an extra cannot go on from the state.
        """
        if self.skips is not None:
            state = state.skipping(self.skips)
        return begun(state, self.extras) if self.extras or state.has_extras else state

    @functools.cached_property
    def passes(self) -> PassLength:
        """How many batches a pass has, and whether the lanes begin again after their end."""
        return PassLength(self)

    # ----- opening ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def opened(self) -> OpenSources:
        """What this process has opened of it."""
        return OpenSources(self)

    def num_lanes_of_process(self, num_lanes: int) -> int:
        """The most lanes that a process runs, if the job has `num_lanes`."""
        config = self.worker_config
        return -(-num_lanes // (config.world_size * max(1, config.num_workers)))

    def lane(
        self,
        number: int,
        state: LoaderState,
        watch: Watch | None = None,
        *,
        wrappers: Sequence[MakerWrapper] = (),
        batcher: Batcher | None = None,
    ) -> Lane:
        """Lane `number` at its position in `state`; `watch` is called with each sample before it is read, and its
        samples are made inside these `wrappers`, too. Nothing is read yet."""
        opened, own = self.opened, state.lanes.get(number, {})
        opened.read_in_blocks(self, state)
        extras = LaneExtras(self.extras, number, state) if self.extras else None
        batcher, wrappers = batcher or self.batcher(watch=watch), (*self.wrappers, *wrappers)
        ahead = None
        if self.is_remote and (read_ahead := READ_AHEAD.find()) is not None:
            kept: Sequence[object] = self.wrappers if opened.observer is None else ()  # who observes sees all work
            unread = [] if extras is None else [extras.is_left_out]
            unread += [one.has_sample for one in kept if isinstance(one, KeepsSamples) and not isinstance(one, type)]
            ahead = read_ahead(opened.readers, self.num_lanes_of_process(state.num_lanes), unread)
        batching, pack_sources = self.batching, self.pack_sources

        def open_pack_source(feed: SampleFeed) -> PackSource:
            return pack_sources.open(self, feed, number, state)

        def wrap(upcoming: Upcoming) -> Maker:
            view = LaneView(
                number=number,
                num_lanes=state.num_lanes,
                times=batcher.times,
                new_upcoming=lambda: UpcomingSamples(upcoming, batching.batch_size or 1),
                new_ahead_maker=self.ahead_maker,
                maker=batcher.bare_maker,
            )
            return wrapped(wrappers, view)

        return Lane(
            self.order.cursor(number, state),
            batcher,
            dataclasses.replace(batching, batch_size=None) if pack_sources.makes_batches else batching,
            number=number,
            num_lanes=state.num_lanes,
            sources=[*zip(self.order.source_labels, self.order.sizes, strict=True)],
            state=own if has_started(own) else None,
            ahead=ahead,
            open_pack_source=open_pack_source if batcher.is_packing else None,
            extras=extras,
            wrap=wrap if wrappers else None,
            max_micro_batches=self.passes.limit_of(number, state) if self.finite else math.inf,
        )

    def batcher(self, handler: ErrorHandler | None = None, watch: Watch | None = None) -> Batcher:
        """A lane's own hooks (they count failures) over the readers that all lanes of this process share."""
        return Batcher(self.maker(handler, watch), packing=self.is_packing)

    def maker(
        self, handler: ErrorHandler | None = None, watch: Watch | None = None, *, ahead: bool = False
    ) -> EncodingMaker:
        """A maker for one lane. With `ahead`, it is for samples of any lane, before that needs them: it reads them one
        by one, and raises failures, which are neither reported nor counted."""
        opened = self.opened
        hooks = Hooks(
            opened.hooks(self.task_encoder),
            self.worker_config,
            opened.numbering,
            handler,
            cache=self.cache_pool,
            observer=opened.observer,
            raises=ahead,
        )
        fit = self.pack_sources.fit if self.is_packing else None
        return EncodingMaker(opened.readers, opened.cook, opened.sample_ids, hooks, fit=fit, watch=watch, singly=ahead)

    def ahead_maker(self, wrappers: Sequence[MakerWrapper] | None = None) -> AheadMaker:
        """Makes samples of any lane of the job, inside these wrappers, by default those of the data set."""
        return AheadMaker(self.maker(ahead=True), self.wrappers if wrappers is None else wrappers)

    def preencoding_maker(self) -> EncodingMaker:
        """`EncodingMaker.preencoded`, reading whole blocks: for samples in the order of the data."""
        self.opened.read_in_blocks(self, self.new_state())
        return self.maker().preencoded()

    def restore_sample(self, key: Any) -> Any:
        """The sample, pack or batch with the `__restore_key__` `key`, made again from the data: bit-identical, if
        data, settings and hooks are unchanged. Failures go to `WorkerConfig.restore_error_handler`.

        Raises:
            ConfigError: if the key is invalid, or of other data.
            SampleError: if the hooks skip it.
        """
        handler = self.worker_config.restore_error_handler
        extras = LaneExtras(self.extras, 0, self.new_state()) if self.extras else None
        return _RESTORED.get(needed_by="restore_sample")(self.batcher(handler), self.order.sizes, extras, key)

    def raw_samples(self, num_samples: int) -> list[RawSample]:
        """The first samples of this rank's first lane, as stored."""
        state, readers = self.new_state(), self.opened.readers
        drawn = self.order.cursor(next(iter(state.lanes)), state).take(num_samples)
        return [readers[ref.source].read(ref.index) for _, ref in drawn]


class OpenSources:
    """What a process opens of a data set: readers and cooks of its sources, in the order of the plan, the observer, and
    what is known of the hooks of its encoder."""

    def __init__(self, dataset: LaneDataset) -> None:
        encoder, order = dataset.task_encoder, dataset.order
        hook = hook_of(encoder, "cook_crude_sample")
        self.readers = [
            open_source_reader(source, encoder.decoder, bare_keys=dataset.bare_keys) for source in dataset.plan.sources
        ]
        sources = dataset.plan.sources
        self.cook = functools.cache(lambda number: SourceCook(sources[number], hook, encoder.cookers, encoder.decoder))
        """What cooks the crude samples of a source. Of another class, only a user's loader may return some."""
        for number, source in enumerate(sources):
            if issubclass(source.sample_class, CrudeSample):
                self.cook(number)  # its errors come now
        self.observer = None if dataset.make_observer is None else dataset.make_observer(order.source_keys)
        self.budget = BlockBudget(dataset.worker_config.max_open_bytes)
        self.numbering, self.sample_ids = Numbering(order.source_keys, order.sizes), order.sample_ids
        self._is_packing = dataset.is_packing
        self._hooks: EncoderHooks | None = None
        self._blocks_of: Generation | None = None

    def hooks(self, encoder: TaskEncoder[Any, Any, Any, Any]) -> EncoderHooks:
        """The hooks of the encoder, to which some may have been set since.

        Raises:
            ConfigError: if these do not fit together.
        """
        if self._hooks is None or not self._hooks.are_of(encoder):
            self._hooks = EncoderHooks(encoder)
            self._hooks.check(packing=self._is_packing)
        return self._hooks

    def read_in_blocks(self, dataset: LaneDataset, state: LoaderState) -> None:
        """Ensure that the readers read by blocks of the current generation of `state`."""
        if self._blocks_of == state.generations[-1]:
            return
        self._blocks_of = generation = state.generations[-1]
        rules: list[BlockRule | None]
        if not dataset.pack_sources.keeps_order:
            rules = [None] * len(self.readers)
        elif dataset.order.shuffle is None:
            rules = plan_runs(dataset.plan, dataset.batching.batch_size or 1)
        else:
            of_process = dataset.num_lanes_of_process(generation.num_lanes)
            max_open_bytes = dataset.worker_config.max_open_bytes
            rules = plan_blocks(
                dataset.plan, generation.geometries, num_lanes=of_process, max_open_bytes=max_open_bytes
            )
        for reader, rule in zip(self.readers, rules, strict=True):
            reader.read_in_blocks(rule, self.budget)
