"""Idefics3 and SmolVLM."""

import dataclasses

from recipes.encoders import Idefics3EncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig
from recipes.tiny_parts import MERGE, PATCH, TILE

_DATA = DataConfig(path="data/conversations", seq_length=8192, global_batch_size=64, packing_buffer_size=200)


def idefics3(*, tiny: bool = False) -> Recipe:
    """Idefics3, 8B: 169 tokens a tile."""
    return _recipe("idefics3", "HuggingFaceM4/Idefics3-8B-Llama3", Idefics3EncoderSettings(image_seq_len=169), tiny)


def smolvlm(*, tiny: bool = False) -> Recipe:
    """SmolVLM, 256M: 64 tokens a tile."""
    return _recipe("smolvlm", "HuggingFaceTB/SmolVLM-256M-Instruct", Idefics3EncoderSettings(image_seq_len=64), tiny)


def _recipe(family: str, hub_id: str, encoder: Idefics3EncoderSettings, tiny: bool) -> Recipe:
    recipe = hub_recipe(family, hub_id, encoder, _DATA, auto_class="AutoModelForImageTextToText", learning_rate=2e-5)
    num_tokens = (TILE // PATCH // MERGE) ** 2
    return tiny_recipe(recipe, dataclasses.replace(encoder, image_seq_len=num_tokens)) if tiny else recipe
