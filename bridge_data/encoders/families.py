"""Model families: what the processor of each, in transformers, makes of images and videos, computed from sizes alone.

Reads images and frames of any size, and the image processor of the model's checkpoint, or its folder or hub id.
Returns the text of an image, which depends only on its size, and the pixel values that the model takes; both are those
of the family's processor. Raises if the image processor makes other tiles than the text was written for.

    VisionFamily ─ the interface; `FixedSizeFamily` is for images of one size
    Llava        ─ every image takes as many tokens as the vision tower makes patches of it
    LlavaNext    ─ "anyres": the whole image is the first tile, and the image is fitted into the best of several grids
    Idefics3     ─ and SmolVLM: an image is enlarged to a whole number of tiles; the row and column of each are written
    InternVL     ─ the grid of tiles nearest to the aspect of the image, and a thumbnail if there are several

Those of Qwen-VL are in `bridge_data.plugins.encoders.qwen_families`.

Images are resized by Pillow and cut as the processor does it, if a trial shows that the bits are the same; else by it.
Of sizes, only what transformers cannot compute without pixels is computed here. `get_number_of_image_patches` of
Idefics3 is not used: where the size of an image is no multiple of a tile, it differs from what that processor does.

Source: H. Liu et al., LLaVA-NeXT (2024); H. Laurençon et al., Building and better understanding vision-language models
(2024); A. Marafioti et al., SmolVLM (2025); Z. Chen et al., How far are we to GPT-4V? (2024). The rounding and the
choice of grids are those of transformers.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bridge_data.encoders.chat import chatml
from bridge_data.encoders.pixel_table import TABLE, TILES, PixelTable, check_settings, looked_up, processed, table_of
from bridge_data.encoders.pretrained import open_image_processor
from bridge_data.encoders.sequences import Media, joined
from bridge_data.encoders.visuals import (
    Images,
    Size,
    TileCut,
    edge_of,
    fitting,
    probes,
    resized,
    tiles_of,
)
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.options import check_at_least, check_choice
from bridge_data.samples.collation import uninitialized
from bridge_data.task.hooks import torch_defaults

logger = logging.getLogger("bridge_data")

Pieces: TypeAlias = list[tuple[str, int]]
"""A text as pieces, each with the number of its repetitions: [("<image>", 576)]. Pieces meet at special tokens, so that
they can be tokenized one by one."""


class VisionFamily(Protocol):
    """How a family of models handles images: the extension point of `FamilyTaskEncoder`. Families are frozen, and
    pickled to workers."""

    @property
    def image_token(self) -> str:
        """What the chat template writes for an image: one special token."""

    @property
    def chat_template(self) -> str | None:
        """The family's own template, for tokenizers without one."""

    @property
    def num_details(self) -> int:
        """The number of levels of detail. Level 0 is the image processor's default; no level makes more
        tokens of an image than the one before."""

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The text of an image of that size."""

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """The images of a sample (at least one), resized and cut."""

    def batch(self, rows: Sequence[Media]) -> Media:
        """The media of a batch, as the model takes them, from those of its rows, some of which may be empty: the values
        and the layout of the processor of transformers."""


def check_family(owner: str, family: Any, kind: type[Any], expected: str) -> None:
    """Raise a ConfigError unless `family`, an argument of the encoder `owner`, has all that `kind` has."""
    missing = [name for name in vars(kind) if not name.startswith("_") and not hasattr(family, name)]
    if missing:
        raise ConfigError(
            f"{owner}(family={type(family).__name__}): expected {expected}, which says what images become, but this "
            f"has no {missing[0]}. An image processor is an argument of the family, as in Llava(image_processor, ...)"
        )


def check_tiles(family: str, got: int | Sequence[Any], expected: int | Sequence[Any]) -> None:
    """Raise a FatalSampleError unless the image processor made the tiles (their number, or rows and columns) that the
    tokens were written for: other samples would fail too."""
    if got != expected:
        raise FatalSampleError(
            f"{family}: the image processor made {got} tiles (or rows and columns of them), but tokens were "
            f"written for {expected}. Its settings were changed since the family was made, or this version of "
            "transformers tiles another way than bridge_data.encoders knows: compare with HFTaskEncoder"
        )


class ProcessedFamily:
    """The shared part of each family with an image processor.

    `pixel_values` of samples are uint8, and those of batches float32, by the table of the processor, if a trial shows
    that they are bit by bit the processor's own; else the processor computes float32 for each sample. Images are
    resized and cut here, as `_cuts` says, if a trial shows the same; the processor itself copies more, and checks its
    settings for each image.
    """

    image_processor: Any
    NOT_COSTS: ClassVar = ("_table", "_resizes")
    """Attributes that change no cost, for `costs_key`: they depend on the machine's transformers, too."""
    _table: ClassVar[PixelTable | None] = None
    _resizes: ClassVar[bool] = False
    """Whether images are resized and cut by Pillow here, and not by the processor."""

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        raise NotImplementedError

    def _cuts(self, size: Size, detail: int) -> list[TileCut]:
        """The tiles of an image of that size, as the processor makes them; any error if that is not known here."""
        raise NotImplementedError

    @property
    def keeps_bytes(self) -> bool:
        """Whether `collected` has all that a batch has, with pixel values that are bytes."""
        return self._table is not None and type(self).batch is ProcessedFamily.batch

    def collected(self, rows: Sequence[Media]) -> Media:
        """The media of a batch from those of its rows, whose pixel values are not looked up: `looked_up` does that, on
        any device."""
        return self._with_table(joined(rows))

    def batch(self, rows: Sequence[Media]) -> Media:
        """The media of a batch, in the layout of the processor of transformers."""
        return self._looked_up(rows, self._table)

    def _looked_up(self, rows: Sequence[Media], table: PixelTable | None) -> Media:
        return looked_up(self.collected(rows), table)

    def _open_processor(self) -> None:
        """Open the image processor, if its folder or hub id was given."""
        object.__setattr__(self, "image_processor", open_image_processor(self.image_processor))

    def _try(self) -> None:
        """Try the image processor, and its table."""
        if not self._has_table():
            logger.info(
                "%s computes pixel values itself, for each sample, which takes longer and four times the memory: a "
                "table of 256 values for each channel does not give the same",
                type(self.image_processor).__name__,
            )

    def _has_table(self) -> bool:
        """Whether the table of the image processor, which is kept then, gives its values; images are resized here if
        the processor is one of transformers, and that gives them, too."""
        processor = self.image_processor
        is_known = type(processor).__module__.startswith("transformers.") and getattr(processor, "do_resize", False)
        with torch_defaults():
            expected = self._made_of_probes(None, resizes=False)
            table = table_of(processor)
            for resizes in (True, False) if is_known else (False,):
                with contextlib.suppress(Exception):
                    if table is not None and same_media(self._made_of_probes(table, resizes=resizes), expected):
                        return True
        object.__setattr__(self, "_table", None)
        return False

    def _made_of_probes(self, table: PixelTable | None, *, resizes: bool) -> Media:
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_resizes", resizes)
        return self.batch([self.pixels(probes(), 0)])

    def _resizes_all(self, images: Sequence[Image.Image]) -> bool:
        """Whether these images are resized here. A FatalSampleError if the settings of the processor have changed."""
        if self._table is None or not self._resizes or any(image.mode != "RGB" for image in images):
            return False
        check_settings(self.image_processor, self._table)
        return True

    @property
    def _resample(self) -> Image.Resampling:
        return Image.Resampling(int(self.image_processor.resample))

    def _tiles(self, images: Sequence[Image.Image], detail: int) -> Tensor:
        """The tiles of images that are resized here, uint8 (tiles, channels, height, width)."""
        cuts = [(image, cut) for image in images for cut in self._cuts((image.height, image.width), detail)]
        tiles = np.concatenate([tiles_of(image, cut, self._resample) for image, cut in cuts])
        return torch.from_numpy(tiles).permute(0, 3, 1, 2)

    def _process(self, images: Sequence[Any], **options: Any) -> Any:
        return processed(self.image_processor, images, self._table, **options)

    def _pixels_of(self, made: Any) -> Tensor:
        """The `pixel_values` of what was processed; some processors hand out bytes as floats."""
        pixels = torch.as_tensor(made["pixel_values"])
        return pixels if self._table is None else pixels.to(torch.uint8)

    def _with_table(self, media: Media, copies: int = 1) -> Media:
        """Media with the table of their pixel values, of each of which the model takes so many copies."""
        if self._table is None or not media:
            return media
        return media | {TABLE: torch.from_numpy(self._table.values)[:, None].repeat(1, copies, 1)}


