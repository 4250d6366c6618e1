"""InternVL: an image becomes the grid of tiles nearest to its aspect, and a thumbnail of the whole.

Enters: images of any size. Leaves: tiles, row by row, the thumbnail last; an image of one tile has no thumbnail.

Source: Z. Chen et al., How far are we to GPT-4V? (2024): dynamic resolution; the choice of the grid is that of
transformers' image processor for it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from bridge_data.encoders.family import Media, Pieces, Size, check_tiles, joined
from bridge_data.errors import ConfigError

INTERNVL_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endgeneration -%}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<IMG_CONTEXT>\\n' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""ChatML, with a line break behind each image, as the checkpoints of InternVL have it."""


@dataclasses.dataclass(frozen=True)
class InternVL:
    """`image_processor` is `GotOcr2ImageProcessor`, with its `min_patches` and `max_patches` (tiles of an image); a
    tile takes `image_seq_length` tokens, which is (tile size / patch size)² · scale factor².

    With less detail, an image has half as many tiles at most; at the last there is one.

    Raises:
        ConfigError: if the processor does not tile so.
    """

    image_processor: Any
    image_seq_length: int = 256
    image_token: str = "<IMG_CONTEXT>"
    start_image_token: str = "<img>"
    end_image_token: str = "</img>"
    chat_template: str | None = INTERNVL_TEMPLATE

    def __post_init__(self) -> None:
        if self.image_seq_length < 1:
            raise ConfigError(f"InternVL(image_seq_length={self.image_seq_length}): expected at least 1")
        if not hasattr(self.image_processor, "max_patches"):
            raise ConfigError(
                f"InternVL(image_processor={type(self.image_processor).__name__}): it has no max_patches; expected a "
                "GotOcr2ImageProcessor, which is InternVL's"
            )

    @property
    def num_details(self) -> int:
        """How often the most tiles can be halved, and one."""
        return int(self.image_processor.max_patches).bit_length()

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token for each tile, so many times, between those that begin and end an image."""
        num_tokens = self.image_seq_length * self.num_tiles(size, detail)
        return [(self.start_image_token, 1), (self.image_token, num_tokens), (self.end_image_token, 1)]

    def num_tiles(self, size: Size, detail: int) -> int:
        """The tiles of the grid, and, of more than one, the thumbnail."""
        return int(self.image_processor.get_number_of_image_patches(*size, self._options(detail)))

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` float32 (tiles, channels, height, width) of all images."""
        made = self.image_processor(images=list(images), return_tensors="pt", **self._options(detail))
        expected = sum(self.num_tiles((image.height, image.width), detail) for image in images)
        check_tiles("InternVL", len(made["pixel_values"]), expected)
        return {"pixel_values": torch.as_tensor(made["pixel_values"])}

    def batch(self, rows: Sequence[Media]) -> Media:
        """The tiles of all rows."""
        return joined(rows)

    def _options(self, detail: int) -> dict[str, Any]:
        most = max(1, int(self.image_processor.max_patches) >> detail)
        least = min(most, int(self.image_processor.min_patches))
        return {"crop_to_patches": True, "min_patches": least, "max_patches": most}
