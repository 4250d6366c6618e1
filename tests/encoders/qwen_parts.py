"""Qwen-VL's parts for tests: tokenizers, processors whose videos are resized by Pillow, models, videos.

The video processors of transformers want torchvision. Theirs is all but three operations on pixels, which are done by
the image processor here: so that frames chosen, sizes and the layout of patches are compared with transformers' own.
"""

import copy
import functools
import importlib
import sys
import types
from typing import Any

import numpy as np
import torch

from bridge_data.encoders import Qwen2_5VL, Qwen2VL, Qwen3VL
from tests.encoders.parts import make_tokenizer, unchecked
from tests.later import hf
from tests.tiny_models import parts as tiny_parts

PATCH, MERGE = 4, 2
IMAGE_PIXELS = (64, 2048)
FRAME_PIXELS = {"qwen2_vl": (256, 1024), "qwen2_5_vl": (256, 1024), "qwen3_vl": (1024, 16_384)}
"""Of a frame; of Qwen3-VL, of all frames of a video."""

TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
FAMILIES = {"qwen2_vl": Qwen2VL, "qwen2_5_vl": Qwen2_5VL, "qwen3_vl": Qwen3VL}
_PROCESSORS = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}


def image_processor() -> Any:
    size = dict(zip(("shortest_edge", "longest_edge"), IMAGE_PIXELS, strict=True))
    return hf.Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, size=size)


def make_family(name: str) -> Qwen2VL:
    least, most = FRAME_PIXELS[name]
    return FAMILIES[name](image_processor(), min_frame_pixels=least, max_frame_pixels=most)


@functools.cache
def qwen_tokenizer(name: str) -> Any:
    tokenizer = copy.deepcopy(make_tokenizer(template=FAMILIES[name].chat_template))
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS}, replace_extra_special_tokens=False)
    return tokenizer


class _PillowFrames:
    """Operations on pixels, frame by frame, by the image processor."""

    def convert_to_rgb(self, video: Any) -> Any:
        return video

    def resize(self, image: Any, size: Any, resample: Any = None, **_: Any) -> Any:
        backend = super(hf.Qwen2VLImageProcessorPil, image_processor())
        frames = [backend.resize(frame.numpy(), size, 3) for frame in image.flatten(0, 1)]
        return torch.from_numpy(np.stack(frames)).unflatten(0, image.shape[:2])

    def rescale_and_normalize(self, images: Any, *_: Any, **__: Any) -> Any:
        parts = image_processor()
        scaled = [parts.rescale(frame.numpy(), 1 / 255) for frame in images.flatten(0, 1)]
        done = [parts.normalize(frame, parts.image_mean, parts.image_std) for frame in scaled]
        return torch.from_numpy(np.stack(done).astype(np.float32)).unflatten(0, images.shape[:2])


@functools.cache
def _video_processor_class(name: str) -> Any:
    from transformers.video_processing_utils import BaseVideoProcessor

    model = "qwen3_vl" if name == "qwen3_vl" else "qwen2_vl"
    names = (
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional",
    )
    missing = [module for module in names if module not in sys.modules]
    for module in missing:
        sys.modules[module] = types.ModuleType(module)
        parent, _, child = module.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[module])
    try:
        module = importlib.import_module(f"transformers.models.{model}.video_processing_{model}")
    finally:
        for name in missing:
            del sys.modules[name]
    original = module.Qwen3VLVideoProcessor if model == "qwen3_vl" else module.Qwen2VLVideoProcessor
    frames = type("PillowFrames", (_PillowFrames, BaseVideoProcessor), {})  # before the base, after the original
    return type("PillowVideoProcessor", (original, frames), {})


def video_processor(name: str) -> Any:
    size = dict(zip(("shortest_edge", "longest_edge"), FRAME_PIXELS[name], strict=True))
    kind = _video_processor_class(name)
    return kind(patch_size=PATCH, merge_size=MERGE, size=size, do_sample_frames=True, fps=2, cap_pixels_per_frame=False)


@functools.cache
def make_processor(name: str) -> Any:
    """The family's processor, without the check of the class of its parts."""
    kind = unchecked(getattr(hf, _PROCESSORS[name]))
    processor = kind(image_processor(), qwen_tokenizer(name), video_processor(name))
    processor.video_token = TOKENS[3]  # the tokenizer of all families has that of another one
    processor.video_token_id = processor.tokenizer.convert_tokens_to_ids(TOKENS[3])
    return processor


def tiny_model(name: str) -> Any:
    """A model of the family with random weights, for patches and merging as here."""
    assert (PATCH, MERGE) == (tiny_parts.PATCH, tiny_parts.MERGE)
    return tiny_parts.tiny_model(name, qwen_tokenizer(name))


def frames(count: int, size: tuple[int, int], seed: int) -> torch.Tensor:
    """A video of noise, uint8 (count, 3, *size)."""
    noise = np.random.default_rng(seed).integers(0, 255, (count, 3, *size), dtype=np.uint8)
    return torch.from_numpy(noise)
