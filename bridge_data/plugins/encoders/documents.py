"""Pretraining on documents of texts and pictures, without a chat template, for any model family.

    document ─ preencode: tokens, pictures in their places, pieces of seq_length ─ (packing) ─ postencode ─ batch

Reads interleaved, captioning and text samples, and crude documents (`document_rows`). Returns the batches of
`FamilyTaskEncoder`: ids and pixel values are those that the family's processor makes of the texts with the tokens of an
image where a picture stands, and an end-of-sequence token. Every token of a text is a label, none of a picture is. It
takes chats as well, as `FamilyTaskEncoder` does, for blends of both.

Source: H. Laurençon et al., OBELICS (2023); W. Zhu et al., Multimodal C4 (2023): a picture stands before its text.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from bridge_data.counts import COUNTS
from bridge_data.encoders.chat import check_unicode
from bridge_data.encoders.conversations import Conversation
from bridge_data.encoders.encoder_config import SEQ_LENGTH, FamilyConfig, KeepPolicy, TurnsPolicy, refuse
from bridge_data.encoders.families import VisionFamily
from bridge_data.encoders.family_encoder import ConversationTaskEncoder, FamilyTaskEncoder
from bridge_data.encoders.sequences import TokenizedSample, check_length, with_image_tokens
from bridge_data.encoders.tokens import MarkedTokens, Span
from bridge_data.encoders.visuals import VideoSampling, picture_sizes
from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.plugins.encoders.document_rows import MissingPicture, cook_document
from bridge_data.plugins.encoders.qwen_encoder import QwenVLTaskEncoder
from bridge_data.plugins.encoders.qwen_families import Qwen2VL
from bridge_data.running_hook import note_truncation
from bridge_data.samples import CaptioningSample, InterleavedSample, Sample, SimilarityInterleavedSample, TextSample
from bridge_data.task import Cooker, stateless

PicturePolicy: TypeAlias = Literal["error", "skip", "drop"]

LEFT_OUT = "pictures_left_out"
"""The name in the metrics of pictures that `missing_image="drop"` left out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DocumentConfig(FamilyConfig):
    """Settings of documents: those of `FamilyConfig`, and these.

    `missing_image`: a picture is not there ("error", "skip": of the document; "drop": the document goes on without it,
    and without pictures that cannot be read or are extreme, counted as `pictures_left_out`). `no_image`: a document has
    no picture, or none left. `separator` stands between two texts without a picture, unless there is space already.
    `overlong`: a document has more than `seq_length` tokens ("split": into pieces that are cut in a text, or before a
    picture, and have every token of a text as a label once; "truncate": the first piece; `policies` are for chats).

    >>> DocumentConfig(missing_image="drop", no_image="skip").overlong
    'split'

    Raises:
        ConfigError: if a setting is wrong.
    """

    overlong: TurnsPolicy = "split"
    missing_image: PicturePolicy = "error"
    no_image: KeepPolicy = "keep"
    separator: str = " "


