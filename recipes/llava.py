"""LLaVA 1.5 and LLaVA-NeXT."""

import dataclasses

from recipes.encoders import LlavaEncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig
from recipes.tiny_parts import PATCH

_DATA = DataConfig(path="data/conversations", seq_length=4096, global_batch_size=128, packing_buffer_size=200)


def llava(*, tiny: bool = False) -> Recipe:
    """LLaVA 1.5, 7B: every image is 576 tokens."""
    return _recipe("llava", "llava-hf/llava-1.5-7b-hf", LlavaEncoderSettings(), tiny)


def llava_next(*, tiny: bool = False) -> Recipe:
    """LLaVA-NeXT, 7B, on Mistral: images in up to five tiles."""
    return _recipe("llava_next", "llava-hf/llava-v1.6-mistral-7b-hf", LlavaEncoderSettings(tiles=True), tiny)


def _recipe(family: str, hub_id: str, encoder: LlavaEncoderSettings, tiny: bool) -> Recipe:
    recipe = hub_recipe(family, hub_id, encoder, _DATA, auto_class="AutoModelForImageTextToText", learning_rate=2e-5)
    return tiny_recipe(recipe, dataclasses.replace(encoder, patch_size=PATCH)) if tiny else recipe
