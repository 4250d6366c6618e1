"""What families of tiled images share: settings of vision towers, sizes, and the padding of tiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge_data.errors import ConfigError, FatalSampleError

STRATEGIES = ("default", "full")


def check_tower(family: str, patch_size: int, strategy: str) -> None:
    """See that settings of the vision tower are possible.

    Raises:
        ConfigError: naming the setting, if one is not.
    """
    if patch_size < 1:
        raise ConfigError(f"{family}(patch_size={patch_size}): expected at least 1")
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"{family}(vision_feature_select_strategy={strategy!r}): expected one of {', '.join(map(repr, STRATEGIES))}"
        )


def edge_of(size: Any, *names: str) -> int | None:
    """The first of `names` that a size of an image processor (a dict, or its `SizeDict`) has, such as
    "shortest_edge"."""
    for name in names:
        value = size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)
        if value:
            return int(value)
    return None


def check_tiles(family: str, got: int | Sequence[Any], expected: int | Sequence[Any]) -> None:
    """See that the image processor made the tiles (their number, or rows and columns) that there are tokens for.

    Raises:
        FatalSampleError: if it did not: this would be so of other samples too.
    """
    if got != expected:
        raise FatalSampleError(
            f"{family}: the image processor made {got} tiles (or rows and columns of them), but tokens were "
            f"written for {expected}. Its settings were changed since the family was made, or this version of "
            "transformers tiles another way than bridge_data.encoders knows: compare with HFTaskEncoder"
        )


def stack_padded(groups: Sequence[Tensor], num_tiles: int) -> Tensor:
    """Groups of tiles (tiles, ...) as one (groups, num_tiles, ...), with zeros behind those that have fewer."""
    made = groups[0].new_zeros(len(groups), num_tiles, *groups[0].shape[1:])
    for row, group in zip(made, groups, strict=True):
        row[: len(group)] = group
    return made


def split(tiles: Tensor, counts: Tensor) -> list[Tensor]:
    """Tiles one behind the other as groups of `counts`."""
    return list(torch.split(tiles, counts.tolist()))
