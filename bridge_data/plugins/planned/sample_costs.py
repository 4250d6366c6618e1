"""What samples cost: measured one by one, as the cost index is made, and measured again when a run begins.

Reads samples of a source, cooked and pre-encoded, or encoded where there is no `preencode_sample`, whatever the run
packs. Returns the costs of their parts. `CheckedCosts` compares those of the first samples that a lane works on with
the cost index, as code is not in the key by which an index is found (`task.samples_key`), and raises
`FatalSampleError` if they differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge_data.errors import FatalSampleError
from bridge_data.lanes.maker import EncodingMaker, LaneView, Made, Maker, parts_of
from bridge_data.order import SampleRef
from bridge_data.plugins.planned.costs import CostTable
from bridge_data.process_counts import COUNTS
from bridge_data.samples.arena import no_arena

if TYPE_CHECKING:
    from bridge_data.lanes.lane_dataset import LaneDataset

NUM_CHECKED = 16
"""Samples of a run that are measured again when it begins; at least one a lane."""

Costs = list[Mapping[str, int]]
"""The costs of the parts of a sample; empty if it is skipped."""


def costs_of(maker: EncodingMaker, index: int) -> Costs:
    """The costs of sample `index` of the only source of `maker`, whose hooks are active."""
    (made,) = maker.make((SampleRef(0, 0, index),))
    return [maker.hooks.encoder.costs(part) for _, part in parts_of(made)]


class CheckedCosts:
    """A maker (`MakerWrapper`) that has the first `count` samples of a lane checked before `inner` makes them."""

    def __init__(self, check: "CostCheck", count: int, inner: Maker, lane: LaneView) -> None:
        self._check, self._left, self._inner, self._lane = check, count, inner, lane

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        for ref in refs[: self._left]:
            if self._lane.watch is not None:
                self._lane.watch(ref)
            self._check(ref)
        self._left = max(0, self._left - len(refs))
        return self._inner.make(refs)


class CostCheck:
    """Measures samples again, by the encoder of `dataset`, and compares them with its cost index, the `tables`."""

    def __init__(self, dataset: "LaneDataset", tables: Sequence[CostTable]) -> None:
        self._dataset, self._tables = dataset, tables

    def __call__(self, ref: SampleRef) -> None:
        """Raise `FatalSampleError` if it costs something else."""
        table, source = self._tables[ref.source], self._dataset.plan.sources[ref.source]
        found = self._measured(ref.source, table.stored_number(ref.index))
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

    def _measured(self, source: int, number: int) -> Costs | None:
        """The costs of a stored sample; None if it fails: its lane will tell. It is counted nowhere."""
        counts = COUNTS.saved()
        try:
            maker = self._dataset.measurer(source)
            with no_arena(), maker.hooks:
                return costs_of(maker, number)
        except (Exception, SystemExit):
            return None
        finally:
            COUNTS.restore(counts)


def _without_zeros(costs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cost for name, cost in costs.items() if cost}
