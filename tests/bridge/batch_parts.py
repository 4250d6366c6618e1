"""Bridge's encoders of Qwen-VL on a CPU, and 50 conversations as samples of Bridge and of ours.

Bridge's own code runs; the `conftest.py` of this folder stands in for packages that only CUDA has, which the
`__init__`s of Bridge import. The processors are transformers' own, made of parts: its image processor on Pillow, a
tokenizer trained on the spot, and, where there are videos, its video processor, which needs torchvision.
"""

import copy
import dataclasses
import functools
import importlib
import importlib.util
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from bridge_data.encoders import (
    ConversationSample,
    ConversationTemplateConfig,
    FamilyConfig,
    HFTaskEncoder,
    Qwen2_5VL,
    Qwen3VL,
    QwenVLTaskEncoder,
    SamplePolicies,
)
from bridge_data.samples import CaptioningSample, Sample, VQASample
from tests.encoders.parts import TEXT, make_tokenizer, picture, png

# Bridge

_OF_CUDA = ("transformer_engine", "modelopt", "nvidia_resiliency_ext")


def is_installed() -> bool:
    """Whether there is a `megatron.bridge`, whatever it needs."""
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


def bridge(name: str) -> Any:
    """The module `megatron.bridge.<name>`. Skips the test if it needs a package of CUDA, and nothing stands in."""
    try:
        return importlib.import_module(f"megatron.bridge.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OF_CUDA:
            pytest.skip(f"megatron.bridge imports {error.name}, which needs CUDA; make test-bridge has stand-ins")
        raise


# Processors

MIN_PIXELS, MAX_PIXELS = 56 * 56, 168 * 168
MODELS = {"Qwen2_5_VLProcessor": (Qwen2_5VL, "qwen2_5_vl", 14), "Qwen3VLProcessor": (Qwen3VL, "qwen3_vl", 16)}
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]

_TURN = """\
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>' -}}"""

PLAIN = (
    "{%- for message in messages -%}\n"
    "{%- if loop.first and message['role'] != 'system' -%}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}{%- endif -%}\n"
    f"{_TURN}\n{{{{- '\\n' -}}}}\n{{%- endfor -%}}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"
)
"""ChatML as the checkpoints of Qwen-VL have it: contents are text or parts, and answers are not marked."""


@functools.cache
def tokenizer(template: str) -> Any:
    """A trained byte-level BPE tokenizer with the special tokens of Qwen-VL."""
    made = copy.deepcopy(make_tokenizer(template=template))
    made.add_special_tokens({"additional_special_tokens": TOKENS}, replace_extra_special_tokens=False)
    made.pad_token = "<|endoftext|>"  # is not token 0, which Bridge pads with, too
    return made


def image_processor(patch_size: int) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    return Qwen2VLImageProcessorPil(patch_size=patch_size, merge_size=2, size=size)


@functools.cache
def processor(name: str, template: str, *, videos: bool = False) -> Any:
    """Transformers' processor of that name, without the check of the class of its parts; its part for `videos` needs
    torchvision."""
    _, model, patch_size = MODELS[name]
    original = getattr(importlib.import_module(f"transformers.models.{model}.processing_{model}"), name)
    made = type(name, (original,), {"check_argument_for_proper_class": lambda *_: None})(
        image_processor(patch_size),
        tokenizer(template),
        video_processor(name, patch_size) if videos else _NoVideos(),
        chat_template=template,
    )
    made.video_token = "<|video_pad|>"  # the tokenizer of all families has that of another one
    made.video_token_id = made.tokenizer.convert_tokens_to_ids("<|video_pad|>")
    return made


def video_processor(name: str, patch_size: int) -> Any:
    kind = "Qwen3VL" if name.startswith("Qwen3") else "Qwen2VL"
    model = "qwen3_vl" if name.startswith("Qwen3") else "qwen2_vl"
    module = importlib.import_module(f"transformers.models.{model}.video_processing_{model}")
    images = image_processor(patch_size)
    return getattr(module, f"{kind}VideoProcessor")(
        patch_size=patch_size, merge_size=2, image_mean=images.image_mean, image_std=images.image_std
    )


class _NoVideos:
    model_input_names: tuple[str, ...] = ()


# Conversations


@dataclasses.dataclass(frozen=True)
class Talk:
    """A conversation as a sample of ours; and its turns and images, as Bridge takes them."""

    sample: Sample
    turns: list[dict[str, str]]
    images: list[Image.Image]


