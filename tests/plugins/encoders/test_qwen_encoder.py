"""Batches of Qwen-VL equal those of its processors, and its positions those of its models."""

import copy
import random
from typing import Any

import pytest
import torch

from bridge_data import SampleError, SkipSample, VidQASample
from bridge_data.encoders import (
    ConversationSample,
    FamilyConfig,
    FamilyTaskEncoder,
    HFTaskEncoder,
    ImageLimits,
    QwenVLTaskEncoder,
    VideoConversationSample,
)
from bridge_data.encoders.encoder_config import SamplePolicies
from bridge_data.errors import ConfigError
from tests.encoders.parts import assert_equal, draw_talk, encode, forbid_calls, learn, of_transformers
from tests.encoders.qwen_parts import FAMILIES, frames, make_family, make_processor, qwen_tokenizer, tiny_model

NUM_TALKS, ROWS = 50, 5


def make_encoder(name: str, **settings: Any) -> QwenVLTaskEncoder:
    return QwenVLTaskEncoder(qwen_tokenizer(name), make_family(name), **settings)


@pytest.mark.seconds
@pytest.mark.parametrize("name", FAMILIES)
def test_fifty_conversations_are_as_the_processor_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, encoder = make_processor(name), make_encoder(name)
    talks = [draw_talk(seed) for seed in range(NUM_TALKS)]
    batches = [talks[start : start + ROWS] for start in range(0, NUM_TALKS, ROWS)]
    expected = [of_transformers(processor, encoder.chat_template, batch) for batch in batches]
    forbid_calls(processor, monkeypatch)
    for batch, (made, labels) in zip(batches, expected, strict=True):
        got = encoder.batch([encode(encoder, talk.sample) for talk in batch])
        assert_equal(got.model_inputs(), made | {"labels": labels})
    assert {len(talk.images) for talk in talks} == {0, 1, 3}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_processor_can_be_driven_with_the_same_batches(name: str) -> None:
    encoder, driven = make_encoder(name), HFTaskEncoder(make_processor(name))
    for seed in range(100, 110):
        sample = draw_talk(seed).sample
        ours, theirs = encoder.batch([encode(encoder, sample)]), driven.batch([driven.encode_sample(sample)])
        assert_equal(ours.model_inputs(), theirs.model_inputs())


def draw_videos(seed: int) -> tuple[list[dict[str, Any]], VideoConversationSample]:
    """A conversation about images and 1 or 2 videos anywhere in it."""
    draw = random.Random(seed)
    talk = copy.deepcopy(draw_talk(seed))
    videos = []
    for number in range(draw.choice([1, 2])):
        size = draw.randint(10, 60), draw.randint(10, 60)
        videos.append(frames(draw.randint(3, 40), size, seed * 7 + number))
    asked = [number for number, turn in enumerate(talk.messages) if turn["role"] == "user"]
    for video, number in zip(videos, sorted(draw.choice(asked) for _ in videos), strict=True):
        talk.messages[number]["content"].append({"type": "video", "video": video})
        talk.sample.messages[number]["content"] += "\n<video>"
    sample = VideoConversationSample(
        __key__=talk.sample.__key__, messages=talk.sample.messages, images=talk.sample.images, videos=videos
    )
    return talk.messages, sample


@pytest.mark.seconds
@pytest.mark.parametrize("name", FAMILIES)
def test_videos_are_as_the_processor_has_them(name: str) -> None:
    processor, encoder = make_processor(name), make_encoder(name)
    for seed in range(400, 425):
        messages, sample = draw_videos(seed)
        parts = [part for turn in messages for part in turn["content"]]
        text = processor.apply_chat_template(messages, chat_template=encoder.chat_template, tokenize=False)
        metadata = [{"total_num_frames": len(video), "fps": 24.0} for video in sample.videos]
        made = processor(
            text=[text],
            images=[part["image"] for part in parts if part["type"] == "image"] or None,
            videos=sample.videos,
            video_metadata=metadata,
            return_tensors="pt",
        )
        got = encoder.batch([encode(encoder, sample)]).model_inputs()
        labels = got.pop("labels")
        for field in got:
            expected = torch.as_tensor(made[field])
            assert torch.equal(got[field], expected), (seed, field)
        assert got.keys() == made.keys()
        learnt = encoder.tokenizer.decode(labels[labels != -100])
        said = [part["text"] for turn in messages for part in turn["content"] if turn["role"] == "assistant"]
        assert learnt == "".join(f"{answer}<|im_end|>" for answer in said)


