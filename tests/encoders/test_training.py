"""Tiny random models of transformers learn from the batches, and see packs as they see the samples of them."""

from typing import Any

import pytest
import torch

from bridge_data import TextSample
from bridge_data.encoders import FamilyBatch, FamilyConfig, FamilyTaskEncoder, PretrainingTaskEncoder, text_encoder
from bridge_data.encoders.sequences import padded
from tests.encoders.parts import CASES, draw_talk, encode, learn, make_tokenizer
from tests.tiny_models.parts import tiny_model


def family_encoder(name: str, **settings: Any) -> tuple[Any, FamilyTaskEncoder]:
    if name == "text":
        template = str(CASES["internvl"].make().chat_template)
        return (tokenizer := make_tokenizer(template=template)), text_encoder(tokenizer, **settings)
    family = CASES[name].make()
    tokenizer = make_tokenizer(template=family.chat_template)
    return tokenizer, FamilyTaskEncoder(tokenizer, family, **settings)


def talks(name: str, count: int) -> list[Any]:
    images = (0,) if name == "text" else (0, 1, 3)
    return [draw_talk(seed, images[seed % len(images)]).sample for seed in range(count)]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    ["text", "llava_next", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llava", "idefics3", "internvl"))],
)
def test_a_tiny_model_learns(name: str) -> None:
    tokenizer, encoder = family_encoder(name)
    samples = [encode(encoder, talk) for talk in talks(name, 6)]
    batches = [encoder.batch(samples[start : start + 3]) for start in (0, 3)]
    model = tiny_model(name, tokenizer)
    losses = learn(model, batches)
    assert sum(losses[-2:]) < 0.6 * sum(losses[:2]), losses
    moved = [part for part, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert name == "text" or any("vision" in part for part in moved), "images must have a say"


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["text", "llava", "llava_next", "idefics3", "internvl"])
def test_a_pack_has_the_loss_of_its_samples(name: str) -> None:
    """What a model predicts in a packed row, it predicts for the samples alone."""
    tokenizer, encoder = family_encoder(name)
    samples = [encode(encoder, talk) for talk in talks(name, 5)]
    model = tiny_model(name, tokenizer).eval()
    one = FamilyTaskEncoder(tokenizer, encoder.family, FamilyConfig(pack_in_batch=True)).batch(samples)
    assert one.tokens.shape == (1, sum(sample.length for sample in samples))
    rows = encoder.batch([encoder.pack_selected_samples(samples[:3]), encoder.pack_selected_samples(samples[3:])])
    assert one.is_packed and rows.is_packed
    with torch.no_grad():
        alone = [model(**encoder.batch([sample]).model_inputs()).logits[0] for sample in samples]
        together = model(**one.model_inputs()).logits[0]
        in_rows = model(**rows.model_inputs()).logits
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)
    expected = padded([torch.cat(alone[:3]).T, torch.cat(alone[3:]).T], 0).transpose(1, 2)
    for row, (got, wanted) in enumerate(zip(in_rows, expected, strict=True)):
        length = int(rows.lengths[row])
        assert torch.allclose(got[:length], wanted[:length], atol=1e-4)


def test_a_tiny_model_learns_documents() -> None:
    tokenizer = make_tokenizer()
    encoder = PretrainingTaskEncoder(tokenizer, seq_length=32)
    documents = [TextSample(__key__=str(n), text="the red boat on the sea . " * (n + 1)) for n in range(6)]
    pieces = [piece for document in documents for piece in encoder.preencode_sample(document)]
    packs = encoder.select_samples_to_pack(pieces)
    batch: FamilyBatch = encoder.batch([encoder.pack_selected_samples(pack) for pack in packs])
    model = tiny_model("text", tokenizer)
    losses = learn(model, [batch], 10)
    assert losses[-1] < 0.5 * losses[0]
