"""Task encoders of model families: conversations about any number of images, as the family's models take them.

    sample ─ preencode: conversation, sizes, tokens ─ (packing) ─ postencode: images ─ batch: rows, media

Reads captioning, VQA, text and conversation samples. Returns `FamilyBatch`. The number of tokens of an image is known
from its size, so images stay encoded bytes in the packing buffer, and are decoded once their pack is chosen. The
processor of transformers is never called, only its parts: the tokenizer and the image processor.
"""

import contextlib
import dataclasses
import functools
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from bridge_data.decode import SampleDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders.chat import (
    chat_template_of,
    lacks_beginning,
    note_moved_media,
    note_unended,
    only_token,
    render_conversation,
)
from bridge_data.encoders.conversations import (
    Conversation,
    check_texts,
    check_written,
    conversation_cooker,
    conversation_of,
    cook_conversation,
)
from bridge_data.encoders.encoder_config import SEQ_LENGTH, ConversationConfig, FamilyConfig, PixelType
from bridge_data.encoders.families import Pieces, ProcessedFamily, VisionFamily, check_family
from bridge_data.encoders.layouts import layout_of
from bridge_data.encoders.pixel_table import PIXELS
from bridge_data.encoders.pretrained import open_tokenizer
from bridge_data.encoders.sequences import (
    FamilySample,
    Media,
    TokenizedSample,
    check_length,
    check_multiple,
    joined,
    pack_family,
    piece_ends,
    sequence_fields,
    with_image_tokens,
)
from bridge_data.encoders.tokens import Floats, Ints, MarkedTokens, Span, tokenize_spans, tokenize_text
from bridge_data.encoders.visuals import picture_sizes, pictures, without_settings
from bridge_data.errors import ConfigError, SkipSample
from bridge_data.samples import Batch, Sample
from bridge_data.task import Cooker, DefaultTaskEncoder, Packing, stateless
from bridge_data.task.packers import pack_by
from bridge_data.task.task_encoder import together


class ConversationTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """What all encoders of conversations share: settings, labels, packing, batches. The tokenizer may be given as the
    folder (or hub id) that it was saved to. `cookers` cook crude data; by default, `cook_conversation` does.

    Raises:
        ConfigError: if a setting is wrong, or `tokenizer` is not a tokenizer of transformers.
    """

    decoder = SampleDecoder(handlers=dict.fromkeys(IMAGE_EXTENSIONS, bytes))
    cookers: Sequence[Cooker[Any]] = (Cooker(cook_conversation),)
    config: ConversationConfig
    NOT_COSTS: ClassVar = ("_pixels",)
    _pixel_types: Sequence[str] = ("float32",)
    _pack_pad_id: int | None = 0
    """The token that pads the samples of a pack for Bridge; None: the padding token."""

    def __init__(self, tokenizer: Any, config: FamilyConfig | None, seq_length: int) -> None:
        super().__init__()
        if seq_length < 1:
            raise ConfigError(f"{type(self).__name__}(seq_length={seq_length}): expected at least 1")
        tokenizer = open_tokenizer(tokenizer)
        if not hasattr(tokenizer, "apply_chat_template"):
            raise ConfigError(
                f"{type(self).__name__}(tokenizer={type(tokenizer).__name__}): expected a tokenizer of transformers, "
                "such as AutoTokenizer.from_pretrained(...)"
            )
        config = config or FamilyConfig()
        if not isinstance(config, FamilyConfig):
            raise ConfigError(f"{type(self).__name__}(config={type(config).__name__}(...)): expected a FamilyConfig")
        if config.pixels not in self._pixel_types:
            raise ConfigError(
                f"FamilyConfig(pixels={config.pixels!r}): {type(self).__name__} makes {', '.join(self._pixel_types)}; "
                "FamilyTaskEncoder and QwenVLTaskEncoder make all"
            )
        check_multiple(seq_length, config.pad_to_multiple_of, "seq_length")
        self.tokenizer, self.seq_length, self.config = tokenizer, seq_length, config
        self._cook_with(config.placeholder)
        self._limits, self._pack_in_batch, self._pixels = config.images, config.pack_in_batch, config.pixels
        self._layout = layout_of(tokenizer, config, seq_length, self._pack_pad_id)
        packing = Packing(
            length=functools.partial(padded_length, multiple=config.pad_to_multiple_of),
            capacity=seq_length,
            overlong="drop",  # nothing is: sequences were truncated before
            packer=config.packer,
            carry_over=config.carry_over,
            budgets=config.pack_budgets,
            costs=self.costs,
        )
        pack_by(self, packing)

    def _cook_with(self, *placeholders: str) -> None:
        """Set these placeholders of images and videos for cooked conversations, unless a subclass has own cookers."""
        if type(self).cookers is ConversationTaskEncoder.cookers:
            self.cookers = (conversation_cooker(*placeholders),)

    @property
    def answers(self) -> str:
        """The role that answers."""
        return self.config.conversation_template_config.roles[1]

    @property
    def most_packs(self) -> int | None:
        """One in Bridge's layout: it has all packs of a micro-batch in one row, which would be longer than
        `seq_length`."""
        return 1 if self.config.layout == "bridge" else None

    def conversation(self, sample: Any) -> Conversation:
        """The conversation of a sample; override it for your own sample classes. Raises as `conversation_of` does."""
        return conversation_of(sample, self.config)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The texts that stand for a medium in the turns of a sample."""
        return (self.config.placeholder,)

    def checked_conversation(self, sample: Any) -> Conversation:
        """The conversation of a sample, if nothing in its texts would be lost."""
        said = self.conversation(sample)
        check_texts(said, self.placeholders, self.config, sample.__key__)
        return said

    def batch_media(self, rows: list[Media]) -> Media:
        """The media of a batch from those of its rows."""
        raise NotImplementedError

    def join_media(self, rows: list[Media]) -> Media:
        """Concatenate the media of several samples."""
        return joined(rows)

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Several sequences as one, separated by `cu_seqlens` and `position_ids`."""
        return self._layout.packed(pack_family(samples, self.join_media([sample.media for sample in samples])))

    @stateless
    def batch(self, samples: list[Any]) -> Batch | dict[str, Any]:
        """The sequences as rows of one batch; with `pack_in_batch`, as one row. In Bridge's layout a dict, and packs
        in one row."""
        rows: list[FamilySample] = [self.pack_selected_samples(samples)] if self._pack_in_batch else samples
        return self._layout.batch(rows, self.batch_media([row.media for row in rows]), samples)

    def costs(self, sample: Any) -> Mapping[str, int]:
        """`tokens`, padded as in a pack."""
        if isinstance(self.select_samples_to_pack, Packing):
            return super().costs(sample)
        return {"tokens": padded_length(sample, multiple=self.config.pad_to_multiple_of)}

    def empty_batch(self, batch: Any) -> Any:
        """A batch without loss and keys, also in Bridge's layout."""
        emptied = super().empty_batch(batch)
        return emptied | {"__keys__": []} if isinstance(emptied, dict) else emptied

    def _filled(self, ids: Ints, labels: Ints, loss_mask: Floats) -> dict[str, Tensor]:
        """The sequence padded as the layout says. A SkipSample if it has no label."""
        if not loss_mask.any():
            raise SkipSample(f"no label is left within seq_length={self.seq_length}")
        filled = self._layout.filled
        return {
            "tokens": filled(torch.from_numpy(ids), self._layout.pad_id),
            "labels": filled(torch.from_numpy(labels), self.config.ignore_place_holder),
            "loss_mask": filled(torch.from_numpy(loss_mask), 0),
        }


_Preencoded: TypeAlias = TokenizedSample | Iterator[TokenizedSample]

