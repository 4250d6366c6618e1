from typing import Any

import pytest
import torch

from bridge_data.encoders import MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.errors import SkipSample
from bridge_data.samples import CaptioningSample
from recipes.demo_encoder import SKIP_KEY, SkippingTaskEncoder, make_encoder
from recipes.demo_tokenizer import train_tokenizer
from recipes.recipe import ImageProcessorConfig, TokenizerConfig


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["a grey crop of the cat"], folder, 300)
    return TokenizerConfig(path=str(folder)).build()


def encoder_of(tokenizer: Any) -> MultiModalTaskEncoder:
    config = MultiModalSampleConfig(patch_size=8)
    return make_encoder(tokenizer, ImageProcessorConfig(image_size=32).build(), config, seq_length=128)


def sample(key: str) -> CaptioningSample:
    return CaptioningSample(__key__=key, image=torch.zeros(3, 40, 48), caption="a grey crop of the cat")


def test_without_the_switch_it_is_the_default_encoder(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SKIP_KEY, raising=False)
    assert type(encoder_of(tokenizer)) is MultiModalTaskEncoder


def test_the_switch_leaves_out_one_sample_and_no_other(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = encoder_of(tokenizer)
    monkeypatch.setenv(SKIP_KEY, "shard/b")
    encoder = encoder_of(tokenizer)
    assert isinstance(encoder, SkippingTaskEncoder)
    assert torch.equal(encoder.preencode_sample(sample("shard/a")).tokens, plain.preencode_sample(sample("s/a")).tokens)
    with pytest.raises(SkipSample):
        encoder.preencode_sample(sample("shard/b"))


def test_an_image_takes_one_token_a_patch(tokenizer: Any) -> None:
    batch = encoder_of(tokenizer).preencode_sample(sample("shard/a"))
    assert int((batch.tokens == tokenizer.convert_tokens_to_ids("<image>")).sum()) == (32 // 8) ** 2


def test_the_image_processor_makes_images_of_its_size() -> None:
    processor = ImageProcessorConfig(image_size=24).build()
    from PIL import Image

    pixels = processor(images=[Image.new("RGB", (50, 30))], return_tensors="pt")["pixel_values"]
    assert tuple(pixels.shape) == (1, 3, 24, 24)
