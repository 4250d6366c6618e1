"""What a model family makes of images: the one extension point of `FamilyTaskEncoder`."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from PIL import Image
from torch import Tensor

Media: TypeAlias = dict[str, Tensor]
"""What a model gets beside tokens, by the names of its `forward`; in samples with the items along dimension 0."""

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""

Pieces: TypeAlias = list[tuple[str, int]]
"""A text as pieces, each so many times: [("<image>", 576)]. Pieces meet at special tokens, so that the tokens of the
whole are those of its pieces."""


class VisionFamily(Protocol):
    """A family of models that see images. Families are frozen, and pickled to workers."""

    @property
    def image_token(self) -> str:
        """What the chat template writes for an image: one special token."""

    @property
    def chat_template(self) -> str | None:
        """The family's own template, for tokenizers that come without one."""

    @property
    def num_details(self) -> int:
        """How many levels of detail there are: 0 is what the image processor does by itself, each after it makes fewer
        tokens of an image, or as many."""

    def image_text(self, size: Size, detail: int) -> Pieces:
        """What an image of that size becomes in the text."""

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """The images of a sample (at least one) for the model."""

    def batch(self, rows: Sequence[Media]) -> Media:
        """The media of a batch out of those of its rows, some of which are empty: as the processor of transformers
        lays them out."""


def joined(rows: Sequence[Mapping[str, Tensor]]) -> Media:
    """The media of several samples one behind the other; those without any count for nothing."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: torch.cat([row[name] for row in rows if name in row]) for name in names}
