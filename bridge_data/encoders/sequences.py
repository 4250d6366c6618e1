"""Sequences for the model, as samples and as batches: image tokens, truncation, labels, packs, padding.

Reads token ids with their mask, and images. Returns tensors. An image has all its tokens, or is absent.
`FamilyBatch.model_inputs()` has the names, shapes and values of the family's processor of transformers for the same
conversations, padded on the right, with labels.

    SequenceSample ─ FamilySample, with images
    SequenceBatch ─ ImageTextBatch (default encoder), FamilyBatch (model families)
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bridge_data.encoders.encoder_config import IGNORED, TurnsPolicy, note_overlong
from bridge_data.encoders.pixel_table import looked_up
from bridge_data.encoders.tokens import Floats, Ints, MarkedTokens
from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, Sample, SourceInfo, edataclass

# Samples and batches

Media: TypeAlias = dict[str, Tensor]
"""What a model takes in addition to tokens, by parameter names of its `forward`; in samples, items are along dimension
0."""


@edataclass
class TokenizedSample(Sample):
    """A sample in the packing buffer: its tokens as in `SequenceSample`; its images not yet decoded, and the level of
    detail that they will have."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    images: list[Any]
    detail: int = 0


@edataclass
class SequenceSample(Sample):
    """A sequence of S tokens: one sample, or several samples packed.

    `tokens` int64 (S,). `labels` int64 (S,), shifted as in Megatron: `labels[i]` is the token at i + 1, or the ignored
    value if that is not part of an answer. (Models of transformers shift by themselves: pass them the tokens, with the
    ignored value outside of answers.) `loss_mask` float32 is 1 where there is a label.

    `position_ids` int64 (S,) restart at 0 with each packed sample (they may have leading dimensions). `cu_seqlens`
    int32 (samples + 1,) are the start offsets of the samples, and the end of the last one; `max_seqlen` int32 () is the
    length of the longest.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return int(self.tokens.shape[-1])


@edataclass
class FamilySample(SequenceSample):
    """A sequence and its images, as a model family takes them.

    `media` are tensors with the items of all images along dimension 0; without images there are none. Pixel values of
    the families here are uint8 until a batch is made. `aligned` are int64 (S,), one number for each token, for models
    that take more than tokens.
    """

    media: Media
    aligned: dict[str, Tensor]


@edataclass
class SequenceBatch(Batch):
    """B sequences, padded at their ends: the fields of `SequenceSample` with B in front.

    Padding has the padding token, the ignored label, loss mask 0 and position 0. Row i holds `cu_seqlens[i, -1]`
    tokens; rows of `cu_seqlens` with fewer samples repeat that number.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row without its padding, int32 (B,). Padding to a multiple is part of a sample."""
        return self.cu_seqlens[:, -1]

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several samples."""
        return bool((self.cu_seqlens[:, 1] < self.lengths).any())


@edataclass
class ImageTextBatch(SequenceBatch):
    """A batch of the default encoder, with the images of all rows in the order of their tokens.

    `images` float32 (images, channels, height, width); `num_image_tiles` int64 (images,) is the number of tiles of each
    image: 1. With a `decoder_seq_length`, `tokens` are the prompts alone, and `labels` (B, L) the answers, not shifted.
    """

    images: Tensor
    num_image_tiles: Tensor


