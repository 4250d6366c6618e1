"""Tokenizers and processors of all families in small, made on the spot: nothing is downloaded, nothing is learnt.

A tokenizer has one token a byte, and the special tokens of every family. Images are cut into tiles of `TILE` pixels
with patches of `PATCH`, of which `MERGE`² are merged into a token where the family does so.
"""

import functools
from typing import Any

TILE, PATCH, MERGE = 16, 4, 2
GRIDS = [[TILE * rows, TILE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
TEXT_LENGTH = 32
"""Tokens of a text of CLIP and SigLIP."""
SECONDS = 1
"""How long Whisper listens."""

_PLACES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_SPECIAL = [
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<IMG_CONTEXT>", "<img>", "</img>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|im_start|>"),
]


def tiny_tokenizer(family: str) -> Any:
    """A tokenizer for a family; those of pairs and of speech begin and end texts by themselves."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<s>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [*_SPECIAL, *_PLACES]})
    if family in ("clip", "siglip", "whisper"):
        ends = [("<s>", tokenizer.bos_token_id), ("<|im_end|>", tokenizer.eos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A <|im_end|>", special_tokens=ends)
    else:
        tokenizer.bos_token = None
    tokenizer.model_max_length = TEXT_LENGTH if family in ("clip", "siglip") else 4096
    tokenizer.model_input_names = ["input_ids"] if family == "siglip" else ["input_ids", "attention_mask"]
    return tokenizer


def tiny_image_processor(family: str) -> Any:
    """The image processor of a family, for Whisper its feature extractor; None for text."""
    import transformers as hf

    tile = {"height": TILE, "width": TILE}
    made = {
        "llava": functools.partial(hf.CLIPImageProcessor, size={"shortest_edge": TILE}, crop_size=tile),
        "llava_next": functools.partial(
            hf.LlavaNextImageProcessor, size={"shortest_edge": TILE}, crop_size=tile, image_grid_pinpoints=GRIDS
        ),
        "idefics3": functools.partial(
            hf.Idefics3ImageProcessor, size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
        ),
        "smolvlm": functools.partial(
            hf.SmolVLMImageProcessor, size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
        ),
        "internvl": functools.partial(hf.GotOcr2ImageProcessor, size=tile, max_patches=4),
        "clip": functools.partial(hf.CLIPImageProcessor, size={"shortest_edge": TILE}, crop_size=tile),
        "siglip": functools.partial(hf.SiglipImageProcessor, size=tile),
        "whisper": functools.partial(hf.WhisperFeatureExtractor, chunk_length=SECONDS),
    }
    if family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        size = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 16 * (PATCH * MERGE) ** 2}
        return hf.Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE, size=size)
    return made[family]() if family in made else None
