"""How long a pass over a data set is: `LimitDataset` and `RepeatDataset`, which do what Energon's wrappers do.

Enters: a data set. Leaves: the same data set, ending after so many batches of a rank and beginning anew then, or going
on with its first batch where it ends, so many times. Guarantee: nothing is read.
"""

import copy
import math
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.options import check_integer, check_number


def LimitDataset(
    dataset: LaneDataset, length: int, *, reset_after_epoch: bool = False, worker_config: Any = None
) -> LaneDataset:
    """`dataset`, of which each pass has the first `length` batches of this rank.

    As in Energon 7.4.1, every pass begins with the first batch, whatever `reset_after_epoch` says. `worker_config` has
    no effect: it is that of `dataset`.

    Raises:
        ConfigError: if `length` is not positive, or `dataset` is no data set.
    """
    _check_dataset("LimitDataset", dataset)
    check_integer("LimitDataset: length", length, 1)
    limited = copy.copy(dataset)
    limited.virtual_epoch_length = min(length, dataset.virtual_epoch_length or length)
    limited.begins_anew = True
    return limited


def RepeatDataset(
    dataset: LaneDataset, *, repeats: float | None = None, restart: bool = True, worker_config: Any = None
) -> LaneDataset:
    """`dataset`, of which each pass has all batches `repeats` times, one after the other; without end if None.

    Of a fraction, as many batches are taken of the last repetition as it is of those of this rank, rounded down. Where
    hooks leave samples out, that is counted as if they did not. Endless training data is as it was. `worker_config` has
    no effect.

    Raises:
        ConfigError: if `repeats` is not positive, with `restart=False`, or for a `LimitDataset`.
    """
    _check_dataset("RepeatDataset", dataset)
    check_number("RepeatDataset: repeats", repeats, "a positive number (of passes)", or_none=True)
    if repeats == math.inf:
        raise ConfigError("RepeatDataset: repeats=inf: leave it out for no end")
    if not restart and repeats is not None:
        raise ConfigError("RepeatDataset(restart=False): every pass begins anew here; iterate only once instead")
    if dataset.begins_anew:
        raise ConfigError(
            "RepeatDataset of a LimitDataset: limit the repeated data set instead, or use get_val_dataset(limit=...)"
        )
    repeated = copy.copy(dataset)
    if dataset.virtual_epoch_length:
        repeated.virtual_epoch_length = 0 if repeats is None else math.floor(dataset.virtual_epoch_length * repeats)
    if repeats is None or not dataset.virtual_epoch_length:
        repeated.repeats = math.inf if repeats is None else dataset.repeats * repeats
    return repeated


def _check_dataset(name: str, dataset: Any) -> None:
    if not isinstance(dataset, LaneDataset):
        raise ConfigError(f"{name}({dataset!r}): expected a data set, such as get_val_dataset(...) makes")
