"""InternVL: an image becomes the grid of tiles nearest to its aspect, and a thumbnail of the whole.

Enters: images of any size. Leaves: tiles, row by row, the thumbnail last; an image of one tile has no thumbnail.

Source: Z. Chen et al., How far are we to GPT-4V? (2024): dynamic resolution; the grid is chosen as in
transformers' image processor.
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
"""ChatML, with a line break after each image, as in the checkpoints of InternVL."""


@dataclasses.dataclass(frozen=True)
class InternVL:
    """`image_processor` is `GotOcr2ImageProcessor`, with its `min_patches` and `max_patches` (tiles of an image); a
    tile takes `image_seq_length` tokens, which is (tile size / patch size)² · scale factor².

    Each level of detail halves the largest number of tiles, down to one.

    Raises:
        ConfigError: if the processor does not tile like that.
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
        """How often the largest number of tiles can be halved, plus one."""
        return int(self.image_processor.max_patches).bit_length()

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token, `image_seq_length` times for each tile, between the start and end tokens of an image."""
        num_tokens = self.image_seq_length * self.num_tiles(size, detail)
        return [(self.start_image_token, 1), (self.image_token, num_tokens), (self.end_image_token, 1)]

    def num_tiles(self, size: Size, detail: int) -> int:
        """The tiles of the grid, plus the thumbnail if there are several."""
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
