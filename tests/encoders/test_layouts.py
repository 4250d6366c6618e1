"""Batches in Bridge's layout. `tests/bridge/test_batches.py` compares them with those of Bridge itself."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bridge_data import Cooker, TextSample, WorkerConfig, get_loader, get_train_dataset
from bridge_data.encoders import (
    ConversationSample,
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    HFTaskEncoder,
    QwenVLTaskEncoder,
    cook_conversation,
)
from bridge_data.encoders.layouts import (
    PackedSample,
    UtilsVideo,
    VisualInputs,
    layout_of,
    packed_row,
    padded_rows,
    utils_size,
    visual_inputs,
)
from bridge_data.encoders.pixel_table import looked_up
from bridge_data.encoders.sequences import FamilySample, sequence_fields
from bridge_data.encoders.visuals import VideoFrames
from bridge_data.errors import ConfigError
from tests.encoders.parts import CASES, encode, make_tokenizer, picture, png
from tests.encoders.qwen_parts import make_family, make_processor, qwen_tokenizer
from tests.prepared import CRUDE, write_dataset

MEDIA = {"<image>": ("image", "<|image_pad|>"), "<video>": ("video", "<|video_pad|>")}
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def bridge_layout() -> Any:
    return layout_of(make_tokenizer(), FamilyConfig(layout="bridge"), 512, 0)


def parts_of(content: str, media: Any, media_first: bool) -> Any:
    """What a turn with this content becomes for a template that takes parts."""
    turns = [{"role": "user", "content": content}]
    (turn,) = bridge_layout().messages(turns, TEMPLATE.chat_template, media, media_first=media_first)
    return turn["content"]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("content", "media_first", "expected"),
    [
        (" no image \n", True, [text(" no image \n")]),
        ("<image>\nWhat? ", False, [IMAGE, text("\nWhat?")]),
        (" a <image> b <video>", False, [text("a"), IMAGE, text("b"), VIDEO]),
        (" a <image> b <video>", True, [IMAGE, VIDEO, text("a"), text("b")]),
        ("<image> <image>", False, [IMAGE, text(""), IMAGE]),
    ],
)
def test_texts_keep_line_breaks_and_lose_spaces_beside_images(content: str, media_first: bool, expected: Any) -> None:
    assert parts_of(content, MEDIA, media_first) == expected


def test_the_line_break_after_an_end_token_is_learnt() -> None:
    said = "Q\nyes<|im_end|>\nQ\nno\nQ\nso<|im_end|>"
    spans = [(2, 15), (18, 20), (23, 35)]
    assert [said[start:end] for start, end in spans] == ["yes<|im_end|>", "no", "so<|im_end|>"]
    assert [said[start:end] for start, end in bridge_layout().spans_with_loss(said, spans)] == [
        "yes<|im_end|>\n",
        "no",
        "so<|im_end|>",
    ]


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_images_get_sides_of_28_within_limits(height: int, width: int) -> None:
    high, wide = utils_size((height, width))
    assert high % 28 == wide % 28 == 0
    if max(height, width) <= 200 * min(height, width):
        assert 56 * 56 <= high * wide <= 16_384 * 28 * 28
    if high * wide > 2 * 56 * 56 and min(height, width) >= 28 and height * width < 12_000_000:
        assert abs(high - height) <= 14 and abs(wide - width) <= 14  # only rounded
    assert [utils_size(size) for size in ((10, 500), (10, 20), (100, 80))] == [(28, 504), (56, 84), (112, 84)]


def test_frames_have_three_sizes_one_after_the_other() -> None:
    """112 x 168 in multiples of 56, 280 x 392 in at least 128 tokens, and that of the model."""
    frames = torch.full((3, 3, 60, 100), 90, dtype=torch.uint8)
    video = UtilsVideo.of(VideoFrames(frames, 3, 24.0, (60, 100), (0, 2)))
    assert (video.size, video.frames, video.sampled_fps) == ((280, 392), (0, 2), 16.0)
    made = video.resized((28, 56), Image.Resampling.BICUBIC)
    assert [frame.shape for frame in made] == [(3, 28, 56)] * 2
    assert all(np.abs(frame - 90).max() < 1e-4 for frame in made)
    sizes = [
        UtilsVideo.of(VideoFrames(None, number, 24.0, (1000, 1000), tuple(range(number)))).size
        for number in (2, 600, 5000)
    ]
    assert sizes == [(756, 756), (532, 532), (308, 308)], "frames of long videos share a budget"


def test_a_family_takes_these_frames_without_rounding_them() -> None:
    family = make_family("qwen2_vl")
    video = UtilsVideo.of(VideoFrames(torch.full((2, 3, 60, 100), 90, dtype=torch.uint8), 2, 24.0, (60, 100), (0, 1)))
    made = looked_up(family.collected([family.video_pixels([video], 0)]))["pixel_values_videos"]
    means, deviations = (torch.tensor(getattr(family.image_processor, f"image_{name}")) for name in ("mean", "std"))
    expected = ((90 / 255 - means) / deviations)[None, :, None].expand(len(made), 3, made.shape[1] // 3)
    torch.testing.assert_close(made.unflatten(1, (3, -1)), expected)


def sample(key: str, length: int, **media: torch.Tensor) -> FamilySample:
    """Tokens 1, 2, ...; the second half is learnt."""
    tokens = torch.arange(1, length + 1)
    loss_mask = (tokens > length // 2).to(torch.float32)
    labels = torch.where(loss_mask > 0, tokens + 1, -100)
    return FamilySample(__key__=key, **sequence_fields(tokens, labels, loss_mask), media=media, aligned={})


def test_rows_are_padded_with_the_padding_token_and_then_with_0() -> None:
    batch = padded_rows([sample("a", 3), sample("b", 5)], {}, pad=9, ignored=-100, multiple=8, length=0)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9, 9, 0, 0, 0], [1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 3, 4] + [-100] * 5, [-100, -100, 4, 5, 6] + [-100] * 3]
    assert batch["loss_mask"].tolist() == [[0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [list(range(8))] * 2
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch["__keys__"] == ["a", "b"]
    assert batch["cu_seqlens_q"] is None and batch["total_tokens"] is None
    assert vars(batch["visual_inputs"]) == dict.fromkeys(vars(VisualInputs()))
    fixed = padded_rows([sample("a", 3)], {}, pad=9, ignored=-100, multiple=8, length=16)
    assert fixed["input_ids"].shape == fixed["position_ids"].shape == (1, 16)


def test_an_empty_batch_has_no_loss_and_names_no_sample() -> None:
    encoder = FamilyTaskEncoder(make_tokenizer(template="{{ messages }}"), None, FamilyConfig(layout="bridge"))
    batch = encoder.batch([sample("a", 3), sample("b", 5)])
    emptied = encoder.empty_batch(batch)
    assert emptied["loss_mask"].sum() == 0 < batch["loss_mask"].sum()
    assert emptied["__key__"] == emptied["__keys__"] == []
    assert torch.equal(emptied["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("as_packs", [False, True])
def test_a_row_of_samples_has_bounds_with_and_without_padding(as_packs: bool) -> None:
    samples = [sample("a", 3), sample("b", 4), sample("c", 2)]
    rows = samples
    if as_packs:
        encoder = FamilyTaskEncoder(make_tokenizer(template="{{ messages }}"), None, FamilyConfig(layout="bridge"))
        rows = [encoder.pack_selected_samples(samples[:2]), encoder.pack_selected_samples(samples[2:])]
        assert all(isinstance(row, PackedSample) for row in rows)
    batch = packed_row(rows, {}, samples, pad=0, ignored=-100, multiple=4)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 1, 2, 3, 4, 1, 2, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 3, 4, -100, -100, -100, 4, 5, -100, 3, -100, -100]]
    assert batch["loss_mask"].tolist() == [[0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3] * 3]
    assert batch["cu_seqlens_q"].tolist() == batch["cu_seqlens_kv"].tolist() == [0, 3, 7, 9]
    assert batch["cu_seqlens_q_padded"].tolist() == batch["cu_seqlens_kv_padded"].tolist() == [0, 4, 8, 12]
    assert (int(batch["max_seqlen_q"]), batch["total_tokens"], batch["attention_mask"]) == (4, 12, None)
    assert {batch[name].dtype for name in ("cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q")} == {torch.int32}
    plain = packed_row(rows, {}, samples, pad=0, ignored=-100, multiple=1)
    assert plain["input_ids"].shape == (1, 9)
    assert plain["cu_seqlens_q"].tolist() == [0, 3, 7, 9] and plain["cu_seqlens_q_padded"] is None


def test_nested_images_are_joined_for_the_model() -> None:
    nested = VisualInputs(pixel_values=torch.zeros(2, 3, 4, 5, 6), image_grid_thw=torch.zeros(2, 3, 3))
    shapes = {name: tuple(value.shape) for name, value in nested.normalized_for_model().items()}
    assert shapes == {"pixel_values": (6, 4, 5, 6), "image_grid_thw": (6, 3)}
    assert nested.as_model_kwargs()["pixel_values"].ndim == 5
    flat = visual_inputs({"pixel_values": torch.zeros(6, 24), "image_grid_thw": torch.zeros(2, 3)})
    assert {name: value.ndim for name, value in flat.normalized_for_model().items()} == {
        "pixel_values": 2,
        "image_grid_thw": 2,
    }


def test_what_no_model_of_bridge_takes_is_refused() -> None:
    family = CASES["idefics3"].make()
    encoder = FamilyTaskEncoder(
        make_tokenizer(template=family.chat_template), family, FamilyConfig(layout="bridge"), seq_length=512
    )
    said = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "a boat"}]
    one = ConversationSample(__key__="k", messages=said, images=[png(picture((20, 30)))])
    with pytest.raises(ConfigError, match="no field for pixel_attention_mask"):
        encoder.batch([encode(encoder, one)])


TEMPLATE = ConversationTemplateConfig(
    chat_template="""\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- for part in message['content'] -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
)
"""It writes images in answers, too."""


