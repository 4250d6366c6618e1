"""The training data of a run, as the DataModule opens them: with the steps that it skips, and the ranks that packs are
assigned to.

Reads the options of a run and its steps. Returns the data set of a rank, whose order is that of the run. Raises
ConfigError if the data do not fit the options. Who only wants to know the order gives any task encoder.
"""

from collections.abc import Callable
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.extensions import Feature
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.run_options import RunOptions
from bridge_data.task import TaskEncoder
from bridge_data.topology import WorkerConfig

_STEP_ASSIGNMENT = Feature[Callable[[LaneDataset, RunOptions, BatchSchedule, int], LaneDataset]]("step_assignment")
"""The data set whose packs of a step are assigned to so many ranks before they are read."""


def training_order(
    path: Any,
    options: RunOptions,
    worker_config: WorkerConfig,
    task_encoder: TaskEncoder[Any, Any, Any, Any],
    schedule: BatchSchedule,
) -> LaneDataset:
    """The training data at `path` of the rank of `worker_config`.

    Raises:
        ConfigError: if the data cannot be opened, or the steps to skip do not fit the sizes of steps.
    """
    dataset = training_data(path, options.data, worker_config, task_encoder)
    dataset = dataset.changed(skips=schedule.skips(options.trainer.skip_steps))
    if not options.assigns_packs:
        return dataset
    assigned = _STEP_ASSIGNMENT.get(needed_by=f"balance={options.trainer.balance!r}")
    return assigned(dataset, options, schedule, worker_config.world_size)
