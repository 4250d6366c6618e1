"""Settings of the default task encoder: what stands for an image, how a conversation is written, what is learnt.

Those that stand in others have no slots: `LightningCLI` (jsonargparse) reads such defaults by `vars`.

Source: the names follow NeMo's and Megatron-Bridge's `MultiModalSampleConfig`.
"""

import dataclasses

from bridge_data.encoders.policies import SamplePolicies
from bridge_data.errors import ConfigError

PLAIN_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + (eos_token or '') -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""
"""The contents one after the other, without roles: for tokenizers that come without a chat template."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageToken:
    """What stands for an image. `token_str` marks its place in text, and is one token of the tokenizer's vocabulary;
    `token_id` is what is written into `tokens`, as often as the image has tokens (None: the id of `token_str`)."""

    token_str: str = "<image>"
    token_id: int | None = None

    def __post_init__(self) -> None:
        if not self.token_str:
            raise ConfigError("ImageToken(token_str=''): expected the text that stands for an image, such as '<image>'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationTemplateConfig:
    """How a conversation becomes text.

    `system` opens every conversation (None: nothing does). `roles` are who asks and who answers. `chat_template` is
    used instead of the tokenizer's own. `stop_string` is put behind every answer, for templates that put nothing there.
    """

    system: str | None = None
    roles: tuple[str, str] = ("user", "assistant")
    chat_template: str | None = None
    stop_string: str | None = None

    def __post_init__(self) -> None:
        if len(self.roles) != 2 or self.roles[0] == self.roles[1]:
            raise ConfigError(
                f"ConversationTemplateConfig(roles={self.roles!r}): expected two different names, "
                "who asks and who answers, such as ('user', 'assistant')"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MultiModalSampleConfig:
    """How samples become sequences.

    `ignore_place_holder` is the label of positions that are not learnt. `caption_prompt` is what a caption answers.
    An image takes `tokens_per_image` tokens; None: one for each patch of `patch_size` pixels a side of what the image
    processor makes of it (None: the `patch_size` of the processor). `pad_to_max_length` pads every batch to
    `seq_length`, rather than to its longest sequence. `pad_to_multiple_of` fills every sample up to a multiple of so
    many tokens, which are never learnt, also within a pack: 2 * CP * TP, say. `policies` say what happens to samples
    that are not in order.

    Raises:
        ConfigError: if a number is out of range.
    """

    image_token: ImageToken = ImageToken()
    ignore_place_holder: int = -100
    conversation_template_config: ConversationTemplateConfig = ConversationTemplateConfig()
    caption_prompt: str = "Describe the image."
    tokens_per_image: int | None = None
    patch_size: int | None = None
    pad_to_max_length: bool = False
    pad_to_multiple_of: int = 1
    policies: SamplePolicies = dataclasses.field(default_factory=SamplePolicies)

    def __post_init__(self) -> None:
        for name in ("tokens_per_image", "patch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"MultiModalSampleConfig({name}={value}): expected at least 1, or None")
        if self.pad_to_multiple_of < 1:
            raise ConfigError(
                f"MultiModalSampleConfig(pad_to_multiple_of={self.pad_to_multiple_of}): expected at least 1"
            )
        if self.ignore_place_holder >= 0:
            raise ConfigError(
                f"MultiModalSampleConfig(ignore_place_holder={self.ignore_place_holder}): expected a negative number, "
                "which is no token; -100 is what losses ignore by default"
            )
