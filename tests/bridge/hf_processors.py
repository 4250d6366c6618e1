"""Processors of Gemma 3, Gemma 4 and Ministral 3, made of parts: transformers' own classes, image processors of a few
pixels, a tokenizer trained on the spot, and the chat template of their checkpoints."""

import functools
from typing import Any

import transformers as hf

from tests.encoders.parts import make_tokenizer
from tests.tiny_models.parts import PATCH, TILE

GEMMA3_TEMPLATE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
{%- if messages[0]['content'] is string -%}
{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
{%- else -%}
{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
{%- endif -%}
{%- set loop_messages = messages[1:] -%}
{%- else -%}
{%- set first_user_prefix = "" -%}
{%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
{%- endif -%}
{%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
{%- if message['content'] is string -%}
{{ message['content'] | trim }}
{%- else -%}
{%- for item in message['content'] -%}
{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

GEMMA4_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages -%}
{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}
{%- for item in message['content'] -%}
{{- '<|image|>' if item['type'] == 'image' else item['text'] | trim -}}
{%- endfor -%}
{%- endif -%}
{{ '<turn|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|turn>model\\n<|channel>thought\\n<channel|>' }}{%- endif -%}
"""

MINISTRAL3_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- message['content'] if message['content'] is string else message['content'][0]['text'] -}}
{{- eos_token -}}
{%- else -%}
{%- set name = 'SYSTEM_PROMPT' if message['role'] == 'system' else 'INST' -%}
{{- '[' + name + ']' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '[IMG]' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '[/' + name + ']' -}}
{%- endif -%}
{%- endfor -%}
"""

_KINDS = ("image", "boi", "eoi", "audio", "boa", "eoa")
_MEDIA = ("<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>")
_NAMES = {
    "gemma3": {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    "gemma4": {f"{kind}_token": name for kind, name in zip(_KINDS, _MEDIA, strict=True)},
    "ministral3": {"image_token": "[IMG]", "break_token": "[IMG_BREAK]", "end_token": "[IMG_END]"},
}
_TURNS = {
    "gemma3": ["<start_of_turn>", "<end_of_turn>"],
    "gemma4": ["<|turn>", "<turn|>", "<|channel>", "<channel|>"],
    "ministral3": ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
}


@functools.cache
def make_processor(family: str) -> Any:
    """The processor of a family."""
    backend = make_tokenizer(begin=True).backend_tokenizer
    named = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    made = hf.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=_NAMES[family], **named)
    made.add_special_tokens({"additional_special_tokens": _TURNS[family]}, replace_extra_special_tokens=False)
    if family == "gemma3":
        images = hf.Gemma3ImageProcessorPil(size={"height": TILE, "width": TILE})
        return hf.Gemma3Processor(images, made, image_seq_length=4, chat_template=GEMMA3_TEMPLATE)
    if family == "gemma4":
        settings = {"patch_size": PATCH, "max_soft_tokens": 70, "pooling_kernel_size": 3}
        video, sound = hf.Gemma4VideoProcessor(**settings), hf.Gemma4AudioFeatureExtractor()
        parts = (sound, hf.Gemma4ImageProcessorPil(**settings), made, video)
        return hf.Gemma4Processor(*parts, image_seq_length=70, chat_template=GEMMA4_TEMPLATE)
    images = hf.PixtralImageProcessorPil(size={"longest_edge": 4 * TILE}, patch_size={"height": PATCH, "width": PATCH})
    return hf.PixtralProcessor(images, made, patch_size=PATCH, spatial_merge_size=2, chat_template=MINISTRAL3_TEMPLATE)
