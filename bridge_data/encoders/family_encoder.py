"""The task encoder of model families: conversations about any number of images, as the family's models take them.

    sample ─ preencode: conversation, sizes, tokens ─ (packing) ─ postencode: images ─ batch: rows, media

Enters: captioning, VQA, text and conversation samples. Leaves: `FamilyBatch`. How many tokens an image takes is known
from its size, so images wait in the packing buffer as the bytes that were read. The processor of transformers is never
called, only its parts, the tokenizer and the image processor.
"""

from typing import Any

import torch

from bridge_data.decode import SampleDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders import rendering
from bridge_data.encoders.chat import MarkedTokens, chat_template_of, only_token, padding_token_of
from bridge_data.encoders.conversation import Conversation, conversation_of
from bridge_data.encoders.family import Media, Pieces, VisionFamily, joined
from bridge_data.encoders.family_config import FamilyConfig
from bridge_data.encoders.family_samples import FamilyBatch, FamilySample, WaitingSample, batch_family, pack_family
from bridge_data.encoders.pictures import picture_sizes, pictures
from bridge_data.encoders.policies import refuse
from bridge_data.encoders.pretrained import open_tokenizer
from bridge_data.encoders.sequences import check_length, check_multiple, filled_up, next_token_labels, with_image_tokens
from bridge_data.errors import ConfigError, SkipSample
from bridge_data.samples import Sample
from bridge_data.task import DefaultTaskEncoder, Packing, stateless


class ConversationTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """What all encoders of conversations share: their settings, packing, and rows of tokens. The tokenizer may be given
    by the folder (or hub id) that it was saved to.

    Raises:
        ConfigError: if there is no chat template, or the one that the settings name is unknown.
    """

    decoder = SampleDecoder(handlers=dict.fromkeys(IMAGE_EXTENSIONS, bytes))

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
        self.tokenizer, self.seq_length = tokenizer, seq_length
        self.config = config or FamilyConfig()
        check_multiple(seq_length, self.config.pad_to_multiple_of, "seq_length")
        self._samples = self.config.of_samples()
        self.select_samples_to_pack = Packing(  # type: ignore[method-assign]
            length=_length,
            capacity=seq_length,
            overlong="drop",  # none is: sequences are cut before
            packer=self.config.packer,
            carry_over=self.config.carry_over,
        )

    @property
    def answers(self) -> str:
        """The role that answers."""
        return self.config.conversation_template_config.roles[1]

    def conversation(self, sample: Any) -> Conversation:
        """What the sample says; override it for classes of your own. Raises as `conversation_of` does."""
        return conversation_of(sample, self._samples)

    def batch_media(self, rows: list[Media]) -> Media:
        """The media of a batch out of those of its rows."""
        raise NotImplementedError

    def join_media(self, rows: list[Media]) -> Media:
        """The media of several samples, one behind the other."""
        return joined(rows)

    @stateless
    def pack_selected_samples(self, samples: list[FamilySample]) -> FamilySample:
        """One sequence of several, told apart by `cu_seqlens` and by `position_ids`."""
        return pack_family(samples, self.join_media([sample.media for sample in samples]))

    @stateless
    def batch(self, samples: list[FamilySample]) -> FamilyBatch:
        """The sequences as rows of one batch; with `pack_in_batch`, as one row."""
        rows = [self.pack_selected_samples(samples)] if self.config.pack_in_batch else samples
        return batch_family(
            rows,
            self.batch_media([row.media for row in rows]),
            pad=padding_token_of(self.tokenizer),
            ignored=self.config.ignore_place_holder,
            length=self.seq_length if self.config.pad_to_max_length else 0,
        )

    def _labelled(self, marked: MarkedTokens) -> dict[str, torch.Tensor]:
        labels, loss_mask = next_token_labels(marked, self.config.ignore_place_holder)
        if not loss_mask.any():
            raise SkipSample
        multiple = self.config.pad_to_multiple_of
        return {
            "tokens": filled_up(torch.tensor(marked.ids), multiple, padding_token_of(self.tokenizer)),
            "labels": filled_up(labels, multiple, self.config.ignore_place_holder),
            "loss_mask": filled_up(loss_mask, multiple, 0),
        }


