"""The recipes of all families: functions that return a whole run of one checkpoint, or the same in small."""

import dataclasses

from bridge_data.encoders.chat import chatml
from recipes.encoders import (
    ConversationConfig,
    DocumentEncoderSettings,
    EncoderSettings,
    Idefics3EncoderSettings,
    InternVLEncoderSettings,
    LlavaEncoderSettings,
    PairEncoderSettings,
    QwenVLEncoderSettings,
    SpeechEncoderSettings,
    TextEncoderSettings,
    VideoConfig,
)
from recipes.recipe import Recipe
from recipes.run_config import TINY, DataConfig, ImageProcessorConfig, LoaderConfig, ModelConfig, TokenizerConfig
from recipes.tiny_parts import MERGE, PATCH, TILE
from recipes.trainer.config import TrainingConfig

_CONVERSATIONS = DataConfig(path="data/conversations", seq_length=8192, global_batch_size=64, packing_buffer_size=200)
_TILE_TOKENS = (TILE // PATCH // MERGE) ** 2
"""Tokens of a tile in small."""


def hub_recipe(
    family: str, hub_id: str, encoder: EncoderSettings, data: DataConfig, *, auto_class: str, learning_rate: float
) -> Recipe:
    """The recipe of a family with all parts of one checkpoint of the hub."""
    return Recipe(
        family=family,
        tokenizer=TokenizerConfig(pretrained=hub_id),
        image_processor=None if family == "text" else ImageProcessorConfig(pretrained=hub_id),
        encoder=encoder,
        data=data,
        model=ModelConfig(pretrained=hub_id, auto_class=auto_class),
        training=TrainingConfig(train_steps=1000, learning_rate=learning_rate),
    )


def tiny_recipe(recipe: Recipe, encoder: EncoderSettings) -> Recipe:
    """The recipe in small: `tiny` parts, five steps of two sequences, no workers, data out of `recipes.tiny_data`."""
    is_packed = recipe.data.packing_buffer_size is not None
    return dataclasses.replace(
        recipe,
        tokenizer=TokenizerConfig(pretrained=TINY),
        image_processor=recipe.image_processor and ImageProcessorConfig(pretrained=TINY),
        encoder=encoder,
        data=dataclasses.replace(
            recipe.data,
            path=f"tiny_{recipe.data.path}",
            seq_length=512,
            micro_batch_size=1 if is_packed else 4,
            global_batch_size=2 if is_packed else 8,
            packing_buffer_size=8 if is_packed else None,
        ),
        loader=LoaderConfig(num_workers=0, num_lanes=2, pin_memory=False),
        model=dataclasses.replace(recipe.model, pretrained=TINY, dtype="float32"),
        training=TrainingConfig(train_steps=5, learning_rate=1e-2),
    )


# Text


def text_sft(*, tiny: bool = False) -> Recipe:
    """Qwen 2.5, 0.5B, on conversations."""
    data = DataConfig(path="data/dialogs", seq_length=4096, global_batch_size=64, packing_buffer_size=500)
    small = TextEncoderSettings(conversation=ConversationConfig(chat_template=chatml(image="")))
    return _text("Qwen/Qwen2.5-0.5B-Instruct", data, 1e-5, small if tiny else TextEncoderSettings(), tiny)


def text_pretraining(*, tiny: bool = False) -> Recipe:
    """Qwen 2.5, 0.5B, on documents."""
    data = DataConfig(path="data/documents", seq_length=4096, global_batch_size=256, packing_buffer_size=500)
    return _text("Qwen/Qwen2.5-0.5B", data, 3e-4, DocumentEncoderSettings(), tiny)


def _text(hub_id: str, data: DataConfig, learning_rate: float, encoder: EncoderSettings, tiny: bool) -> Recipe:
    auto_class = "AutoModelForCausalLM"
    recipe = hub_recipe("text", hub_id, encoder, data, auto_class=auto_class, learning_rate=learning_rate)
    return tiny_recipe(recipe, encoder) if tiny else recipe


# Images and text


def llava(*, tiny: bool = False) -> Recipe:
    """LLaVA 1.5, 7B: every image is 576 tokens."""
    return _llava("llava", "llava-hf/llava-1.5-7b-hf", LlavaEncoderSettings(), tiny)


def llava_next(*, tiny: bool = False) -> Recipe:
    """LLaVA-NeXT, 7B, on Mistral: images in up to five tiles."""
    return _llava("llava_next", "llava-hf/llava-v1.6-mistral-7b-hf", LlavaEncoderSettings(tiles=True), tiny)


def _llava(family: str, hub_id: str, encoder: LlavaEncoderSettings, tiny: bool) -> Recipe:
    data = dataclasses.replace(_CONVERSATIONS, seq_length=4096, global_batch_size=128)
    recipe = _vision(family, hub_id, encoder, data)
    return tiny_recipe(recipe, dataclasses.replace(encoder, patch_size=PATCH)) if tiny else recipe


def idefics3(*, tiny: bool = False) -> Recipe:
    """Idefics3, 8B: 169 tokens a tile."""
    return _idefics3("idefics3", "HuggingFaceM4/Idefics3-8B-Llama3", 169, tiny)


def smolvlm(*, tiny: bool = False) -> Recipe:
    """SmolVLM, 256M: 64 tokens a tile."""
    return _idefics3("smolvlm", "HuggingFaceTB/SmolVLM-256M-Instruct", 64, tiny)


def _idefics3(family: str, hub_id: str, image_seq_len: int, tiny: bool) -> Recipe:
    recipe = _vision(family, hub_id, Idefics3EncoderSettings(image_seq_len=image_seq_len))
    return tiny_recipe(recipe, Idefics3EncoderSettings(image_seq_len=_TILE_TOKENS)) if tiny else recipe


def internvl(*, tiny: bool = False) -> Recipe:
    """InternVL 3, 1B: up to twelve tiles an image, 256 tokens a tile."""
    recipe = _vision("internvl", "OpenGVLab/InternVL3-1B-hf", InternVLEncoderSettings())
    return tiny_recipe(recipe, InternVLEncoderSettings(image_seq_length=_TILE_TOKENS)) if tiny else recipe


def qwen2_vl(*, tiny: bool = False) -> Recipe:
    """Qwen2-VL, 2B."""
    return _qwen_vl("qwen2_vl", "Qwen/Qwen2-VL-2B-Instruct", "2", tiny)


def qwen2_5_vl(*, tiny: bool = False) -> Recipe:
    """Qwen2.5-VL, 3B."""
    return _qwen_vl("qwen2_5_vl", "Qwen/Qwen2.5-VL-3B-Instruct", "2.5", tiny)


def qwen3_vl(*, tiny: bool = False) -> Recipe:
    """Qwen3-VL, 2B."""
    return _qwen_vl("qwen3_vl", "Qwen/Qwen3-VL-2B-Instruct", "3", tiny)


def _qwen_vl(family: str, hub_id: str, generation: str, tiny: bool) -> Recipe:
    encoder = QwenVLEncoderSettings(generation=generation)
    recipe = _vision(family, hub_id, encoder, learning_rate=1e-5)
    token = (PATCH * MERGE) ** 2
    video = VideoConfig(min_frame_pixels=token, max_frame_pixels=16 * token)
    return tiny_recipe(recipe, dataclasses.replace(encoder, video=video)) if tiny else recipe


def _vision(
    family: str,
    hub_id: str,
    encoder: EncoderSettings,
    data: DataConfig = _CONVERSATIONS,
    *,
    learning_rate: float = 2e-5,
) -> Recipe:
    auto_class = "AutoModelForImageTextToText"
    return hub_recipe(family, hub_id, encoder, data, auto_class=auto_class, learning_rate=learning_rate)


# Pairs and speech


def clip(*, tiny: bool = False) -> Recipe:
    """CLIP, ViT-B/32: texts of 77 tokens. The negatives of a pair are the others of its micro-batch."""
    return _pairs("clip", "openai/clip-vit-base-patch32", tiny)


def siglip(*, tiny: bool = False) -> Recipe:
    """SigLIP, B/16: texts of 64 tokens. The negatives of a pair are the others of its micro-batch."""
    return _pairs("siglip", "google/siglip-base-patch16-224", tiny)


def _pairs(family: str, hub_id: str, tiny: bool) -> Recipe:
    encoder = PairEncoderSettings()
    data = DataConfig(path="data/captions", micro_batch_size=256, global_batch_size=2048, packing_buffer_size=None)
    recipe = hub_recipe(family, hub_id, encoder, data, auto_class="AutoModel", learning_rate=1e-5)
    return tiny_recipe(recipe, encoder) if tiny else recipe


def whisper(*, tiny: bool = False) -> Recipe:
    """Whisper, small, on English."""
    encoder = SpeechEncoderSettings(language="english", task="transcribe")
    data = DataConfig(path="data/speech", micro_batch_size=16, global_batch_size=64, packing_buffer_size=None)
    auto_class = "AutoModelForSpeechSeq2Seq"
    recipe = hub_recipe("whisper", "openai/whisper-small", encoder, data, auto_class=auto_class, learning_rate=1e-5)
    return tiny_recipe(recipe, SpeechEncoderSettings(max_target_length=128)) if tiny else recipe
