"""LLaVA: every image the same size, and so many tokens as a vision tower makes patches of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL import Image

from bridge_data.encoders.family import Media, Pieces, Size, joined
from bridge_data.encoders.images import Images
from bridge_data.encoders.tiling import check_tower

LLAVA_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- for part in message['content'] -%}{{- part['text'] + ' ' -}}{%- endfor -%}
{%- elif message['role'] == 'user' -%}
{{- 'USER: ' -}}
{%- for part in message['content'] if part['type'] == 'image' -%}{{- '<image>\\n' -}}{%- endfor -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{- part['text'] + ' ' -}}{%- endfor -%}
{%- else -%}
{{- 'ASSISTANT:' -}}
{%- generation -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{- ' ' + part['text'] -}}{%- endfor -%}
{{- eos_token or '' -}}
{%- endgeneration -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""
"""Vicuna's way of writing, with the images of a turn before its text, as the checkpoints of LLaVA 1.5 and NeXT have
it."""

SelectStrategy = Literal["default", "full"]


@dataclasses.dataclass(frozen=True)
class Llava:
    """`image_processor` makes images of one size, such as CLIP's. The vision tower cuts them into patches of
    `patch_size`, and has `num_additional_image_tokens` more (1: CLIP's class token), of which
    `vision_feature_select_strategy` "default" drops one again: the three as in the model's processor.

    Raises:
        ConfigError: if the processor makes images of several sizes.
    """

    image_processor: Any
    patch_size: int
    vision_feature_select_strategy: SelectStrategy = "default"
    num_additional_image_tokens: int = 1
    image_token: str = "<image>"
    chat_template: str | None = LLAVA_TEMPLATE

    def __post_init__(self) -> None:
        check_tower("Llava", self.patch_size, self.vision_feature_select_strategy)
        _, height, width = Images(self.image_processor).shape
        num_tokens = (height // self.patch_size) * (width // self.patch_size) + self.num_additional_image_tokens
        object.__setattr__(self, "_num_tokens", num_tokens - (self.vision_feature_select_strategy == "default"))

    @property
    def num_details(self) -> int:
        """One: there is no choice."""
        return 1

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token, so many times."""
        num_tokens: int = self.__dict__["_num_tokens"]
        return [(self.image_token, num_tokens)]

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` float32 (images, channels, height, width)."""
        made = self.image_processor(images=list(images), return_tensors="pt")
        return {"pixel_values": torch.as_tensor(made["pixel_values"])}

    def batch(self, rows: Sequence[Media]) -> Media:
        """The images of all rows."""
        return joined(rows)
