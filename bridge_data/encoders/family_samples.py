"""What family encoders make: tokenized samples, encoded ones, and batches that a model of transformers takes.

Enters: samples of one family. Leaves: `FamilyBatch`. Guarantee: `model_inputs()` of a batch has the names, shapes and
values that the family's processor of transformers gives for the same conversations, padded on the right, with labels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge_data.encoders.family import Media, joined
from bridge_data.encoders.sequences import batched_text, packed_text, padded
from bridge_data.samples import Batch, Sample, edataclass


@edataclass
class WaitingSample(Sample):
    """A sample as the packing buffer holds it: its tokens, and its images as they were read, with their level of
    detail."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    images: list[Any]
    detail: int = 0


@edataclass
class FamilySample(Sample):
    """A sequence of S tokens, or several packed one behind the other.

    `tokens`, `labels`, `loss_mask`, `position_ids`, `cu_seqlens`, `max_seqlen` are as in `ImageTextSample`: labels are
    shifted, as Megatron wants them (`position_ids` may have dimensions in front). `media` are tensors with the items
    of all images along dimension 0; without images there are none. `aligned` are int64 (S,), one number a token, for
    models that want more than tokens.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor
    media: Media
    aligned: dict[str, Tensor]

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return int(self.tokens.shape[-1])


@edataclass
class FamilyBatch(Batch):
    """B rows, padded at their ends: the fields of `FamilySample` with B in front, `media` as the model takes them."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: Tensor
    media: Media
    aligned: dict[str, Tensor]

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row that are no padding, int32 (B,). What fills a sample up to a multiple is its own."""
        return self.cu_seqlens[:, -1]

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several samples."""
        return bool((self.cu_seqlens[:, 1] < self.lengths).any())

    def model_inputs(self, ignored: int = -100) -> dict[str, Any]:
        """Keyword arguments of the `forward` of a model of transformers: `input_ids`, `labels` (not shifted: the model
        does that), `media`, and `attention_mask`.

        A packed batch has `position_ids` instead of the mask: they begin anew with each sample, by which transformers
        tell the samples of a row apart; and `use_cache=False`, since with a cache they do not.
        """
        labels = torch.full_like(self.tokens, ignored)
        learnt = torch.where(self.loss_mask > 0, self.labels, ignored)
        labels[:, 1:] = learnt[:, :-1]
        inputs: dict[str, Any] = {"input_ids": self.tokens, "labels": labels, **self.media, **self.aligned}
        if self.is_packed:
            return inputs | {"position_ids": self.position_ids, "use_cache": False}
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return inputs | {"attention_mask": (places < self.lengths[:, None]).to(torch.int64)}


def pack_family(samples: Sequence[FamilySample], media: Media | None = None) -> FamilySample:
    """One sequence of several; its key names them all, in order. Their `media` are one behind the other (by default, as
    they are)."""
    return FamilySample(
        **packed_text(samples),
        media=joined([sample.media for sample in samples]) if media is None else media,
        aligned={name: torch.cat([sample.aligned[name] for sample in samples]) for name in samples[0].aligned},
    )


def batch_family(samples: Sequence[FamilySample], media: Media, *, pad: int, ignored: int, length: int) -> FamilyBatch:
    """The samples as the rows of a batch, padded to `length` tokens at least, with the `media` of all."""
    return FamilyBatch.from_samples(
        samples,
        **batched_text(samples, pad, ignored, length, length),
        media=media,
        aligned={name: padded([s.aligned[name] for s in samples], 0, length) for name in samples[0].aligned},
    )
