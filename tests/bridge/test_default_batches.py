"""Batches of the DataModule's default encoder with `layout="bridge"` are, field by field, those of Bridge's
`HFTaskEncoder` for a processor whose images take a fixed number of tokens.

The processor is transformers' `LlavaProcessor`. Bridge has no collator of that name, and takes one as `collate_fn`: its
collator for Gemma 3, whose images have one size, too, and which leaves all else to the processor.
"""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from bridge_data.encoders import ConversationTemplateConfig, MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.errors import SkipSample
from tests.bridge.batch_parts import PLAIN, TALKS, Batching, Talk, bridge, chatml, is_installed
from tests.bridge.test_batches import BATCHINGS, compare, in_batches
from tests.encoders.parts import TILE, make_tokenizer
from tests.later import hf

pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not is_installed(), reason="megatron.bridge is not installed: see make test-bridge"),
]

PATCH = 4
TEMPLATE = PLAIN.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")


@functools.cache
def parts() -> tuple[Any, Any]:
    """The tokenizer and the image processor of both sides."""
    tokenizer = make_tokenizer(template=TEMPLATE)
    size = {"shortest_edge": TILE}
    return tokenizer, hf.CLIPImageProcessorPil(size=size, crop_size={"height": TILE, "width": TILE})


def theirs(talks: list[Talk], how: Batching) -> dict[str, Any]:
    tokenizer, images = parts()
    processor = hf.LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=TEMPLATE,
    )
    encoder = bridge("data.energon.hf_task_encoder").HFTaskEncoder(
        processor,
        seq_length=how.seq_length,
        collate_fn=bridge("models.gemma_vl.data.collate_fn").gemma3_vl_collate_fn,
        pad_to_max_length=how.to_length,
        pad_to_multiple_of=how.multiple,
        enable_in_batch_packing=how.pack,
        in_batch_packing_pad_to_multiple_of=how.multiple,
    )
    made: dict[str, Any] = encoder.encode_batch(encoder.batch([encoder.encode_sample(chatml(one)) for one in talks]))
    return made


def our_encoder(how: Batching) -> MultiModalTaskEncoder:
    config = MultiModalSampleConfig(
        conversation_template_config=ConversationTemplateConfig(chat_template=TEMPLATE),
        patch_size=PATCH,
        pad_to_max_length=how.to_length,
        pad_to_multiple_of=how.multiple,
        pack_in_batch=how.pack,
        layout="bridge",
    )
    return MultiModalTaskEncoder(*parts(), config, seq_length=how.seq_length)


def ours(talks: list[Talk], how: Batching) -> dict[str, Any]:
    encoder = our_encoder(how)
    made = encoder.batch([encoder.postencode_sample(encoder.preencode_sample(one.sample)) for one in talks])
    assert isinstance(made, dict)
    return made


def same_batch(got: dict[str, Any], expected: dict[str, Any]) -> None:
    if expected["visual_inputs"] is None:  # a batch without images
        assert got["visual_inputs"] is None
        empty = bridge("training.utils.visual_inputs").GenericVisualInputs()
        got, expected = got | {"visual_inputs": empty}, expected | {"visual_inputs": empty}
    else:
        assert got["visual_inputs"].pixel_values.dtype == torch.bfloat16
    compare(got, expected)


@pytest.mark.parametrize("how", ["padded", "padded to seq_length", "packed", "packed and aligned"])
def test_50_conversations_are_equal_in_every_field(how: str) -> None:
    for talks in in_batches():
        same_batch(ours(talks, BATCHINGS[how]), theirs(talks, BATCHINGS[how]))


def test_each_alone_is_equal_with_or_without_images() -> None:
    num_without = 0
    for one in TALKS:
        expected = theirs([one], BATCHINGS["packed"])
        num_without += expected["visual_inputs"] is None
        same_batch(ours([one], BATCHINGS["packed"]), expected)
    assert 0 < num_without < len(TALKS)


def test_long_conversations_are_cut_alike_unless_an_image_is_cut() -> None:
    how, num_tokens = BATCHINGS["truncated"], (TILE // PATCH) ** 2
    image_id = parts()[0].convert_tokens_to_ids("<image>")
    num_cut = 0
    for one in TALKS:
        try:
            got = ours([one], how)
        except SkipSample:
            continue
        expected = theirs([one], how)
        if int((expected["input_ids"] == image_id).sum()) == num_tokens * len(one.images):
            same_batch(got, expected)
            num_cut += got["input_ids"].shape[1] == how.seq_length
    assert num_cut > 5


def test_packs_of_a_buffer_are_as_packed_in_a_batch() -> None:
    how = BATCHINGS["packed and aligned"]
    encoder = our_encoder(dataclasses.replace(how, pack=False, seq_length=256))
    by_key = {one.sample.__key__: one for one in TALKS}
    packs = encoder.select_samples_to_pack([encoder.preencode_sample(one.sample) for one in TALKS[:20]])
    assert max(map(len, packs)) > 1
    for pack in packs:
        keys = [sample.__key__ for sample in pack]
        got = encoder.batch([encoder.pack_selected_samples([encoder.postencode_sample(sample) for sample in pack])])
        assert isinstance(got, dict) and got["input_ids"].shape[1] <= encoder.seq_length
        expected = theirs([by_key[key] for key in keys], how)
        same_batch(got, {name: value for name, value in expected.items() if name not in ("__key__", "__keys__")})


@pytest.mark.parametrize("how", ["padded", "packed and aligned"])
def test_the_step_makes_the_same_of_both(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = bridge("training.vlm_step")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    read = {"is_first_pp_stage": True, "is_last_pp_stage": True, "skip_getting_attention_mask_from_dataset": False}
    for talks in in_batches(10):
        got, expected = (
            step.get_batch_from_iterator(iter([make(talks, BATCHINGS[how])]), **read) for make in (ours, theirs)
        )
        same_batch(got, expected)
