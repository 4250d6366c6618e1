"""Plain text: pretraining on documents, in rows of fixed length. (For SFT on text see `text_encoder`.)

    document ─ preencode: pieces of seq_length tokens and a rest ─ (packing: rests together) ─ rows of seq_length tokens

Reads text samples. Returns `FamilyBatch` without media, all rows `seq_length` long. Every token of a document except
the first is a label once. A document is cut only where it fills a row; what is left over of documents is packed, and
the emptiest pack waits for the next buffer.

Source: H. Ding et al., Fewer truncations improve language modeling (2024), for the packing of the rests.
"""

from collections.abc import Iterator
from typing import Any

import torch

from bridge_data.encoders.chat import check_unicode, padding_token_of
from bridge_data.encoders.encoder_config import IGNORED, SEQ_LENGTH
from bridge_data.encoders.pretrained import open_tokenizer
from bridge_data.encoders.sequences import FamilyBatch, FamilySample, batch_family, pack_family, sequence_fields
from bridge_data.encoders.tokens import tokenize_text
from bridge_data.errors import ConfigError, SkipSample
from bridge_data.samples import Sample, TextSample
from bridge_data.task import DefaultTaskEncoder, Packing, stateless
from bridge_data.task.packers import Packer, pack_by


class PretrainingTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Documents to rows of `seq_length` tokens, separated by `cu_seqlens` and `position_ids`.

    A document starts with the tokenizer's beginning-of-sequence token, if it has one, and ends with its end-of-sequence
    token. The last label of a piece is the first token of the next piece. Use it with a `packing_buffer_size`; without
    one, each piece is a padded row.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        seq_length: int = SEQ_LENGTH,
        packer: str | Packer = "best_fit",
        carry_over: bool = True,
        ignore_place_holder: int = IGNORED,
    ) -> None:
        super().__init__()
        if seq_length < 2:
            raise ConfigError(f"PretrainingTaskEncoder(seq_length={seq_length}): expected at least 2")
        self.tokenizer, self.seq_length = open_tokenizer(tokenizer), seq_length
        self._ignored = ignore_place_holder
        packing = Packing(length=_length, capacity=seq_length, overlong="drop", packer=packer, carry_over=carry_over)
        pack_by(self, packing)

    def text(self, sample: Any) -> str:
        """The document; override it for your own sample classes.

        Raises:
            ConfigError: for another class than `TextSample`.
        """
        if not isinstance(sample, TextSample):
            raise ConfigError(
                f"PretrainingTaskEncoder takes TextSample, got {type(sample).__name__}; add a cooker that makes "
                "one, or override `text` in a subclass"
            )
        return sample.text

    @stateless
    def preencode_sample(self, sample: Sample) -> Iterator[FamilySample]:
        """The pieces of a document."""
        text = self.text(sample)
        check_unicode(text, sample.__key__)
        if not text.strip():
            raise SkipSample("its text has no words")
        ids = torch.from_numpy(tokenize_text(self.tokenizer, text).ids)
        following = torch.cat([ids[1:], torch.tensor([self._ignored])])
        for start in range(0, len(ids), self.seq_length):
            tokens, labels = ids[start : start + self.seq_length], following[start : start + self.seq_length]
            if (labels == self._ignored).all():  # its only token is a label of the piece before
                if start:
                    return
                raise SkipSample("it has no token to learn from")
            fields = sequence_fields(tokens, labels, (labels != self._ignored).to(torch.float32))
            yield FamilySample.derive_from(sample, **fields, media={}, aligned={})

    @stateless
    def pack_selected_samples(self, samples: list[FamilySample]) -> FamilySample:
        return pack_family(samples)

    @stateless
    def batch(self, samples: list[FamilySample]) -> FamilyBatch:
        pad = padding_token_of(self.tokenizer)
        return batch_family(samples, {}, pad=pad, ignored=self._ignored, length=self.seq_length)


def _length(sample: FamilySample) -> int:
    return sample.length
