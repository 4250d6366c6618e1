"""Planned packs as the pack sources of lanes: read, and checked against their costs, when a lane takes them.

Reads packs that `planned` made of the cost index. Returns what a lane packs; with a `ContextAssignment`, what a rank
has of a step. Raises `FatalSampleError` if a pack is too long, or has other parts than were measured, and its `Packing`
says so; else what differs is counted, and told once. `ConfigError` if the samples were not measured for the encoder, or
it packs by a function of its own.
"""

import contextlib
import copy
import dataclasses
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from bridge_data.counts import COUNTS, tokens_of
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.lanes.lane import Held, SampleFeed
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import UNREAD, Item, Pack
from bridge_data.lanes.pack_source import PackedData, PackSources
from bridge_data.order import ALL_OUTPUTS, SampleRef
from bridge_data.order.pending import OLD
from bridge_data.order.random_draws import key64
from bridge_data.order.state import LoaderState
from bridge_data.plugins.planned.cost_weights import CostWeights
from bridge_data.plugins.planned.costs import CostTable, open_costs
from bridge_data.plugins.planned.planned import (
    TOKENS,
    ContextAssignment,
    ContextStep,
    JobPacks,
    LanePacks,
    PackPlanner,
    StepAssignment,
    Steps,
    check_step,
    resharded,
)
from bridge_data.plugins.planned.sample_costs import checked
from bridge_data.run_options import RunOptions
from bridge_data.task import Packing, hook_of
from bridge_data.task.hooks import TRUNCATED
from bridge_data.task.packers import FitToPack

logger = logging.getLogger("bridge_data")

LEFT_OUT = "left_out"
"""The name under which samples are counted as skipped that packs leave out: the encoder skips them by the cost index,
they are too long, or longer than was measured."""

REMEASURED = "cost_differs"
"""The name in `COUNTS.others` of samples whose costs are not those of the cost index."""

_MEASURE = "measure the data again (bridge-data prepare --costs)"


