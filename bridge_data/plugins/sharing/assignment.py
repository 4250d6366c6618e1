"""What micro-batches cost, and which rank works on which of a step, so that all ranks finish at about the same time.

Reads batches, as the task encoder made them, and the number of ranks. Returns the cost of each batch, in any unit, and
the micro-batches of each rank, by number. Every micro-batch is assigned once, and each rank gets equally many. The most
loaded rank is never worse off than with micro-batch m on rank m mod D. Equal costs give equal assignments, on any
machine.

A step takes as long as its most loaded rank. That rank swaps one micro-batch for another of a less loaded rank, as
long as this helps, or until its load is close to the lower bound for whole micro-batches. The swaps start from where
the micro-batches were read, so few of them move. Assigning them from scratch, the costliest first, rarely balances
better, and moves three to nine times as many.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from bridge_data.encoders.pixel_table import TABLE
from bridge_data.errors import ConfigError
from bridge_data.task import TaskEncoder, hook_of, is_overridden

Cost: TypeAlias = Callable[[Any], float]

MAX_COST = 2.0**53
"""Whole numbers are exact up to here."""

_TOKENS = ("tokens", "input_ids")
_GRIDS = ("image_grid_thw", "video_grid_thw")
_PICTURES = ("image", "images", "pixel_values", "pixel_values_videos", "video", "videos", "pixels")
_MEDIA = "media"
"""A field of tensors by name, which are none where a batch has no pictures."""


def tokens(batch: Any) -> int:
    """The tokens of all rows, with their padding, which is computed too.

    Raises:
        ConfigError: if the batch has no `tokens` or `input_ids`.
    """
    fields = _fields(batch)
    found = [fields[name] for name in _TOKENS if name in fields]
    if not found:
        raise _missing("tokens", _TOKENS, fields)
    return sum(tensor.numel() for tensor in _tensors(found[0]))


def pixels(batch: Any) -> int:
    """The values of all pictures and frames, as they enter the vision tower.

    Raises:
        ConfigError: if the batch has no field of pictures.
    """
    fields = _fields(batch)
    count = sum(tensor.numel() for tensor in _tensors(_pictures("pixels", fields)))
    media = _fields(fields.get(_MEDIA, {}))
    if TABLE in media and "pixel_values" in media:  # bytes, of which models take several copies
        count += media["pixel_values"].numel() * (media[TABLE].shape[1] - 1)
    return count


def frames(batch: Any) -> int:
    """How many pictures and frames there are: by `image_grid_thw` and `video_grid_thw`, else by tensors (..., C, H, W).

    Raises:
        ConfigError: if the batch has no field of pictures, or these are cut into patches and have no grid.
    """
    fields = _fields(batch)
    media = {**fields, **_fields(fields.get(_MEDIA, {}))}
    grids = [grid for name in _GRIDS for grid in _tensors(media.get(name))]
    if grids:
        return int(sum(grid[:, 0].sum() for grid in grids))
    count = 0
    for tensor in _tensors(_pictures("frames", fields)):
        if tensor.dim() < 3:
            raise ConfigError(
                f"balance='frames': pictures of shape {tuple(tensor.shape)}, not (..., C, H, W), and no field "
                f"{', '.join(_GRIDS)} to count them by; use 'pixels'"
            )
        count += math.prod(tensor.shape[:-3])
    return count


COSTS: dict[str, Cost] = {"tokens": tokens, "pixels": pixels, "frames": frames}
"""The costs by name."""


def find_cost(balance: Any, encoder: TaskEncoder[Any, Any, Any, Any]) -> Cost:
    """The cost for the option `balance`, which `TrainerOptions` has checked: one of `COSTS` by name, a function of the
    batch, or True for the encoder's `batch_cost`.

    Raises:
        ConfigError: if the encoder has no cost.
    """
    if balance is True:
        if not is_overridden(encoder, "batch_cost"):
            raise ConfigError(
                f"balance=True balances by batch_cost of {type(encoder).__name__}, which does not override it; do, or "
                f"set balance to one of {', '.join(map(repr, COSTS))}, or a function of the batch"
            )
        cost: Cost = hook_of(encoder, "batch_cost")
        return cost
    chosen: Cost = COSTS[balance] if isinstance(balance, str) else balance
    return chosen


def check_cost(value: Any) -> float:
    """A cost as a number.

    Raises:
        ConfigError: if it is not a number from 0 to `MAX_COST`.
    """
    try:
        cost = float(value)
    except (TypeError, ValueError):
        cost = math.nan
    if not 0 <= cost <= MAX_COST:
        raise ConfigError(f"the cost of a batch is {value!r}: expected a number from 0 to 2**53")
    return cost


def _fields(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    return {name: getattr(batch, name) for name in getattr(batch, "__dataclass_fields__", ())}


def _pictures(cost: str, fields: Mapping[str, Any]) -> list[Any]:
    media = fields.get(_MEDIA)
    found = [fields[name] for name in _PICTURES if name in fields]
    if isinstance(media, Mapping):
        found += [media[name] for name in _PICTURES if name in media]
    elif not found:
        raise _missing(cost, (*_PICTURES, _MEDIA), fields)
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _missing(cost: str, names: Sequence[str], fields: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"balance={cost!r}: a batch has the fields {', '.join(fields) or 'of no dataclass or dict'}; expected one of "
        f"{', '.join(names)}. Pass a function of the batch, or override batch_cost and set balance=True"
    )


Assignment: TypeAlias = list[list[int]]
"""The micro-batches of each rank, by number."""

_CLOSE = 1.01
_MAX_PARTNERS = 32
_MAX_EXCHANGES_PER_RANK = 4


def round_robin(num_micro_batches: int, num_ranks: int) -> Assignment:
    """Micro-batch m on rank m mod D: where it is read."""
    return [list(range(rank, num_micro_batches, num_ranks)) for rank in range(num_ranks)]


def assign(costs: Sequence[float], num_ranks: int) -> Assignment:
    """The micro-batches of each rank, in the order of their numbers; their number is a multiple of `num_ranks`."""
    assert len(costs) % num_ranks == 0, f"{len(costs)} micro-batches cannot be shared by {num_ranks} ranks"
    home = round_robin(len(costs), num_ranks)
    exchanged = _exchanged(home, costs, _CLOSE * least_possible(costs, num_ranks))
    best = min(home, exchanged, key=lambda made: greatest_load(made, costs))
    return [sorted(group) for group in best]


def greatest_load(assignment: Assignment, costs: Sequence[float]) -> float:
    """The cost of the most loaded rank."""
    return max(_load(group, costs) for group in assignment)


def least_possible(costs: Sequence[float], num_ranks: int) -> float:
    """A lower bound of the greatest load: the mean, or the costliest micro-batch with the cheapest ones."""
    ordered = sorted(costs)
    per_rank = len(costs) // num_ranks
    return max(math.fsum(costs) / num_ranks, math.fsum([ordered[-1], *ordered[: per_rank - 1]]))


def imbalance(assignment: Assignment, costs: Sequence[float]) -> float:
    """The greatest load over the mean one; 1 if nothing costs anything."""
    mean = math.fsum(costs) / len(assignment)
    return greatest_load(assignment, costs) / mean if mean else 1.0


def _load(group: Sequence[int], costs: Sequence[float]) -> float:
    return math.fsum(costs[number] for number in group)


def _exchanged(groups: Assignment, costs: Sequence[float], enough: float) -> Assignment:
    """`groups` after swaps between the most loaded rank and less loaded ones, until its load is at most `enough` or no
    swap helps."""
    groups = [list(group) for group in groups]
    loads = np.array([_load(group, costs) for group in groups])
    table = np.array([[costs[number] for number in group] for group in groups], dtype=np.float64)
    for _ in range(_MAX_EXCHANGES_PER_RANK * len(groups)):
        top = int(np.argmax(loads))
        lowest = np.argsort(loads, kind="stable")[:_MAX_PARTNERS]
        if loads[top] <= max(enough, loads[lowest[0]]):
            break
        gain = table[top][:, None, None] - table[lowest][None]  # (own micro-batch, partner, its micro-batch)
        after = np.maximum(loads[top] - gain, loads[lowest][None, :, None] + gain)
        after[:, lowest == top] = np.inf
        own, partner, other = (int(index) for index in np.unravel_index(np.argmin(after), after.shape))
        if after[own, partner, other] >= loads[top]:
            break
        rank = int(lowest[partner])
        groups[top][own], groups[rank][other] = groups[rank][other], groups[top][own]
        for changed in (top, rank):
            table[changed] = [costs[number] for number in groups[changed]]
            loads[changed] = _load(groups[changed], costs)
    return groups