_MOST_CHARACTERS = 1 << 16
"""Of a text that is tokenized together with others; it takes some hundredths of a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Written:
    """A conversation as text, with the spans that are learnt (None: all of a plain text), and whether the tokenizer
    adds its special tokens."""

    said: Conversation
    text: str
    spans: list[Span] | None
    added: bool


class FamilyTaskEncoder(ConversationTaskEncoder):
    """Conversations to the batches of a family of models, equal to those of its processor of transformers.

    `family` says what images become; without one, samples with images are refused: text SFT. A sequence holds at most
    `seq_length` tokens: it is cut at its end, but never within the text of an image (the image and all after it are
    dropped), and the sample is skipped if no answer remains (see `SamplePolicies` for other ways). The chat template is
    that of the settings, else the tokenizer's own, else the family's.

    Raises:
        ConfigError: if there is no chat template, the tokenizer does not know the family's image token, or the family
            has M-RoPE positions.
    """

    _images_need = "family, which would say what to do with them; pass one, such as Llava(...)"
    _family_kind: type[Any] = VisionFamily
    _family_expected = "a family such as Llava, LlavaNext, Idefics3 or InternVL"
    _pixel_types = typing.get_args(PixelType)
    _with_mrope = "QwenVLTaskEncoder"
    """The encoder for families with M-RoPE positions; "" if this one makes them."""
    _adds_special_tokens = True
    """Whether the tokenizer adds its special tokens, if the template writes no beginning-of-sequence token."""

    def __init__(
        self,
        tokenizer: Any,
        family: VisionFamily | None = None,
        config: FamilyConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
    ) -> None:
        super().__init__(tokenizer, config, seq_length)
        if family is not None:
            check_family(type(self).__name__, family, self._family_kind, self._family_expected)
            if self._with_mrope and getattr(family, "has_mrope", False):
                raise ConfigError(
                    f"{type(self).__name__}(family={type(family).__name__}): makes no M-RoPE positions; use "
                    f"{self._with_mrope}"
                )
        self.family = family
        if self._pixels == "uint8" and family is not None and not getattr(family, "keeps_bytes", False):
            raise ConfigError(
                f"FamilyConfig(pixels='uint8'): {type(family).__name__} makes no bytes: its image processor computes "
                "more than a value at a time, or the class has a `batch` of its own; use float32 or bfloat16"
            )
        self._image_id = -1 if family is None else only_token(self.tokenizer, family.image_token)
        self._piece_ids: dict[str, list[int]] = {}
        self.splits_samples = self.config.policies.overlong == "split"
        self._check_template()

    @functools.cached_property
    def chat_template(self) -> str:
        """The template that conversations are written with."""
        fallback = self.family.chat_template if self.family is not None else None
        return chat_template_of(self.tokenizer, self.config.conversation_template_config, fallback)

    @stateless
    @together("_preencoding")
    def preencode_sample(self, sample: Sample) -> _Preencoded:
        """Tokens, labels and loss mask; the images that fit stay unchanged until `postencode_sample`. Several samples
        of one that is too long, if the policy is to split it."""
        written = self._written(sample)
        return self._preencoded(sample, written, self._tokens_of([written])[0])

    def _preencoding(self, samples: Iterable[Sample]) -> Callable[[Sample], _Preencoded]:
        """What `preencode_sample` does to many samples, whose texts are tokenized together; but not those that may take
        long, as the watchdog of workers names the sample that is worked on."""
        written: dict[int, tuple[Sample, _Written]] = {}
        for sample in samples:
            with contextlib.suppress(Exception):  # it is raised again where the sample is encoded
                written[id(sample)] = sample, self._written(sample)
        most = _MOST_CHARACTERS if getattr(self.tokenizer, "is_fast", False) else 0
        short = {number: its for number, (_, its) in written.items() if len(its.text) <= most}
        tokens: dict[int, MarkedTokens] = {}
        with contextlib.suppress(Exception):
            tokens = dict(zip(short, self._tokens_of([*short.values()]), strict=True))

        def preencode(sample: Sample) -> _Preencoded:
            if (found := written.pop(id(sample), None)) is None:
                return self.preencode_sample(sample)
            marked = tokens.pop(id(sample), None)
            return self._preencoded(*found, self._tokens_of([found[1]])[0] if marked is None else marked)

        return preencode

    def _preencoded(self, sample: Sample, written: _Written, marked: MarkedTokens) -> _Preencoded:
        key = sample.__key__
        marked, visuals = self._with_visuals(sample, written.said, marked)
        detail, texts = self._visual_tokens(visuals, key)
        if self.config.policies.overlong == "split":
            sizes = [1] * len(marked)
            for at, text in zip(np.flatnonzero(marked.ids == self._image_id), texts, strict=True):
                sizes[at] = len(text)
            ends = piece_ends(marked, sizes, self.seq_length)
            if len(ends) > 1:
                return self._pieces(sample, marked, ends, list(zip(texts, visuals, strict=True)), detail)
        fields, num_visuals = self._sequence(marked, texts, sample)
        return TokenizedSample.derive_from(sample, **fields, images=visuals[:num_visuals], detail=detail)

    def _pieces(
        self,
        sample: Sample,
        marked: MarkedTokens,
        ends: Sequence[int],
        visuals: list[tuple[list[int], Any]],
        detail: int,
    ) -> Iterator[TokenizedSample]:
        """The pieces of a sample that have labels; `visuals` are the tokens of each image, and the image."""
        num_pieces = 0
        for start, end in itertools.pairwise((0, *ends)):
            piece = marked[start:end]
            count = piece.count(self._image_id)
            own, visuals = visuals[:count], visuals[count:]
            if not piece.has_loss.any():
                continue
            try:
                fields, num_fitting = self._sequence(piece, [text for text, _ in own], sample)
            except SkipSample:  # a long question, of which nothing is left to learn
                continue
            images = [image for _, image in own[:num_fitting]]
            yield TokenizedSample.derive_from(sample, **fields, images=images, detail=detail)
            num_pieces += 1
        if not num_pieces:
            raise SkipSample(f"no label is left within seq_length={self.seq_length}")

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """The sequence with its images as the model takes them."""
        fields = sequence_fields(sample.tokens, sample.labels, sample.loss_mask)
        return FamilySample.derive_from(sample, **fields, media=self._media(sample), aligned={})

    def costs(self, sample: Any) -> Mapping[str, int]:
        """Also `images`, and `image_tokens`, which are those of the vision model."""
        counted = super().costs(sample)
        if self.family is None:
            return counted
        tokens = int((sample.tokens == self._image_id).sum())
        return {**counted, "image_tokens": tokens, "images": len(getattr(sample, "images", ()))}

    def batch_media(self, rows: list[Media]) -> Media:
        """The media of a batch, in the family's layout."""
        if self.family is None:
            return {}
        if self._pixels == "uint8":
            return cast(ProcessedFamily, self.family).collected(rows)
        media = self.family.batch(rows)
        return in_bfloat16(media) if self._pixels == "bfloat16" else media

    def _check_template(self) -> None:
        """Find a missing chat template now, rather than in a worker."""
        _ = self.chat_template

    def _written(self, sample: Sample) -> _Written:
        """The conversation of a sample as the tokenizer gets it."""
        said = self.checked_conversation(sample)
        if not said.messages:
            return _Written(said, said.text, None, True)
        template = self.chat_template
        messages = self._messages(said.messages, template)
        text, spans = render_conversation(self.tokenizer, messages, template, self.answers, said.tools)
        note_moved_media(self._owner, said.messages, self._media_tokens, text)
        note_unended(self._owner, messages, self.config.conversation_template_config, text, spans)
        added = self._adds_special_tokens and lacks_beginning(self.tokenizer, text)
        return _Written(said, text, self._layout.spans_with_loss(text, spans), added)

    def _tokens_of(self, written: Sequence[_Written]) -> list[MarkedTokens]:
        """The tokens of some conversations, with one token for each image."""
        found: dict[int, MarkedTokens] = {}
        chats = [(at, one.added, (one.text, one.spans)) for at, one in enumerate(written) if one.spans is not None]
        for added in {added for _, added, _ in chats}:
            numbers, texts = zip(*[(at, text) for at, its, text in chats if its is added], strict=True)
            tokens = tokenize_spans(self.tokenizer, texts, add_special_tokens=added)
            found |= dict(zip(numbers, map(self._layout.learnt, tokens), strict=True))
        return [found[at] if at in found else tokenize_text(self.tokenizer, one.text) for at, one in enumerate(written)]

    def _with_visuals(self, sample: Sample, said: Conversation, marked: MarkedTokens) -> tuple[MarkedTokens, list[Any]]:
        """The tokens of a sample, with one image token for each of its images; and the images."""
        images = said.images
        if images and self.family is None:
            raise ConfigError(
                f"sample {sample.__key__!r} has images, but {type(self).__name__} has no {self._images_need}"
            )
        if images:
            images = without_settings(images, f"the family {type(self.family).__name__}", sample.__key__)
        found = marked.count(self._image_id) if self.family is not None else len(said.images)
        check_written(found, len(said.images), "image", self.config, sample.__key__)
        return marked, images

    def _messages(self, messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
        """The messages in the form that the template reads."""
        return self._layout.messages(messages, template, self._media_tokens)

    @property
    def _media_tokens(self) -> dict[str, tuple[str, str]]:
        """The type and the token of the medium that each placeholder stands for."""
        placeholder = self.config.placeholder
        return {placeholder: ("image", placeholder if self.family is None else self.family.image_token)}

    @property
    def _owner(self) -> str:
        """The encoder and its family, for messages."""
        return f"{type(self).__name__}({'' if self.family is None else type(self.family).__name__})"

    def _visual_tokens(self, visuals: list[Any], key: str) -> tuple[int, list[list[int]]]:
        """The first level of detail within the budget of tokens, and the tokens of each image."""
        if not visuals:
            return 0, []
        assert self.family is not None
        sized = self._sized(visuals, key)
        budget = self._limits.max_image_tokens
        for detail in range(self.family.num_details):
            texts = [self._ids_of(self._text_of(visual, detail)) for visual in sized]
            if budget is None or self._cost(texts) <= budget:
                return detail, texts
        raise SkipSample(f"its images take more than max_image_tokens={budget}")

    def _sized(self, visuals: list[Any], key: str) -> list[Any]:
        """The sizes of the images, or what else `_text_of` uses."""
        return picture_sizes(visuals, self._limits, key)

    def _text_of(self, visual: Any, detail: int) -> Pieces:
        assert self.family is not None
        return self.family.image_text(visual, detail)

    def _cost(self, texts: list[list[int]]) -> int:
        """Tokens that count for the budget."""
        return sum(map(len, texts))

    def _ids_of(self, text: Pieces) -> list[int]:
        ids: list[int] = []
        for piece, times in text:
            if piece not in self._piece_ids:
                # Between special tokens, as in the text: some tokenizers change the beginning of a text.
                around = self.family.image_token if self.family is not None else ""
                encoded = self.tokenizer(around + piece + around, add_special_tokens=False).input_ids
                self._piece_ids[piece] = list(encoded)[1:-1]
            ids += self._piece_ids[piece] * times
        return ids

    def _sequence(self, marked: MarkedTokens, texts: list[list[int]], sample: Sample) -> tuple[dict[str, Tensor], int]:
        """Tokens, labels and loss mask, at most `seq_length` of them; and the number of images that fit."""
        fitting, num_images = self._fitted(marked, texts, sample.__key__)
        labels = self._layout.labels(fitting, lambda: with_image_tokens(marked, self._image_id, texts)[0])
        return self._filled(fitting.ids, *labels), num_images

    def _fitted(self, marked: MarkedTokens, texts: list[list[int]], key: str) -> tuple[MarkedTokens, int]:
        check_length(marked, texts, self.seq_length, self.config.policies.overlong, key)
        return with_image_tokens(marked, self._image_id, texts, self.seq_length)

    def _media(self, sample: TokenizedSample) -> Media:
        if not sample.images or self.family is None:
            return {}
        made = pictures(sample.images, self._limits, sample.__key__)
        return self.family.pixels(made, getattr(sample, "detail", 0))  # a subclass may have a sample class of its own

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_piece_ids": {}}


def in_bfloat16(media: Media) -> Media:
    """The media with pixel values in bfloat16."""
    return media | {name: media[name].to(torch.bfloat16) for name in PIXELS if name in media}


def text_encoder(
    tokenizer: Any, config: FamilyConfig | None = None, *, seq_length: int = SEQ_LENGTH
) -> FamilyTaskEncoder:
    """The encoder of text SFT: conversations without images, with labels on the answers."""
    return FamilyTaskEncoder(tokenizer, None, config, seq_length=seq_length)


def padded_length(sample: Any, *, multiple: int) -> int:
    """Tokens of a sample, padded to a multiple."""
    return -(-int(sample.tokens.shape[-1]) // multiple) * multiple
