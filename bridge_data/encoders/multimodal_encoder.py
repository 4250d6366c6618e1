"""The default task encoder of the DataModule, for images and text.

    sample ─ preencode: conversation, tokens, labels ─ (packing) ─ postencode: images ─ batch: padding

Enters: captioning, VQA, text and conversation samples. Leaves: `ImageTextBatch`. Only lengths are needed to choose
packs, so images wait in the packing buffer as the bytes that were read, and are decoded when their pack is made.
"""

from typing import Any

import torch

from bridge_data.decode import SampleDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders.chat import MarkedTokens, only_token, padding_token_of, tokenize_conversation, tokenize_text
from bridge_data.encoders.conversation import Conversation, conversation_of
from bridge_data.encoders.images import Images
from bridge_data.encoders.multimodal_config import MultiModalSampleConfig
from bridge_data.encoders.policies import refuse
from bridge_data.encoders.pretrained import open_image_processor, open_tokenizer
from bridge_data.encoders.sequences import (
    ImageTextBatch,
    ImageTextSample,
    TokenizedSample,
    batched,
    check_length,
    check_multiple,
    filled_up,
    last_answer,
    next_token_labels,
    packed,
    with_image_tokens,
)
from bridge_data.errors import ConfigError, SkipSample
from bridge_data.samples import Sample
from bridge_data.task import DefaultTaskEncoder, stateless
from bridge_data.task.packers import first_fit_decreasing


class MultiModalTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Conversations about images to batches for a decoder, or with `decoder_seq_length` for an encoder and a decoder.

    `tokenizer` and `image_processor` are those of transformers, or the folders (or hub ids) that such were saved to;
    without an image processor only samples without images are taken. A sequence holds `seq_length` tokens at most: it
    is cut at its end, but never within the tokens of an image (the image goes with what follows it), and is left out if
    no answer remains. With a `decoder_seq_length` the sequence is the prompt, and the last answer, of so many tokens at
    most, is the label. A tokenizer without a padding token pads with its end-of-sequence token, or with 0: neither is
    learnt, and lengths are in the batch.

    Cookers and `conversation` get images as encoded bytes (see `decoder`); they may pass them on as they are.

    Raises:
        ConfigError: if the tokenizer does not know the image placeholder, if it is not known how many tokens an image
            takes, or if an image does not fit into a sequence.
    """

    decoder = SampleDecoder(handlers=dict.fromkeys(IMAGE_EXTENSIONS, bytes))

    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any = None,
        multimodal_sample_config: MultiModalSampleConfig | None = None,
        *,
        seq_length: int = 2048,
        decoder_seq_length: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("seq_length", seq_length), ("decoder_seq_length", decoder_seq_length)):
            if value is not None and value < 1:
                raise ConfigError(f"MultiModalTaskEncoder({name}={value}): expected at least 1")
        tokenizer, image_processor = open_tokenizer(tokenizer), open_image_processor(image_processor)
        if not hasattr(tokenizer, "apply_chat_template"):
            raise ConfigError(
                f"MultiModalTaskEncoder(tokenizer={type(tokenizer).__name__}): expected a tokenizer of transformers, "
                "such as AutoTokenizer.from_pretrained(...)"
            )
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.config = config = multimodal_sample_config or MultiModalSampleConfig()
        self.seq_length, self.decoder_seq_length = seq_length, decoder_seq_length
        self._pad_id = padding_token_of(tokenizer)
        check_multiple(seq_length, config.pad_to_multiple_of, "seq_length")
        check_multiple(decoder_seq_length, config.pad_to_multiple_of, "decoder_seq_length")
        self._images: Images | None = None
        self._placeholder_id = -1
        self._tokens_per_image = 0
        if image_processor is not None:
            self._placeholder_id = only_token(tokenizer, config.image_token.token_str)
            self._images = Images(image_processor)
            self._tokens_per_image = self._images.num_tokens(config)
            if self._tokens_per_image > seq_length:
                raise ConfigError(
                    f"an image takes {self._tokens_per_image} tokens, so none fits into seq_length={seq_length}; "
                    "raise seq_length, or give an image processor that makes smaller images"
                )

    def conversation(self, sample: Any) -> Conversation:
        """What the sample says; override it for classes of your own. Raises as `conversation_of` does."""
        return conversation_of(sample, self.config)

    @stateless
    def preencode_sample(self, sample: Sample) -> TokenizedSample:
        """Tokens, labels and loss mask; the images that have a place in them wait as they are."""
        said = self.conversation(sample)
        marked = self._tokenize(sample, said)
        if self.decoder_seq_length is None:
            sequence, num_images = self._fit(marked, said, sample)
            labels, loss_mask = next_token_labels(sequence, self.config.ignore_place_holder)
        else:
            prompt, answer = last_answer(marked)
            if not prompt.ids:
                raise ConfigError(
                    f"sample {sample.__key__!r} has no prompt, which an encoder needs: with decoder_seq_length set, "
                    f"{type(sample).__name__} cannot be used"
                )
            sequence, num_images = self._fit(prompt, said, sample)
            labels = torch.tensor(answer.ids[: self.decoder_seq_length], dtype=torch.int64)
            loss_mask = torch.ones(len(labels))
        if not loss_mask.any():
            raise SkipSample(f"nothing that is to be learned lies within seq_length={self.seq_length}")
        multiple = self.config.pad_to_multiple_of
        return TokenizedSample.derive_from(
            sample,
            tokens=filled_up(torch.tensor(sequence.ids), multiple, self._pad_id),
            labels=filled_up(labels, multiple, self.config.ignore_place_holder),
            loss_mask=filled_up(loss_mask, multiple, 0),
            images=said.images[:num_images],
        )

    @stateless
    def postencode_sample(self, sample: TokenizedSample) -> ImageTextSample:
        """The sequence with its images as pixel values."""
        length = len(sample.tokens)
        pixels = torch.zeros(0, 3, 0, 0)
        if self._images is not None:
            pixels = self._images.pixels(sample.images, sample.__key__)
        return ImageTextSample.derive_from(
            sample,
            tokens=sample.tokens,
            labels=sample.labels,
            loss_mask=sample.loss_mask,
            position_ids=torch.arange(length),
            cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
            max_seqlen=torch.tensor(length, dtype=torch.int32),
            images=pixels,
            num_image_tiles=torch.ones(len(pixels), dtype=torch.int64),
        )

    @stateless
    def select_samples_to_pack(self, samples: list[TokenizedSample]) -> list[list[TokenizedSample]]:
        """First-fit decreasing into `seq_length`; every sample has a place."""
        if self.decoder_seq_length is not None:
            raise ConfigError("packing (packing_buffer_size) is for decoders alone; leave out decoder_seq_length")
        packs = first_fit_decreasing([len(sample.tokens) for sample in samples], self.seq_length)
        return [[samples[position] for position in pack] for pack in packs]

    @stateless
    def pack_selected_samples(self, samples: list[ImageTextSample]) -> ImageTextSample:
        """One sequence of several, told apart by `cu_seqlens`."""
        return packed(samples)

    @stateless
    def batch(self, samples: list[ImageTextSample]) -> ImageTextBatch:
        """The sequences as rows of one batch."""
        fixed = self.config.pad_to_max_length
        return batched(
            samples,
            pad=self._pad_id,
            ignored=self.config.ignore_place_holder,
            length=self.seq_length if fixed else 0,
            label_length=(self.decoder_seq_length or self.seq_length) if fixed else 0,
        )

    def _tokenize(self, sample: Sample, said: Conversation) -> MarkedTokens:
        template = self.config.conversation_template_config
        if said.images and self._images is None:
            raise ConfigError(
                f"sample {sample.__key__!r} has images, but MultiModalTaskEncoder has no image_processor; give it one"
            )
        if not said.messages:
            return tokenize_text(self.tokenizer, said.text)
        marked = tokenize_conversation(self.tokenizer, said.messages, template)
        if (found := marked.ids.count(self._placeholder_id)) != len(said.images):
            what = f"the chat template made {found} image placeholders of {len(said.images)}"
            refuse(self.config.policies.image_mismatch, sample.__key__, what)
        return marked

    def _fit(self, marked: MarkedTokens, said: Conversation, sample: Sample) -> tuple[MarkedTokens, int]:
        image_id = self.config.image_token.token_id
        image = [self._placeholder_id if image_id is None else image_id] * self._tokens_per_image
        images = [image] * marked.ids.count(self._placeholder_id) if said.images else []
        check_length(marked, images, self.seq_length, self.config.policies.overlong, sample.__key__)
        return with_image_tokens(marked, self._placeholder_id, images, self.seq_length)
