"""The recipes by bridge_data: its encoders in its loader, over the prepared tars."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import recipe_work as work
import torch

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    Llava,
    LlavaNext,
    Qwen2_5VL,
    QwenVLTaskEncoder,
    text_encoder,
)

MEDIA = ("pixel_values", "image_grid_thw", "image_sizes")


def encoder(recipe: str, data: Path, **config: Any) -> Any:
    """The task encoder of a recipe; with `config`, in our own layout instead of Bridge's."""
    settings = work.RECIPES[recipe]
    words = work.tokenizer(data, settings.template)
    template = ConversationTemplateConfig(chat_template=settings.template)
    if settings.is_packed:
        config = (config or {"layout": "bridge"}) | {"pack_in_batch": True}
    of_family = FamilyConfig(conversation_template_config=template, **config)
    if recipe == "sft":
        return text_encoder(words, of_family, seq_length=work.SEQ_LENGTH)
    images = work.image_processor(recipe)
    if recipe == "qwen":
        limits = {"min_pixels": work.MIN_PIXELS, "max_pixels": work.MAX_PIXELS}
        return QwenVLTaskEncoder(words, Qwen2_5VL(images, **limits), of_family, seq_length=work.SEQ_LENGTH)
    family = Llava if recipe == "llava" else LlavaNext
    return FamilyTaskEncoder(words, family(images, patch_size=work.PATCH), of_family, seq_length=work.SEQ_LENGTH)


class Loader(work.Loader):
    """A savable loader."""

    config: Mapping[str, Any] = MappingProxyType({})
    """See `encoder`."""

    def __init__(self, recipe: str, data: Path, workers: int) -> None:
        chosen = {"version": version("bridge-data"), "format": "prepared tars", "decoder": "simplejpeg, Pillow"}
        chosen |= {"shuffle": f"{work.SHUFFLE_BUFFER} samples mixed, chunks of {work.RUN_LENGTH}"}
        super().__init__(recipe, data, workers, chosen | {"prefetch": "2 batches a worker (default)"})
        dataset = get_train_dataset(
            data / "tars",
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
            **self.order,
            task_encoder=encoder(recipe, data, **self.config),
        )
        self.loader = get_savable_loader(dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        if self.recipe.is_packed:
            media = vars(batch["visual_inputs"])
            names = ("input_ids", "labels", "loss_mask", "position_ids")
            found = {name: batch[name] for name in names} | {"cu_seqlens": batch["cu_seqlens_q"]}
            keys = batch["__key__"]
        else:
            media, keys = batch.media, batch.__key__
            found = {"input_ids": batch.tokens, "labels": batch.labels, "loss_mask": batch.loss_mask}
        return list(keys), found | {name: media[name] for name in MEDIA if media.get(name) is not None}

    def wait_ready(self) -> None:
        self.loader.wait_for_workers()

    def close(self) -> None:
        self.loader.close()


if __name__ == "__main__":
    work.main(Loader)
