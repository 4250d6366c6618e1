"""How long a pass over a data set is: `LimitDataset` and `RepeatDataset`, which do what Energon's wrappers do.

Enters: a data set. Leaves: the same data set, ending after so many batches of a rank and beginning anew then, or going
on with its first batch where it ends. Guarantee: nothing is read.
"""

import copy
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset


def LimitDataset(
    dataset: LaneDataset, length: int, *, reset_after_epoch: bool = False, worker_config: Any = None
) -> LaneDataset:
    """`dataset`, of which each pass has the first `length` batches of this rank.

    As in Energon 7.4.1, every pass begins with the first batch, whatever `reset_after_epoch` says. `worker_config` has
    no effect: it is that of `dataset`.

    Raises:
        ConfigError: if `length` is not positive.
    """
    if length < 1:
        raise ConfigError(f"LimitDataset(length={length}): expected at least 1")
    limited = copy.copy(dataset)
    limited.virtual_epoch_length = min(length, dataset.virtual_epoch_length or length)
    limited.begins_anew = True
    return limited


def RepeatDataset(
    dataset: LaneDataset, *, repeats: float | None = None, restart: bool = True, worker_config: Any = None
) -> LaneDataset:
    """`dataset`, which goes on with its first batch where it ends, without end. `restart` and `worker_config` have no
    effect.

    Raises:
        ConfigError: for a number of `repeats`.
    """
    if repeats is not None:
        raise ConfigError(
            f"RepeatDataset(repeats={repeats}): only without end (None); for a number of epochs, use blend_epochized "
            "in a metadataset, or LimitDataset for a number of batches"
        )
    repeated = copy.copy(dataset)
    repeated.repeats = True
    return repeated
