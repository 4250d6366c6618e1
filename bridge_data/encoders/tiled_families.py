"""Families that split an image into tiles and also see the whole image: Idefics3 with SmolVLM, and InternVL.

Enters: images of any size. Leaves: tiles, row by row, the whole image last.

Idefics3 and SmolVLM enlarge an image to a whole number of tiles; the row and column of each are written before its
tokens. A small image (or any, without splitting) is one tile. InternVL takes the grid of tiles nearest to the aspect of
the image; an image of one tile is not seen a second time.

Source: H. Laurençon et al., Building and better understanding vision-language models (2024); A. Marafioti et al.,
SmolVLM (2025); Z. Chen et al., How far are we to GPT-4V? (2024). The rounding and the choice of a grid are those of
transformers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from bridge_data.encoders.chat import chatml
from bridge_data.encoders.family import (
    Media,
    Pieces,
    Size,
    blank_images,
    check_tiles,
    edge_of,
    fitting,
    joined,
    stack_padded,
)
from bridge_data.errors import ConfigError
from bridge_data.options import check_at_least

# Idefics3

IDEFICS3_TEMPLATE = """\
{{- '<|im_start|>' -}}
{%- for message in messages -%}
{{- message['role'] | capitalize -}}
{%- if message['content'][0]['type'] == 'image' -%}{{- ':' -}}{%- else -%}{{- ': ' -}}{%- endif -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}
{{- '<end_of_utterance>' -}}
{%- endgeneration -%}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<image>' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{{- '<end_of_utterance>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""
"""The format of both checkpoints, with marks on the answers."""

_LARGEST = 4096
"""The longest side to which images are ever resized."""


@dataclasses.dataclass(frozen=True)
class Idefics3:
    """`image_processor` is that of Idefics3 or SmolVLM; a tile takes `image_seq_len` tokens, which is (tile size /
    patch size / scale factor)².

    Each level of detail takes one tile off the longest side, down to one tile.

    Raises:
        ConfigError: if the processor does not say the size of a tile and of an image.
    """

    image_processor: Any
    image_seq_len: int = 169
    image_token: str = "<image>"
    fake_image_token: str = "<fake_token_around_image>"
    global_image_token: str = "<global-img>"
    chat_template: str | None = IDEFICS3_TEMPLATE

    def __post_init__(self) -> None:
        check_at_least(self, 1, "image_seq_len")
        with fitting("Idefics3", self.image_processor, "an Idefics3ImageProcessor or SmolVLMImageProcessor"):
            if not self._tile or not self._edges[0]:
                raise ConfigError('it has no size={"longest_edge": ...} and max_image_size={"longest_edge": ...}')
            self.pixels(blank_images(), 0)

    @functools.cached_property
    def _tile(self) -> int:
        """Pixels along one side of a tile."""
        return edge_of(getattr(self.image_processor, "max_image_size", None) or {}, "longest_edge") or 0

    @functools.cached_property
    def _edges(self) -> list[int]:
        """The longest side of a resized image, at each level of detail."""
        longest = edge_of(self.image_processor.size, "longest_edge") or 0
        if not self.image_processor.do_image_splitting:
            return [longest]
        return [longest, *range((longest - 1) // self._tile * self._tile, 0, -self._tile)]

    @property
    def num_details(self) -> int:
        """The largest number of tiles on the longest side."""
        return len(self._edges)

    def image_text(self, size: Size, detail: int) -> Pieces:
        """Row, column and tokens of each tile, row by row, then the whole image."""
        rows, columns = self._grid(size, detail)
        text: Pieces = []
        line_break = ""
        for row in range(rows):
            for column in range(columns):
                text.append((f"{line_break}{self.fake_image_token}<row_{row + 1}_col_{column + 1}>", 1))
                text.append((self.image_token, self.image_seq_len))
                line_break = ""
            line_break = "\n"
        whole = f"{line_break}{line_break}{self.fake_image_token}{self.global_image_token}"
        return [*text, (whole, 1), (self.image_token, self.image_seq_len), (self.fake_image_token, 1)]

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` float32 (tiles, channels, height, width) and `pixel_attention_mask` int64 (tiles, height,
        width) of all images."""
        size = {"longest_edge": self._edges[detail]}
        made = self.image_processor(images=[list(images)], size=size, return_row_col_info=True, return_tensors="pt")
        grids = list(zip(made["rows"][0], made["cols"][0], strict=True))
        expected = [self._grid((image.height, image.width), detail) for image in images]
        check_tiles("Idefics3", grids, expected)
        return {name: torch.as_tensor(made[name])[0] for name in ("pixel_values", "pixel_attention_mask")}

    def batch(self, rows: Sequence[Media]) -> Media:
        """`pixel_values` (rows, most tiles, channels, height, width) and their mask, with zeros for missing tiles."""
        some = next((row for row in rows if row), None)
        if some is None:
            return {}
        filled = [row or {name: value[:0] for name, value in some.items()} for row in rows]
        num_tiles = max(len(row["pixel_values"]) for row in filled)
        return {name: stack_padded([row[name] for row in filled], num_tiles) for name in some}

    def _grid(self, size: Size, detail: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0) if the image is not split."""
        if not self.image_processor.do_image_splitting:
            return 0, 0
        height, width = _within(_scaled(size, self._edges[detail]))
        tile, aspect = self._tile, width / height
        if width >= height:
            columns = math.ceil(width / tile)
            rows = math.ceil(int(columns * tile / aspect) / tile)
        else:
            rows = math.ceil(height / tile)
            columns = math.ceil(int(rows * tile * aspect) / tile)
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)


def _scaled(size: Size, edge: int) -> Size:
    """The size scaled so that its longest side is `edge`; the other is made even."""
    height, width = size
    aspect = width / height
    if width >= height:
        other = int(edge / aspect)
        return max(1, other + other % 2), edge
    other = int(edge * aspect)
    return edge, max(1, other + other % 2)


def _within(size: Size) -> Size:
    """The size shrunk so that its longest side is at most `_LARGEST`."""
    height, width = size
    aspect = width / height
    if width >= height and width > _LARGEST:
        return max(1, int(_LARGEST / aspect)), _LARGEST
    if height > width and height > _LARGEST:
        return _LARGEST, max(1, int(_LARGEST * aspect))
    return size


# InternVL

INTERNVL_TEMPLATE = chatml(image=r"<IMG_CONTEXT>\n")
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
        check_at_least(self, 1, "image_seq_length")
        with fitting("InternVL", self.image_processor, "a GotOcr2ImageProcessor, which is InternVL's"):
            self.pixels(blank_images(), 0)

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
        return joined(rows)

    def _options(self, detail: int) -> dict[str, Any]:
        most = max(1, int(self.image_processor.max_patches) >> detail)
        least = min(most, int(self.image_processor.min_patches))
        return {"crop_to_patches": True, "min_patches": least, "max_patches": most}
