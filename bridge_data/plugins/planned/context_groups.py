"""Context groups: of each step, a rank's samples where each sample has its own group of ranks.

Takes a data set with planned packs. Returns it as Megatron-core's `HybridCPDataLoaderWrapper` yields steps: see
`datamodule.parallel.with_context_groups`. Raises `ConfigError` for other data, or ranks that are no power of two.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.plugins.planned.planned import ContextAssignment, Groups
from bridge_data.plugins.planned.planned_sources import planned_of


@dataclasses.dataclass(frozen=True)
class BalancedGroups:
    """The groups that Megatron-core's `BalancedCPScheduler` makes of (number, tokens) of the samples of a step."""

    num_ranks: int
    max_seqlen_per_dp_cp_rank: int

    def __call__(self, lengths: list[tuple[int, int]]) -> Groups:
        """By group and rank, numbers of samples.

        Raises:
            ConfigError: if all ranks together cannot hold a sample.
        """
        from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

        scheduler = BalancedCPScheduler(self.max_seqlen_per_dp_cp_rank, SimpleNamespace(size=lambda: self.num_ranks))
        longest = max(length for _, length in lengths)
        if scheduler.gpus_needed(longest) > self.num_ranks:
            raise ConfigError(
                f"a sample of {longest} tokens needs more than {self.num_ranks} ranks of max_seqlen_per_dp_cp_rank="
                f"{self.max_seqlen_per_dp_cp_rank}: raise that, or measure the data with a shorter seq_length"
            )
        return list(scheduler.get_groups_and_subsamples(lengths, None)[1])


def with_context_groups(
    dataset: LaneDataset, dp_cp_group: Any, max_seqlen_per_dp_cp_rank: int, multiple: int = 1
) -> LaneDataset:
    """See `datamodule.parallel.with_context_groups`."""
    planned, num_ranks, config = planned_of(dataset), dp_cp_group.size(), dataset.worker_config
    if planned is None or dataset.finite or config.world_size > 1:
        raise ConfigError(
            "context groups are made of planned packs that repeat, of which each rank plans all: set "
            f"packing='planned', repeat=True, WorkerConfig(rank=0, world_size=1), not world_size={config.world_size}"
        )
    if num_ranks & (num_ranks - 1):
        raise ConfigError(
            f"dp_cp_group has {num_ranks} ranks: Megatron-core makes hybrid groups of powers of two, so that some "
            "schedules of other numbers would wait forever; use a power of two"
        )
    schedule = BalancedGroups(num_ranks, max_seqlen_per_dp_cp_rank)
    modules = ("megatron.core.pipeline_parallel.hybrid_cp_schedule",)
    assignment = ContextAssignment(rank=dp_cp_group.rank(), schedule=schedule, modules=modules, multiple=multiple)
    return planned.changed(dataset, context=assignment)
