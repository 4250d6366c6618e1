"""InternVL."""

import dataclasses

from recipes.encoders import InternVLEncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig
from recipes.tiny_parts import MERGE, PATCH, TILE


def internvl(*, tiny: bool = False) -> Recipe:
    """InternVL 3, 1B: up to twelve tiles an image, 256 tokens a tile."""
    encoder = InternVLEncoderSettings()
    recipe = hub_recipe(
        "internvl",
        "OpenGVLab/InternVL3-1B-hf",
        encoder,
        DataConfig(path="data/conversations", seq_length=8192, global_batch_size=64, packing_buffer_size=200),
        auto_class="AutoModelForImageTextToText",
        learning_rate=2e-5,
    )
    num_tokens = (TILE // PATCH // MERGE) ** 2
    return tiny_recipe(recipe, dataclasses.replace(encoder, image_seq_length=num_tokens)) if tiny else recipe
