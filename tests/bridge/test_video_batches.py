"""Batches of videos with `layout="bridge"` are those of Megatron-Bridge's `QwenVLTaskEncoder`, field by field.

Bridge gets videos as lists of frames. Nothing stands in: `qwen_vl_utils` and transformers' video
processors resize with torchvision. Pixel values are compared to 1e-5, as the two round differently when they normalize.
"""

import dataclasses
import functools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    Qwen2_5VL,
    Qwen3VL,
    QwenVLTaskEncoder,
    VideoConversationSample,
    VideoSampling,
)
from tests.bridge.batch_parts import PLAIN, Batching, bridge, image_processor, is_installed, processor, tokenizer
from tests.bridge.test_batches import BATCHINGS, compare
from tests.encoders.parts import TEXT, png

pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not is_installed(), reason="megatron.bridge is not installed: see make test-bridge"),
]

TEMPLATE = PLAIN.replace(
    "{%- else -%}{{- part['text'] -}}{%- endif -%}",
    "{%- elif part['type'] == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}",
)
LEAST, MOST = 56 * 56, 168 * 168
FAMILIES = {"Qwen2_5_VLProcessor": (Qwen2_5VL, 14), "Qwen3VLProcessor": (Qwen3VL, 16)}


def takes_all_frames(name: str) -> bool:
    """Whether the processor takes all frames, rather than 2 of 24 in a second."""
    return name == "Qwen2_5_VLProcessor"  # the other gets an even number: Bridge repeats a last frame before the choice


@dataclasses.dataclass(frozen=True)
class Shown:
    """A conversation about videos and images."""

    sample: VideoConversationSample
    images: list[Any]


@functools.cache
def shown(seed: int, *, even: bool) -> Shown:
    """One, with an `even` number of frames in each video, or any number from 1 to 8."""
    draw, noise = random.Random(seed), np.random.default_rng(seed)

    def words(most: int) -> str:
        return " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, most)))

    def pixels(*count: int) -> np.ndarray[Any, Any]:
        size = draw.randint(30, 200), draw.randint(30, 200)
        return noise.integers(0, 255, (*count, *size, 3), dtype=np.uint8)

    turns, videos, images = [], [], []
    for _ in range(draw.randint(1, 2)):
        asked = [words(5)]
        for _ in range(draw.randint(0, 2) if videos else 1):
            num_frames = 2 * draw.randint(1, 4) if even else draw.randint(1, 8)
            videos.append(torch.from_numpy(pixels(num_frames)).permute(0, 3, 1, 2))
            asked.insert(draw.randint(0, len(asked)), "<video>")
        if draw.random() < 0.4:
            images.append(Image.fromarray(pixels()))
            asked.insert(draw.randint(0, len(asked)), "<image>\n")
        turns += [{"role": "user", "content": " ".join(asked)}, {"role": "assistant", "content": words(6)}]
    sample = VideoConversationSample(
        __key__=f"video-{seed}", messages=turns, images=[png(image) for image in images], videos=videos
    )
    return Shown(sample, images)


def theirs(name: str, talks: list[Shown], how: Batching) -> dict[str, Any]:
    module, utils = bridge("models.qwen_vl.data.energon"), bridge("data.energon.task_encoder_utils")
    whole = processor(name, TEMPLATE, videos=True)
    encoder = module.QwenVLTaskEncoder(
        whole.tokenizer,
        whole,
        max_padding_length=how.seq_length,
        max_visual_tokens=None,
        min_pixels=LEAST,
        max_pixels=MOST,
        pad_to_multiple_of=how.multiple,
        enable_in_batch_packing=how.pack,
        in_batch_packing_pad_to_multiple_of=how.multiple,
    )
    samples = [
        utils.ChatMLSample(
            __key__=one.sample.__key__,
            __restore_key__=(),
            __subflavors__={},
            conversation=json.dumps(one.sample.messages),
            imgs=one.images or None,
            videos=[list(video.float() / 255) for video in one.sample.videos],
        )
        for one in talks
    ]
    made: dict[str, Any] = encoder.encode_batch(encoder.batch([encoder.encode_sample(sample) for sample in samples]))
    return made


def ours(name: str, talks: list[Shown], how: Batching) -> dict[str, Any]:
    family, patch_size = FAMILIES[name]
    limits = {"min_pixels": LEAST, "max_pixels": MOST}
    if takes_all_frames(name):  # the video processor of Qwen3-VL does not take the limits that Bridge passes to it
        limits |= {"min_frame_pixels": LEAST, "max_frame_pixels": MOST}
    encoder = QwenVLTaskEncoder(
        tokenizer(TEMPLATE),
        family(image_processor(patch_size), **limits),
        FamilyConfig(
            conversation_template_config=ConversationTemplateConfig(chat_template=TEMPLATE),
            pad_to_multiple_of=how.multiple,
            pack_in_batch=how.pack,
            layout="bridge",
        ),
        seq_length=how.seq_length,
        sampling=VideoSampling(fps=None) if takes_all_frames(name) else VideoSampling(),
    )
    made = encoder.batch([encoder.postencode_sample(encoder.preencode_sample(one.sample)) for one in talks])
    assert isinstance(made, dict)
    return made


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("how", ["padded", "packed", "packed and aligned"])
def test_20_conversations_are_equal_in_every_field(name: str, how: str) -> None:
    for start in range(0, 20, 4):
        talks = [shown(seed, even=not takes_all_frames(name)) for seed in range(start, start + 4)]
        got, expected = ours(name, talks, BATCHINGS[how]), theirs(name, talks, BATCHINGS[how])
        pixels = [made["visual_inputs"].pixel_values_videos for made in (got, expected)]
        torch.testing.assert_close(*pixels, rtol=0, atol=1e-5)
        got["visual_inputs"].pixel_values_videos = pixels[1]
        compare(got, expected)
