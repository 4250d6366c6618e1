"""Settings of the encoders of conversations: templates, labels, padding, images, and what to do with bad samples.

`ConversationConfig` holds what all of them share. `MultiModalSampleConfig` adds the settings of the default encoder,
`FamilyConfig` those of model families.

A policy says what happens to a sample that breaks a rule. `"skip"` skips it: it is counted in `loader.skipped`.
`"error"` makes it a failure (`SampleError`): it is counted too, the error handler gets a message that names the sample,
and the run stops once more failures in a row occur than the encoder tolerates.

Dataclasses that are fields of others have no slots: `LightningCLI` (jsonargparse) reads their defaults by `vars`.

Source: the names follow NeMo's and Megatron-Bridge's `MultiModalSampleConfig`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias

from bridge_data.decode.image import Orientation
from bridge_data.encoders.template_settings import check_variables
from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.options import check_at_least, check_choices
from bridge_data.running_hook import note_truncation
from bridge_data.task.packers import Packer

SEQ_LENGTH = 2048
"""How many tokens a sequence holds by default."""

IGNORED = -100
"""The label of positions without loss by default, which torch's losses ignore."""

PLAIN_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + (eos_token or '') -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""
"""The concatenated contents, without roles: for tokenizers without a chat template."""

Policy: TypeAlias = Literal["skip", "error"]
KeepPolicy: TypeAlias = Literal["skip", "error", "keep"]
Layout: TypeAlias = Literal["native", "bridge"]
OverlongPolicy: TypeAlias = Literal["truncate", "skip", "error"]
PixelType: TypeAlias = Literal["float32", "bfloat16", "uint8"]
TurnsPolicy: TypeAlias = Literal["truncate", "split", "skip", "error"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplePolicies:
    """What happens to conversations that break a rule.

    `image_mismatch`: the number of placeholders differs from the number of images. `roles_out_of_order`: a role that is
    not in the settings, a system message that is not the first, an answer without a question, or two turns of one role
    in a row ("keep": pass them to the chat template). `media_tags`: a turn has a tag that stands for a medium which the
    encoder does not fill in, such as `<audio>` ("keep": it is text). `empty_answer`: an answer without words ("keep":
    train on it; a sample with only empty answers is skipped all the same). `overlong`: more tokens than `seq_length`
    ("truncate": cut the end, an image as a whole, counted in `loader.truncated`; skip the sample if no answer remains.
    "split": several samples, cut after answers, without what comes before them; a turn that is too long by itself is
    truncated).

    >>> SamplePolicies(overlong="split", roles_out_of_order="skip").overlong
    'split'

    Raises:
        ConfigError: for an unknown policy.
    """

    image_mismatch: Policy = "error"
    roles_out_of_order: KeepPolicy = "error"
    media_tags: KeepPolicy = "error"
    empty_answer: KeepPolicy = "skip"
    overlong: TurnsPolicy = "truncate"

    def __post_init__(self) -> None:
        check_choices(self)


def refuse(policy: str, key: str, what: str) -> NoReturn:
    """Skip sample `key` as `policy` says, because of `what`."""
    if policy == "skip":
        raise SkipSample(what)
    raise SampleError(f"sample {key!r}: {what}")


def note_overlong(policy: TurnsPolicy, key: str, what: str) -> None:
    """Refuse sample `key`, which is too long, because of `what`; or, as `policy` says, count it as truncated."""
    if policy not in ("truncate", "split"):
        refuse(policy, key, what)
    note_truncation()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageToken:
    """The token of an image. `token_str` marks an image in the text, and must be one token of the vocabulary;
    `token_id` is written into `tokens`, once for each token of the image (None: the id of `token_str`)."""

    token_str: str = "<image>"
    token_id: int | None = None

    def __post_init__(self) -> None:
        if not self.token_str:
            raise ConfigError("ImageToken(token_str=''): expected the text that stands for an image, such as '<image>'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationTemplateConfig:
    """How a conversation becomes text.

    `system` opens every conversation that has no system text of its own (None: nothing does). `roles` are who asks and
    who answers. `chat_template` replaces that of the tokenizer; `chat_template_kwargs` are variables in it, such as
    `{"enable_thinking": False}`, and `date`, such as "2026-11-30", is what it writes as the current date (None: always
    26 July 2024, so that a resume makes the same samples). `stop_string` is appended to every answer, for templates
    that append nothing.

    >>> ConversationTemplateConfig(system="Answer in one word.").roles
    ('user', 'assistant')
    """

    system: str | None = None
    roles: tuple[str, str] = ("user", "assistant")
    chat_template: str | None = None
    stop_string: str | None = None
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    date: str | None = None

    def __post_init__(self) -> None:
        check_variables(type(self).__name__, self.chat_template_kwargs, self.date)
        object.__setattr__(self, "roles", tuple(self.roles))  # YAML has lists
        if len(self.roles) != 2 or self.roles[0] == self.roles[1]:
            raise ConfigError(
                f"ConversationTemplateConfig(roles={self.roles!r}): expected two different names, "
                "who asks and who answers, such as ('user', 'assistant')"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConversationConfig:
    """Settings that all encoders of conversations share.

    `caption_prompt` is the question that a caption answers. `ignore_place_holder` is the label of positions without
    loss. `pad_to_max_length` pads every row to `seq_length`, rather than to the longest row of the batch.
    `pad_to_multiple_of` pads every sample to a multiple of that many tokens, also within a pack: 2 * CP * TP, say;
    padding has no loss. `pack_in_batch` makes one row of all samples of a micro-batch. `layout` is that of batches:
    "native" (`SequenceBatch`), or "bridge", a dict for Megatron-Bridge's step (see `layouts`), which pads the
    rows of a batch rather than each of its samples. `pack_budgets` are the `budgets` of `Packing`, such as
    `{"image_tokens": 4096}`.

    Raises:
        ConfigError: if a setting is wrong.
    """

    conversation_template_config: ConversationTemplateConfig = dataclasses.field(
        default_factory=ConversationTemplateConfig
    )
    policies: SamplePolicies = dataclasses.field(default_factory=SamplePolicies)
    caption_prompt: str = "Describe the image."
    ignore_place_holder: int = IGNORED
    pad_to_max_length: bool = False
    pad_to_multiple_of: int = 1
    pack_in_batch: bool = False
    layout: Layout = "native"
    pack_budgets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    NOT_COSTS: ClassVar[tuple[str, ...]] = ("pack_budgets",)
    """Fields that change no cost, for `costs_key`."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "pad_to_multiple_of")
        if self.ignore_place_holder >= 0:
            raise ConfigError(
                f"{type(self).__name__}(ignore_place_holder={self.ignore_place_holder}): expected a negative number: "
                f"tokens are 0 or more; losses ignore {IGNORED} by default"
            )

    @property
    def placeholder(self) -> str:
        """The text that stands for an image in the turns of a sample."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MultiModalSampleConfig(ConversationConfig):
    """Settings of `MultiModalTaskEncoder`: those of `ConversationConfig`, and what an image becomes.

    An image takes `tokens_per_image` tokens; None: one for each patch of `patch_size` pixels a side of the processed
    image (None: the `patch_size` of the image processor). With `orientation="apply"`, encoded images are turned as
    their EXIF data say.

    >>> MultiModalSampleConfig(tokens_per_image=256, pad_to_multiple_of=8).placeholder
    '<image>'

    Raises:
        ConfigError: if a number is out of range, or a word unknown.
    """

    image_token: ImageToken = ImageToken()
    tokens_per_image: int | None = None
    patch_size: int | None = None
    orientation: Orientation = "ignore"

    def __post_init__(self) -> None:
        ConversationConfig.__post_init__(self)
        check_at_least(self, 1, "tokens_per_image", "patch_size")

    @property
    def placeholder(self) -> str:
        return self.image_token.token_str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Which images are accepted, and how they are resized before the image processor gets them.

    An image of fewer than `min_pixels` is enlarged to that many, one of more than `max_pixels` shrunk, its aspect kept.
    The images of a sample together take at most `max_image_tokens` tokens (the visual-token budget): all get less
    detail until they fit; a sample that does not fit with the least detail is skipped. An image with a side of less
    than `min_side` pixels, or with one side more than `max_aspect` times the other, is a line rather than a picture,
    and tiling would blow it up: `extreme_image` says what happens to its sample. With `orientation="apply"`, encoded
    images are turned as their EXIF data say.

    >>> ImageLimits(max_pixels=1024 * 1024, orientation="apply").max_pixels
    1048576

    Raises:
        ConfigError: if a number is out of range, or a word unknown.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_image_tokens: int | None = None
    min_side: int = 1
    max_aspect: float = 200.0
    extreme_image: Policy = "skip"
    orientation: Orientation = "ignore"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "min_pixels", "max_pixels", "max_image_tokens", "min_side", "max_aspect")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ConfigError(f"ImageLimits(min_pixels={self.min_pixels}): more than max_pixels={self.max_pixels}")
        check_choices(self)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FamilyConfig(ConversationConfig):
    """Settings of all model families: those of `ConversationConfig`, images and packing.

    `image_placeholder` stands for an image in the text of samples: the same for all families, so that the same data
    work for any of them; a line break next to it is dropped if the chat template writes its own. `packer` and
    `carry_over` are those of `Packing`, used with a `packing_buffer_size`. Pixel values of batches are "float32";
    "bfloat16", half the memory; or "uint8", a quarter (of Qwen-VL's images an eighth), until the batch is moved by its
    `to`, or its `model_inputs` are asked for: then they are looked up, on the device where they are.

    >>> FamilyConfig(images=ImageLimits(max_image_tokens=4096), policies=SamplePolicies(overlong="skip")).placeholder
    '<image>'

    Raises:
        ConfigError: if a setting is wrong.
    """

    images: ImageLimits = ImageLimits()
    image_placeholder: str = "<image>"
    packer: str | Packer = "first_fit_decreasing"
    carry_over: bool = True
    pixels: PixelType = "float32"
    NOT_COSTS: ClassVar = (*ConversationConfig.NOT_COSTS, "packer", "carry_over", "pixels")
    """Fields that change no cost, for `costs_key`."""

    def __post_init__(self) -> None:
        ConversationConfig.__post_init__(self)
        if not self.image_placeholder:
            raise ConfigError("FamilyConfig(image_placeholder=''): expected text, such as '<image>'")
        if self.pixels == "uint8" and self.layout == "bridge":
            raise ConfigError(
                'FamilyConfig(pixels="uint8", layout="bridge"): the step of Bridge moves a batch by itself, and would '
                'hand bytes to the model; use pixels="bfloat16"'
            )

    @property
    def placeholder(self) -> str:
        return self.image_placeholder
