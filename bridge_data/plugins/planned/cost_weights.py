"""Weights that count a cost of samples, such as their tokens, by the cost index.

Reads the cost index of each source of a plan. Returns the rule by which `PlanOrder` blends: see `cost_blend`. Raises
`ConfigError` if the samples were not measured for the encoder.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bridge_data.lanes.maker import Batching
from bridge_data.order.blends import Phase
from bridge_data.plan import Plan
from bridge_data.plugins.planned.cost_blend import CostBlend
from bridge_data.plugins.planned.costs import CostLimits, open_costs
from bridge_data.task import Packing, TaskEncoder, hook_of


class CostWeights:
    """The blend of the sources of `plan` by shares of the cost that its weights count. What a packer leaves out of
    samples, or of them, does not count."""

    def __init__(self, plan: Plan, encoder: TaskEncoder[Any, Any, Any, Any], batching: Batching) -> None:
        costs = [open_costs(source.records, encoder.costs_key(source)) for source in plan.sources]
        packing = hook_of(encoder, "select_samples_to_pack")
        limits = limits_of(packing) if isinstance(packing, Packing) else None
        if batching.packing_buffer_size is not None and limits is not None:
            costs = [table.within(limits) for table in costs]
        self._plan, self.costs = plan, costs

    def blend(self, phases: Sequence[Phase], numbers: Sequence[int], keys: Sequence[int]) -> CostBlend:
        """See `BlendRule`."""
        sources = [self._plan.sources[number] for number in numbers]
        return CostBlend(
            phases,
            self._plan.weight_unit,
            [self.costs[number] for number in numbers],
            [source.num_samples for source in sources],
            keys,
            [source.name for source in sources],
        )

    def fingerprint(self, source_ids: Sequence[str]) -> Mapping[str, Any]:
        """The unit, and by which costs it is counted."""
        digests = (table.digest for table in self.costs)
        return {"weight_unit": self._plan.weight_unit, "costs": dict(zip(source_ids, digests, strict=True))}


def limits_of(packing: Packing) -> CostLimits | None:
    """What packs take of the costs of samples; None for all, as those that are too long are packed alone."""
    if packing.overlong == "alone":
        return None
    most = {"tokens": packing.capacity, **packing.budgets}
    return CostLimits(most=most, cut="tokens" if packing.overlong == "truncate" else None)
