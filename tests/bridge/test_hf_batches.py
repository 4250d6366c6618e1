"""Batches of `HFTaskEncoder` with `layout="bridge"` are, field by field, those that Bridge's `HFTaskEncoder` makes with
its collators for Gemma 3, Gemma 4 and Ministral 3."""

import collections
from typing import Any

import pytest
import torch
from transformers import AutoProcessor, Gemma4Config

from bridge_data.encoders import FamilyConfig, HFTaskEncoder
from bridge_data.errors import SkipSample
from tests.bridge.batch_parts import TALKS, Batching, Talk, bridge, chatml, is_installed
from tests.bridge.hf_processors import make_processor
from tests.bridge.test_batches import BATCHINGS, compare, in_batches

pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not is_installed(), reason="megatron.bridge is not installed: see make test-bridge"),
]

FAMILIES = pytest.mark.parametrize("family", ["gemma3", "gemma4", "ministral3"])


def our_encoder(family: str, how: Batching) -> HFTaskEncoder:
    config = FamilyConfig(
        pad_to_max_length=how.to_length,
        pad_to_multiple_of=how.multiple,
        pack_in_batch=how.pack,
        layout="bridge",
        pixels="bfloat16" if family == "gemma3" else "float32",
    )
    model = Gemma4Config(text_config={"use_bidirectional_attention": None}) if family == "gemma4" else None
    return HFTaskEncoder(make_processor(family), config, seq_length=how.seq_length, model_config=model)


def ours(family: str, talks: list[Talk], how: Batching) -> Any:
    encoder = our_encoder(family, how)
    return encoder.batch([encoder.encode_sample(one.sample) for one in talks])


def theirs(family: str, talks: list[Talk], how: Batching) -> dict[str, Any]:
    encoder = bridge("data.energon.hf_task_encoder").HFTaskEncoder(
        make_processor(family),
        seq_length=how.seq_length,
        pad_to_max_length=how.to_length,
        pad_to_multiple_of=how.multiple,
        enable_in_batch_packing=how.pack,
        in_batch_packing_pad_to_multiple_of=how.multiple,
    )
    made: dict[str, Any] = encoder.encode_batch(encoder.batch([encoder.encode_sample(chatml(one)) for one in talks]))
    if made["visual_inputs"] is None:  # of a batch without images ours is empty, which the step makes the same of
        made["visual_inputs"] = bridge("training.utils.visual_inputs").GenericVisualInputs()
    return without_last_line_break(made) if family == "gemma4" else made


def without_last_line_break(made: dict[str, Any]) -> dict[str, Any]:
    """A batch of Bridge's collator for Gemma 4, which has loss on the last token of each sample, whatever that is, and
    leaves `mm_token_type_ids`, which its model does not take, as short as they were: with loss on answers, and types
    of all tokens."""
    tokens, labels, loss_mask = made["input_ids"], made["labels"], made["loss_mask"]
    line_break = make_processor("gemma4").tokenizer.encode("\n", add_special_tokens=False)[0]
    end = make_processor("gemma4").tokenizer.convert_tokens_to_ids("<turn|>")
    last = (tokens == end) & (labels == line_break)
    assert loss_mask[last].all()
    labels[last], loss_mask[last] = -100, 0
    types = made["visual_inputs"].mm_token_type_ids
    if types is not None:
        pad = torch.nn.functional.pad
        made["visual_inputs"].mm_token_type_ids = pad(types, (0, tokens.shape[1] - types.shape[1]))
    return made


@FAMILIES
@pytest.mark.parametrize("how", ["padded", "padded to seq_length", "packed", "packed and aligned"])
def test_50_conversations_are_equal_in_every_field(family: str, how: str) -> None:
    alone = how.startswith("packed") and family != "gemma3"  # Bridge packs no images of several sizes: see below
    for talks in in_batches(1 if alone else 5):
        compare(ours(family, talks, BATCHINGS[how]), theirs(family, talks, BATCHINGS[how]))


def test_images_of_several_sizes_in_a_pack_are_padded_where_bridge_fails() -> None:
    for talks in in_batches():
        expected = theirs("ministral3", talks, BATCHINGS["padded"])["visual_inputs"]
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            theirs("ministral3", talks, BATCHINGS["packed"])
        got = ours("ministral3", talks, BATCHINGS["packed"])["visual_inputs"]
        assert torch.equal(got.pixel_values, expected.pixel_values)
        assert torch.equal(got.image_sizes, expected.image_sizes)


@FAMILIES
def test_long_conversations_are_cut_alike_unless_an_image_is_cut(family: str) -> None:
    how, found = BATCHINGS["truncated"], collections.Counter[str]()

    def num_images(batch: dict[str, Any]) -> int:
        pixels = batch["visual_inputs"].pixel_values
        return 0 if pixels is None else len(pixels)

    for one in TALKS:
        try:
            got = ours(family, [one], how)
        except SkipSample:
            found["no label is left"] += 1
            continue
        expected = theirs(family, [one], how)
        if num_images(got) < num_images(expected):  # Bridge keeps the pixels of images whose tokens it cut off
            found["an image is cut"] += 1
        else:
            compare(got, expected)
            found["cut" if got["input_ids"].shape[1] == how.seq_length else "whole"] += 1
    kinds = {"cut", "whole"} if family == "gemma3" else {"no label is left", "cut", "whole", "an image is cut"}
    assert found.keys() == kinds, found


def test_images_of_ministral_side_by_side_are_told_apart() -> None:
    encoder = our_encoder("ministral3", BATCHINGS["packed"])
    two = next(one for one in TALKS if len(one.images) > 1).sample
    turns = [{"role": "user", "content": "<image>" * len(two.images)}, {"role": "assistant", "content": "a boat"}]
    made = encoder.encode_sample(type(two)(__key__="k", messages=turns, images=two.images))
    assert len(made.media["image_sizes"]) == len(two.images)
    end = make_processor("ministral3").image_end_token_id
    assert int((made.tokens == end).sum()) == len(two.images)


@FAMILIES
def test_the_step_makes_the_same_of_both(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = bridge("training.vlm_step")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    read = {"is_first_pp_stage": True, "is_last_pp_stage": True, "skip_getting_attention_mask_from_dataset": False}
    for talks in in_batches(10):
        made = (make(family, talks, BATCHINGS["padded"]) for make in (ours, theirs))
        compare(*(step.get_batch_from_iterator(iter([batch]), **read) for batch in made))


@FAMILIES
def test_a_processor_may_be_named_by_its_folder(family: str, tmp_path: Any) -> None:
    make_processor(family).save_pretrained(tmp_path)
    config = FamilyConfig(layout="bridge", pad_to_multiple_of=16)
    named, opened = (HFTaskEncoder(one, config) for one in (str(tmp_path), AutoProcessor.from_pretrained(tmp_path)))
    samples = [one.sample for one in TALKS[:5]]
    compare(*(each.batch([each.encode_sample(sample) for sample in samples]) for each in (named, opened)))
