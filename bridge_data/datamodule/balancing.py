"""Whether and how the ranks of a DataModule balance their micro-batches.

Enters: a cost, and the sizes of steps. Leaves: the settings of a `BalancedLoader`, or None where there is nothing to
balance.
"""

import warnings
from collections.abc import Callable
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.parallel import Balancing
from bridge_data.topology import WorkerConfig


def balancing_of(
    cost: Callable[[Any], float] | None, schedule: BatchSchedule, num_micro_batches: int, config: WorkerConfig
) -> Balancing | None:
    """How the ranks of `config` share the micro-batches of a step by `cost`, `num_micro_batches` of a rank at most."""
    if cost is None or config.world_size == 1:
        return None
    if num_micro_batches == 1:
        warnings.warn(
            "balance has no effect: a rank takes one micro-batch for a step, so there is nothing to exchange. With "
            "a smaller micro_batch_size there is, or with lpt_balanced packs",
            stacklevel=4,
        )
        return None

    def step_size(first_micro_batch: int) -> int:
        return schedule.num_micro_batches(first_micro_batch * schedule.micro_batch_size, config.world_size)

    return Balancing(cost=cost, step_size=step_size, max_step_size=num_micro_batches)