class DocumentTaskEncoder(FamilyTaskEncoder):
    """Documents to the batches of a family of models; of Qwen-VL, `QwenVLDocumentTaskEncoder` does it.

    Raises:
        ConfigError: as `FamilyTaskEncoder`; if there is no family.
    """

    family: VisionFamily
    config: DocumentConfig
    _with_mrope = "QwenVLDocumentTaskEncoder"

    def __init__(
        self,
        tokenizer: Any,
        family: VisionFamily,
        config: DocumentConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
    ) -> None:
        super().__init__(tokenizer, family, config or DocumentConfig(), seq_length=seq_length)

    def _cook_with(self, *placeholders: str) -> None:
        if type(self).cookers is ConversationTaskEncoder.cookers:
            names = dict(zip(("image_placeholder", "video_placeholder"), placeholders, strict=False))
            cook: Any = functools.partial(cook_document, **names)  # type: ignore[arg-type]
            self.cookers = (Cooker(stateless(cook)),)

    def document(self, sample: Any) -> list[Any] | None:
        """The texts and pictures of a sample, in their order; None if it is no document. Override it for your own
        sample classes.

        Raises:
            SampleError: if it does not say where its pictures stand, or has more than pictures and texts.
        """
        match sample:
            case InterleavedSample():
                return sample.sequence
            case SimilarityInterleavedSample():
                return _in_order(sample)
            case CaptioningSample():
                return [sample.image, sample.caption.strip()]
            case TextSample():
                return [sample.text]
        return None

    def checked_conversation(self, sample: Any) -> Conversation:
        """What a sample says; of a document, its text with tokens of images, and its pictures."""
        parts = self.document(sample)
        if parts is None:
            return super().checked_conversation(sample)
        config, key = self.config, sample.__key__
        parts = [part for part in parts if isinstance(part, str) or self._is_usable(part, key)]
        texts = [part for part in parts if isinstance(part, str)]
        images = [part for part in parts if not isinstance(part, str)]
        check_unicode(texts, key)
        for token in (self.family.image_token, getattr(self.family, "video_token", None)):
            if token and any(token in text for text in texts):
                what = f"a text has {token!r}, which stands for a medium: pictures of a document are parts of their own"
                refuse(config.policies.image_mismatch, key, what)
        if not any(map(str.strip, texts)):
            raise SkipSample("its texts have no words")
        if not images and config.no_image != "keep":
            refuse(config.no_image, key, "it has no picture, or none is left (DocumentConfig(no_image=...))")
        return Conversation(text=self._joined(parts), images=images)

    def _is_usable(self, picture: Any, key: str) -> bool:
        """Whether a picture is there; one that is not is handled as the settings say."""
        policy, why = self.config.missing_image, ""
        if picture is None or isinstance(picture, MissingPicture):
            why = "one of its pictures is None" if picture is None else picture.why
        elif policy == "drop":
            try:
                picture_sizes([picture], self.config.images, key)
            except (SampleError, SkipSample) as error:
                why = str(error)
        if why and policy != "drop":
            refuse(policy, key, f"{why}. DocumentConfig(missing_image='drop') goes on without such pictures")
        if why:
            COUNTS.others[LEFT_OUT] += 1
        return not why

    def _joined(self, parts: Sequence[Any]) -> str:
        """The text of a document, with the token of an image where a picture stands."""
        text = ""
        for before, part in itertools.pairwise(("", *parts)):
            if not isinstance(part, str):
                text += self._written_image
                continue
            touches = isinstance(before, str) and text and part and not (text[-1].isspace() or part[0].isspace())
            text += self.config.separator * bool(touches) + part
        return text

    @property
    def _written_image(self) -> str:
        return str(getattr(self.family, "written_image", self.family.image_token))

    def _check_template(self) -> None:
        """Documents need none. Check the settings."""
        if self.family is None or not isinstance(self.config, DocumentConfig):
            raise ConfigError(
                f"{type(self).__name__}(family={type(self.family).__name__}, config={type(self.config).__name__}): "
                "expected a family such as Llava(...), and a DocumentConfig. For documents without pictures use "
                "PretrainingTaskEncoder"
            )
        self.splits_samples |= self.config.overlong == "split"
        around = self._written_image.split(self.family.image_token)
        before, after = (len(self.tokenizer(one, add_special_tokens=False).input_ids) for one in around)
        self._around = before, after  # tokens that are written around the token of an image

    def _preencoded(self, sample: Any, written: Any, marked: MarkedTokens) -> Any:
        if written.spans is not None:  # of a chat
            return super()._preencoded(sample, written, marked)
        key, policy = sample.__key__, self.config.overlong
        marked, images = self._with_visuals(sample, written.said, marked)
        detail, texts = self._visual_tokens(images, key)
        if policy != "split":
            check_length(marked, texts, self.seq_length, policy, key)
        whole, spans = self._with_pictures(marked, texts)
        ends = piece_ends(spans, len(whole), self.seq_length)
        too_large = [first for first, after in spans if after - first > self.seq_length]
        if too_large and policy == "split":
            raise SampleError(
                f"sample {key!r}: a picture has more tokens than a sequence, which holds {self.seq_length}: set "
                "ImageLimits(max_image_tokens=...), or max_pixels"
            )
        ends = ends if policy == "split" else [min(ends[0], *too_large)] if too_large else ends[:1]
        pieces = self._pieces_of(sample, whole, spans, images, detail, ends)
        return pieces if len(ends) > 1 else next(pieces)

    def _with_pictures(self, marked: MarkedTokens, texts: Sequence[Sequence[int]]) -> tuple[MarkedTokens, list[Span]]:
        """All tokens, those of pictures without a mark; and where each picture is."""
        before, after = self._around
        whole, _ = with_image_tokens(marked, self._image_id, texts)
        places = np.flatnonzero(marked.ids == self._image_id)
        added = np.cumsum([0, *(len(text) - 1 for text in texts)])
        spans = [
            (int(place + more) - before, int(place + more) + len(text) + after)
            for place, more, text in zip(places, added, texts, strict=False)
        ]
        for first, end in spans:
            whole.has_loss[first:end] = False
        return whole, spans

    def _pieces_of(
        self,
        sample: Sample,
        whole: MarkedTokens,
        spans: Sequence[Span],
        images: Sequence[Any],
        detail: int,
        ends: Sequence[int],
    ) -> Iterator[TokenizedSample]:
        """The pieces of a document. The last label of a piece is the first token of the next one."""
        labels, loss_mask = self._layout.labels(whole, lambda: whole)
        num_pieces = 0
        for start, end in itertools.pairwise((0, *ends)):
            own = [image for image, (first, _) in zip(images, spans, strict=True) if start <= first < end]
            if not loss_mask[start:end].any():  # the end, which the piece before has as its label; or pictures alone
                if own or not start:
                    note_truncation()
                continue
            fields = self._filled(whole.ids[start:end], labels[start:end], loss_mask[start:end])
            yield TokenizedSample.derive_from(sample, **fields, images=own, detail=detail)
            num_pieces += 1
        if not num_pieces:
            raise SkipSample(f"no label is left within seq_length={self.seq_length}")


