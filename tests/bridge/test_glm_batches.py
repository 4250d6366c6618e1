"""Batches of `HFTaskEncoder` with `layout="bridge"` and the processor of GLM-4.5V are those of Bridge's collator, types
of tokens among them."""

import copy
import functools
from typing import Any

import pytest
import torch

from bridge_data.encoders import FamilyConfig, HFTaskEncoder
from tests.bridge.batch_parts import TALKS, Batching, Talk, bridge, chatml, is_installed
from tests.encoders.parts import make_tokenizer
from tests.later import hf

pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not is_installed(), reason="megatron.bridge is not installed: see make test-bridge"),
]

TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>\\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<|begin_of_image|><|image|><|end_of_image|>' -}}
{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
MEDIA = ["<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"]


@functools.cache
def make_processor() -> Any:
    backend = copy.deepcopy(make_tokenizer().backend_tokenizer)
    named = {"image_token": "<|image|>", "video_token": "<|video|>"}
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<pad>", extra_special_tokens=named
    )
    tokens = {"additional_special_tokens": [*ROLES, *MEDIA]}
    tokenizer.add_special_tokens(tokens, replace_extra_special_tokens=False)
    images = hf.Glm4vImageProcessor(size={"shortest_edge": 1024, "longest_edge": 20_000})
    return hf.Glm4vProcessor(images, tokenizer, hf.Glm4vVideoProcessor(), chat_template=TEMPLATE)


def batches(talks: list[Talk], how: Batching) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ours, and Bridge's."""
    config = FamilyConfig(pack_in_batch=how.pack, layout="bridge", pad_to_multiple_of=how.multiple)
    ours = HFTaskEncoder(make_processor(), config, seq_length=how.seq_length)
    theirs = bridge("data.energon.hf_task_encoder").HFTaskEncoder(
        make_processor(),
        seq_length=how.seq_length,
        pad_to_multiple_of=how.multiple,
        enable_in_batch_packing=how.pack,
        in_batch_packing_pad_to_multiple_of=how.multiple,
    )
    samples = [theirs.encode_sample(chatml(one)) for one in talks]
    made = ours.batch([ours.encode_sample(one.sample) for one in talks])
    return made, theirs.encode_batch(theirs.batch(samples))


@pytest.mark.parametrize(
    "how",
    [Batching(), Batching(pack=True, multiple=1), Batching(pack=True, multiple=16)],
    ids=["padded", "packed", "aligned"],
)
def test_tokens_positions_and_visual_inputs_are_equal(how: Batching) -> None:
    for start in range(0, 30, 5):
        got, expected = batches(TALKS[start : start + 5], how)
        differing = [
            name
            for name, value in expected.items()
            if isinstance(value, torch.Tensor) and name in got and not torch.equal(value, got[name])
        ]
        assert differing == []
        ours, theirs = (made["visual_inputs"].as_model_kwargs() for made in (got, expected))
        assert ours.keys() == theirs.keys() and "mm_token_type_ids" in ours
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), name
