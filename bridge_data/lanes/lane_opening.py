"""Opening lanes: what a process opens to run the lanes of a data set, and lanes and makers over it.

Reads a `LaneDataset`, and the position of a lane in a state. Returns the `Lane`, or what makes samples of any lane.
Nothing is read yet. `OpenSources` is shared by all lanes of a process, and is not pickled: a worker opens its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from bridge_data.data.blocks import BlockBudget, Cut
from bridge_data.decode import open_source_reader
from bridge_data.errors import ErrorHandler
from bridge_data.lanes.lane import Lane, Upcoming
from bridge_data.lanes.maker import EncodingMaker, Maker, Watch, Work
from bridge_data.lanes.maker_wrappers import AheadMaker, LaneView, MakerWrapper, UpcomingSamples, wrapped
from bridge_data.lanes.reading import ReadAhead, plan_blocks, plan_runs
from bridge_data.lanes.run_states import RunData, limit_of
from bridge_data.order import Geometry
from bridge_data.order.extras import LaneExtras
from bridge_data.order.plan_order import Numbering
from bridge_data.order.state import Generation, LoaderState, has_started
from bridge_data.task import EncoderHooks, Hooks, SourceCook, TaskEncoder, hook_of
from bridge_data.task.observer import Observer
from bridge_data.task.stores import CachePool


class LaneData(RunData, Protocol):
    """What is opened: a `LaneDataset`, which says what each is."""

    wrappers: tuple[MakerWrapper, ...]
    cache_pool: CachePool
    make_observer: Callable[[Sequence[int]], Observer] | None
    bare_keys: bool

    @property
    def is_remote(self) -> bool: ...
    @property
    def is_packing(self) -> bool: ...
    @property
    def opened(self) -> "OpenSources": ...
    def new_state(self) -> LoaderState: ...
    def work(self, *, watch: Watch | None = None) -> Work: ...


class OpenSources:
    """What a process opens of a data set: readers and cooks of its sources, in the order of the plan, the observer, and
    what is known of the hooks of its encoder."""

    def __init__(self, dataset: LaneData) -> None:
        encoder, order = dataset.task_encoder, dataset.order
        hook = hook_of(encoder, "cook_crude_sample")
        self.readers = [
            open_source_reader(source, encoder.decoder, bare_keys=dataset.bare_keys) for source in dataset.plan.sources
        ]
        self.cooks = [SourceCook(source, hook, encoder.cookers, encoder.decoder) for source in dataset.plan.sources]
        self.observer = None if dataset.make_observer is None else dataset.make_observer(order.source_keys)
        self.budget = BlockBudget(dataset.worker_config.max_open_bytes)
        self.numbering, self.sample_ids = Numbering(order.source_keys, order.sizes), order.sample_ids
        self._is_packing = dataset.is_packing
        self._hooks: EncoderHooks | None = None
        self._cut_for: Generation | None = None

    def hooks(self, encoder: TaskEncoder[Any, Any, Any, Any]) -> EncoderHooks:
        """The hooks of the encoder, to which some may have been set since.

        Raises:
            ConfigError: if these do not fit together.
        """
        if self._hooks is None or not self._hooks.are_of(encoder):
            self._hooks = EncoderHooks(encoder)
            self._hooks.check(packing=self._is_packing)
        return self._hooks

    def read_in_blocks(self, dataset: LaneData, state: LoaderState) -> None:
        """Ensure that the readers read by blocks of the current generation of `state`."""
        if self._cut_for == state.generations[-1]:
            return
        num_lanes, geometry = self._cut_for = state.generations[-1]
        cuts: list[Cut | None]
        if not dataset.pack_sources.keeps_order:
            cuts = [None] * len(self.readers)
        elif dataset.order.shuffle is None:
            cuts = plan_runs(dataset.plan, dataset.batching.batch_size or 1)
        else:
            geometries = [Geometry(num_lanes, *numbers) for numbers in geometry]
            of_process, max_open_bytes = _lanes_of_process(dataset, num_lanes), dataset.worker_config.max_open_bytes
            cuts = plan_blocks(dataset.plan, geometries, num_lanes=of_process, max_open_bytes=max_open_bytes)
        for reader, cut in zip(self.readers, cuts, strict=True):
            reader.read_in_blocks(cut, self.budget)


def _lanes_of_process(dataset: LaneData, num_lanes: int) -> int:
    """The most lanes that a process runs, if the job has `num_lanes`."""
    config = dataset.worker_config
    return -(-num_lanes // (config.world_size * max(1, config.num_workers)))


def open_lane(
    dataset: LaneData,
    number: int,
    state: LoaderState,
    watch: Watch | None = None,
    *,
    wrappers: Sequence[MakerWrapper] = (),
    work: Work | None = None,
) -> Lane:
    """See `LaneDataset.lane`."""
    opened, own = dataset.opened, state.lanes.get(number, {})
    opened.read_in_blocks(dataset, state)
    extras = LaneExtras(dataset.extras, number, state) if dataset.extras else None
    work, wrappers = work or dataset.work(watch=watch), (*dataset.wrappers, *wrappers)
    ahead = None
    if dataset.is_remote:
        kept = dataset.wrappers if opened.observer is None else ()  # who observes sees all work
        unread = [one for one in (extras, *kept) if isinstance(one, Container)]
        ahead = ReadAhead(opened.readers, _lanes_of_process(dataset, state.num_lanes), unread)
    batching, pack_sources = dataset.batching, dataset.pack_sources
    return Lane(
        dataset.order.cursor(number, state),
        work,
        dataclasses.replace(batching, batch_size=None) if pack_sources.makes_batches else batching,
        number=number,
        num_lanes=state.num_lanes,
        sources=[*zip(dataset.order.source_labels, dataset.order.sizes, strict=True)],
        state=own if has_started(own) else None,
        ahead=ahead,
        open_pack_source=(lambda feed: pack_sources.open(dataset, feed, number, state)) if work.is_packing else None,
        extras=extras,
        wrap=functools.partial(_wrapped, dataset, work, wrappers, number, state.num_lanes) if wrappers else None,
        max_micro_batches=limit_of(dataset, number, state),
    )


def _wrapped(
    dataset: LaneData, work: Work, wrappers: Sequence[MakerWrapper], number: int, num_lanes: int, upcoming: Upcoming
) -> Maker:
    """The maker of a lane in its wrappers; `upcoming` says what the lane loads next."""
    view = LaneView(
        number=number,
        num_lanes=num_lanes,
        times=work.times,
        new_upcoming=lambda: UpcomingSamples(upcoming, dataset.batching.batch_size or 1),
        new_ahead_maker=functools.partial(new_ahead_maker, dataset),
        maker=work.maker,
    )
    return wrapped(wrappers, view)


def new_maker(
    dataset: LaneData, handler: ErrorHandler | None = None, watch: Watch | None = None, *, ahead: bool = False
) -> EncodingMaker:
    """See `LaneDataset.maker`."""
    opened = dataset.opened
    hooks = Hooks(
        opened.hooks(dataset.task_encoder),
        dataset.worker_config,
        opened.numbering,
        handler,
        cache=dataset.cache_pool,
        observer=opened.observer,
        raises=ahead,
    )
    fit = dataset.pack_sources.fit if dataset.is_packing else None
    return EncodingMaker(opened.readers, opened.cooks, opened.sample_ids, hooks, fit=fit, watch=watch, singly=ahead)


def new_ahead_maker(dataset: LaneData, wrappers: Sequence[MakerWrapper] | None = None) -> AheadMaker:
    """Makes samples of any lane of the job, inside these wrappers, by default those of the data set."""
    return AheadMaker(new_maker(dataset, ahead=True), dataset.wrappers if wrappers is None else wrappers)


def preencoding_maker(dataset: LaneData) -> EncodingMaker:
    """`EncodingMaker.preencoded`, reading whole blocks: for samples in the order of the data."""
    dataset.opened.read_in_blocks(dataset, dataset.new_state())
    return new_maker(dataset).preencoded()
