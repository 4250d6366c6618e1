"""Processors of all families of transformers that take images and text, built from their classes alone.

A tokenizer gets the special tokens that the source of a processor's class names, and the attributes that it asks for;
image processors are those on Pillow, with their default settings. The chat template writes an image as the checkpoints
of the family do.
"""

import copy
import functools
import inspect
import re
import sys
from typing import Any

import numpy as np
import torch

from bridge_data.encoders import ConversationSample
from tests.encoders.parts import Talk, make_tokenizer, picture, png, unchecked
from tests.later import hf

_TOKENS = re.compile(r"<\|?[A-Za-z_0-9/|]{2,40}\|?>|\[[A-Z_]{2,30}\]|\|[A-Z]+\|")
_LACKS = re.compile(r"has no attribute '?(\w+?)(?:_id)?'?$")

_PATCHES = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_OPTIONS: dict[str, dict[str, Any]] = {
    "LlavaProcessor": _PATCHES,
    "LlavaNextProcessor": _PATCHES,
    "LlavaNextVideoProcessor": _PATCHES,
    "Granite4VisionProcessor": _PATCHES,
    "LlavaOnevisionProcessor": {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
    "InstructBlipProcessor": {"num_query_tokens": 4},
    "Blip2Processor": {"num_query_tokens": 4},
}
_NAMES = {
    name: {
        attribute: f"<{attribute}>"
        for attribute in (
            "image_token",
            "image_start_token",
            "image_end_token",
            "boi_token",
            "eoi_token",
            "audio_token",
            "boa_token",
            "eoa_token",
        )
    }
    for name in ("Gemma4Processor", "HunYuanVLProcessor")
}
_AROUND = {"HunYuanVLProcessor": "<image_start_token>{}<image_end_token>"}
_AROUND |= dict.fromkeys(
    ("Glm4vProcessor", "Glm46VProcessor", "Glm5NextProcessor"), "<|begin_of_image|>{}<|end_of_image|>"
)
_AROUND |= dict.fromkeys(
    ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"), "<|vision_start|>{}<|vision_end|>"
)

_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|turn|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'][0]['text'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{%- for part in message['content'] -%}
{{- 'IMAGE' if part['type'] == 'image' else part['text'] -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
"""


class _Part:
    """Stands where a processor wants parts for videos or sound, which need other libraries."""

    model_input_names = ()
    slice_mode = False
    downsample_mode = "16x"


def processors() -> dict[str, str]:
    """The type of a model for the name of each class of processors."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    known: dict[str, str] = {}
    for kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        name = PROCESSOR_MAPPING_NAMES.get(kind)
        if name is not None and known.get(name) not in IMAGE_PROCESSOR_MAPPING_NAMES:
            known[name] = kind
    return dict(sorted(known.items()))


@functools.cache
def make_processor(name: str) -> Any:
    """A processor of that class; None if its image processor needs torchvision."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    kind = getattr(hf, name)
    parts: dict[str, Any] = {}
    for part in kind.get_attributes():
        if part == "image_processor":
            its = IMAGE_PROCESSOR_MAPPING_NAMES.get(processors()[name])
            pillow = its.get("pil") if isinstance(its, dict) else None
            if pillow is None:
                return None
            parts[part] = getattr(hf, pillow)()
            parts[part].image_seq_length = 4  # which PaliGemma's has in its checkpoints
        elif "tokenizer" not in part:
            parts[part] = _Part()
    free = unchecked(kind)
    free.__name__, free.get_attributes = name, kind.get_attributes  # which reads the arguments of `__init__`
    named = dict(_NAMES.get(name, {}))
    while True:
        texts = {part: _tokenizer(kind, named) for part in kind.get_attributes() if part not in parts}
        try:
            made = free(**parts, **texts, **_OPTIONS.get(name, {}))
            break
        except AttributeError as error:
            lacked = _LACKS.search(str(error))
            if lacked is None or lacked[1] in named:
                raise
            named[lacked[1]] = f"<{lacked[1]}>"
    token = getattr(made, "image_placeholder_token", None) or getattr(made, "image_token", None) or "<image>"
    made.chat_template = _TEMPLATE.replace("IMAGE", _AROUND.get(name, "{}").format(token))
    return made


def _tokenizer(kind: Any, named: dict[str, str]) -> Any:
    backend = copy.deepcopy(make_tokenizer().backend_tokenizer)
    special = {"eos_token": "<|im_end|>", "pad_token": "<pad>", "bos_token": "<s>", "unk_token": "<unk>"}
    made = hf.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=named, **special)
    tokens = [*dict.fromkeys(_TOKENS.findall(inspect.getsource(sys.modules[kind.__module__]))), "<|turn|>"]
    made.add_special_tokens({"additional_special_tokens": tokens}, replace_extra_special_tokens=False)
    return made


def talk(*turns: list[tuple[int, int]], seed: int = 0) -> Talk:
    """A conversation with images of these sizes in its questions, the first one before the words."""
    messages: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    images: list[Any] = []
    for number, sizes in enumerate(turns):
        own = [picture(size, seed + len(images) + place) for place, size in enumerate(sizes)]
        question, answer = f"what is this {number}", f"a boat on sea {number}"
        parts = [{"type": "text", "text": question}, *({"type": "image", "image": image} for image in own)]
        if own:
            parts.insert(0, parts.pop(1))
        text = "<image>" * bool(own) + question + "<image>" * (len(own) - 1)
        messages += [{"role": "user", "content": parts}]
        messages += [{"role": "assistant", "content": [{"type": "text", "text": answer}]}]
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        images += own
    sample = ConversationSample(__key__=f"talk-{seed}", messages=said, images=[png(image) for image in images])
    return Talk(messages, sample)


def answers(talk: Talk) -> str:
    """All that is learnt of a conversation."""
    texts = [turn["content"][0]["text"] for turn in talk.messages if turn["role"] == "assistant"]
    return "".join(f"{text}<|im_end|>" for text in texts)


def of_processor(processor: Any, talks: list[Talk]) -> dict[str, torch.Tensor]:
    """What the processor makes of a batch of conversations."""
    made = processor.apply_chat_template(
        [talk.messages for talk in talks],
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": True, "padding_side": "right", "images_kwargs": {"return_tensors": "pt"}},
    )
    return {name: torch.as_tensor(np.asarray(value)) for name, value in made.items()}
