"""Plain text: conversations (SFT), and documents (pretraining)."""

import dataclasses

from bridge_data.encoders import INTERNVL_TEMPLATE
from recipes.encoders import ConversationConfig, DocumentEncoderSettings, TextEncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig


def text_sft(*, tiny: bool = False) -> Recipe:
    """Qwen 2.5, 0.5B, on conversations."""
    encoder = TextEncoderSettings()
    recipe = hub_recipe(
        "text",
        "Qwen/Qwen2.5-0.5B-Instruct",
        encoder,
        DataConfig(path="data/dialogs", seq_length=4096, global_batch_size=64, packing_buffer_size=500),
        auto_class="AutoModelForCausalLM",
        learning_rate=1e-5,
    )
    chat = dataclasses.replace(encoder, conversation=ConversationConfig(chat_template=INTERNVL_TEMPLATE))
    return tiny_recipe(recipe, chat) if tiny else recipe


def text_pretraining(*, tiny: bool = False) -> Recipe:
    """Qwen 2.5, 0.5B, on documents."""
    encoder = DocumentEncoderSettings()
    recipe = hub_recipe(
        "text",
        "Qwen/Qwen2.5-0.5B",
        encoder,
        DataConfig(path="data/documents", seq_length=4096, global_batch_size=256, packing_buffer_size=500),
        auto_class="AutoModelForCausalLM",
        learning_rate=3e-4,
    )
    return tiny_recipe(recipe, encoder) if tiny else recipe
