import pytest
import torch

from bridge_data.encoders import FamilyTaskEncoder
from bridge_data.errors import SkipSample
from bridge_data.samples import CaptioningSample
from recipes.demo_encoder import SkippingTaskEncoder
from recipes.recipe import load_recipe


def sample(key: str) -> CaptioningSample:
    return CaptioningSample(__key__=key, image=torch.zeros(3, 40, 48), caption="a grey crop of the cat")


def encoder_of(*changes: str) -> FamilyTaskEncoder:
    recipe = load_recipe(None, list(changes), recipe="llava", tiny=True)
    encoder = recipe.build_encoder(recipe.build_tokenizer(), recipe.build_image_processor())
    assert isinstance(encoder, FamilyTaskEncoder)
    return encoder


def test_it_leaves_out_one_sample_and_is_that_of_the_recipe_for_all_others() -> None:
    plain = encoder_of()
    name = "task_encoder=recipes.demo_encoder:SkippingTaskEncoder"
    encoder = encoder_of(name, "encoder={patch_size: 4, skipped_key: shard/b}")
    assert isinstance(encoder, SkippingTaskEncoder)
    assert torch.equal(encoder.preencode_sample(sample("shard/a")).tokens, plain.preencode_sample(sample("s/a")).tokens)
    with pytest.raises(SkipSample):
        encoder.preencode_sample(sample("shard/b"))


def test_an_image_takes_one_token_a_patch() -> None:
    encoder = encoder_of()
    tokens = encoder.preencode_sample(sample("shard/a")).tokens
    assert int((tokens == encoder.tokenizer.convert_tokens_to_ids("<image>")).sum()) == (16 // 4) ** 2
