"""CLIP and SigLIP: pairs of an image and its text, for contrastive training.

Reads captioning samples. Returns `ContrastiveBatch`: token ids, attention mask and pixel values are those of the
family's processor with `padding="max_length", truncation=True`. A truncated text keeps its end token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bridge_data.decode import SampleDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders.chat import check_unicode, padding_token_of
from bridge_data.encoders.encoder_config import ImageLimits, OverlongPolicy, Policy, note_overlong, refuse
from bridge_data.encoders.visuals import Images, picture_sizes, pictures
from bridge_data.errors import ConfigError
from bridge_data.options import check_at_least, check_choices
from bridge_data.samples import Batch, CaptioningSample, Sample, edataclass
from bridge_data.task import DefaultTaskEncoder, stateless

_LONGEST = 4096
"""A tokenizer without a limit reports more than this."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContrastiveConfig:
    """`max_length` is the number of tokens of every text (None: the tokenizer's `model_max_length`, 77 for CLIP, 64 for
    SigLIP). `overlong` says what happens to longer texts, `empty_text` to samples without words.

    Raises:
        ConfigError: for a setting that is unknown or out of range.
    """

    max_length: int | None = None
    overlong: OverlongPolicy = "truncate"
    empty_text: Policy = "skip"
    images: ImageLimits = dataclasses.field(default_factory=ImageLimits)

    def __post_init__(self) -> None:
        check_at_least(self, 3, "max_length")
        check_choices(self)
        if self.images.max_image_tokens is not None:
            raise ConfigError(
                f"ContrastiveConfig(images=ImageLimits(max_image_tokens={self.images.max_image_tokens})): the image of "
                "a pair is not part of its text and takes no tokens; leave it out"
            )


@edataclass
class ContrastiveSample(Sample):
    """`input_ids` and `attention_mask` int64 (max_length,); `pixel_values` float32 (channels, height, width)."""

    input_ids: Tensor
    attention_mask: Tensor
    pixel_values: Tensor


@edataclass
class ContrastiveBatch(Batch):
    """The fields of `ContrastiveSample` with B in front; image i belongs to text i."""

    input_ids: Tensor
    attention_mask: Tensor
    pixel_values: Tensor
    has_mask: bool

    def model_inputs(self) -> dict[str, Tensor | bool]:
        """Keyword arguments of the `forward` of a model of transformers, which returns the contrastive loss. Without
        `has_mask` (SigLIP) there is no attention mask: padding is read as text."""
        inputs: dict[str, Tensor | bool] = {"input_ids": self.input_ids, "pixel_values": self.pixel_values}
        if self.has_mask:
            inputs["attention_mask"] = self.attention_mask
        return inputs | {"return_loss": True}


class ContrastiveTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Captions to the batches of CLIP or SigLIP. The model gets an attention mask if the tokenizer has one in its
    `model_input_names`.

    Raises:
        ConfigError: if the image processor makes images of several sizes, or the length of texts is unknown.
    """

    decoder = SampleDecoder(handlers=dict.fromkeys(IMAGE_EXTENSIONS, bytes))

    def __init__(self, tokenizer: Any, image_processor: Any, config: ContrastiveConfig | None = None) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.config = config or ContrastiveConfig()
        self.max_length = self.config.max_length or tokenizer.model_max_length
        if self.max_length > _LONGEST:
            raise ConfigError(
                f"{type(tokenizer).__name__} does not say how long texts are (model_max_length={self.max_length}); "
                "set ContrastiveConfig(max_length=...), 77 for CLIP, 64 for SigLIP"
            )
        self._images = Images(image_processor, "ContrastiveTaskEncoder")
        self._has_mask = "attention_mask" in tokenizer.model_input_names

    def text(self, sample: Any) -> tuple[str, Any]:
        """The text of a sample and its image; override it for your own sample classes.

        Raises:
            ConfigError: for another class than `CaptioningSample`.
        """
        if not isinstance(sample, CaptioningSample):
            raise ConfigError(
                f"{type(self).__name__} takes CaptioningSample, got {type(sample).__name__}; add a cooker that makes "
                "one, or override `text` in a subclass"
            )
        return sample.caption.strip(), sample.image

    @stateless
    def encode_sample(self, sample: Sample) -> ContrastiveSample:
        """The padded text, and the image as the model takes it."""
        text, image = self.text(sample)
        key, config = sample.__key__, self.config
        check_unicode(text, key)
        if not text:
            refuse(config.empty_text, key, "its text has no words")
        picture_sizes([image], config.images, key)
        ids = self.tokenizer(text, verbose=False).input_ids
        if len(ids) > self.max_length:
            note_overlong(config.overlong, key, f"it has {len(ids)} tokens, a text holds {self.max_length}")
            ids = self.tokenizer(text, truncation=True, max_length=self.max_length).input_ids
        padding = self.max_length - len(ids)
        pixels = self._images.pixels(pictures([image], config.images, key), key)[0]
        return ContrastiveSample.derive_from(
            sample,
            input_ids=torch.tensor(ids + [padding_token_of(self.tokenizer)] * padding),
            attention_mask=torch.tensor([1] * len(ids) + [0] * padding),
            pixel_values=pixels,
        )

    def costs(self, sample: ContrastiveSample) -> Mapping[str, int]:
        """`tokens` of the text without its padding, and one of `images`."""
        return {"tokens": int(sample.attention_mask.sum()), "images": 1}

    @stateless
    def batch(self, samples: list[ContrastiveSample]) -> ContrastiveBatch:
        return ContrastiveBatch.from_samples(samples, has_mask=self._has_mask)
