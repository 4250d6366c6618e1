"""The tokens of an image of LLaVA-NeXT follow from its size alone."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.encoders import LlavaNext
from tests.encoders.parts import make_tokenizer
from tests.later import hf


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(["default", "full"]))
def test_llava_next_with_the_settings_of_its_checkpoints(height: int, width: int, strategy: Any) -> None:
    processor = hf.LlavaNextImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    options = {"patch_size": 14, "vision_feature_select_strategy": strategy, "num_additional_image_tokens": 1}
    whole = hf.LlavaNextProcessor(processor, make_tokenizer(), **options)
    (expected,) = whole._get_num_multimodal_tokens([(height, width)])["num_image_tokens"]
    assert LlavaNext(processor, 14, strategy).image_text((height, width), 0) == [("<image>", expected)]
