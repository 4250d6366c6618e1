"""The recipes that all sides compute, and what they share: settings, tokenizer, image processors, templates, files.

A recipe takes chats, with JPEGs beside them, to the batches of a model. Reads prepared tars, whose offsets `indexed`
finds. Returns processors of transformers, made of parts, so that nothing is downloaded: the image processors are those
on Pillow, the chat templates those of the models' checkpoints. `main` is the command line of each program.

    python PROGRAM run --workload qwen --data FOLDER ...     # as of measure.py
    python PROGRAM show --workload qwen --data FOLDER --workers 2 --batches 4 --to FILE     # its batches, as tensors
"""

import argparse
import functools
import json
import mmap
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import torch

SEQ_LENGTH, IGNORED = 8192, -100
SHUFFLE_BUFFER, RUN_LENGTH = 100, 100

QWEN = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or "
    "'image_url' in content %}<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' "
    "in content %}<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""That of Qwen2.5-VL, without numbered pictures."""

LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}"
    "{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""That of LLaVA 1.5 and NeXT."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a batch is: `batch_size` chats, with or without images, in one packed row or as padded rows."""

    batch_size: int
    template: str
    is_packed: bool
    has_images: bool = True


RECIPES = {
    "qwen": Recipe(batch_size=8, template=QWEN, is_packed=True),
    "llava": Recipe(batch_size=8, template=LLAVA, is_packed=False),
    "tiles": Recipe(batch_size=4, template=LLAVA, is_packed=False),
    "sft": Recipe(batch_size=32, template=QWEN, is_packed=True, has_images=False),
}
MIN_PIXELS, MAX_PIXELS = 56 * 56, 1_003_520
EDGE, PATCH = 336, 14
GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


# Tokenizer and image processors


@functools.cache
def tokenizer(folder: Path, template: str) -> Any:
    """The tokenizer of a data set."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer/tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
    )


def image_processor(recipe: str) -> Any:
    """The image processor of the recipe's model, on Pillow."""
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    if recipe == "qwen":
        size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
        return Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, size=size)
    sizes = {"size": {"shortest_edge": EDGE}, "crop_size": {"height": EDGE, "width": EDGE}}
    if recipe == "llava":
        return transformers.CLIPImageProcessorPil(**sizes)
    return transformers.LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=GRIDS)


class _NoVideos:
    """Stands where a processor wants one for videos, which needs torchvision."""

    model_input_names: tuple[str, ...] = ()


def processor(recipe: str, folder: Path) -> Any:
    """The whole processor of the recipe's model."""
    import transformers

    settings = RECIPES[recipe]
    words = tokenizer(folder, settings.template)
    if recipe in ("qwen", "sft"):
        kind = _unchecked(transformers.Qwen2_5_VLProcessor)
        return kind(image_processor("qwen"), words, _NoVideos(), chat_template=settings.template)
    kind = transformers.LlavaProcessor if recipe == "llava" else transformers.LlavaNextProcessor
    tower = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return kind(image_processor(recipe), words, **tower, chat_template=settings.template)


def _unchecked(kind: Any) -> Any:
    """The class without the check of the classes of its parts."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})


# Files


@dataclass(frozen=True)
class Chat:
    """Where the parts of a chat are: of each the mapped shard, the first byte, and the one after the last."""

    key: str
    parts: Mapping[str, tuple[mmap.mmap, int, int]]

    def read(self, part: str) -> bytes:
        """The bytes of a part."""
        mapped, start, end = self.parts[part]
        return mapped[start:end]

    def messages(self) -> list[dict[str, str]]:
        """Its turns."""
        return json.loads(self.read("json"))["messages"]

    def photos(self) -> list[bytes]:
        """Its JPEGs."""
        return [self.read(part) for part in sorted(self.parts) if part != "json"]


def indexed(folder: Path) -> list[Chat]:
    """The chats of a data set."""
    found: dict[str, dict[str, tuple[mmap.mmap, int, int]]] = {}
    for shard in sorted((folder / "tars").glob("*.tar")):
        with open(shard, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                place = mapped, member.offset_data, member.offset_data + member.size
                found.setdefault(key, {})[part] = place
    return [Chat(key, parts) for key, parts in found.items()]


def parts_of(content: str) -> list[dict[str, str]]:
    """The content of a turn as parts, images first."""
    count = content.count("<image>")
    return [{"type": "image"}] * count + [{"type": "text", "text": content.replace("<image>", "")}]


# The command line


class Loader(measure.Loader):
    """A loader of a recipe; its batches are any objects, of which `fields` makes tensors."""

    def __init__(self, recipe: str, data: Path, workers: int, settings: dict[str, Any]) -> None:
        self.recipe = RECIPES[recipe]
        self.settings = settings | {"batch_size": self.recipe.batch_size}
        self.order = {
            "batch_size": self.recipe.batch_size,
            "shuffle_buffer_size": SHUFFLE_BUFFER,
            "max_samples_per_sequence": RUN_LENGTH,
        }
        """For `get_train_dataset`, of Energon and ours."""

    def fields(self, batch: Any) -> tuple[list[str], dict[str, torch.Tensor]]:
        """The keys of a batch, and its tensors by the names that transformers gives them; `labels` are shifted, as
        Megatron takes them."""
        raise NotImplementedError

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return []


def main(make: type[Loader]) -> None:
    """Run the command line of a program."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["show"]:
        _show(make)
    else:
        measure.main(make)


def _show(make: type[Loader]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["show"])
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    loader = make(arguments.workload, arguments.data, arguments.workers)
    batches: Iterator[Any] = iter(loader)
    shown = [loader.fields(next(batches)) for _ in range(arguments.batches)]
    torch.save(shown, arguments.to)
    print(json.dumps({"batches": len(shown)}), flush=True)
    loader.close()
    measure.end_children()
    os._exit(0)
