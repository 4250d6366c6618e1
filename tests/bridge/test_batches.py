"""Batches of `layout="bridge"` are, field by field, those of Megatron-Bridge's encoders of Qwen-VL.

50 conversations: captions, questions about an image, and several turns with 0 to 3 images of many sizes. What stands in
for Bridge's parts that need CUDA is said in `tests/bridge/batch_parts.py`.
"""

import collections
import dataclasses
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from bridge_data.encoders import ConversationSample, SamplePolicies
from bridge_data.errors import SkipSample
from bridge_data.plugins.encoders.qwen_encoder import IMAGE, mrope_positions
from bridge_data.plugins.encoders.qwen_families import QWEN2_VL_TEMPLATE
from tests.bridge.batch_parts import (
    MODELS,
    PLAIN,
    TALKS,
    Batching,
    Talk,
    bridge,
    bridges,
    is_installed,
    our_encoder,
    ours,
    tokenizer,
)
from tests.encoders.parts import picture, png

pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not is_installed(), reason="megatron.bridge is not installed: see make test-bridge"),
]

MARKED = QWEN2_VL_TEMPLATE.replace(
    "{%- for part in message['content']",
    "{%- for part in ([{'type': 'text', 'text': message['content']}] if message['content'] is string "
    "else message['content'])",
)
"""The family's own template, which marks answers, for contents that are text or parts."""

BATCHINGS = {
    "padded": Batching(),
    "padded to seq_length": Batching(to_length=True),
    "truncated": Batching(seq_length=96, multiple=1),
    "packed": Batching(pack=True, multiple=1),
    "packed and aligned": Batching(pack=True, multiple=16),
}
ORIGIN = ("__restore_key__", "__sources__")
"""Bridge's batches have none; ours say where they come from."""