def _sides(size: Any) -> Size:
    """(height, width) of a size of an image processor."""
    height, width = edge_of(size, "height"), edge_of(size, "width")
    if height is None or width is None:
        raise ConfigError(f"the size {size} of the image processor has no height and width")
    return height, width


def _grid_and_whole(size: Size, tile: Size) -> list[TileCut]:
    """The tiles of an image in a size, row by row, and if there are several, the whole image as a tile."""
    (height, width), (high, wide) = size, tile
    grid = TileCut(size, (0, 0, width, height), (height // high, width // wide))
    return [grid] if size == tile else [grid, TileCut(tile, (0, 0, wide, high))]


def same_media(some: Media, others: Media) -> bool:
    """Whether media are the same, bit by bit."""
    if some.keys() != others.keys():
        return False
    pairs = [(value, others[name]) for name, value in some.items()]
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


# Images of one size, and LLaVA


class FixedSizeFamily(ProcessedFamily):
    """The shared part of each `VisionFamily` with images of one size, and so one number of tokens."""

    image_token: str
    num_tokens: int

    @property
    def num_details(self) -> int:
        """One: there is no choice."""
        return 1

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token, `num_tokens` times."""
        return [(self.image_token, self.num_tokens)]

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` (images, channels, height, width)."""
        if self._resizes_all(images):
            return {"pixel_values": self._tiles(images, detail)}
        return {"pixel_values": self._pixels_of(self._process(images))}

    def _cuts(self, size: Size, detail: int) -> list[TileCut]:
        """The middle of the image, resized so that its shorter side is `shortest_edge`, or to a size."""
        processor = self.image_processor
        edge, longest = (edge_of(processor.size, f"{name}_edge") for name in ("shortest", "longest"))
        if longest:
            raise ConfigError("the processor limits the longer side as well")
        if edge:
            height, width = (int(edge * side / min(size)) for side in size)
        else:
            height, width = _sides(processor.size)
        high, wide = _sides(processor.crop_size) if getattr(processor, "do_center_crop", False) else (height, width)
        top, left = (height - high) // 2, (width - wide) // 2
        return [TileCut((height, width), (left, top, left + wide, top + high))]


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
"""Vicuna's format. The images of a turn come before its text, wherever they are in it, as with the templates in the
checkpoints of LLaVA 1.5 and NeXT: so the model has learnt them."""

SelectStrategy = Literal["default", "full"]


@dataclasses.dataclass(frozen=True)
class _Tower(ProcessedFamily):
    """The settings of a vision tower that both families have."""

    image_processor: Any
    patch_size: int
    vision_feature_select_strategy: SelectStrategy = "default"
    num_additional_image_tokens: int = 1
    image_token: str = "<image>"
    chat_template: str | None = LLAVA_TEMPLATE

    def __post_init__(self) -> None:
        self._open_processor()
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
        self._try()


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
            self._try()

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
        """`pixel_values` (tiles, channels, height, width) of all images, `pixel_tiles`, how many of them an image
        has, and `image_sizes`, int64 (images,) and (images, 2)."""
        sizes = [(image.height, image.width) for image in images]
        counts = [self.num_tiles(size, detail) for size in sizes]
        if self._resizes_all(images):
            pixels = self._tiles(images, detail)
        else:
            options = {"image_grid_pinpoints": self._levels[detail], "do_pad": False}
            tiles = [self._pixels_of(self._process([image], **options))[0] for image in images]
            check_tiles("LlavaNext", [len(its_tiles) for its_tiles in tiles], counts)
            pixels = torch.cat(tiles)
        return {"pixel_values": pixels, TILES: torch.tensor(counts), "image_sizes": torch.tensor(sizes)}

    def _cuts(self, size: Size, detail: int) -> list[TileCut]:
        """The whole image, and in the middle of the grid, the image as large as it fits."""
        rows, columns = self._best(size, detail)
        high, wide = rows * self._tile, columns * self._tile
        height, width = size
        by_height, by_width = high / height, wide / width
        if by_width < by_height:
            height, width = min(math.ceil(height * by_width), high), wide
        else:
            height, width = high, min(math.ceil(width * by_height), wide)
        top, left = (high - height) // 2, (wide - width) // 2
        whole = TileCut((self._tile, self._tile), (0, 0, self._tile, self._tile))
        return [whole, TileCut((height, width), (-left, -top, wide - left, high - top), (rows, columns))]

    def collected(self, rows: Sequence[Media]) -> Media:
        """`pixel_values` (images, most tiles, channels, height, width), with zeros for missing tiles; `image_sizes`;
        and `pixel_tiles`, which the model does not take."""
        media = joined(rows)
        if not media:
            return {}
        tiles = torch.split(media["pixel_values"], media[TILES].tolist())
        return self._with_table(media | {"pixel_values": pad_sequence(list(tiles), batch_first=True)})

    def _looked_up(self, rows: Sequence[Media], table: PixelTable | None) -> Media:
        """As `collected`; pixel values are looked up where they stay, and only of tiles that are there."""
        rows = [row for row in rows if row]
        if table is None or not rows:
            return super()._looked_up(rows, table)
        images = [tiles for row in rows for tiles in torch.split(row["pixel_values"], row[TILES].tolist())]
        whole = uninitialized((len(images), max(map(len, images)), *images[0].shape[1:]), torch.float32)
        for values, tiles in zip(whole, images, strict=True):
            table.look_up(tiles, 1, values[: len(tiles)])
            values[len(tiles) :] = 0
        return {"pixel_values": whole, "image_sizes": torch.cat([row["image_sizes"] for row in rows])}

    def _best(self, size: Size, detail: int) -> tuple[int, int]:
        """Rows and columns of the grid for an image."""
        from transformers.image_processing_utils import select_best_resolution

        height, width = select_best_resolution(size, self._levels[detail])
        return height // self._tile, width // self._tile


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
class Idefics3(ProcessedFamily):
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
        self._open_processor()
        check_at_least(self, 1, "image_seq_len")
        with fitting("Idefics3", self.image_processor, "an Idefics3ImageProcessor or SmolVLMImageProcessor"):
            if not self._tile or not self._edges[0]:
                raise ConfigError('it has no size={"longest_edge": ...} and max_image_size={"longest_edge": ...}')
            self._try()

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
        """`pixel_values` (tiles, channels, height, width) and `pixel_attention_mask` int64 (tiles, height, width)."""
        if self._resizes_all(images):
            pixels = self._tiles([self._enlarged(image, detail) for image in images], detail)
            return {"pixel_values": pixels, "pixel_attention_mask": torch.ones_like(pixels[:, 0], dtype=torch.int64)}
        made = self._process([list(images)], size={"longest_edge": self._edges[detail]}, return_row_col_info=True)
        grids = list(zip(made["rows"][0], made["cols"][0], strict=True))
        expected = [self._grid((image.height, image.width), detail) for image in images]
        check_tiles("Idefics3", grids, expected)
        mask = torch.as_tensor(made["pixel_attention_mask"])[0]
        return {"pixel_values": self._pixels_of(made)[0], "pixel_attention_mask": mask}

    def collected(self, rows: Sequence[Media]) -> Media:
        """`pixel_values` (rows, most tiles, channels, height, width) and their mask, with zeros for missing tiles."""
        some = next((row for row in rows if row), None)
        if some is None:
            return {}
        filled = [row or {name: value[:0] for name, value in some.items()} for row in rows]
        padded = {name: pad_sequence([row[name] for row in filled], batch_first=True) for name in some}
        return self._with_table(padded)

    def _enlarged(self, image: Image.Image, detail: int) -> Image.Image:
        """The image, resized to its longest side, and then to whole tiles."""
        size = image.height, image.width
        height, width = (max(1, number) * self._tile for number in self._grid(size, detail))
        image = resized(image, _within(_scaled(size, self._edges[detail])), self._resample)
        return resized(image, (height, width), self._resample)

    def _cuts(self, size: Size, detail: int) -> list[TileCut]:
        """Those of an enlarged image."""
        return _grid_and_whole(size, (self._tile, self._tile))

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
class InternVL(ProcessedFamily):
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
        self._open_processor()
        check_at_least(self, 1, "image_seq_length")
        with fitting("InternVL", self.image_processor, "a GotOcr2ImageProcessor, which is InternVL's"):
            self._try()

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
        """`pixel_values` (tiles, channels, height, width) of all images."""
        if self._resizes_all(images):
            return {"pixel_values": self._tiles(images, detail)}
        made = self._process(images, **self._options(detail))
        expected = sum(self.num_tiles((image.height, image.width), detail) for image in images)
        check_tiles("InternVL", len(made["pixel_values"]), expected)
        return {"pixel_values": self._pixels_of(made)}

    def _cuts(self, size: Size, detail: int) -> list[TileCut]:
        """The tiles of the grid, and if there are several, the thumbnail."""
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

        high, wide = _sides(self.image_processor.size)
        options = self._options(detail)
        columns, rows = get_optimal_tiled_canvas(size, (high, wide), options["min_patches"], options["max_patches"])
        return _grid_and_whole((rows * high, columns * wide), (high, wide))

    def _options(self, detail: int) -> dict[str, Any]:
        most = max(1, int(self.image_processor.max_patches) >> detail)
        least = min(most, int(self.image_processor.min_patches))
        return {"crop_to_patches": True, "min_patches": least, "max_patches": most}
