"""The tiles and tokens of an image follow from its size alone, for any settings of the image processor."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.encoders import Idefics3, LlavaNext
from tests.encoders.parts import make_tokenizer, picture
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


def test_idefics3_has_at_least_one_level_of_detail_with_one_tile() -> None:
    family = Idefics3(hf.Idefics3ImageProcessorPil(), image_seq_len=1)
    assert [num_tiles(family, (3000, 2000), detail) for detail in range(family.num_details)] == [13, 7, 5, 1]


@pytest.mark.parametrize("size", [(5000, 700), (700, 5000)])
def test_idefics3_shrinks_images_to_the_longest_side_of_its_processor(size: tuple[int, int]) -> None:
    processor = hf.Idefics3ImageProcessorPil(size={"longest_edge": 6000}, max_image_size={"longest_edge": 1000})
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