class PlannedSources(PackSources):
    """The planned packs of a data set, by the cost index of each source, `costs`. `assignment` says how the packs of a
    step are assigned to the ranks by their loads, `context` how its samples are assigned to ranks that share long ones:
    a step is then a micro-batch."""

    keeps_order: ClassVar[bool] = False
    are_planned: ClassVar[bool] = True
    fit: ClassVar[FitToPack] = FitToPack.TRUNCATE_ONLY
    """A sample that is too long is in no planned pack."""

    def __init__(
        self,
        costs: Sequence[CostTable],
        assignment: StepAssignment | None = None,
        context: ContextAssignment | None = None,
    ) -> None:
        self.costs, self.assignment, self.context = costs, assignment, context
        self._packs: tuple[Any, JobPacks] | None = None

    @property
    def makes_batches(self) -> bool:  # type: ignore[override]  # by what is assigned
        """Whether a pack is what a rank has of a step."""
        return self.context is not None

    @property
    def modules(self) -> tuple[str, ...]:  # type: ignore[override]  # by the schedule, not one for all
        """The modules that the schedule of context groups imports."""
        return () if self.context is None else self.context.modules

    def changed(self, dataset: LaneDataset, **attributes: Any) -> LaneDataset:
        """`dataset` with these planned packs, but for another `assignment` or `context`."""
        return dataset.changed(pack_sources=self._with(**attributes))

    def _with(self, **attributes: Any) -> "PlannedSources":
        made = copy.copy(self)
        vars(made).update(attributes, _packs=None)
        return made

    def for_ranks(self, num_ranks: int) -> "PlannedSources":
        """Those whose packs are assigned to so many ranks, if they are assigned."""
        assignment = self.assignment and dataclasses.replace(self.assignment, num_ranks=num_ranks)
        return self._with(assignment=assignment)

    def batched(self, dataset: PackedData) -> "PlannedSources":
        """Those by the cost index for the encoder of `dataset`."""
        return PlannedSources(costs_of_sources(dataset), self.assignment, self.context)

    def packs(self, dataset: PackedData) -> JobPacks:
        """The planned packs of the job; all lanes of this process share them.

        Raises:
            ConfigError: if the encoder packs by a function of its own, or the cost index lacks a cost.
        """
        key = dataset.order, dataset.batching.batch_size
        if self._packs is None or self._packs[0] != key:
            self._packs = key, self._planned(dataset)
        return self._packs[1]

    def _planned(self, dataset: PackedData) -> JobPacks:
        encoder, batching, order = dataset.task_encoder, dataset.batching, dataset.order
        packing = hook_of(encoder, "select_samples_to_pack")
        if not isinstance(packing, Packing):
            raise ConfigError(
                f"packing='planned': select_samples_to_pack of {type(encoder).__name__} is your own function, which "
                "needs samples: set it to a Packing, in the class or as self.select_samples_to_pack in __init__"
            )
        size = min(batching.packing_buffer_size or math.inf, sum(order.sizes))  # few epochs in a window
        key, load = key64(dataset.worker_config.seed_offset), TOKENS if self.assignment is None else self.assignment.by
        cursor = order.cursor(0, LoaderState({}, [order.first_generation(1)], 0, {}))
        planner = PackPlanner(cursor, self.costs, packing, int(size), key, load)
        return JobPacks(planner, batching.batch_size or 1, self.assignment)

    def lane_packs(self, dataset: PackedData, lane: int, state: LoaderState) -> LanePacks:
        """The packs of a lane from its position in `state` on."""
        own = state.lanes.get(lane) or {}
        return LanePacks(self.packs(dataset), lane, state.num_lanes, own.get("pack_source"), self.context)

    def members(self, dataset: PackedData, lane: int, state: LoaderState) -> Iterator[Sequence[SampleRef]]:
        """The samples of the planned packs of a lane."""
        packs = self.lane_packs(dataset, lane, state)
        with contextlib.suppress(StopIteration):
            while True:
                yield packs.next().members

    def fingerprint(self, dataset: PackedData) -> dict[str, Any]:
        """What must be equal for pack numbers to mean the same packs."""
        return {"planned": self.packs(dataset).planner.fingerprint([table.digest for table in self.costs])}

    def open(self, dataset: PackedData, feed: SampleFeed, lane: int, state: LoaderState) -> "PlannedSource":
        """The planned packs of a lane from its position in `state` on."""
        return PlannedSource(self.lane_packs(dataset, lane, state), feed, dataset.order.source_labels, lane)

    def have_ended(self, dataset: PackedData, state: LoaderState, lanes: Iterable[int]) -> bool:
        """Whether these lanes have no pack left in `state`."""
        return not any(
            state.lanes[lane].get("pending") or self.lane_packs(dataset, lane, state).upcoming() is not None
            for lane in lanes
        )

    def drawn(self, dataset: PackedData, state: LoaderState) -> LoaderState:
        """`state` as of a job with one lane, as planned packs draw: of each lane, the draws of the job until its last
        pack."""
        generations = [one._replace(num_lanes=1) for one in state.generations]
        lanes = {lane: self.lane_packs(dataset, lane, state).drawn() for lane in state.lanes}
        return dataclasses.replace(state, generations=generations, lanes=lanes)

    def check(self, dataset: PackedData, state: LoaderState) -> None:
        """Check that `state` is not from the middle of a step that is assigned otherwise now."""
        check_step(state, self.packs(dataset))

    def resharded(self, dataset: PackedData, state: LoaderState, num_lanes: int, lanes: Collection[int]) -> LoaderState:
        """`state` for `num_lanes` lanes: its packs and their order stay as they are."""
        return resharded(state, num_lanes, lanes, self.packs(dataset))

    def __getstate__(self) -> dict[str, Any]:
        """Without planned packs: each process plans its own."""
        return vars(self) | {"_packs": None}


