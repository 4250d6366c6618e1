"""Settings of task encoders, by family: what a recipe has at `encoder`.

Each is a frozen dataclass; `build(...)` makes the encoder out of the tokenizer and the image processor.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError

if TYPE_CHECKING:
    from bridge_data.encoders import FamilyConfig, VisionFamily
    from bridge_data.task import TaskEncoder


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConversationConfig:
    """How conversations are written, and what happens to those that break a rule.

    The fields are those of `FamilyConfig`, `ConversationTemplateConfig`, `SamplePolicies` and `ImageLimits`.
    """

    image_placeholder: str = "<image>"
    caption_prompt: str = "Describe the image."
    system: str | None = None
    chat_template: str | None = None
    pad_to_max_length: bool = False
    pad_to_multiple_of: int = 1
    pack_in_batch: bool = False
    packer: str = "first_fit_decreasing"
    image_mismatch: str = "error"
    roles_out_of_order: str = "error"
    empty_answer: str = "skip"
    overlong: str = "truncate"
    extreme_image: str = "skip"
    max_image_tokens: int | None = None

    def build(self) -> "FamilyConfig":
        """The settings of a family's encoder."""
        from bridge_data.encoders import ConversationTemplateConfig, FamilyConfig, ImageLimits, SamplePolicies

        policies: dict[str, Any] = {
            name: getattr(self, name) for name in ("image_mismatch", "roles_out_of_order", "empty_answer", "overlong")
        }
        extreme: Any = self.extreme_image
        return FamilyConfig(
            conversation_template_config=ConversationTemplateConfig(
                system=self.system, chat_template=self.chat_template
            ),
            policies=SamplePolicies(**policies),
            images=ImageLimits(max_image_tokens=self.max_image_tokens, extreme_image=extreme),
            image_placeholder=self.image_placeholder,
            caption_prompt=self.caption_prompt,
            pad_to_max_length=self.pad_to_max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            pack_in_batch=self.pack_in_batch,
            packer=self.packer,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSettings:
    """The common protocol: makes a task encoder."""

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        """The task encoder."""
        raise NotImplementedError


def _of_family(
    tokenizer: Any, family: "VisionFamily | None", conversation: ConversationConfig, seq_length: int
) -> "TaskEncoder":
    from bridge_data.encoders import FamilyTaskEncoder

    return FamilyTaskEncoder(tokenizer, family, conversation.build(), seq_length=seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextEncoderSettings(EncoderSettings):
    """Conversations without images."""

    conversation: ConversationConfig = ConversationConfig()

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        return _of_family(tokenizer, None, self.conversation, seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DocumentEncoderSettings(EncoderSettings):
    """Documents for pretraining; `packer` packs their rests."""

    packer: str = "best_fit"

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import PretrainingTaskEncoder

        return PretrainingTaskEncoder(tokenizer, seq_length=seq_length, packer=self.packer)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LlavaEncoderSettings(EncoderSettings):
    """LLaVA, or LLaVA-NeXT if images are tiled (`tiles`): what the vision tower makes of an image."""

    conversation: ConversationConfig = ConversationConfig()
    tiles: bool = False
    patch_size: int = 14
    vision_feature_select_strategy: str = "default"
    num_additional_image_tokens: int = 1

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import Llava, LlavaNext

        strategy: Any = self.vision_feature_select_strategy
        family = (LlavaNext if self.tiles else Llava)(
            image_processor,
            patch_size=self.patch_size,
            vision_feature_select_strategy=strategy,
            num_additional_image_tokens=self.num_additional_image_tokens,
        )
        return _of_family(tokenizer, family, self.conversation, seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Idefics3EncoderSettings(EncoderSettings):
    """Idefics3 and SmolVLM: tokens of a tile."""

    conversation: ConversationConfig = ConversationConfig()
    image_seq_len: int = 169

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import Idefics3

        family = Idefics3(image_processor, image_seq_len=self.image_seq_len)
        return _of_family(tokenizer, family, self.conversation, seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InternVLEncoderSettings(EncoderSettings):
    """InternVL: tokens of a tile."""

    conversation: ConversationConfig = ConversationConfig()
    image_seq_length: int = 256

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import InternVL

        family = InternVL(image_processor, image_seq_length=self.image_seq_length)
        return _of_family(tokenizer, family, self.conversation, seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VideoConfig:
    """Which frames of videos are taken (see `VideoSampling`), and how many pixels they have (see `Qwen2VL`)."""

    fps: float | None = 2.0
    min_frames: int = 4
    max_frames: int = 768
    min_frame_pixels: int | None = None
    max_frame_pixels: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QwenVLEncoderSettings(EncoderSettings):
    """Qwen-VL of `generation` 2, 2.5 or 3: pixels of images (None: what the image processor has), and videos."""

    generation: str = "2.5"
    conversation: ConversationConfig = ConversationConfig()
    min_pixels: int | None = None
    max_pixels: int | None = None
    video: VideoConfig = VideoConfig()

    def __post_init__(self) -> None:
        if self.generation not in ("2", "2.5", "3"):
            raise ConfigError(f"encoder.generation={self.generation!r}: expected '2', '2.5' or '3'")

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import Qwen2_5VL, Qwen2VL, Qwen3VL, QwenVLTaskEncoder, VideoSampling

        video = self.video
        kinds: dict[str, type[Qwen2VL]] = {"2": Qwen2VL, "2.5": Qwen2_5VL, "3": Qwen3VL}
        family = kinds[self.generation](
            image_processor,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            min_frame_pixels=video.min_frame_pixels,
            max_frame_pixels=video.max_frame_pixels,
        )
        sampling = VideoSampling(fps=video.fps, min_frames=video.min_frames, max_frames=video.max_frames)
        config = self.conversation.build()
        return QwenVLTaskEncoder(tokenizer, family, config, seq_length=seq_length, sampling=sampling)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PairEncoderSettings(EncoderSettings):
    """Images and texts of CLIP and SigLIP; `max_length` is the tokens of a text (None: what the tokenizer says)."""

    max_length: int | None = None
    overlong: str = "truncate"
    empty_text: str = "skip"

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        from bridge_data.encoders import ContrastiveConfig, ContrastiveTaskEncoder

        policies: dict[str, Any] = {"overlong": self.overlong, "empty_text": self.empty_text}
        config = ContrastiveConfig(max_length=self.max_length, **policies)
        return ContrastiveTaskEncoder(tokenizer, image_processor, config)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpeechEncoderSettings(EncoderSettings):
    """Recordings and their words; `language` and `task` are what Whisper's tokenizer writes before the words."""

    language: str | None = None
    task: str | None = None
    max_target_length: int = 448
    overlong: str = "skip"
    empty_text: str = "skip"

    def build(self, tokenizer: Any, image_processor: Any, *, seq_length: int) -> "TaskEncoder":
        """The encoder of speech; a decoder starts with the tokenizer's first token, which is left out of targets."""
        from bridge_data.encoders import SpeechConfig, SpeechTaskEncoder

        if self.language is not None or self.task is not None:
            if not hasattr(tokenizer, "set_prefix_tokens"):
                raise ConfigError(
                    f"encoder.language and encoder.task: {type(tokenizer).__name__} knows none; expected Whisper's"
                )
            tokenizer.set_prefix_tokens(language=self.language, task=self.task)
        policies: dict[str, Any] = {"overlong": self.overlong, "empty_text": self.empty_text}
        config = SpeechConfig(max_target_length=self.max_target_length, **policies)
        start = tokenizer("").input_ids[0]
        return SpeechTaskEncoder(tokenizer, image_processor, config, start_token_id=start)
