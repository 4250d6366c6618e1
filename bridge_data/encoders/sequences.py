"""Sequences for the model: image tokens, truncation, labels, padding; as samples and as batches.

Enters: marked tokens, images. Leaves: tensors. Guarantees: the tokens of an image are all there, or the image is not
either; what a position learns is at that position (see `ImageTextSample.labels`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge_data.encoders.chat import MarkedTokens
from bridge_data.encoders.policies import refuse
from bridge_data.errors import ConfigError
from bridge_data.samples import Batch, Sample, SourceInfo, edataclass


@edataclass
class TokenizedSample(Sample):
    """A sample as the packing buffer holds it: its sequence as in `ImageTextSample`, its images not yet decoded."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    images: list[Any]


@edataclass
class ImageTextSample(Sample):
    """A sequence of S tokens, or several of them packed one behind the other.

    `tokens` int64 (S,). `labels` int64 (S,), shifted as Megatron wants them: `labels[i]` is the token at i + 1, or the
    ignored value where that is no part of an answer. (Models of transformers shift by themselves: give them the tokens,
    with the ignored value for those that are no answer.) With a `decoder_seq_length`, `tokens` are the prompt alone,
    and `labels` (L,) the answer, not shifted. `loss_mask` float32 is 1 where there is a label.

    `position_ids` int64 (S,) begin anew with each packed sample. `cu_seqlens` int32 (samples + 1,) are where samples
    begin, and where the last one ends; `max_seqlen` int32 () is the length of the longest. `images` float32 (images,
    channels, height, width) are in the order of their tokens; `num_image_tiles` int64 (images,) says how many of them
    make one picture: 1.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor
    images: Tensor
    num_image_tiles: Tensor


@edataclass
class ImageTextBatch(Batch):
    """B sequences, padded at their ends: the fields of `ImageTextSample` with B in front.

    Padding has token `pad`, the ignored label, loss mask and position 0. Row i holds `cu_seqlens[i, -1]` tokens; rows
    of `cu_seqlens` with fewer samples repeat that number. `images` and `num_image_tiles` of all rows are one behind the
    other, without a B.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor
    images: Tensor
    num_image_tiles: Tensor

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row that are no padding, int32 (B,). What fills a sample up to a multiple is its own."""
        return self.cu_seqlens[:, -1]


def with_image_tokens(
    marked: MarkedTokens, placeholder: int, images: Sequence[Sequence[int]], limit: int
) -> tuple[MarkedTokens, int]:
    """At most `limit` tokens, with the tokens of each of `images` for its `placeholder`; and the number of images in
    them.

    An image that would be cut ends the sequence before its first token. Image tokens are never to be learnt.
    """
    ids: list[int] = []
    is_answer: list[bool] = []
    start = 0
    for number, image in enumerate(images):
        end = marked.ids.index(placeholder, start)
        ids += marked.ids[start:end]
        is_answer += marked.is_answer[start:end]
        if len(ids) + len(image) > limit:
            return MarkedTokens(ids[:limit], is_answer[:limit]), number
        ids += image
        is_answer += [False] * len(image)
        start = end + 1
    ids += marked.ids[start:]
    is_answer += marked.is_answer[start:]
    return MarkedTokens(ids[:limit], is_answer[:limit]), len(images)


def check_length(marked: MarkedTokens, images: Sequence[Sequence[int]], limit: int, policy: str, key: str) -> None:
    """Leave sample `key` out, if `policy` is not to truncate and it has more than `limit` tokens with its images."""
    length = len(marked.ids) + sum(len(image) - 1 for image in images)
    if policy != "truncate" and length > limit:
        refuse(policy, key, f"it has {length} tokens, a sequence holds {limit}")


def filled_up(tensor: Tensor, multiple: int, value: float) -> Tensor:
    """The tensor (..., S), with `value` behind it up to the next S that is a multiple of `multiple`."""
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % multiple), value=value)


def check_multiple(length: int | None, multiple: int, what: str) -> None:
    """See that sequences of at most `length` tokens can be filled up to a multiple.

    Raises:
        ConfigError: if the longest ones would become longer.
    """
    if length is not None and length % multiple:
        raise ConfigError(f"{what}={length} is no multiple of pad_to_multiple_of={multiple}; make it one")


def next_token_labels(marked: MarkedTokens, ignored: int) -> tuple[Tensor, Tensor]:
    """Labels and loss mask of a decoder that sees its own tokens: each position learns the token after it."""
    following = zip(marked.ids[1:], marked.is_answer[1:], strict=True)
    labels = torch.tensor([token if is_answer else ignored for token, is_answer in following] + [ignored])
    return labels, (labels != ignored).to(torch.float32)


def last_answer(marked: MarkedTokens) -> tuple[MarkedTokens, MarkedTokens]:
    """The tokens before the last answer, and those of the last answer."""
    end = len(marked.ids)
    while end and not marked.is_answer[end - 1]:
        end -= 1
    start = end
    while start and marked.is_answer[start - 1]:
        start -= 1
    before = MarkedTokens(marked.ids[:start], marked.is_answer[:start])
    return before, MarkedTokens(marked.ids[start:end], marked.is_answer[start:end])


_TOKEN_FIELDS = ("tokens", "labels", "loss_mask", "position_ids")


def packed(samples: Sequence[ImageTextSample]) -> ImageTextSample:
    """One sequence of several; its key names them all, in order."""
    media: dict[str, Any] = {
        name: torch.cat([getattr(sample, name) for sample in samples]) for name in ("images", "num_image_tiles")
    }
    return ImageTextSample(**packed_text(samples), **media)


def packed_text(samples: Sequence[Any]) -> dict[str, Any]:
    """All fields of one sequence of several but those of images: provenance, tokens, and where each begins."""
    sources: tuple[SourceInfo, ...] = tuple(s for sample in samples for s in sample.__sources__ or ())
    lengths = torch.cat([sample.cu_seqlens.diff() for sample in samples])
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


def batched(
    samples: Sequence[ImageTextSample], pad: int, ignored: int, length: int, label_length: int
) -> ImageTextBatch:
    """The samples as the rows of a batch, padded to `length` tokens and `label_length` labels at least."""
    return ImageTextBatch.from_samples(
        samples,
        **batched_text(samples, pad, ignored, length, label_length),
        images=torch.cat([sample.images for sample in samples]),
        num_image_tiles=torch.cat([sample.num_image_tiles for sample in samples]),
    )


def batched_text(samples: Sequence[Any], pad: int, ignored: int, length: int, label_length: int) -> dict[str, Tensor]:
    """The fields of a batch but those of images and of provenance."""
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
    """Tensors (..., S) with S of their own as one (B, ..., S), with `value` behind each; S is at least `least`."""
    length = max(least, *(tensor.shape[-1] for tensor in tensors))
    stacked = tensors[0].new_full((len(tensors), *tensors[0].shape[:-1], length), value)
    for row, tensor in zip(stacked, tensors, strict=True):
        row[..., : tensor.shape[-1]] = tensor
    return stacked