class FamilyTaskEncoder(ConversationTaskEncoder):
    """Conversations to the batches of a family of models, equal to those of its processor of transformers.

    `family` says what becomes of images; without one, samples with images are refused: text SFT. A sequence holds
    `seq_length` tokens at most: it is cut at its end, but never within the text of an image (which goes with all that
    follows), and is left out if no answer remains (see `SamplePolicies` for other ways). The chat template is that of
    the settings, else the tokenizer's own, else the family's.

    Raises:
        ConfigError: if there is no chat template, or the tokenizer does not know the family's image token.
    """

    def __init__(
        self,
        tokenizer: Any,
        family: VisionFamily | None = None,
        config: FamilyConfig | None = None,
        *,
        seq_length: int = 2048,
    ) -> None:
        super().__init__(tokenizer, config, seq_length)
        self.family = family
        fallback = family.chat_template if family is not None else None
        self.chat_template = chat_template_of(self.tokenizer, self.config.conversation_template_config, fallback)
        self._image_id = -1 if family is None else only_token(self.tokenizer, family.image_token)
        self._piece_ids: dict[str, list[int]] = {}

    @stateless
    def preencode_sample(self, sample: Sample) -> WaitingSample:
        """Tokens, labels and loss mask; the images that have a place in them wait as they are."""
        said, key = self.conversation(sample), sample.__key__
        marked = self._tokenize(said)
        found = marked.ids.count(self._image_id) if self.family is not None else len(said.images)
        if found != len(said.images):
            what = f"the chat template made {found} image placeholders of {len(said.images)}"
            refuse(self.config.policies.image_mismatch, key, what)
        detail, images = self._image_tokens(said, key)
        check_length(marked, images, self.seq_length, self.config.policies.overlong, key)
        sequence, num_images = with_image_tokens(marked, self._image_id, images, self.seq_length)
        kept = said.images[:num_images]
        return WaitingSample.derive_from(sample, **self._labelled(sequence), images=kept, detail=detail)

    @stateless
    def postencode_sample(self, sample: WaitingSample) -> FamilySample:
        """The sequence with its images as the model takes them."""
        length = len(sample.tokens)
        return FamilySample.derive_from(
            sample,
            tokens=sample.tokens,
            labels=sample.labels,
            loss_mask=sample.loss_mask,
            position_ids=torch.arange(length),
            cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
            max_seqlen=torch.tensor(length, dtype=torch.int32),
            media=self._media(sample),
            aligned={},
        )

    def batch_media(self, rows: list[Media]) -> Media:
        """The media of a batch, as the family has them."""
        return {} if self.family is None else self.family.batch(rows)

    def _tokenize(self, said: Conversation) -> MarkedTokens:
        token = self.config.image_placeholder if self.family is None else self.family.image_token
        return rendering.tokenize(
            self.tokenizer,
            said,
            self.chat_template,
            answers=self.answers,
            placeholder=self.config.image_placeholder,
            token=token,
        )

    def _image_tokens(self, said: Conversation, key: str) -> tuple[int, list[list[int]]]:
        """The level of detail at which the images keep to the budget, and the tokens of each."""
        if not said.images:
            return 0, []
        if self.family is None:
            raise ConfigError(
                f"sample {key!r} has images, but {type(self).__name__} has no family, which would say what to do with "
                "them; give it one, such as Llava(...)"
            )
        sizes = picture_sizes(said.images, self.config.images, key)
        budget = self.config.images.max_image_tokens
        for detail in range(self.family.num_details):
            images = [self._ids_of(self.family.image_text(size, detail)) for size in sizes]
            if budget is None or sum(map(len, images)) <= budget:
                return detail, images
        raise SkipSample

    def _ids_of(self, text: Pieces) -> list[int]:
        ids: list[int] = []
        for piece, times in text:
            if piece not in self._piece_ids:
                # Between special tokens, as it stands in the text: some tokenizers treat its beginning another way.
                around = self.family.image_token if self.family is not None else ""
                encoded = self.tokenizer(around + piece + around, add_special_tokens=False).input_ids
                self._piece_ids[piece] = list(encoded)[1:-1]
            ids += self._piece_ids[piece] * times
        return ids

    def _media(self, sample: WaitingSample) -> Media:
        if not sample.images or self.family is None:
            return {}
        made = pictures(sample.images, self.config.images, sample.__key__)
        return self.family.pixels(made, sample.detail)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_piece_ids": {}}


def text_encoder(tokenizer: Any, config: FamilyConfig | None = None, *, seq_length: int = 2048) -> FamilyTaskEncoder:
    """The encoder of text SFT: conversations without images, learnt where they answer."""
    return FamilyTaskEncoder(tokenizer, None, config, seq_length=seq_length)


def _length(sample: Any) -> int:
    return int(sample.tokens.shape[-1])