def qwen_encoder(driven: bool, config: FamilyConfig) -> Any:
    if driven:
        return HFTaskEncoder(make_processor("qwen2_5_vl"), config, seq_length=512)
    return QwenVLTaskEncoder(qwen_tokenizer("qwen2_5_vl"), make_family("qwen2_5_vl"), config, seq_length=512)


def learnt(encoder: Any, one: ConversationSample) -> str:
    """The labels of a sample, as text."""
    encoded = encode(encoder, one)
    return str(encoder.tokenizer.decode(encoded.labels[encoded.loss_mask > 0]))


@pytest.mark.parametrize("driven", [False, True])
def test_tokens_around_images_are_not_learnt_but_the_end_of_a_turn_is(driven: bool) -> None:
    said = [
        {"role": "user", "content": "where ?"},
        {"role": "assistant", "content": "<image>on the sea"},
        {"role": "user", "content": "and"},
        {"role": "assistant", "content": "a boat"},
    ]
    one = ConversationSample(__key__="k", messages=said, images=[png(picture((30, 30)))])
    bridge, native = (
        qwen_encoder(driven, FamilyConfig(conversation_template_config=TEMPLATE, layout=layout))
        for layout in ("bridge", "native")
    )
    assert learnt(bridge, one) == "on the sea<|im_end|>\na boat<|im_end|>\n"
    assert learnt(native, one) == "<|vision_start|><|vision_end|>on the sea<|im_end|>a boat<|im_end|>"


