"""Batches equal those that the processors of transformers make of the same conversations."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bridge_data import SkipSample
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    HFTaskEncoder,
    VisionFamily,
)
from bridge_data.encoders.sequences import FamilyBatch, FamilySample
from tests.encoders.parts import (
    CASES,
    Talk,
    assert_equal,
    draw_talk,
    encode,
    forbid_calls,
    make_tokenizer,
    of_transformers,
)

NUM_TALKS, ROWS = 25, 5


@functools.cache
def parts_of(name: str) -> tuple[Any, VisionFamily, Any]:
    """The tokenizer, the family and the processor of a case."""
    case = CASES[name]
    family = case.make()
    tokenizer = make_tokenizer(begin=case.begin, template=family.chat_template)
    return tokenizer, family, case.processor(tokenizer)


def batch_of(encoder: Any, talks: Sequence[Talk]) -> FamilyBatch:
    return encoder.batch([encode(encoder, talk.sample) for talk in talks])


@pytest.mark.parametrize("name", CASES)
def test_conversations_are_as_the_processor_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, family, processor = parts_of(name)
    talks = [draw_talk(seed) for seed in range(NUM_TALKS)]
    batches = [talks[start : start + ROWS] for start in range(0, NUM_TALKS, ROWS)]
    expected = [of_transformers(processor, str(family.chat_template), batch) for batch in batches]
    forbid_calls(processor, monkeypatch)
    encoder = FamilyTaskEncoder(tokenizer, family)
    for batch, (made, labels) in zip(batches, expected, strict=True):
        assert_equal(batch_of(encoder, batch).model_inputs(), made | {"labels": labels})
    assert {len(talk.images) for talk in talks} == {0, 1, 3}


@pytest.mark.parametrize("name", CASES)
def test_any_processor_can_be_driven_with_the_same_batches(name: str) -> None:
    _, family, processor = parts_of(name)
    encoder = HFTaskEncoder(processor)
    talks = [draw_talk(seed) for seed in range(100, 100 + NUM_TALKS)]
    for start in range(0, NUM_TALKS, ROWS):
        batch = talks[start : start + ROWS]
        made, labels = of_transformers(processor, str(family.chat_template), batch)
        assert_equal(batch_of(encoder, batch).model_inputs(), made | {"labels": labels})


@pytest.mark.parametrize("name", CASES)
def test_templates_without_marks_give_the_same_batches(name: str) -> None:
    tokenizer, family, processor = parts_of(name)
    marks = ("{%- generation -%}", "{%- endgeneration -%}")
    template = functools.reduce(lambda text, mark: text.replace(mark, ""), marks, str(family.chat_template))
    plain = FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=template))
    pairs = [
        (FamilyTaskEncoder(tokenizer, family, plain), FamilyTaskEncoder(tokenizer, family)),
        (HFTaskEncoder(processor, plain), HFTaskEncoder(processor)),
    ]
    for seed in range(200, 210):
        for without, marked in pairs:
            got, expected = encode(without, draw_talk(seed).sample), encode(marked, draw_talk(seed).sample)
            assert torch.equal(got.tokens, expected.tokens)
            learnt = expected.loss_mask.bool()
            assert torch.equal(got.labels[learnt], expected.labels[learnt])


@pytest.mark.parametrize("name", CASES)
def test_truncation_cuts_at_the_end_and_never_within_an_image(name: str) -> None:
    tokenizer, family, processor = parts_of(name)
    cut = 0
    for seed in range(300, 320):
        talk = draw_talk(seed, num_images=seed % 3 + 1)
        whole = encode(FamilyTaskEncoder(tokenizer, family), talk.sample)
        limit = whole.length * (seed % 7 + 2) // 10
        ours, driven = (
            FamilyTaskEncoder(tokenizer, family, seq_length=limit),
            HFTaskEncoder(processor, seq_length=limit),
        )
        try:
            got = encode(ours, talk.sample)
        except SkipSample:
            with pytest.raises(SkipSample):
                encode(driven, talk.sample)
            continue
        cut += 1
        assert got.length <= limit
        assert torch.equal(got.tokens, whole.tokens[: got.length])
        assert torch.equal(got.labels[:-1], whole.labels[: got.length - 1])
        assert got.labels[-1] == -100
        kept = Talk(_first_images(talk, _num_images(got, whole, talk, family)), talk.sample)
        if kept.images:
            made, _ = of_transformers(processor, str(family.chat_template), [kept])
            media = ours.batch([got]).media
            assert all(torch.equal(media[field], made[field]) for field in media)
        else:
            assert got.media == {}
        if got.length < limit:
            first = family.image_text((1, 1), 0)[0][0]
            assert tokenizer.decode(whole.tokens[got.length]) in first
        assert_equal(batch_of(driven, [talk]).model_inputs(), ours.batch([got]).model_inputs())
    assert cut >= 5


def _num_images(got: FamilySample, whole: FamilySample, talk: Talk, family: VisionFamily) -> int:
    """How many images have all their tokens in what is left."""
    token = make_tokenizer(begin=False).convert_tokens_to_ids(family.image_token)
    left = int((got.tokens == token).sum())
    for number, image in enumerate(talk.images):
        if left == 0:
            return number
        text = family.image_text((image.height, image.width), 0)
        left -= sum(times for piece, times in text if piece == family.image_token)
    assert left == 0
    return len(talk.images)


def _first_images(talk: Talk, count: int) -> list[dict[str, Any]]:
    """The conversation with the first `count` images only."""
    turns = []
    for turn in talk.messages:
        parts = []
        for part in turn["content"]:
            count -= part["type"] == "image"
            if part["type"] != "image" or count >= 0:
                parts.append(part)
        turns.append({**turn, "content": parts or [{"type": "text", "text": ""}]})
    return turns