def same(got: Any, expected: Any, name: str) -> None:
    """Two values of one field: type, dtype, shape and elements."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor) and got.dtype == expected.dtype, name
        assert got.shape == expected.shape, f"{name}: {got.shape}, expected {expected.shape}"
        assert torch.equal(got, expected), f"{name}: {(got != expected).nonzero()[:5].tolist()}"
    else:
        assert type(got) is type(expected) and got == expected, name


def compare(got: dict[str, Any], expected: dict[str, Any]) -> None:
    fields = expected.keys() - {*ORIGIN, "visual_inputs"}
    assert got.keys() >= expected.keys()
    assert got.keys() - expected.keys() <= {"total_tokens", "__key__", "__keys__", *ORIGIN}
    for name in fields:
        same(got[name], expected[name], name)
    theirs, visual = expected["visual_inputs"], got["visual_inputs"]
    assert vars(visual).keys() == vars(theirs).keys()
    for name, value in vars(theirs).items():
        same(getattr(visual, name), value, name)
    assert visual.normalized_for_model().keys() == theirs.normalized_for_model().keys()


def in_batches(size: int = 5) -> list[Any]:
    return [TALKS[start : start + size] for start in range(0, len(TALKS), size)]


GENERIC = pytest.mark.parametrize("generic", [False, True], ids=["QwenVLTaskEncoder", "HFTaskEncoder"])


@GENERIC
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["padded", "packed", "packed and aligned"])
def test_50_conversations_are_equal_in_every_field(name: str, how: str, generic: bool) -> None:
    theirs = bridges(name, PLAIN, BATCHINGS[how], generic=generic)
    mine = ours(name, PLAIN, BATCHINGS[how], generic=generic)
    for talks in in_batches():
        compare(mine(talks), theirs(talks))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["padded to seq_length", "packed"])
def test_a_template_that_marks_answers_makes_the_same_labels(name: str, how: str) -> None:
    theirs = bridges(name, MARKED, BATCHINGS[how], generic=False)
    mine = ours(name, MARKED, BATCHINGS[how], generic=False)
    num_wrong = 0
    for one in TALKS:
        got, expected = mine([one]), theirs([one])
        said = [turn["content"] for turn in one.turns if turn["role"] == "assistant"]
        answers = "".join(f"{answer}<|im_end|>\n" for answer in said)
        assert learnt(got) == answers
        if learnt(expected) == answers:
            compare(got, expected)
        else:
            num_wrong += 1
    # The masks of answers of transformers 5.12 are those of the text before its images grew, and Bridge learns by them.
    assert num_wrong <= (10 if Version(transformers.__version__) < Version("5.23") else 0)


THINKING = PLAIN.replace(
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}",
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['role'] == 'assistant' and loop.last -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}",
).replace(
    "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n",
    "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}\n",
)
"""As Qwen3.5 writes turns: empty thoughts before the last answer, and in the generation prompt."""


@GENERIC
def test_empty_thoughts_of_the_generation_prompt_are_learnt_by_bridge_alone(generic: bool) -> None:
    theirs = bridges("Qwen3VLProcessor", THINKING, BATCHINGS["packed"], generic=generic)
    mine = ours("Qwen3VLProcessor", THINKING, BATCHINGS["packed"], generic=generic)
    for talks in in_batches(1):
        got, expected = mine(talks), theirs(talks)
        assert learnt(expected).count("<think>") == 1
        assert learnt(got) == learnt(expected).replace("<think>\n\n</think>\n\n", "")
        for name in ("labels", "loss_mask"):
            got[name] = expected[name]
        compare(got, expected)


def learnt(batch: dict[str, Any]) -> str:
    """The labels of a batch of one sample, as text."""
    return str(tokenizer(MARKED).decode(batch["labels"][batch["loss_mask"] > 0]))


@GENERIC
def test_long_conversations_are_cut_alike_unless_an_image_is_cut(generic: bool) -> None:
    theirs = bridges("Qwen2_5_VLProcessor", PLAIN, BATCHINGS["truncated"], generic=generic)
    mine = ours("Qwen2_5_VLProcessor", PLAIN, BATCHINGS["truncated"], generic=generic)
    image_id = tokenizer(PLAIN).convert_tokens_to_ids("<|image_pad|>")
    found = collections.Counter[str]()

    def num_patches(batch: dict[str, Any]) -> int:
        grids = batch["visual_inputs"].image_grid_thw
        return 0 if grids is None else int(grids.prod(dim=1).sum())

    for one in TALKS:
        try:
            got = mine([one])
        except SkipSample:
            found["no label is left"] += 1
            with pytest.raises(ValueError, match="removed every supervised token"):
                theirs([one])
            continue
        expected = theirs([one])
        if num_patches(got) == num_patches(expected):
            compare(got, expected)
            found["cut" if got["input_ids"].shape[1] == 96 else "whole"] += 1
        else:  # Bridge keeps the pixels of images whose tokens it cut off, which no model takes
            found["an image is cut"] += 1
            assert 4 * int((got["input_ids"] == image_id).sum()) == num_patches(got)
            assert 4 * int((expected["input_ids"] == image_id).sum()) < num_patches(expected)
    assert all(found[kind] for kind in ("no label is left", "cut", "whole", "an image is cut")), found


@GENERIC
def test_images_without_a_placeholder_come_first_where_bridge_loses_them(generic: bool) -> None:
    turns = [{"role": "user", "content": "what is this ?"}, {"role": "assistant", "content": "a boat"}]
    shown = picture((60, 60))
    sample = ConversationSample(__key__="k", messages=turns, images=[png(shown)])
    expected, got = (
        make("Qwen2_5_VLProcessor", PLAIN, BATCHINGS["packed"], generic=generic)([Talk(sample, turns, [shown])])
        for make in (bridges, ours)
    )
    assert expected["visual_inputs"].pixel_values is None
    assert got["visual_inputs"].image_grid_thw.tolist() == [[1, 4, 4]]
    assert got["total_tokens"] == expected["input_ids"].shape[1] + 7  # 4 of the image, 2 around them, a line break


def test_empty_answers_and_roles_in_any_order_are_alike_where_they_are_kept() -> None:
    said = [("system", "a"), ("user", "what ?"), ("user", "where ?"), ("assistant", ""), ("assistant", "a boat")]
    turns = [{"role": role, "content": content} for role, content in [*said, ("user", "and ?")]]
    one = Talk(ConversationSample(__key__="k", messages=turns), turns, [])
    how = BATCHINGS["padded"]
    kept = SamplePolicies(empty_answer="keep", roles_out_of_order="keep")
    encoder = our_encoder("Qwen3VLProcessor", PLAIN, how, policies=kept)
    got = encoder.batch([encoder.postencode_sample(encoder.preencode_sample(one.sample))])
    compare(got, bridges("Qwen3VLProcessor", PLAIN, how, generic=False)([one]))
    assert learnt(got) == "<|im_end|>\na boat<|im_end|>\n"


def test_packs_of_a_buffer_are_as_packed_in_a_batch() -> None:
    how = BATCHINGS["packed and aligned"]
    theirs = bridges("Qwen3VLProcessor", PLAIN, how, generic=False)
    encoder = our_encoder("Qwen3VLProcessor", PLAIN, dataclasses.replace(how, pack=False))
    samples = [encoder.preencode_sample(one.sample) for one in TALKS[:12]]
    by_key = {one.sample.__key__: one for one in TALKS}
    for pack in encoder.select_samples_to_pack(samples):
        keys = [sample.__key__ for sample in pack]
        packed = encoder.pack_selected_samples([encoder.postencode_sample(sample) for sample in pack])
        got, expected = encoder.batch([packed]), theirs([by_key[key] for key in keys])
        assert got["input_ids"].shape[1] <= how.seq_length
        assert got.pop("__keys__") == got.pop("__key__") == [",".join(keys)]
        compare(got, {name: value for name, value in expected.items() if name not in ("__key__", "__keys__")})


@pytest.mark.parametrize("how", ["padded", "packed and aligned"])
def test_the_step_makes_the_same_of_both(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, packing = bridge("training.vlm_step"), bridge("training.utils.packed_seq_utils")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    name = "Qwen2_5_VLProcessor"
    sides = [make(name, PLAIN, BATCHINGS[how], generic=False) for make in (ours, bridges)]
    for talks in in_batches(10):
        for first in (True, False):
            read = {"is_first_pp_stage": first, "is_last_pp_stage": not first}
            got, expected = (
                step.get_batch_from_iterator(
                    iter([make(talks)]), skip_getting_attention_mask_from_dataset=False, **read
                )
                for make in sides
            )
            compare(got, expected)
            assert (got["visual_inputs"].pixel_values is None) == (not first)
        if BATCHINGS[how].pack:
            parameters = [packing.get_packed_seq_params(batch) for batch in (got, expected)]
            for field in dataclasses.fields(parameters[0]):
                same(getattr(parameters[0], field.name), getattr(parameters[1], field.name), field.name)


def test_the_other_step_of_qwen3_vl_takes_batches_without_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    step = bridge("models.qwen_vl.qwen3_vl_step")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    read = {"is_first_pp_stage": True, "is_last_pp_stage": True, "skip_getting_attention_mask_from_dataset": False}
    for how in ("padded", "packed"):
        sides = [make("Qwen3VLProcessor", PLAIN, BATCHINGS[how], generic=False)(TALKS[:10]) for make in (ours, bridges)]
        if how == "padded":
            compare(*(step.get_batch_from_iterator(iter([batch]), **read) for batch in sides))
        for batch in sides if how == "packed" else []:
            with pytest.raises(ValueError, match="does not support collate-time in-batch packing"):
                step.get_batch_from_iterator(iter([batch]), **read)


def test_the_models_of_bridge_make_our_mrope_positions_of_a_batch() -> None:
    rope = bridge("models.qwen_vl.modelling_qwen3_vl.rope")
    of = tokenizer(PLAIN).convert_tokens_to_ids
    mine = ours("Qwen3VLProcessor", PLAIN, BATCHINGS["padded"], generic=False)
    for talks in in_batches(1):
        batch = mine(talks)
        ids, grids = batch["input_ids"], batch["visual_inputs"].image_grid_thw
        made, _ = rope.get_rope_index(
            2, of("<|image_pad|>"), of("<|video_pad|>"), of("<|vision_start|>"), ids, grids,
            attention_mask=batch["attention_mask"],
        )  # fmt: skip
        length = int(batch["attention_mask"].sum())
        types = (ids[0, :length] == of("<|image_pad|>")) * IMAGE
        in_tokens = [] if grids is None else [(1, rows // 2, columns // 2) for _, rows, columns in grids.tolist()]
        assert torch.equal(made[:, 0, :length], mrope_positions(types, in_tokens, []))