class QwenVLDocumentTaskEncoder(DocumentTaskEncoder, QwenVLTaskEncoder):
    """Documents to the batches of Qwen-VL, with M-RoPE positions.

    Raises:
        ConfigError: as `QwenVLTaskEncoder`.
    """

    family: Qwen2VL
    _with_mrope = ""

    def __init__(
        self,
        tokenizer: Any,
        family: Qwen2VL,
        config: DocumentConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
        sampling: VideoSampling | None = None,
    ) -> None:
        options: dict[str, Any] = {"seq_length": seq_length, "sampling": sampling}
        QwenVLTaskEncoder.__init__(self, tokenizer, family, config or DocumentConfig(), **options)


def piece_ends(pictures: Sequence[Span], length: int, limit: int) -> list[int]:
    """Where to cut `length` tokens into pieces of at most `limit`: before a picture, rather than in it or right after
    it, where it would be parted from its text."""
    ends, start = [], 0
    while length - start > limit:
        end = start + limit
        for first, after in reversed(pictures):
            if start < first < end <= after:
                end = first
        ends.append(end)
        start = end
    return [*ends, length]


def _in_order(sample: SimilarityInterleavedSample) -> list[Any]:
    """The texts, and before each the pictures that belong to it.

    Raises:
        SampleError: if it is unknown where, or it has more than pictures and texts.
    """
    key, texts, images = sample.__key__, sample.texts, sample.images
    places: Any = sample.matched_text_indices
    if places is None and sample.similarity_matrix is not None:
        places = np.asarray(sample.similarity_matrix).argmax(1)
    places = [int(place) for place in ([] if places is None else places)]
    if len(places) != len(images) or not all(0 <= place < len(texts) for place in places):
        raise SampleError(
            f"sample {key!r}: its {len(images)} pictures stand at {places} of {len(texts)} texts; expected a number in "
            "matched_text_indices for each, or a row in similarity_matrix"
        )
    are_texts = [isinstance(one, str) for one in (*texts, *images)]
    if sample.audio or sample.video or are_texts != [True] * len(texts) + [False] * len(images):
        raise SampleError(
            f"sample {key!r}: has audio or video, or texts or pictures that are none; expected texts and pictures "
            "alone. Of turns, make a ConversationSample"
        )
    return [part for n, text in enumerate(texts) for part in (*_at(images, places, n), text)]


def _at(images: Sequence[Any], places: Sequence[int], number: int) -> list[Any]:
    return [image for image, place in zip(images, places, strict=True) if place == number]
