"""Whisper: speech recognition."""

import dataclasses

from recipes.encoders import SpeechEncoderSettings
from recipes.family_recipe import FamilyRecipe, family_recipe, tiny_recipe
from recipes.recipe import DataConfig


def whisper(*, tiny: bool = False) -> FamilyRecipe:
    """Whisper, small, on English."""
    encoder = SpeechEncoderSettings(language="english", task="transcribe")
    recipe = family_recipe(
        "whisper",
        "openai/whisper-small",
        encoder,
        DataConfig(path="data/speech", micro_batch_size=16, global_batch_size=64, packing_buffer_size=None),
        auto_class="AutoModelForSpeechSeq2Seq",
        learning_rate=1e-5,
    )
    small = dataclasses.replace(encoder, language=None, task=None, max_target_length=128)
    return tiny_recipe(recipe, small) if tiny else recipe
