"""The recipes by bridge_data in its own layout, whose pixels leave the loader as BENCH_PIXELS says: as float32, or as
bytes (uint8), which become floats where they are used. They are looked up before they are compared.
"""

import os
from types import MappingProxyType
from typing import Any

import recipe_ours
import recipe_work as work
import torch


class Loader(recipe_ours.Loader):
    """A savable loader."""

    config = MappingProxyType({"pixels": os.environ["BENCH_PIXELS"]})

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        there = batch.to("cpu")
        found = {"input_ids": there.tokens, "labels": there.labels, "loss_mask": there.loss_mask}
        return list(batch.__key__), found | {
            name: there.media[name] for name in recipe_ours.MEDIA if name in there.media
        }

    def num_bytes(self, batch: Any) -> int:
        return sum(value.nbytes for value in batch.media.values() if isinstance(value, torch.Tensor))


if __name__ == "__main__":
    work.main(Loader)
