"""The tiles and tokens of an image follow from its size alone, for any settings of its processor; sizes and frames of
Qwen-VL are those of transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.encoders import Idefics3, LlavaNext, VideoSampling
from bridge_data.encoders.visuals import smart_resize
from bridge_data.plugins.encoders.qwen_families import MAX_ASPECT
from tests.encoders.parts import make_tokenizer, picture
from tests.encoders.qwen_parts import make_family, video_processor
from tests.later import hf

sides = st.integers(1, 700)


def num_tiles(family: Idefics3, size: tuple[int, int], detail: int) -> int:
    """Tiles of an image, of a family with one token for each."""
    return sum(times for piece, times in family.image_text(size, detail) if piece == family.image_token)


@settings(deadline=None)
@given(sides, sides, st.integers(8, 20), st.integers(8, 90), st.data())
def test_idefics3_at_any_size_of_tiles_and_images(height: int, width: int, tile: int, longest: int, data: Any) -> None:
    processor = hf.Idefics3ImageProcessorPil(size={"longest_edge": longest}, max_image_size={"longest_edge": tile})
    family = Idefics3(processor, image_seq_len=1)
    detail = data.draw(st.integers(0, family.num_details - 1))
    tiles = family.pixels([picture((width, height))], detail)["pixel_values"]  # compares rows and columns itself
    assert num_tiles(family, (height, width), detail) == len(tiles)


def test_idefics3_shrinks_images_to_the_longest_side_of_its_processor() -> None:
    size = (2000, 40)
    processor = hf.Idefics3ImageProcessorPil(size={"longest_edge": 2400}, max_image_size={"longest_edge": 400})
    family = Idefics3(processor, image_seq_len=1)
    tiles = family.pixels([picture(size)], 0)["pixel_values"]
    assert num_tiles(family, size[::-1], 0) == len(tiles)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(["default", "full"]))
def test_llava_next_with_the_settings_of_its_checkpoints(height: int, width: int, strategy: Any) -> None:
    processor = hf.LlavaNextImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    options = {"patch_size": 14, "vision_feature_select_strategy": strategy, "num_additional_image_tokens": 1}
    whole = hf.LlavaNextProcessor(processor, make_tokenizer(), **options)
    (expected,) = whole._get_num_multimodal_tokens([(height, width)])["num_image_tokens"]
    assert LlavaNext(processor, 14, strategy).image_text((height, width), 0) == [("<image>", expected)]


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