def talk(seed: int) -> Talk:
    """A caption, a question about an image, or 1 to 3 questions with 0 to 3 images anywhere in them."""
    draw = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, most)))

    def image(number: int) -> Image.Image:
        return picture((draw.randint(5, 260), draw.randint(5, 260)), seed * 10 + number)

    kind, key = draw.choice(["caption", "question", "turns", "turns", "turns"]), f"talk-{seed}"
    if kind == "caption":
        shown, caption = image(0), words(9)
        turns = [{"role": "user", "content": "<image>\nDescribe the image."}, {"role": "assistant", "content": caption}]
        return Talk(CaptioningSample(__key__=key, image=png(shown), caption=caption), turns, [shown])
    if kind == "question":
        shown, question, answer = image(0), f"<image>{words(6)} ?", words(9)
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return Talk(VQASample(__key__=key, image=png(shown), context=question, answers=[answer]), turns, [shown])
    turns = [{"role": "system", "content": words(4)}] if draw.random() < 0.3 else []
    images: list[Image.Image] = []
    num_images = draw.randint(0, 3)
    for _ in range(draw.randint(1, 3)):
        pieces = [words(8) for _ in range(draw.randint(1, 2))]
        for _ in range(draw.randint(0, num_images - len(images))):
            around = draw.choice(["", " ", "\n"]), draw.choice(["", " ", "\n"])
            pieces.insert(draw.randint(0, len(pieces)), f"{around[0]}<image>{around[1]}")
            images.append(image(len(images)))
        turns.append({"role": "user", "content": "".join(pieces)})
        turns.append({"role": "assistant", "content": words(9)})
    sample = ConversationSample(__key__=key, messages=turns, images=[png(shown) for shown in images])
    return Talk(sample, turns, images)


TALKS = [talk(seed) for seed in range(50)]


def chatml(one: Talk) -> Any:
    """The conversation as a sample of Bridge."""
    return bridge("data.energon.task_encoder_utils").ChatMLSample(
        __key__=one.sample.__key__,
        __restore_key__=(),
        __subflavors__={},
        conversation=json.dumps(one.turns),
        imgs=one.images or None,
    )


# Encoders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How both sides pad and pack."""

    seq_length: int = 1024
    multiple: int = 128
    to_length: bool = False
    pack: bool = False


def bridges(name: str, template: str, how: Batching, *, generic: bool) -> Callable[[list[Talk]], dict[str, Any]]:
    """Bridge's encoder of Qwen-VL, or with `generic` that of any processor: conversations to a batch."""
    shared: dict[str, Any] = {
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "pad_to_max_length": how.to_length,
        "pad_to_multiple_of": how.multiple,
        "enable_in_batch_packing": how.pack,
        "in_batch_packing_pad_to_multiple_of": how.multiple,
    }
    whole = processor(name, template)
    if generic:
        encoder = bridge("data.energon.hf_task_encoder").HFTaskEncoder(whole, seq_length=how.seq_length, **shared)
    else:
        module = bridge("models.qwen_vl.data.energon")  # its count of visual tokens wants older transformers
        shared |= {
            "max_padding_length": how.seq_length,
            "max_visual_tokens": None,
        }
        encoder = module.QwenVLTaskEncoder(whole.tokenizer, whole, **shared)

    def made(talks: list[Talk]) -> dict[str, Any]:
        return encoder.encode_batch(encoder.batch([encoder.encode_sample(chatml(one)) for one in talks]))

    return made


def our_encoder(
    name: str,
    template: str,
    how: Batching,
    *,
    generic: bool = False,
    policies: SamplePolicies = SamplePolicies(),  # noqa: B008  it is frozen
) -> Any:
    """The encoder of ours for the same."""
    family, _, patch_size = MODELS[name]
    config = FamilyConfig(
        conversation_template_config=ConversationTemplateConfig(chat_template=template),
        pad_to_max_length=how.to_length,
        pad_to_multiple_of=how.multiple,
        pack_in_batch=how.pack,
        layout="bridge",
        policies=policies,
    )
    limits = {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
    if generic:
        whole = processor(name, template)
        return HFTaskEncoder(whole, config, seq_length=how.seq_length, processor_options=limits)
    made = family(image_processor(patch_size), **limits)
    return QwenVLTaskEncoder(tokenizer(template), made, config, seq_length=how.seq_length)


def ours(name: str, template: str, how: Batching, *, generic: bool) -> Callable[[list[Talk]], dict[str, Any]]:
    """The encoder of ours: conversations to a batch."""
    encoder = our_encoder(name, template, how, generic=generic)

    def made(talks: list[Talk]) -> dict[str, Any]:
        samples = [one.sample for one in talks]
        if generic:
            return encoder.batch([encoder.encode_sample(sample) for sample in samples])
        return encoder.batch([encoder.postencode_sample(encoder.preencode_sample(sample)) for sample in samples])

    return made