class PlannedSource:
    """The planned packs of lane number `lane`, whose sources messages call by these `labels`."""

    def __init__(self, packs: LanePacks, feed: SampleFeed, labels: Sequence[str], lane: int) -> None:
        self._packs, self._feed, self._labels, self._lane = packs, feed, labels, lane
        self.held = Held()
        self._step: ContextStep | None = None  # what was taken last is a part of it
        self._is_told = self._is_ended = False
        self._scout: LanePacks | None = None
        self._found: list[tuple[int, SampleRef]] = []
        """The samples of packs that the scout has taken and the lane has not, each with the number of the pack."""

    def next(self) -> list[Item]:
        """The members of the next planned pack, without samples that are left out now."""
        while True:
            try:
                pack = self._packs.next()
            except StopIteration:
                self._count_left_out(0 if self._is_ended else self._packs.num_left_at_end)
                self._is_ended = True
                raise
            self._count_left_out(pack.num_left_out)
            self._step = pack.step
            members = self._feed.let_through(pack.members)
            if self._feed.ahead is not None and (following := self._packs.upcoming()) is not None:
                self._feed.ahead.announce(following.members)
            if members or self._step is not None:
                return _items_of(members)

    def pack(self, items: list[Item]) -> Pack | None:
        """The pack of these members, as far as there is room for them; or the part of a step."""
        read = [item for item in items if self._read(item)]
        if self._step is not None:
            return self._part_of(self._step, read)
        read = self._within_budgets(read, self._packs.budgets)
        return self._feed.batcher.pack(read) if read else None

    def state(self) -> dict[str, Any]:
        """The position of the lane: see `LanePacks.state`."""
        return self._packs.state()

    def seek(self, state: Any, held: Held) -> None:
        """It was opened at its position, and holds nothing."""

    def upcoming(self, num_packs: int, most: int) -> Sequence[SampleRef]:
        """The first `most` samples of the next packs."""
        scout, now = self._scout, self._packs.num_taken
        self._found = [one for one in self._found if one[0] >= now]
        if scout is None or scout.num_taken < now:
            scout = self._scout = copy.copy(self._packs)
        try:
            while scout.num_taken < now + num_packs and len(self._found) < most:
                number = scout.num_taken
                self._found += ((number, ref._replace(output=ALL_OUTPUTS)) for ref in scout.next().members)
        except StopIteration:
            pass  # the data end
        return [ref for _, ref in self._found[:most]]

    def _read(self, item: Item) -> bool:
        """Ensure that the payload of an item is in memory; False if hooks skip it."""
        if item.sample is UNREAD:
            parts = self._feed.load(item)
            if parts:
                self._check_parts(item, len(parts))
            item.sample = parts.get(item.output, UNREAD)
        return item.sample is not UNREAD

    def _part_of(self, step: ContextStep, items: list[Item]) -> Pack:
        """The samples of a rank in a step, by number, and the groups of all ranks. Other ranks wait for what the step
        plans: a sample that is lost, or longer now, is in it without loss."""
        numbers = {step.members[number]: number for number in step.lengths}
        packs = {}
        for item in items:
            number = numbers[item.ref._replace(output=item.output)]
            member = self._packs.member(item.ref, item.output)
            if kept := self._within_budgets([item], [] if member is None else member.costs):
                packs[number] = self._feed.batcher.pack(kept)
        made = {number: pack.sample for number, pack in packs.items() if pack is not None}
        samples = {number: sequence_of(made.get(number), length) for number, length in step.lengths.items()}
        counted = [tokens_of(one) for one in samples.values()]
        tokens = sum(tokens for tokens, _ in counted), sum(slots for _, slots in counted)
        return Pack(_items_of(step.members), (samples, step.groups), len(made), tokens)

    def _within_budgets(self, items: list[Item], budgets: Sequence[int]) -> list[Item]:
        """The samples of a planned pack for which it has room, in order: all, if their costs are as measured."""
        hooks, packing, kept = self._feed.batcher.hooks, self._packs.packing, []
        left = list(budgets)
        for item in items:
            costs, member = packing.costs_of(item.sample), self._packs.member(item.ref, item.output)
            if member is not None and costs != member.costs:
                COUNTS.others[REMEASURED] += 1
                self._tell_once(f"{self._described(item)} costs {costs}, by the cost index {member.costs}")
            if packing.remeasured == "truncate" and costs[0] > left[0] > 0 and packing.truncate is not None:
                item.sample = packing.truncate(item.sample, left[0])
                hooks.skipped[TRUNCATED] += 1
                costs = packing.costs_of(item.sample)
            if all(cost <= most for cost, most in zip(costs, left, strict=True)) or (
                packing.overlong == "alone" and len(items) == 1
            ):
                left = [most - cost for cost, most in zip(costs, left, strict=True)]
                kept.append(item)
                continue
            what = f"{self._described(item)} costs {costs}, and there is room for {left}"
            if packing.remeasured == "error":
                raise FatalSampleError(f"a planned pack is too long: {what}; {_MEASURE}")
            hooks.count_skip(LEFT_OUT, 1, f"its planned pack is full: {what}")
        return kept

    def _check_parts(self, item: Item, num_made: int) -> None:
        """Count the parts of a sample that are in no pack, or that packs miss, as the hooks make others than measured;
        once for each sample, with the first part that is in a pack."""
        member = self._packs.member(item.ref, item.output)
        if member is None or member.num_parts == num_made or not member.is_first:
            return
        hooks = self._feed.batcher.hooks
        what = f"{self._described(item)} has {num_made} parts, by the cost index {member.num_parts}"
        if self._packs.packing.remeasured == "error":
            raise FatalSampleError(f"a planned pack has other parts than were measured: {what}; {_MEASURE}")
        COUNTS.others[REMEASURED] += 1
        self._tell_once(what)
        hooks.count_skip(LEFT_OUT, abs(num_made - member.num_parts), what)

    def _tell_once(self, what: str) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "lane %d: %s: %s, if the encoder does not draw random numbers; more are counted as %s",
                self._lane,
                what,
                _MEASURE,
                REMEASURED,
            )

    def _described(self, item: Item) -> str:
        """The key of a sample, if it has kept it, and its place in the data."""
        sample, (source, epoch, index, _) = item.sample, item.ref
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        named = f"sample {key!r}, " if key else "sample "
        return f"{named}number {index} of {self._labels[source]} (epoch {epoch})"

    def _count_left_out(self, count: int) -> None:
        if count:
            reason = "by the cost index: skipped by the encoder, or too long"
            self._feed.batcher.hooks.count_skip(LEFT_OUT, count, reason)


