"""The packed recipes by Megatron-Bridge's `QwenVLTaskEncoder` in Megatron-Energon's loader, over the prepared tars.

Its count of visual tokens before the batch is made, which runs the image processor a second time, is off
(`max_visual_tokens=None`), and the cooker hands it Pillow's images, not the floats that it would make bytes again.
"""

import importlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import recipe_work as work
import torch
from megatron.energon import (
    Cooker,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from tests.bridge.imports import stand_in_for_cuda

stand_in_for_cuda()
ChatMLSample = importlib.import_module("megatron.bridge.data.energon.task_encoder_utils").ChatMLSample
QwenVLTaskEncoder = importlib.import_module("megatron.bridge.models.qwen_vl.data.energon").QwenVLTaskEncoder


@stateless
def cook(sample: Any) -> Any:
    """A chat of its JSON and photos."""
    photos = [sample[name] for name in sorted(sample) if name.endswith(".jpg")]
    conversation = json.dumps(sample["json"]["messages"])
    return ChatMLSample(**basic_sample_keys(sample), conversation=conversation, imgs=photos or None)


class Encoder(QwenVLTaskEncoder):  # type: ignore[misc, valid-type]
    """Bridge's, with a cooker of this data."""

    cookers = [Cooker(cook)]  # noqa: RUF012
    decoder = SampleDecoder(image_decode="pilrgb")


class Loader(work.Loader):
    """A savable loader."""

    def __init__(self, recipe: str, data: Path, workers: int) -> None:
        libraries = f"{version('megatron-bridge')}, Energon {version('megatron-energon')}"
        chosen = {"version": libraries, "format": "prepared tars", "decoder": "Pillow"}
        chosen |= {"shuffle": f"buffer of {work.SHUFFLE_BUFFER}, chunks of {work.RUN_LENGTH}"}
        super().__init__(recipe, data, workers, chosen | {"prefetch": "2 batches a worker (default)"})
        whole = work.processor(recipe, data)
        encoder = Encoder(
            whole.tokenizer,
            whole,
            min_pixels=work.MIN_PIXELS,
            max_pixels=work.MAX_PIXELS,
            max_padding_length=self.recipe.batch_size * work.SEQ_LENGTH,
            max_visual_tokens=None,
            enable_in_batch_packing=True,
        )
        dataset = get_train_dataset(
            data / "tars",
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
            **self.order,
            task_encoder=encoder,
        )
        self.loader = get_savable_loader(dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        names = ("input_ids", "labels", "loss_mask", "position_ids")
        found = {name: batch[name] for name in names} | {"cu_seqlens": batch["cu_seqlens_q"]}
        visual = batch["visual_inputs"]
        media = {name: getattr(visual, name) for name in ("pixel_values", "image_grid_thw")}
        return list(batch["__keys__"]), found | {name: value for name, value in media.items() if value is not None}


if __name__ == "__main__":
    work.main(Loader)
