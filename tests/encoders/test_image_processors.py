"""Every family and encoder says what is wrong with an image processor that is not its own, when it is made."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf

from bridge_data.encoders import (
    ContrastiveTaskEncoder,
    FamilyTaskEncoder,
    Idefics3,
    InternVL,
    Llava,
    LlavaNext,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
    Qwen2_5VL,
    Qwen2VL,
    Qwen3VL,
    QwenVLTaskEncoder,
)
from bridge_data.errors import ConfigError
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer

KINDS = ("llava", "llava_next", "idefics3", "smolvlm", "internvl", "qwen2_vl", "siglip")
FIXED = {"llava", "siglip", "internvl"}
"""Kinds whose processors make one image of one size of every image (InternVL's, unless it is asked to tile)."""

TAKERS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "Llava": (lambda one: Llava(one, patch_size=8), FIXED),
    "LlavaNext": (lambda one: LlavaNext(one, patch_size=8), {"llava_next"}),
    "Idefics3": (lambda one: Idefics3(one, image_seq_len=4), {"idefics3", "smolvlm"}),
    "InternVL": (lambda one: InternVL(one, image_seq_length=4), {"internvl"}),
    "Qwen2VL": (Qwen2VL, {"qwen2_vl"}),
    "Qwen2_5VL": (Qwen2_5VL, {"qwen2_vl"}),
    "Qwen3VL": (Qwen3VL, {"qwen2_vl"}),
    "MultiModalTaskEncoder": (
        lambda one: MultiModalTaskEncoder(tiny_tokenizer("llava"), one, MultiModalSampleConfig(patch_size=8)),
        FIXED,
    ),
    "ContrastiveTaskEncoder": (lambda one: ContrastiveTaskEncoder(tiny_tokenizer("clip"), one), FIXED),
}


def others() -> dict[str, Any]:
    llava = tiny_image_processor("llava")
    return {
        "a whole processor": hf.LlavaProcessor(llava, tiny_tokenizer("llava")),
        "a tokenizer": tiny_tokenizer("text"),
        "one of sounds": hf.WhisperFeatureExtractor(),
        "one of documents": hf.Pix2StructImageProcessor() if hasattr(hf, "Pix2StructImageProcessor") else object(),
        "a function": lambda images, **_: images,
        "no processor": object(),
    }


@pytest.mark.parametrize("taker", TAKERS)
def test_a_processor_of_another_family_is_refused_with_the_way_out(taker: str) -> None:
    make, own = TAKERS[taker]
    for kind in KINDS:
        processor = tiny_image_processor(kind)
        if kind in own:
            make(processor)
            continue
        with pytest.raises(ConfigError) as refused:
            make(processor)
        told = str(refused.value)
        assert taker in told and type(processor).__name__ in told and "The family for" in told, kind


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_image_processor_is_refused(taker: str) -> None:
    for what, processor in others().items():
        with pytest.raises(ConfigError) as refused:
            TAKERS[taker][0](processor)
        assert taker in str(refused.value) and type(processor).__name__ in str(refused.value), what


@pytest.mark.parametrize("encoder", [FamilyTaskEncoder, QwenVLTaskEncoder])
def test_an_image_processor_in_place_of_a_family_is_refused(encoder: Any) -> None:
    for kind in KINDS:
        processor = tiny_image_processor(kind)
        with pytest.raises(ConfigError) as refused:
            encoder(tiny_tokenizer("qwen2_vl"), processor)
        assert encoder.__name__ in str(refused.value) and type(processor).__name__ in str(refused.value)


def test_another_family_is_refused_where_videos_are_taken() -> None:
    family = Llava(tiny_image_processor("llava"), patch_size=8)
    with pytest.raises(ConfigError, match=r"QwenVLTaskEncoder\(family=Llava\): .*Qwen2VL, Qwen2_5VL or Qwen3VL"):
        QwenVLTaskEncoder(tiny_tokenizer("qwen2_vl"), family)  # type: ignore[arg-type]