@pytest.mark.parametrize("name", FAMILIES)
def test_positions_are_those_of_the_model(name: str) -> None:
    encoder, model = make_encoder(name), tiny_model(name).model
    samples = [draw_videos(seed)[1] for seed in range(450, 456)] + [draw_talk(seed).sample for seed in range(6)]
    for start in range(0, len(samples), 3):
        batch = encoder.batch([encode(encoder, sample) for sample in samples[start : start + 3]])
        inputs = batch.model_inputs()
        names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        told = {field: inputs[field] for field in (*names, "attention_mask") if field in inputs}
        expected, _ = model.get_rope_index(**told)
        for row, length in enumerate(batch.lengths.tolist()):
            assert torch.equal(batch.position_ids[row, :, :length], expected[:, row, :length])


@pytest.mark.parametrize("name", FAMILIES)
def test_truncation_cuts_at_the_end_and_never_within_an_image_or_video(name: str) -> None:
    whole_encoder = make_encoder(name)
    cut = 0
    for seed in range(500, 520):
        _, sample = draw_videos(seed)
        whole = encode(whole_encoder, sample)
        limit = whole.length * (seed % 7 + 2) // 10
        encoder = make_encoder(name, seq_length=limit)
        try:
            got = encode(encoder, sample)
        except SkipSample:
            continue
        cut += 1
        assert got.length <= limit
        assert torch.equal(got.tokens, whole.tokens[: got.length])
        assert torch.equal(got.position_ids, whole.position_ids[:, : got.length])
        assert torch.equal(got.labels[:-1], whole.labels[: got.length - 1])
        for kind, values, grids in (
            (1, "pixel_values", "image_grid_thw"),
            (2, "pixel_values_videos", "video_grid_thw"),
        ):
            patches = int((got.aligned["mm_token_type_ids"] == kind).sum()) * 4
            kept = got.media.get(values, torch.zeros(0))
            assert len(kept) == patches == int(got.media.get(grids, torch.zeros(0, 3)).prod(-1).sum())
            if patches:
                assert torch.equal(kept, whole.media[values][:patches])
    assert cut >= 5


@pytest.mark.seconds
@pytest.mark.parametrize("name", [pytest.param("qwen2_vl", marks=pytest.mark.slow), "qwen2_5_vl", "qwen3_vl"])
def test_a_tiny_model_learns_images_and_videos_alone_and_packed(name: str) -> None:
    encoder = make_encoder(name)
    asked = VidQASample(__key__="v", video=frames(5, (24, 16), 0), context="what is this", answers=["a boat"])
    samples = [encode(encoder, sample) for sample in (asked, *(draw_talk(n, 1).sample for n in (1, 2)))]
    model = tiny_model(name)
    batches = [encoder.batch(samples), encoder.batch([encoder.pack_selected_samples(samples)])]
    model.eval()
    with torch.no_grad():
        alone = [model(**encoder.batch([sample]).model_inputs()).logits[0] for sample in samples]
        together = model(**batches[1].model_inputs()).logits[0]
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)
    model.train()
    losses = learn(model, batches, 10)
    assert sum(losses[-2:]) < 0.7 * sum(losses[:2]), losses
    assert all(weight.grad is not None for part, weight in model.named_parameters() if "visual.blocks" in part)


