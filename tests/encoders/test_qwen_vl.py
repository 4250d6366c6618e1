"""Sizes, frames and settings of Qwen-VL."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bridge_data.encoders import Qwen2VL, Qwen3VL, VideoSampling
from bridge_data.encoders.families import MAX_ASPECT
from bridge_data.encoders.visuals import smart_resize
from bridge_data.errors import ConfigError
from tests.encoders.qwen_parts import image_processor, make_family, video_processor
from tests.later import hf

SIDES = st.integers(1, 3000)


@given(height=SIDES, width=SIDES, factor=st.sampled_from([28, 32]), most=st.integers(1, 200))
def test_sizes_are_those_of_transformers(height: int, width: int, factor: int, most: int) -> None:
    if max(height, width) > MAX_ASPECT * min(height, width):
        return
    limits = 4 * factor**2, (4 + most) * factor**2
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as theirs

    assert smart_resize((height, width), factor, *limits) == theirs.smart_resize(height, width, factor, *limits)


@given(num_frames=st.integers(1, 900), fps=st.floats(1, 120), wanted=st.sampled_from([None, 0.5, 1.0, 2.0, 10.0]))
@settings(max_examples=100)
def test_frames_are_those_that_transformers_takes(num_frames: int, fps: float, wanted: float | None) -> None:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    sampling = VideoSampling(fps=wanted, max_frames=64)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=fps)
    theirs = Qwen3VLVideoProcessor(max_frames=64).sample_frames(metadata, fps=wanted or fps)
    assert list(make_family("qwen3_vl").choose_frames(num_frames, fps, sampling)) == theirs.tolist()
    if num_frames < 2:
        assert list(make_family("qwen2_vl").choose_frames(num_frames, fps, sampling)) == [0]
        return
    options = {"temporal_patch_size": 2, "min_frames": 4, "max_frames": 64}
    theirs = video_processor("qwen2_vl").sample_frames(metadata, fps=wanted or fps, **options)
    assert list(make_family("qwen2_vl").choose_frames(num_frames, fps, sampling)) == theirs.tolist()


def test_less_detail_is_fewer_tokens_down_to_the_least() -> None:
    family = Qwen2VL(image_processor())
    tokens = [family.image_text((400, 300), detail)[0][1] for detail in range(family.num_details)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > 4 * tokens[-1]
    assert tokens[-1] == 1


def test_pixels_have_the_grid_that_was_told() -> None:
    family = make_family("qwen2_vl")
    images = [Image.new("RGB", (90, 40)), Image.new("RGB", (3, 200))]
    for detail in range(family.num_details):
        made = family.pixels(images, detail)
        told = [family.patch_grid(family.grid((image.height, image.width), detail)) for image in images]
        assert [tuple(grid) for grid in made["image_grid_thw"].tolist()] == told
        assert len(made["pixel_values"]) == sum(times * high * wide for times, high, wide in told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_pixels": 5000}, r"min_pixels=5000, max_pixels=2048"),
        ({"max_pixels": 63}, "at least 64, the pixels of one token"),
        ({"max_frame_pixels": 100}, "min_frame_pixels=8192, max_frame_pixels=100"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Qwen3VL(image_processor(), **options)


def test_another_image_processor_is_refused() -> None:
    other: Any = hf.CLIPImageProcessorPil()
    with pytest.raises(ConfigError, match="expected a Qwen2VLImageProcessor"):
        Qwen2VL(other)