class QwenShards(QwenVLTaskEncoder):
    cookers = (Cooker(cook_conversation),)


def write_talks(folder: Path) -> Path:
    samples = []
    for number in range(24):
        asked = "<image> what is this ?" if number % 3 else "what is this ?"
        said = [{"role": "user", "content": asked}, {"role": "assistant", "content": "a boat " * (number % 4 + 1)}]
        image = {"png": png(picture((30 + number, 40), number))} if number % 3 else {}
        samples.append({"__key__": f"{number:03d}", "json": json.dumps(said), **image})
    return write_dataset(folder, samples, definition=CRUDE)


def tensors_of(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    named = {**batch, **vars(batch["visual_inputs"])}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "buffer", "num_workers"),
    [({"pad_to_multiple_of": 8}, None, 0), ({"pack_in_batch": True}, None, 0), ({}, 8, 1)],
)
def test_a_batch_in_the_layout_can_be_made_again_and_workers_deliver_it(
    tmp_path: Path, settings: dict[str, Any], buffer: int | None, num_workers: int
) -> None:
    config = FamilyConfig(layout="bridge", **settings)
    encoder = QwenShards(qwen_tokenizer("qwen2_5_vl"), make_family("qwen2_5_vl"), config, seq_length=256)
    path = write_talks(tmp_path / "talks")

    def load(num_workers: int) -> tuple[Any, list[dict[str, Any]]]:
        dataset = get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
            batch_size=1 if buffer else 4,
            packing_buffer_size=buffer,
            shuffle_buffer_size=10,
            max_samples_per_sequence=10,
            task_encoder=encoder,
            repeat=False,
        )
        with get_loader(dataset) as loader:
            return dataset, list(loader)

    dataset, batches = load(num_workers)
    assert all(type(batch) is dict and isinstance(batch["visual_inputs"], VisualInputs) for batch in batches)
    packs = [batch["cu_seqlens_q"] is not None for batch in batches]
    assert packs == [bool(buffer or settings.get("pack_in_batch"))] * len(batches)
    if buffer:
        assert all(batch["input_ids"].shape[0] == 1 and batch["input_ids"].shape[1] <= 256 for batch in batches)
        assert any(len(batch["cu_seqlens_q"]) > 2 for batch in batches)
    for batch, other in zip(batches, load(0)[1], strict=True):
        again = dataset.restore_sample(batch["__restore_key__"])
        assert dataclasses.is_dataclass(again["visual_inputs"])
        expected = tensors_of(batch)
        for made in (tensors_of(other), tensors_of(again)):
            assert made.keys() == expected.keys()
            assert all(torch.equal(value, expected[name]) for name, value in made.items())
    keys = [key for batch in batches for row in batch["__keys__"] for key in row.split(",")]
    assert len(set(keys)) == len(keys) == 24


def test_only_in_conversations_some_tokens_are_never_learnt() -> None:
    encoder = FamilyTaskEncoder(qwen_tokenizer("qwen2_5_vl"), None, FamilyConfig(layout="bridge"), seq_length=64)
    never = encoder.tokenizer.convert_tokens_to_ids(token := "<|im_start|>")
    text = encoder.preencode_sample(TextSample(__key__="k", text=f"so {token} it is"))
    assert never in text.tokens.tolist() and never in text.labels.tolist()
    talk = [{"role": "user", "content": "so?"}, {"role": "assistant", "content": f"so {token} it is"}]
    said = encoder.preencode_sample(ConversationSample(__key__="k", messages=talk))
    assert never in said.tokens.tolist() and never not in said.labels.tolist()
