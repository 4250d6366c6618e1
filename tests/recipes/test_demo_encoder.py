from pathlib import Path

import pytest
import torch

from bridge_data.encoders import FamilyTaskEncoder
from bridge_data.errors import SkipSample
from bridge_data.samples import CaptioningSample
from recipes.demo_encoder import SkippingTaskEncoder
from recipes.demo_tokenizer import END, IMAGE, PAD, START, train_tokenizer
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


def test_the_same_texts_give_the_same_tokenizer_which_marks_what_the_assistant_says(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["a grey crop of the cat", "a red crop of the moon", "what is the main colour?"]
    for name, order in (("one", texts), ("two", texts[::-1])):
        train_tokenizer(order, tmp_path / name, vocab_size=320)
    assert (tmp_path / "one/tokenizer.json").read_text() == (tmp_path / "two/tokenizer.json").read_text()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one", local_files_only=True)
    assert tokenizer.convert_tokens_to_ids([PAD, IMAGE, START, END]) == [0, 1, 2, 3]
    chat = [{"role": "user", "content": f"{IMAGE}{IMAGE}what?"}, {"role": "assistant", "content": "the cat"}]
    encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    answered = [t for t, mine in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mine]
    assert tokenizer.decode(answered) == f"the cat{END}"
    assert encoded["input_ids"].count(1) == 2
