"""What a micro-batch costs: a number in any unit, for comparing it with others of its step.

Enters: a batch, as the task encoder made it. Leaves: how much work it is. Batches are dataclasses or dicts; what their
fields hold is told by its name.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from bridge_data.errors import ConfigError
from bridge_data.plan.document import nearest
from bridge_data.task import TaskEncoder, hook_of, is_overridden

Cost: TypeAlias = Callable[[Any], float]

MAX_COST = 2.0**53
"""Up to here whole numbers are exact."""

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
    return sum(tensor.numel() for tensor in _tensors(_pictures("pixels", _fields(batch))))


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
                f"balance='frames': pictures of shape {tuple(tensor.shape)}, which are no (..., C, H, W), and none of "
                f"{', '.join(_GRIDS)} to count them by; take 'pixels'"
            )
        count += math.prod(tensor.shape[:-3])
    return count


COSTS: dict[str, Cost] = {"tokens": tokens, "pixels": pixels, "frames": frames}
"""The costs by name."""


def find_cost(balance: Any, encoder: TaskEncoder[Any, Any, Any, Any]) -> Cost:
    """The cost that is meant: one of `COSTS` by name, a function of the batch, or with True the encoder's `batch_cost`.

    Raises:
        ConfigError: if it is none of these, or the encoder has no cost.
    """
    if balance is True:
        if not is_overridden(encoder, "batch_cost"):
            raise ConfigError(
                f"balance=True balances by batch_cost of {type(encoder).__name__}, which does not override it; do, or "
                f"say by what: {', '.join(map(repr, COSTS))}, or a function of the batch"
            )
        cost: Cost = hook_of(encoder, "batch_cost")
        return cost
    if isinstance(balance, str) and balance in COSTS:
        return COSTS[balance]
    if callable(balance):
        given: Cost = balance
        return given
    hint = nearest(balance, COSTS) if isinstance(balance, str) else ""
    raise ConfigError(
        f"balance={balance!r}{hint}: expected True (the encoder's batch_cost), {', '.join(map(repr, COSTS))}, or a "
        "function of the batch"
    )


def check_cost(value: Any) -> float:
    """A cost as a number.

    Raises:
        ConfigError: if it is none that can be added up.
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
        f"{', '.join(names)}. Give a function of the batch, or override batch_cost and take balance=True"
    )
