"""Image-text pairs equal those of the processors of CLIP and SigLIP."""

import copy
import random
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from bridge_data import CaptioningSample, ConfigError, SampleError, SkipSample, TextSample
from bridge_data.encoders import ContrastiveConfig, ContrastiveTaskEncoder, ImageLimits
from tests.encoders.parts import TEXT, assert_equal, forbid_calls, learn, make_tokenizer, picture, png, unchecked
from tests.later import hf

LENGTH, SIDE = 16, 16


def parts_of(name: str) -> tuple[Any, Any, Any]:
    """Tokenizer, image processor and processor."""
    tokenizer = copy.deepcopy(make_tokenizer(begin=name == "clip"))
    ids = [("<|im_end|>", tokenizer.eos_token_id), *([("<s>", tokenizer.bos_token_id)] if name == "clip" else [])]
    begin = "<s> " if name == "clip" else ""
    post = TemplateProcessing(single=f"{begin}$A <|im_end|>", special_tokens=ids)
    tokenizer.backend_tokenizer.post_processor = post
    tokenizer.model_max_length = LENGTH
    tokenizer.model_input_names = ["input_ids", "attention_mask"] if name == "clip" else ["input_ids"]
    size = {"height": SIDE, "width": SIDE}
    if name == "clip":
        images: Any = hf.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
        processor: Any = unchecked(hf.CLIPProcessor)
    else:
        images = hf.SiglipImageProcessorPil(size=size)
        processor = unchecked(hf.SiglipProcessor)
    return tokenizer, images, processor(images, tokenizer)


def draw_pair(seed: int) -> tuple[str, Any]:
    draw = random.Random(seed)
    text = " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, 24)))
    return text, picture((draw.randint(2, 60), draw.randint(2, 60)), seed)


def caption(text: str, image: Any, key: str = "pair") -> CaptioningSample:
    return CaptioningSample(__key__=key, image=image, caption=text)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_fifty_pairs_are_as_the_processor_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, images, processor = parts_of(name)
    batches = [[draw_pair(seed) for seed in range(start, start + 5)] for start in range(0, 50, 5)]
    options = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    expected = [processor(text=[t for t, _ in pairs], images=[i for _, i in pairs], **options) for pairs in batches]
    forbid_calls(processor, monkeypatch)
    encoder = ContrastiveTaskEncoder(tokenizer, images)
    cut = 0
    for pairs, made in zip(batches, expected, strict=True):
        got = encoder.batch([encoder.encode_sample(caption(text, png(image))) for text, image in pairs]).model_inputs()
        assert got.pop("return_loss") is True
        assert_equal(got, dict(made))
        assert ("attention_mask" in got) == (name == "clip")
        cut += int((made["input_ids"][:, -1] != tokenizer.pad_token_id).sum())
    assert 0 < cut < 50


@pytest.mark.parametrize("name", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_a_tiny_model_learns_to_tell_pairs_apart(name: str) -> None:
    tokenizer, images, _ = parts_of(name)
    encoder = ContrastiveTaskEncoder(tokenizer, images)
    batch = encoder.batch([encoder.encode_sample(caption(*draw_pair(seed))) for seed in range(4)])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = sizes | {"vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, "projection_size": 32}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    vision = sizes | {"image_size": SIDE, "patch_size": 4}
    if name == "clip":
        model: Any = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))
    else:
        model = hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=vision))
    losses = learn(model, [batch], 20, 3e-3)
    assert losses[-1] < 0.7 * losses[0], losses[::3]


def test_wrong_samples_are_refused_as_declared() -> None:
    tokenizer, images, _ = parts_of("clip")
    config = ContrastiveConfig(overlong="error", empty_text="error", images=ImageLimits(extreme_image="error"))
    strict, lenient = ContrastiveTaskEncoder(tokenizer, images, config), ContrastiveTaskEncoder(tokenizer, images)
    image, line = png(picture((20, 20))), png(picture((20_000, 20)))
    for sample, message in (
        (caption("  ", image), "its text has no words"),
        (caption(" ".join(TEXT.split() * 3), image), f"it has .* tokens, a text holds {LENGTH}"),
        (caption("a boat", line), "image 1 is 20000 x 20"),
    ):
        with pytest.raises(SampleError, match=f"'pair': {message}"):
            strict.encode_sample(sample)
        if "tokens" not in message:  # what is too long is cut
            with pytest.raises(SkipSample):
                lenient.encode_sample(sample)
    with pytest.raises(ConfigError, match="takes CaptioningSample, got TextSample"):
        strict.encode_sample(TextSample(__key__="t", text="a boat"))


def test_wrong_settings_say_what_to_do() -> None:
    tokenizer, images, _ = parts_of("clip")
    tokenizer.model_max_length = 10**30
    with pytest.raises(ConfigError, match=r"set ContrastiveConfig\(max_length=...\), 77 for CLIP"):
        ContrastiveTaskEncoder(tokenizer, images)
    with pytest.raises(ConfigError, match=r"max_image_tokens=64\)\).*takes no tokens; leave it out"):
        ContrastiveConfig(images=ImageLimits(max_image_tokens=64))
    with pytest.raises(ConfigError, match=r"overlong='cut'.*'truncate', 'skip', 'error'"):
        ContrastiveConfig(overlong="cut")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_length=2"):
        ContrastiveConfig(max_length=2)