def test_a_video_question_is_a_conversation() -> None:
    encoder = make_encoder("qwen2_vl")
    video = frames(8, (30, 40), 0)
    asked = VidQASample(__key__="v", video=video, context="what is this", answers=["a boat"])
    told = VideoConversationSample(
        __key__="v",
        messages=[{"role": "user", "content": "<video>what is this"}, {"role": "assistant", "content": "a boat"}],
        videos=[video],
    )
    assert torch.equal(encode(encoder, asked).tokens, encode(encoder, told).tokens)


@pytest.mark.parametrize(
    ("content", "images", "videos", "message"),
    [
        ("<video> <video> what", 0, 1, "2 .*'<video>'.* 1 videos"),
        ("<video> what", 0, 0, "1 .*'<video>'.* 0 videos"),
        ("<image> what", 0, 0, "1 .*'<image>'.* 0 images"),
        ("what <|video_pad|>", 0, 0, "template.* 1 video .* 0"),
        ("what <|image_pad|>", 0, 0, "template.* 1 image .* 0"),
    ],
)
def test_placeholders_must_match(content: str, images: int, videos: int, message: str) -> None:
    sample = VideoConversationSample(
        __key__="talk",
        messages=[{"role": "user", "content": content}, {"role": "assistant", "content": "a boat"}],
        videos=[frames(4, (20, 20), 0)] * videos,
    )
    config = FamilyConfig(policies=SamplePolicies(media_tags="keep"))
    with pytest.raises(SampleError, match=f"'talk'.*{message}"):
        encode(make_encoder("qwen2_vl", config=config), sample)
    config = FamilyConfig(policies=SamplePolicies(image_mismatch="skip", media_tags="keep"))
    with pytest.raises(SkipSample):
        encode(make_encoder("qwen2_vl", config=config), sample)


@pytest.mark.parametrize("name", FAMILIES)
def test_extreme_images_are_skipped_and_the_smallest_is_not(name: str) -> None:
    def ask(size: tuple[int, int]) -> ConversationSample:
        turns = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "a boat"}]
        return ConversationSample(__key__="k", messages=turns, images=[torch.zeros(3, *size, dtype=torch.uint8)])

    dot = encode(make_encoder(name), ask((1, 1)))
    assert dot.media["image_grid_thw"].tolist() == [[1, 2, 2]]
    with pytest.raises(SkipSample):
        encode(make_encoder(name), ask((20, 20_000)))
    lenient = FamilyConfig(images=ImageLimits(max_aspect=2000, extreme_image="error"))
    with pytest.raises(SampleError, match=r"'k'.*20000 x 20 pixels; Qwen-VL takes aspects of 200"):
        encode(make_encoder(name, config=lenient), ask((20, 20_000)))


@pytest.mark.parametrize("name", FAMILIES)
def test_images_and_videos_keep_to_the_budget_of_tokens(name: str) -> None:
    _, sample = draw_videos(452)
    free = encode(make_encoder(name), sample)
    num_visual = int((free.aligned["mm_token_type_ids"] > 0).sum())
    tight = make_encoder(name, config=FamilyConfig(images=ImageLimits(max_image_tokens=num_visual * 3 // 4)))
    less = encode(tight, sample)
    got = less.aligned["mm_token_type_ids"] > 0
    assert 0 < int(got.sum()) <= num_visual * 3 // 4
    assert less.media["video_grid_thw"].prod(-1).sum() < free.media["video_grid_thw"].prod(-1).sum()
    none = make_encoder(name, config=FamilyConfig(images=ImageLimits(max_image_tokens=1)))
    with pytest.raises(SkipSample):
        encode(none, sample)


def test_an_encoder_without_mrope_positions_refuses_the_family() -> None:
    with pytest.raises(
        ConfigError, match=r"FamilyTaskEncoder\(family=Qwen2_5VL\): makes no M-RoPE positions; use QwenVL"
    ):
        FamilyTaskEncoder(qwen_tokenizer("qwen2_5_vl"), make_family("qwen2_5_vl"))
