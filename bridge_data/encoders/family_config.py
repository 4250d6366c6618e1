"""Settings that all model families share: conversations, what happens to bad ones, images, rows.

The names of `FamilyConfig`'s fields are those of `MultiModalSampleConfig` where they mean the same. Those that stand in
others have no slots: `LightningCLI` (jsonargparse) reads such defaults by `vars`.
"""

import dataclasses
from typing import get_args

from bridge_data.encoders import ConversationTemplateConfig, ImageToken, MultiModalSampleConfig
from bridge_data.encoders.policies import Policy, SamplePolicies, check_policy
from bridge_data.errors import ConfigError
from bridge_data.task.packers import Packer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """What images may be, and what is done to them before the image processor gets them.

    An image of fewer than `min_pixels` is enlarged to them, one of more than `max_pixels` shrunk, its aspect kept. The
    images of a sample take `max_image_tokens` tokens together at most (the visual-token budget): they are given less
    detail, all alike, until they do; a sample that does not fit with the least detail is left out, and counted. An
    image with a side of less than `min_side` pixels, or more than `max_aspect` times as long as it is wide (or the
    reverse), is no picture but a line, which tiles and resizing would blow up: `extreme_image` says what happens to
    its sample.

    Raises:
        ConfigError: if a number is out of range.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_image_tokens: int | None = None
    min_side: int = 1
    max_aspect: float = 200.0
    extreme_image: Policy = "skip"

    def __post_init__(self) -> None:
        for name in ("min_pixels", "max_pixels", "max_image_tokens", "min_side", "max_aspect"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ImageLimits({name}={value}): expected at least 1")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ConfigError(f"ImageLimits(min_pixels={self.min_pixels}): more than max_pixels={self.max_pixels}")
        check_policy("ImageLimits(extreme_image", self.extreme_image, get_args(Policy))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FamilyConfig:
    """How samples become the rows of a batch.

    `image_placeholder` is what stands for an image in the text of samples: the same for all families, so that data
    serves any of them; a line break on either side of it is dropped where the chat template writes its own.
    `caption_prompt` is what a caption answers. `ignore_place_holder` is the label of what is not learnt. `packer` and
    `carry_over` are those of `Packing`, used with a `packing_buffer_size`; `pack_in_batch` makes one row of all samples
    of a micro-batch. `pad_to_max_length` pads every row to `seq_length`. `pad_to_multiple_of` fills every sample up to
    a multiple of so many tokens, which are never learnt, also within a pack: 2 * CP * TP, say.

    Raises:
        ConfigError: if `pad_to_multiple_of` is below 1.
    """

    conversation_template_config: ConversationTemplateConfig = dataclasses.field(
        default_factory=ConversationTemplateConfig
    )
    policies: SamplePolicies = dataclasses.field(default_factory=SamplePolicies)
    images: ImageLimits = ImageLimits()
    image_placeholder: str = "<image>"
    caption_prompt: str = "Describe the image."
    ignore_place_holder: int = -100
    pad_to_max_length: bool = False
    pad_to_multiple_of: int = 1
    pack_in_batch: bool = False
    packer: str | Packer = "first_fit_decreasing"
    carry_over: bool = True

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of < 1:
            raise ConfigError(f"FamilyConfig(pad_to_multiple_of={self.pad_to_multiple_of}): expected at least 1")

    def of_samples(self) -> MultiModalSampleConfig:
        """The part of it that `conversation_of` goes by.

        Raises:
            ConfigError: if that part is wrong.
        """
        return MultiModalSampleConfig(
            image_token=ImageToken(token_str=self.image_placeholder),
            ignore_place_holder=self.ignore_place_holder,
            conversation_template_config=self.conversation_template_config,
            caption_prompt=self.caption_prompt,
            policies=self.policies,
        )
