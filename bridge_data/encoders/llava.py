"""LLaVA and LLaVA-NeXT.

LLaVA resizes every image to one size. Each takes as many tokens as the vision tower makes patches of it, plus its
class token if the model keeps that.

LLaVA-NeXT ("anyres") makes the whole image the first tile, and fits the image into the best of several grids of further
tiles. The model cuts the padding off the grid and ends each of its rows of patches with a newline token, so the number
of tokens depends on the aspect of the image.

Source: H. Liu et al., LLaVA-NeXT (2024); the rounding is that of transformers.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL import Image

from bridge_data.encoders.family import (
    FixedSizeFamily,
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
from bridge_data.encoders.visuals import Images
from bridge_data.errors import ConfigError
from bridge_data.options import check_at_least, check_choice

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
"""Vicuna's format, with the images of a turn before its text, as in the checkpoints of LLaVA 1.5 and NeXT."""

SelectStrategy = Literal["default", "full"]


@dataclasses.dataclass(frozen=True)
class _Tower:
    """The settings of a vision tower that both families have."""

    image_processor: Any
    patch_size: int
    vision_feature_select_strategy: SelectStrategy = "default"
    num_additional_image_tokens: int = 1
    image_token: str = "<image>"
    chat_template: str | None = LLAVA_TEMPLATE

    def __post_init__(self) -> None:
        check_at_least(self, 1, "patch_size")
        check_choice(self, "vision_feature_select_strategy", SelectStrategy)


@dataclasses.dataclass(frozen=True)
class Llava(_Tower, FixedSizeFamily):
    """`image_processor` makes images of one size, such as CLIP's. The vision tower cuts them into patches of
    `patch_size` and adds `num_additional_image_tokens` (1: CLIP's class token); `vision_feature_select_strategy`
    "default" drops one token. All three are as in the model's processor.

    Raises:
        ConfigError: if the processor makes images of several sizes.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _, height, width = Images(self.image_processor, "Llava").shape
        num_tokens = (height // self.patch_size) * (width // self.patch_size) + self.num_additional_image_tokens
        object.__setattr__(self, "num_tokens", num_tokens - (self.vision_feature_select_strategy == "default"))


@dataclasses.dataclass(frozen=True)
class LlavaNext(_Tower):
    """`image_processor` is LLaVA-NeXT's, with its `image_grid_pinpoints`; the rest as of `Llava`.

    Each level of detail removes the grids of the largest area left.

    Raises:
        ConfigError: if the processor has no grids, or does not say the size of a tile.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        with fitting("LlavaNext", self.image_processor, "a LlavaNextImageProcessor, with its image_grid_pinpoints"):
            tile, grids = self._tile, self.image_processor.image_grid_pinpoints
            if not tile or any(side % tile for grid in grids for side in grid):
                raise ConfigError(f"its grids {grids} are not made of tiles of crop_size={tile} pixels")
            self.pixels(blank_images(), 0)

    @functools.cached_property
    def _tile(self) -> int:
        """Pixels along one side of a tile."""
        processor = self.image_processor
        return edge_of(processor.crop_size, "height") or edge_of(processor.size, "shortest_edge") or 0

    @functools.cached_property
    def _levels(self) -> list[list[list[int]]]:
        """The grids (height, width) of each level of detail."""
        grids = [list(grid) for grid in self.image_processor.image_grid_pinpoints]
        areas = sorted({height * width for height, width in grids}, reverse=True)
        return [[grid for grid in grids if grid[0] * grid[1] <= area] for area in areas]

    @property
    def num_details(self) -> int:
        """The number of different areas of grids."""
        return len(self._levels)

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token, once for each feature of the model: of the whole image, and of the grid without its
        padding."""
        height, width = size
        rows, columns = self._best(size, detail)
        patches = self._tile // self.patch_size
        high, wide = patches * rows, patches * columns
        if width / height > wide / high:
            high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
        else:
            wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
        whole = patches * patches + self.num_additional_image_tokens
        dropped = self.vision_feature_select_strategy == "default"
        return [(self.image_token, high * wide + high + whole - dropped)]

    def num_tiles(self, size: Size, detail: int) -> int:
        """The whole image, and the tiles of its grid."""
        rows, columns = self._best(size, detail)
        return 1 + rows * columns

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` float32 (tiles, channels, height, width) of all images, `num_tiles` and `image_sizes` int64
        (images,) and (images, 2)."""
        options = {"image_grid_pinpoints": self._levels[detail], "do_pad": False}
        made = [self.image_processor(images=[image], return_tensors="pt", **options) for image in images]
        tiles = [torch.as_tensor(one["pixel_values"])[0] for one in made]
        for image, its_tiles in zip(images, tiles, strict=True):
            check_tiles("LlavaNext", len(its_tiles), self.num_tiles((image.height, image.width), detail))
        return {
            "pixel_values": torch.cat(tiles),
            "num_tiles": torch.tensor([len(its_tiles) for its_tiles in tiles]),
            "image_sizes": torch.cat([torch.as_tensor(one["image_sizes"]) for one in made]),
        }

    def batch(self, rows: Sequence[Media]) -> Media:
        """`pixel_values` (images, most tiles, channels, height, width), with zeros for missing tiles; `image_sizes`."""
        media = joined(rows)
        if not media:
            return {}
        counts = media["num_tiles"]
        pixels = stack_padded(torch.split(media["pixel_values"], counts.tolist()), int(counts.max()))
        return {"pixel_values": pixels, "image_sizes": media["image_sizes"]}

    def _best(self, size: Size, detail: int) -> tuple[int, int]:
        """Rows and columns of the grid for an image."""
        from transformers.image_processing_utils import select_best_resolution

        height, width = select_best_resolution(size, self._levels[detail])
        return height // self._tile, width // self._tile