@edataclass
class FamilyBatch(SequenceBatch):
    """A batch of `FamilySample`, with `media` as the model takes them. With `FamilyConfig(pixels="uint8")`, pixel
    values are bytes, with the table of their values, until the batch is moved.
    """

    media: Media
    aligned: dict[str, Tensor]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy with all tensors on `device`, where pixel values that are bytes become float32."""
        moved = SequenceBatch.to(self, device, non_blocking)
        moved.media = looked_up(moved.media)
        return moved

    def model_inputs(self, ignored: int = IGNORED) -> dict[str, Any]:
        """Keyword arguments of the `forward` of a model of transformers: `input_ids`, `labels` (not shifted: the model
        does that), `media`, and `attention_mask`.

        A packed batch has `position_ids` instead of the mask, which restart with each sample: by them transformers
        separates the samples of a row. It has `use_cache=False` too: with a cache, transformers does not separate them.
        """
        labels = torch.full_like(self.tokens, ignored)
        learnt = torch.where(self.loss_mask > 0, self.labels, ignored)
        labels[:, 1:] = learnt[:, :-1]
        inputs: dict[str, Any] = {"input_ids": self.tokens, "labels": labels, **looked_up(self.media), **self.aligned}
        if self.is_packed:
            return inputs | {"position_ids": self.position_ids, "use_cache": False}
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return inputs | {"attention_mask": (positions < self.lengths[:, None]).to(torch.int64)}


# Tokens to tensors


def with_image_tokens(
    marked: MarkedTokens, placeholder: int, images: Sequence[Sequence[int]], limit: int = sys.maxsize
) -> tuple[MarkedTokens, int]:
    """At most `limit` tokens, with the tokens of each of `images` in place of its `placeholder`; and the number of
    images that fit.

    An image that would be cut ends the sequence before its first token. Image tokens are never marked.
    """
    if not images:
        return marked[:limit], 0
    pieces: list[MarkedTokens] = []
    length = start = num_fitting = 0
    for place, image in zip(np.flatnonzero(marked.ids == placeholder).tolist(), images, strict=True):
        pieces.append(marked[start:place])
        length += place - start + len(image)
        start = place + 1
        if length > limit:
            break
        pieces.append(MarkedTokens.of(image, np.zeros(len(image), bool)))
        num_fitting += 1
    else:
        pieces.append(marked[start:])
    ids, has_loss = zip(*[(piece.ids, piece.has_loss) for piece in pieces], strict=True)
    return MarkedTokens(np.concatenate(ids), np.concatenate(has_loss))[:limit], num_fitting


def check_length(
    marked: MarkedTokens, images: Sequence[Sequence[int]], limit: int, policy: TurnsPolicy, key: str
) -> None:
    """Do as `policy` says if sample `key` has more than `limit` tokens with its images."""
    length = len(marked) + sum(len(image) - 1 for image in images)
    if length > limit:
        note_overlong(policy, key, f"it has {length} tokens, a sequence holds {limit}")


def piece_ends(marked: MarkedTokens, sizes: Sequence[int], limit: int) -> list[int]:
    """Where to cut a conversation, whose tokens count as `sizes`, into pieces of at most `limit`: after answers. A turn
    that is longer is a piece of its own."""
    sums = [0, *itertools.accumulate(sizes)]
    after = (np.flatnonzero(marked.has_loss[:-1] & ~marked.has_loss[1:]) + 1).tolist()
    ends, start, last = [], 0, 0
    for end in (*after, len(sizes)):
        if sums[end] - sums[start] > limit and last > start:
            ends.append(last)
            start = last
        last = end
    return [*ends, len(sizes)]


def filled_up(tensor: Tensor, multiple: int, value: float) -> Tensor:
    """The tensor (..., S), padded with `value` to a multiple of `multiple`."""
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing), value=value) if missing else tensor


def check_multiple(length: int | None, multiple: int, what: str) -> None:
    """Raise a ConfigError if sequences of `length` tokens would become longer when padded to a multiple."""
    if length is not None and length % multiple:
        raise ConfigError(f"{what}={length} is no multiple of pad_to_multiple_of={multiple}; make it one")


def next_token_labels(marked: MarkedTokens, ignored: int) -> tuple[Ints, Floats]:
    """Labels and loss mask of a decoder: each position learns the token after it."""
    labels = np.full(max(1, len(marked)), ignored)
    np.copyto(labels[:-1], marked.ids[1:], where=marked.has_loss[1:])
    return labels, (labels != ignored).astype(np.float32)


def last_answer(marked: MarkedTokens) -> tuple[MarkedTokens, MarkedTokens]:
    """The tokens before the last answer, and those of the last answer."""
    learnt = np.flatnonzero(marked.has_loss)
    end = int(learnt[-1]) + 1 if len(learnt) else 0
    others = np.flatnonzero(~marked.has_loss[:end])
    start = int(others[-1]) + 1 if len(others) else 0
    return marked[:start], marked[start:end]


def sequence_fields(tokens: Tensor, labels: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
    """The fields of a `SequenceSample` of one sample."""
    length = len(tokens)
    return {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": loss_mask,
        "position_ids": torch.from_numpy(np.arange(length)),  # a third of the time of `torch.arange`
        "cu_seqlens": torch.from_numpy(np.array([0, length], np.int32)),
        "max_seqlen": torch.from_numpy(np.array(length, np.int32)),
    }


# Packs and batches

_TOKEN_FIELDS = ("tokens", "labels", "loss_mask", "position_ids")


def packed(samples: Sequence[SequenceSample]) -> dict[str, Any]:
    """The fields of a `SequenceSample` and the provenance of a pack; its key names all samples, in order."""
    sources: tuple[SourceInfo, ...] = tuple(s for sample in samples for s in sample.__sources__ or ())
    lengths = lengths_of(samples)
    first = samples[0]
    return {
        "__key__": ",".join(sample.__key__ for sample in samples),
        "__restore_key__": tuple(sample.__restore_key__ for sample in samples),
        "__subflavors__": (
            first.__subflavors__ if all(s.__subflavors__ == first.__subflavors__ for s in samples) else None
        ),
        "__sources__": sources or None,
        "cu_seqlens": torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        "max_seqlen": lengths.max(),
        **{name: torch.cat([getattr(sample, name) for sample in samples], dim=-1) for name in _TOKEN_FIELDS},
    }


def lengths_of(samples: Sequence[SequenceSample]) -> Tensor:
    """The lengths of all samples that these are packed of, int32 (samples,)."""
    bounds = [sample.cu_seqlens.numpy() for sample in samples]
    borders = np.cumsum([len(one) for one in bounds])[:-1] - 1  # from the end of one to the beginning of the next
    return torch.from_numpy(np.delete(np.diff(np.concatenate(bounds)), borders))


def batched(
    samples: Sequence[SequenceSample], *, pad: int, ignored: int, length: int, label_length: int
) -> dict[str, Tensor]:
    """The fields of a `SequenceBatch`, padded to at least `length` tokens and `label_length` labels."""
    bounds = [sample.cu_seqlens for sample in samples]
    num_bounds = max(len(bound) for bound in bounds)
    return {
        "tokens": padded([sample.tokens for sample in samples], pad, length),
        "labels": padded([sample.labels for sample in samples], ignored, label_length),
        "loss_mask": padded([sample.loss_mask for sample in samples], 0, label_length),
        "position_ids": padded([sample.position_ids for sample in samples], 0, length),
        "cu_seqlens": torch.stack([torch.cat([b, b[-1:].expand(num_bounds - len(b))]) for b in bounds]),
        "max_seqlen": torch.stack([sample.max_seqlen for sample in samples]),
    }


def padded(tensors: Sequence[Tensor], value: float, least: int = 0) -> Tensor:
    """Tensors (..., S) of various S as one (B, ..., S), each padded with `value`; S is at least `least`."""
    length = max(least, *(tensor.shape[-1] for tensor in tensors))
    stacked = tensors[0].new_full((len(tensors), *tensors[0].shape[:-1], length), value)
    for row, tensor in zip(stacked, tensors, strict=True):
        row[..., : tensor.shape[-1]] = tensor
    return stacked


def joined(rows: Sequence[Mapping[str, Tensor]]) -> Media:
    """Concatenate the media of several samples along dimension 0; skip samples without any."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: torch.cat([row[name] for row in rows if name in row]) for name in names}


def pack_family(samples: Sequence[FamilySample], media: Media | None = None) -> FamilySample:
    """One sequence of several, with `media` (None: their media concatenated)."""
    return FamilySample(
        **packed(samples),
        media=joined([sample.media for sample in samples]) if media is None else media,
        aligned={name: torch.cat([sample.aligned[name] for sample in samples]) for name in samples[0].aligned},
    )


def batch_family(samples: Sequence[FamilySample], media: Media, *, pad: int, ignored: int, length: int) -> FamilyBatch:
    """The samples as the rows of a batch, padded to at least `length` tokens, with `media`."""
    return FamilyBatch.from_samples(
        samples,
        **batched(samples, pad=pad, ignored=ignored, length=length, label_length=length),
        media=media,
        aligned={name: padded([s.aligned[name] for s in samples], 0, length) for name in samples[0].aligned},
    )
