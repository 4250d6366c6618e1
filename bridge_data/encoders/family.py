"""Model families: what they make of images (`VisionFamily`), and what families of tiled images share."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from PIL import Image
from torch import Tensor

from bridge_data.errors import ConfigError, FatalSampleError

Media: TypeAlias = dict[str, Tensor]
"""What a model takes in addition to tokens, by parameter names of its `forward`; in samples, items are along dimension
0."""

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""

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
        """The images of a sample (at least one), as the model takes them."""

    def batch(self, rows: Sequence[Media]) -> Media:
        """The media of a batch from those of its rows, some of which may be empty: in the layout of the processor of
        transformers."""


class FixedSizeFamily:
    """The shared part of each `VisionFamily` with images of one size, and so one number of tokens."""

    image_processor: Any
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
        """`pixel_values` float32 (images, channels, height, width)."""
        made = self.image_processor(images=list(images), return_tensors="pt")
        return {"pixel_values": torch.as_tensor(made["pixel_values"])}

    def batch(self, rows: Sequence[Media]) -> Media:
        return joined(rows)


def joined(rows: Sequence[Mapping[str, Tensor]]) -> Media:
    """Concatenate the media of several samples along dimension 0; skip samples without any."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: torch.cat([row[name] for row in rows if name in row]) for name in names}


_MADE_FOR = {
    "Qwen2VL": "Qwen2VL, Qwen2_5VL or Qwen3VL",
    "LlavaNext": "LlavaNext",
    "Idefics3": "Idefics3",
    "SmolVLM": "Idefics3",
    "GotOcr2": "InternVL",
    "CLIP": "Llava",
    "Llava": "Llava",
    "Siglip": "Llava",
}
"""The family that takes an image processor, by how the name of its class begins."""

_PROBES = ((48, 64), (96, 32))
"""Sizes of the blank images with which a processor is tried."""


def blank_images() -> list[Image.Image]:
    """Two images of different sizes and aspects."""
    return [Image.new("RGB", size) for size in _PROBES]


@contextlib.contextmanager
def fitting(owner: str, processor: Any, expected: str) -> Iterator[None]:
    """Try an image processor for `owner`, a family or an encoder: whatever fails in the block becomes a `ConfigError`
    that names both, what is `expected`, and what to do."""
    try:
        yield
    except Exception as error:  # a processor of another kind may raise anything
        name = type(processor).__name__
        inner = getattr(processor, "image_processor", None)
        home = next((family for start, family in _MADE_FOR.items() if name.startswith(start)), None)
        if inner is not None:
            way_out = f"Pass the image_processor of that {name}, a {type(inner).__name__}"
        elif home is not None and home != owner:
            way_out = f"The family for {name} is {home}; or pass the image processor of the checkpoint of your model"
        else:
            way_out = "Pass that of the checkpoint of your model; HFTaskEncoder takes the whole processor of any family"
        why = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        told = f"{owner}(image_processor={name}): expected {expected}: {str(why)[:300]}. {way_out}"
        raise ConfigError(told) from error


def check_family(owner: str, family: Any, kind: type[Any], expected: str) -> None:
    """Raise a ConfigError unless `family`, an argument of the encoder `owner`, has all that `kind` has."""
    missing = [name for name in vars(kind) if not name.startswith("_") and not hasattr(family, name)]
    if missing:
        raise ConfigError(
            f"{owner}(family={type(family).__name__}): expected {expected}, which says what images become, but this "
            f"has no {missing[0]}. An image processor is an argument of the family, as in Llava(image_processor, ...)"
        )


def edge_of(size: Any, *names: str) -> int | None:
    """The first of `names` that a size of an image processor (a dict, or its `SizeDict`) has, such as
    "shortest_edge"."""
    for name in names:
        value = size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)
        if value:
            return int(value)
    return None


def check_tiles(family: str, got: int | Sequence[Any], expected: int | Sequence[Any]) -> None:
    """Raise a FatalSampleError unless the image processor made the tiles (their number, or rows and columns) that the
    tokens were written for: other samples would fail too."""
    if got != expected:
        raise FatalSampleError(
            f"{family}: the image processor made {got} tiles (or rows and columns of them), but tokens were "
            f"written for {expected}. Its settings were changed since the family was made, or this version of "
            "transformers tiles another way than bridge_data.encoders knows: compare with HFTaskEncoder"
        )


def stack_padded(groups: Sequence[Tensor], num_tiles: int) -> Tensor:
    """Stack groups of tiles (tiles, ...) to (groups, num_tiles, ...), padded with zeros."""
    made = groups[0].new_zeros(len(groups), num_tiles, *groups[0].shape[1:])
    for row, group in zip(made, groups, strict=True):
        row[: len(group)] = group
    return made