def costs_of_sources(dataset: PackedData) -> list[CostTable]:
    """The cost index of each source.

    Raises:
        ConfigError: if the samples were not measured for the encoder.
    """
    sources, encoder = dataset.plan.sources, dataset.task_encoder
    return [open_costs(source.records, encoder.costs_key(source)) for source in sources]


def planned(dataset: LaneDataset) -> LaneDataset:
    """`dataset`, whose packs are planned before samples are read.

    Raises:
        ConfigError: if the samples were not measured for the encoder.
    """
    costs = costs_of_sources(dataset)
    is_checked = isinstance(dataset.order.rule, CostWeights)
    made = dataset if is_checked else checked(dataset, costs)
    return made.changed(pack_sources=PlannedSources(costs))


def planned_of(dataset: LaneDataset) -> PlannedSources | None:
    """The planned packs of a data set; None if they are not planned."""
    return dataset.pack_sources if isinstance(dataset.pack_sources, PlannedSources) else None


def assigned(dataset: LaneDataset, options: RunOptions, steps: Steps, num_ranks: int) -> LaneDataset:
    """`dataset`, whose packs of a step are assigned to the data-parallel ranks by their loads, if `options` say so.

    Raises:
        ConfigError: if the ranks cannot share every step equally.
    """
    if not options.assigns_packs:
        return dataset
    steps.check(0, num_ranks)
    return with_assignment(dataset, StepAssignment(steps=steps, num_ranks=num_ranks, by=str(options.trainer.balance)))


def with_assignment(dataset: LaneDataset, assignment: StepAssignment) -> LaneDataset:
    """`dataset`, the planned packs of which are assigned so."""
    planned = planned_of(dataset)
    assert planned is not None
    return planned.changed(dataset, assignment=assignment)


def _items_of(members: Iterable[SampleRef]) -> list[Item]:
    """The planned members of a pack, not read yet."""
    return [Item(OLD, ref._replace(output=ALL_OUTPUTS), ref.output) for ref in members]


def sequence_of(sample: Any, length: int) -> dict[str, Any]:
    """The tensors (length,) that Megatron takes of a sequence, of a sample, or without loss of None.

    Raises:
        FatalSampleError: if the sample lacks one, or is longer.
    """
    import torch

    fields = {"tokens": torch.int64, "labels": torch.int64, "loss_mask": torch.float32}
    made = {name: torch.zeros(length, dtype=dtype) for name, dtype in fields.items()}
    for name, filled in made.items() if sample is not None else ():
        value = sample.get(name) if isinstance(sample, dict) else getattr(sample, name, None)
        if not isinstance(value, torch.Tensor) or value.shape[0] > length:
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise FatalSampleError(
                f"{name} of a packed sample: expected a tensor of at most {length} tokens, got {got}; have "
                "pack_selected_samples return tokens, labels and loss_mask, and measure the data again"
            )
        filled[: len(value)] = value
    return {**made, "position_ids": torch.arange(length)}
