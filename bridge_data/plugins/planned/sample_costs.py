"""What samples cost: measured one by one, as the cost index is made, and measured again when a run begins.

Reads samples of a source, cooked and pre-encoded, or encoded where there is no `preencode_sample`, whatever the run
packs. Returns the costs of their parts. `CheckedCosts` compares those of the first samples that a lane works on with
the cost index, as code is not in the key by which an index is found (`task.samples_key`), and raises
`FatalSampleError` if they differ.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge_data.counts import COUNTS
from bridge_data.data.records import stored_records
from bridge_data.errors import FatalSampleError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Batching, EncodingMaker, Made, Maker, outputs_of
from bridge_data.lanes.maker_wrappers import LaneView
from bridge_data.order import SampleRef
from bridge_data.plan import Plan, Source
from bridge_data.plugins.planned.cost_weights import CostWeights
from bridge_data.plugins.planned.costs import CostTable
from bridge_data.samples.arena import no_arena
from bridge_data.task import TaskEncoder
from bridge_data.task.stores import CachePool
from bridge_data.topology import WorkerConfig

_MEASURED_TOGETHER = 64
"""Samples read together to measure their costs, if they are small."""

NUM_CHECKED = 16
"""Samples of a run that are measured again when it begins; at least one a lane."""

Costs = list[Mapping[str, int]]
"""The costs of the parts of a sample; empty if it is skipped."""


def costs_of(maker: EncodingMaker, index: int) -> Costs:
    """The costs of sample `index` of the only source of `maker`, whose hooks are active."""
    (made,) = maker.make((SampleRef(0, 0, index),))
    return [maker.hooks.encoder.costs(output) for _, output in outputs_of(made)]


def checked(dataset: LaneDataset, tables: Sequence[CostTable]) -> LaneDataset:
    """`dataset`, of which some samples are measured again when a run begins, and compared with the `tables`."""
    check = CostCheck(dataset.plan.sources, dataset.task_encoder, tables)
    return dataset.changed(wrappers=(*dataset.wrappers, functools.partial(CheckedCosts, check)))


def checked_weights(dataset: LaneDataset) -> LaneDataset:
    """`checked`, by the costs that the weights of `dataset` count."""
    rule = dataset.order.rule
    assert isinstance(rule, CostWeights)
    return checked(dataset, rule.costs)


def measuring(source: Source, encoder: TaskEncoder[Any, Any, Any, Any], cache: CachePool) -> LaneDataset:
    """All stored samples of a source in their order, for the same encoder: by these its costs are measured, whatever a
    run chooses, draws or packs."""
    base = dataclasses.replace(source, records=stored_records(source.records))
    made = LaneDataset(
        Plan(base, (base,), None),
        shuffle=None,
        batching=Batching(batch_size=_MEASURED_TOGETHER),
        task_encoder=encoder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    return made.changed(cache_pool=cache)


class CheckedCosts:
    """A maker (`MakerWrapper`) that has the first samples of a lane checked before `inner` makes them: `NUM_CHECKED` in
    all lanes of the job. In an `AheadMaker` none are, as nobody would hear of what it raises."""

    def __init__(self, check: "CostCheck", inner: Maker, lane: LaneView) -> None:
        self._check, self._inner, self._lane = check, inner, lane
        self._left = -(-NUM_CHECKED // lane.num_lanes) if lane.num_lanes else 0

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        for ref in refs[: self._left]:
            if self._lane.watch is not None:
                self._lane.watch(ref)
            self._check(ref, self._lane.hooks.cache)
        self._left = max(0, self._left - len(refs))
        return self._inner.make(refs)


class CostCheck:
    """Measures samples of `sources` again, by `encoder`, and compares them with the cost index, the `tables`."""

    def __init__(
        self, sources: Sequence[Source], encoder: TaskEncoder[Any, Any, Any, Any], tables: Sequence[CostTable]
    ) -> None:
        self._sources, self._encoder, self._tables = sources, encoder, tables
        self._measurers: dict[int, EncodingMaker] = {}

    def __call__(self, ref: SampleRef, cache: CachePool) -> None:
        """Raise `FatalSampleError` if it costs something else."""
        table, source = self._tables[ref.source], self._sources[ref.source]
        found = self._measured(ref.source, table.stored_number(ref.index), cache)
        _, _, rows = table.parts(np.array([ref.index]))
        known = [dict(zip(table.names, row, strict=True)) for row in rows.tolist()]
        if found is None or list(map(_without_zeros, found)) == list(map(_without_zeros, known)):
            return
        raise FatalSampleError(
            f"sample {source.key_or_place(ref.index)} of {source.name}: its parts cost {found} now, and {known} by the "
            f"cost index of {table.facts.encoder}: the encoder, or what it reads, has changed since it measured the "
            f"data: {table.again}; or, to keep both, name another `costs_version` in the encoder, and measure. If "
            "hooks draw random numbers of their own, costs cannot be known before"
        )

    def _measured(self, source: int, number: int, cache: CachePool) -> Costs | None:
        """The costs of a stored sample; None if it fails: its lane will tell. It is counted nowhere."""
        counts = COUNTS.saved()
        try:
            if source not in self._measurers:
                dataset = measuring(self._sources[source], self._encoder, cache)
                self._measurers[source] = dataset.maker(ahead=True).preencoded()
            maker = self._measurers[source]
            with no_arena(), maker.hooks:
                return costs_of(maker, number)
        except (Exception, SystemExit):
            return None
        finally:
            COUNTS.restore(counts)

    def __getstate__(self) -> dict[str, Any]:
        """Without handles; each process opens its own."""
        return vars(self) | {"_measurers": {}}


def _without_zeros(costs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cost for name, cost in costs.items() if cost}
