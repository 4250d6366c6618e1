"""The default task encoder of the DataModule, for models whose images take a fixed number of tokens.

    sample ─ preencode: conversation, tokens, labels ─ (packing) ─ postencode: images ─ batch: padding

Reads captioning, VQA, text and conversation samples. Returns `ImageTextBatch`, or with `layout="bridge"` a dict for
Megatron-Bridge's step, as its collator for such images makes it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge_data.encoders.encoder_config import (
    SEQ_LENGTH,
    ConversationConfig,
    FamilyConfig,
    ImageLimits,
    MultiModalSampleConfig,
)
from bridge_data.encoders.families import FixedSizeFamily
from bridge_data.encoders.family_encoder import FamilyTaskEncoder
from bridge_data.encoders.layouts import BridgeLayout
from bridge_data.encoders.pretrained import open_image_processor
from bridge_data.encoders.sequences import (
    FamilySample,
    ImageTextBatch,
    TokenizedSample,
    batched,
    check_multiple,
    joined,
    last_answer,
)
from bridge_data.encoders.tokens import MarkedTokens
from bridge_data.encoders.visuals import Images
from bridge_data.errors import ConfigError
from bridge_data.samples import Sample
from bridge_data.task import stateless


@dataclasses.dataclass(frozen=True)
class FixedTokens(FixedSizeFamily):
    """Images of one size, each of which takes `num_tokens` tokens."""

    image_processor: Any
    image_token: str
    num_tokens: int
    chat_template: str | None = None


class MultiModalTaskEncoder(FamilyTaskEncoder):
    """Conversations about images to batches for a decoder, or with `decoder_seq_length` for an encoder and a decoder.

    `tokenizer` and `image_processor` are those of transformers, or the folders (or hub ids) that they were saved to;
    without an image processor, only samples without images are accepted. A sequence holds at most `seq_length` tokens:
    it is cut at its end, but never within the tokens of an image (the image and all after it are dropped), and the
    sample is skipped if no answer remains. With a `decoder_seq_length`, the sequence is the prompt, and the last
    answer, cut to that many tokens, is the label. A tokenizer without a padding token pads with its end-of-sequence
    token, or with 0: padding has no loss, and lengths are in the batch.

    With `MultiModalSampleConfig(layout="bridge")`, pixel values are bfloat16, and `visual_inputs` is None in a batch
    without images.

    Cookers and `conversation` get images as encoded bytes (see `decoder`), and may pass them on unchanged.

    Raises:
        ConfigError: if the tokenizer does not know the image placeholder, if it is not known how many tokens an image
            takes, if an image does not fit into a sequence, or if `pack_in_batch` or `layout="bridge"` come with a
            `decoder_seq_length`.
    """

    config: MultiModalSampleConfig
    family: FixedTokens | None
    _images_need = "image_processor; pass one"
    _adds_special_tokens = False
    _pack_pad_id = None

    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any = None,
        multimodal_sample_config: MultiModalSampleConfig | None = None,
        *,
        seq_length: int = SEQ_LENGTH,
        decoder_seq_length: int | None = None,
    ) -> None:
        if decoder_seq_length is not None and decoder_seq_length < 1:
            raise ConfigError(f"MultiModalTaskEncoder(decoder_seq_length={decoder_seq_length}): expected at least 1")
        config = multimodal_sample_config or MultiModalSampleConfig()
        for_decoders = config.pack_in_batch or config.layout == "bridge" or config.policies.overlong == "split"
        if decoder_seq_length is not None and for_decoders:
            raise ConfigError(
                f"MultiModalTaskEncoder(decoder_seq_length={decoder_seq_length}): pack_in_batch, layout='bridge' and "
                "overlong='split' are for decoders alone; leave out decoder_seq_length, or these"
            )
        self.image_processor = open_image_processor(image_processor)
        self.decoder_seq_length = decoder_seq_length
        family = None
        self._image_shape = (3, 0, 0)
        if self.image_processor is not None:
            images = Images(self.image_processor, "MultiModalTaskEncoder")
            self._image_shape = images.shape
            family = FixedTokens(self.image_processor, config.placeholder, images.num_tokens(config))
        shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(ConversationConfig)}
        limits = ImageLimits(orientation=config.orientation)
        family_config = FamilyConfig(**shared, images=limits, image_placeholder=config.placeholder, carry_over=False)
        super().__init__(tokenizer, family, family_config, seq_length=seq_length)
        self.config = config
        if decoder_seq_length is not None:
            self.select_samples_to_pack = _refuse_packs  # type: ignore[method-assign]
        self._for_bridge = isinstance(self._layout, BridgeLayout)
        check_multiple(decoder_seq_length, config.pad_to_multiple_of, "decoder_seq_length")
        if family is not None and family.num_tokens > seq_length:
            raise ConfigError(
                f"an image takes {family.num_tokens} tokens, so none fits into seq_length={seq_length}; "
                "raise seq_length, or give an image processor that makes smaller images"
            )

    @stateless
    def postencode_sample(self, sample: TokenizedSample) -> FamilySample:
        """The sequence with its images as `pixel_values`."""
        made: FamilySample = super().postencode_sample(sample)
        dtype = torch.bfloat16 if self._for_bridge else torch.float32
        made.media = {name: pixels.to(dtype) for name, pixels in made.media.items()}
        return made

    def costs(self, sample: Any) -> Mapping[str, int]:
        """Each image has the same `image_tokens`, by whatever id."""
        counted = super().costs(sample)
        each = 0 if self.family is None else self.family.num_tokens
        return {**counted, "image_tokens": len(sample.images) * each} if each else counted

    @stateless
    def batch(self, samples: list[Any]) -> ImageTextBatch | dict[str, Any]:
        if self._for_bridge:
            made = super().batch(samples)
            assert isinstance(made, dict)
            return made if made["visual_inputs"].as_model_kwargs() else made | {"visual_inputs": None}
        fixed = self.config.pad_to_max_length
        rows = [self.pack_selected_samples(samples)] if self._pack_in_batch else samples
        sequences = batched(
            rows,
            pad=self._layout.pad_id,
            ignored=self.config.ignore_place_holder,
            length=self.seq_length if fixed else 0,
            label_length=(self.decoder_seq_length or self.seq_length) if fixed else 0,
        )
        images = joined([row.media for row in rows]).get("pixel_values", torch.zeros(0, *self._image_shape))
        num_tiles = torch.ones(len(images), dtype=torch.int64)
        return ImageTextBatch.from_samples(samples, **sequences, images=images, num_image_tiles=num_tiles)

    def _check_template(self) -> None:
        """None is needed for plain text: a missing one is found with the first conversation."""

    def _messages(self, messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
        """The messages, unchanged: the placeholder is the image token, and contents are text for any template."""
        return super()._messages(messages, template) if self._for_bridge else messages

    def _visual_tokens(self, visuals: list[Any], key: str) -> tuple[int, list[list[int]]]:
        """The same tokens for each image: sizes do not matter, so headers are not read."""
        if not visuals:
            return 0, []
        assert self.family is not None
        token = self.config.image_token.token_id
        return 0, [[self._image_id if token is None else token] * self.family.num_tokens] * len(visuals)

    def _sequence(self, marked: MarkedTokens, texts: list[list[int]], sample: Sample) -> tuple[dict[str, Tensor], int]:
        """As in a family; with a `decoder_seq_length`, the prompt, and the last answer as its labels."""
        if self.decoder_seq_length is None:
            return super()._sequence(marked, texts, sample)
        prompt, answer = last_answer(marked)
        if not len(prompt):
            raise ConfigError(
                f"sample {sample.__key__!r} has no prompt, which an encoder needs: with decoder_seq_length set, "
                f"{type(sample).__name__} cannot be used"
            )
        fitting, num_images = self._fitted(prompt, texts[: prompt.count(self._image_id)], sample.__key__)
        labels = answer.ids[: self.decoder_seq_length]
        return self._filled(fitting.ids, labels, np.ones(len(labels), np.float32)), num_images


@stateless
def _refuse_packs(samples: list[Any]) -> list[list[Any]]:
    raise ConfigError("packing (packing_buffer_size) is for decoders alone; leave out decoder_seq_length")
