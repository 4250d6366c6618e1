"""Whisper: speech recognition."""

import dataclasses

from recipes.encoders import SpeechEncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig


def whisper(*, tiny: bool = False) -> Recipe:
    """Whisper, small, on English."""
    encoder = SpeechEncoderSettings(language="english", task="transcribe")
    recipe = hub_recipe(
        "whisper",
        "openai/whisper-small",
        encoder,
        DataConfig(path="data/speech", micro_batch_size=16, global_batch_size=64, packing_buffer_size=None),
        auto_class="AutoModelForSpeechSeq2Seq",
        learning_rate=1e-5,
    )
    small = dataclasses.replace(encoder, language=None, task=None, max_target_length=128)
    return tiny_recipe(recipe, small) if tiny else recipe
