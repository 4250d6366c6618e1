"""Tokenizers, processors and models of all families in small, made on the spot: nothing is downloaded.

A tokenizer has one token a byte, and the special tokens of every family. Images are cut into tiles of `TILE` pixels
with patches of `PATCH`, of which `MERGE`² are merged into a token where the family does so. Models have random weights,
some ten thousand.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from bridge_data.encoders.chat import chatml

TILE, PATCH, MERGE = 16, 4, 2
GRIDS = [[TILE * rows, TILE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
TEXT_LENGTH = 32
"""Tokens of a text of CLIP and SigLIP."""
SECONDS = 1
"""How long Whisper listens."""

_WIDTH = 32
_SIZES = {"hidden_size": _WIDTH, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
_TOWER = _SIZES | {"image_size": TILE, "patch_size": PATCH}

_TILE_TOKENS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_SPECIAL = [
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "<IMG_CONTEXT>",
    "<img>",
    "</img>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|im_start|>",
]


def tiny_tokenizer(family: str) -> Any:
    """A tokenizer for a family; those of pairs and of speech begin and end texts by themselves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<s>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [*_SPECIAL, *_TILE_TOKENS]})
    if family in ("clip", "siglip", "whisper"):
        ends = [("<s>", tokenizer.bos_token_id), ("<|im_end|>", tokenizer.eos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A <|im_end|>", special_tokens=ends)
    else:
        tokenizer.bos_token = None
    if family == "text":
        tokenizer.chat_template = chatml(image="")
    tokenizer.model_max_length = TEXT_LENGTH if family in ("clip", "siglip") else 4096
    tokenizer.model_input_names = ["input_ids"] if family == "siglip" else ["input_ids", "attention_mask"]
    return tokenizer


def tiny_image_processor(family: str) -> Any:
    """The image processor of a family, for Whisper its feature extractor; None for text."""
    if family == "whisper":
        return hf.WhisperFeatureExtractor(chunk_length=SECONDS)
    if family == "text":
        return None
    kind, settings = _IMAGE_PROCESSORS[family]
    # The one on Pillow: the other one needs torchvision, and warns without it.
    return (getattr(hf, f"{kind}ImageProcessorPil", None) or getattr(hf, f"{kind}ImageProcessor"))(**settings)


_TILE_SIZE = {"height": TILE, "width": TILE}
_CROPPED = {"size": {"shortest_edge": TILE}, "crop_size": _TILE_SIZE}
_SPLIT = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
_QWEN = {
    "patch_size": PATCH,
    "merge_size": MERGE,
    "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 16 * (PATCH * MERGE) ** 2},
}
_IMAGE_PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("CLIP", _CROPPED),
    "llava_next": ("LlavaNext", {**_CROPPED, "image_grid_pinpoints": GRIDS}),
    "idefics3": ("Idefics3", _SPLIT),
    "smolvlm": ("SmolVLM", _SPLIT),
    "internvl": ("GotOcr2", {"size": _TILE_SIZE, "max_patches": 4}),
    "qwen2_vl": ("Qwen2VL", _QWEN),
    "qwen2_5_vl": ("Qwen2VL", _QWEN),
    "qwen3_vl": ("Qwen2VL", _QWEN),
    "clip": ("CLIP", _CROPPED),
    "siglip": ("Siglip", {"size": _TILE_SIZE}),
}
"""The kind of image processor of each family, and its settings."""


def tiny_model(family: str, tokenizer: Any, seed: int = 1234) -> Any:
    """A model of the family, the same for the same seed."""
    torch.manual_seed(seed)
    return _MAKERS[family](tokenizer)


def _text_options(tokenizer: Any) -> dict[str, Any]:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}  # for TP2 and PP2
    return _SIZES | ids | sizes | {"vocab_size": len(tokenizer) + len(tokenizer) % 2}


def _text(tokenizer: Any) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_text_options(tokenizer)))


def _llava(tokenizer: Any) -> Any:
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(**_llava_options(tokenizer)))


def _llava_next(tokenizer: Any) -> Any:
    options = _llava_options(tokenizer)
    return hf.LlavaNextForConditionalGeneration(hf.LlavaNextConfig(image_grid_pinpoints=GRIDS, **options))


def _llava_options(tokenizer: Any) -> dict[str, Any]:
    return {
        "vision_config": hf.CLIPVisionConfig(projection_dim=_WIDTH, **_TOWER),
        "text_config": hf.LlamaConfig(**_text_options(tokenizer)),
        "vision_feature_layer": -1,
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
    }


def _idefics3(tokenizer: Any) -> Any:
    config = hf.Idefics3Config(
        vision_config=_TOWER,
        text_config=hf.LlamaConfig(**_text_options(tokenizer)),
        scale_factor=MERGE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    return hf.Idefics3ForConditionalGeneration(config)


def _internvl(tokenizer: Any) -> Any:
    config = hf.InternVLConfig(
        vision_config=hf.InternVLVisionConfig(image_size=[TILE, TILE], patch_size=[PATCH, PATCH], **_SIZES),
        text_config=hf.LlamaConfig(**_text_options(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    return hf.InternVLForConditionalGeneration(config)


def _qwen_options(tokenizer: Any, **vision: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    names = {f"{kind}_token_id": f"<|{kind}|>" for kind in ("vision_start", "vision_end")}
    names |= {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    tower = {"num_heads": 2, "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2, "depth": 2}
    return {
        "text_config": _text_options(tokenizer) | {"head_dim": 16, "rope_parameters": rope},
        "vision_config": tower | vision,
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()},
    }


def _qwen2_vl(tokenizer: Any) -> Any:
    options = _qwen_options(tokenizer, embed_dim=_WIDTH, hidden_size=_WIDTH, mlp_ratio=2)
    return hf.Qwen2VLForConditionalGeneration(hf.Qwen2VLConfig(**options))


def _qwen2_5_vl(tokenizer: Any) -> Any:
    widths = {"hidden_size": _WIDTH, "out_hidden_size": _WIDTH, "intermediate_size": 64}
    options = _qwen_options(tokenizer, window_size=16, fullatt_block_indexes=[1], tokens_per_second=2, **widths)
    return hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(**options))


def _qwen3_vl(tokenizer: Any) -> Any:
    widths = {"hidden_size": _WIDTH, "out_hidden_size": _WIDTH, "intermediate_size": 64}
    options = _qwen_options(tokenizer, num_position_embeddings=64, deepstack_visual_indexes=[0], **widths)
    return hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(**options))


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "llava": _llava,
    "llava_next": _llava_next,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "internvl": _internvl,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
}
