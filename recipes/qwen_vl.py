"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

import dataclasses

from recipes.encoders import QwenVLEncoderSettings, VideoConfig
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig
from recipes.tiny_parts import MERGE, PATCH

_DATA = DataConfig(path="data/conversations", seq_length=8192, global_batch_size=64, packing_buffer_size=200)


def qwen2_vl(*, tiny: bool = False) -> Recipe:
    """Qwen2-VL, 2B."""
    return _recipe("qwen2_vl", "Qwen/Qwen2-VL-2B-Instruct", "2", tiny)


def qwen2_5_vl(*, tiny: bool = False) -> Recipe:
    """Qwen2.5-VL, 3B."""
    return _recipe("qwen2_5_vl", "Qwen/Qwen2.5-VL-3B-Instruct", "2.5", tiny)


def qwen3_vl(*, tiny: bool = False) -> Recipe:
    """Qwen3-VL, 2B."""
    return _recipe("qwen3_vl", "Qwen/Qwen3-VL-2B-Instruct", "3", tiny)


def _recipe(family: str, hub_id: str, generation: str, tiny: bool) -> Recipe:
    encoder = QwenVLEncoderSettings(generation=generation)
    recipe = hub_recipe(family, hub_id, encoder, _DATA, auto_class="AutoModelForImageTextToText", learning_rate=1e-5)
    token = (PATCH * MERGE) ** 2
    video = VideoConfig(min_frame_pixels=token, max_frame_pixels=16 * token)
    return tiny_recipe(recipe, dataclasses.replace(encoder, video=video)) if tiny else recipe
