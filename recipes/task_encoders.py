"""Task encoders by name, `package.module:Name`, with arguments from YAML or the command line; those of our families.

Reads the name of a class, or of a function that makes an encoder; its arguments, as plain values; and what every recipe
has (tokenizer, image processor, sequence length), which is passed to parameters of these names. Returns the task
encoder. An argument for a parameter that is a dataclass is a mapping of its fields. Raises an error that names the
argument if it is unknown or of another type.

The functions here are the `task_encoder` of our recipes; nothing heavy is imported until one is called.
"""

import dataclasses
import inspect
import json
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bridge_data.encoders.encoder_config import FamilyConfig
from bridge_data.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from bridge_data.encoders import VisionFamily
    from bridge_data.task import TaskEncoder

PROVIDED = ("tokenizer", "image_processor", "seq_length")
"""What every recipe has. For speech, the image processor is the feature extractor."""


def named_encoder(name: str, arguments: Mapping[str, Any], provided: Mapping[str, Any]) -> "TaskEncoder":
    """The task encoder `name` with `arguments`, and those of `provided` that it has parameters for.

    Raises:
        ConfigError: if there is none, an argument is missing or unknown, or something else is made.
    """
    from bridge_data.configs import find_named
    from bridge_data.task import TaskEncoder

    _, make = find_named(name)
    if not callable(make):
        raise ConfigError(f"task_encoder={name}: got {make!r}, expected a class or function")
    parameters = inspect.signature(make).parameters
    for key, value in provided.items():
        if value is not None and key not in parameters:
            warnings.warn(
                f"task_encoder={name}: it takes no {key}, so that of the recipe does not reach it", stacklevel=3
            )
    options = {key: value for key, value in provided.items() if key in parameters} | fitted(make, name, arguments)
    for parameter in parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and parameter.name not in options:
            raise ConfigError(f"task_encoder={name}: it needs encoder.{parameter.name}")
    made = make(**options)
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"task_encoder={name}: it makes a {type(made).__name__}, expected a TaskEncoder")
    return made


def fitted(make: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` of `make`, which is called `name`, as its parameters take them.

    Raises:
        ConfigError: for one that is unknown, or of another type.
    """
    parameters, hints = inspect.signature(make).parameters, _hints(make)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for given in arguments:
        if given not in parameters and not takes_any:
            known = ", ".join(key for key in parameters if key not in PROVIDED)
            raise ConfigError(
                f"encoder.{given}: {name} has no such parameter{did_you_mean(given, list(parameters))}; it has {known}"
            )
    return {key: _fitted(value, hints.get(key), f"encoder.{key}") for key, value in arguments.items()}


def check_provided(make: Callable[..., Any], name: str, is_given: Mapping[str, bool]) -> None:
    """Check that `make`, which is called `name`, takes what a recipe provides, and that what it needs is there.

    Raises:
        ConfigError: if a setting would have no effect, or is missing.
    """
    parameters = inspect.signature(make).parameters
    for key, setting in (("image_processor", "image_processor"), ("seq_length", "data.seq_length")):
        if is_given[key] and key not in parameters:
            raise ConfigError(f"{setting}: {name} takes none, so it has no effect: set {setting}=null")
        if not is_given[key] and key in parameters and parameters[key].default is inspect.Parameter.empty:
            raise ConfigError(f"{setting}=null: {name} needs it")


def defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of `make` besides those that every recipe has, with their defaults as plain values."""
    found: dict[str, Any] = {}
    for key, parameter in inspect.signature(make).parameters.items():
        default = parameter.default
        is_config = dataclasses.is_dataclass(default) and not isinstance(default, type)
        if key not in PROVIDED:
            found[key] = dataclasses.asdict(default) if is_config else default
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters, as far as they can be resolved."""
    try:
        return typing.get_type_hints(getattr(make, "__init__") if isinstance(make, type) else make)  # noqa: B009
    except (NameError, TypeError):  # of a name that is imported for type checkers only
        parameters = inspect.signature(make).parameters.values()
        return {one.name: one.annotation for one in parameters if not isinstance(one.annotation, str)}


def _fitted(value: Any, hint: Any, where: str) -> Any:
    """The value; a mapping for a dataclass as that dataclass, a list for a tuple as a tuple."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    kinds = typing.get_args(hint) if is_union else (hint,)
    config = next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)
    if config is not None and isinstance(value, Mapping):
        known = [field.name for field in dataclasses.fields(config) if field.init]
        for key in value:
            if key not in known:
                raise ConfigError(f"{where}.{key}: {config.__name__} has no such field{did_you_mean(str(key), known)}")
        hints = _hints(config)
        return config(**{key: _fitted(one, hints.get(key), f"{where}.{key}") for key, one in value.items()})
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(value)
    choices = [choice for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)]
    plain = [kind for kind in kinds if kind in (str, int, float, bool, types.NoneType)]
    if isinstance(value, int | float) and (str(value) in choices or (str in plain and type(value) not in plain)):
        return str(value)
    num_known = len(plain) + bool(choices) + (config is not None)
    if value in choices or num_known < len(kinds) or _is_one_of(value, plain):
        return value
    if config is not None and isinstance(value, config):
        return value
    expected = [*map(repr, choices), *("null" if kind is types.NoneType else kind.__name__ for kind in plain)]
    if config is not None:
        expected.insert(0, f"a mapping of the fields of {config.__name__}")
    raise ConfigError(f"{where}={value!r}: expected {' or '.join(expected)}")


def _is_one_of(value: Any, plain: Sequence[type]) -> bool:
    return type(value) in plain or (type(value) is int and float in plain)


# The task encoders of our recipes

_AS_USUAL = FamilyConfig()


def _of_family(
    tokenizer: Any, family: "VisionFamily | None", conversation: FamilyConfig, seq_length: int
) -> "TaskEncoder":
    from bridge_data.encoders import FamilyTaskEncoder

    return FamilyTaskEncoder(tokenizer, family, conversation, seq_length=seq_length)


def text(tokenizer: Any, seq_length: int, *, conversation: FamilyConfig = _AS_USUAL) -> "TaskEncoder":
    """Conversations without images."""
    return _of_family(tokenizer, None, conversation, seq_length)


def documents(tokenizer: Any, seq_length: int, *, packer: str = "best_fit") -> "TaskEncoder":
    """Documents for pretraining; `packer` packs their rests."""
    from bridge_data.encoders import PretrainingTaskEncoder

    return PretrainingTaskEncoder(tokenizer, seq_length=seq_length, packer=packer)


def llava(
    tokenizer: Any,
    image_processor: Any,
    seq_length: int,
    *,
    conversation: FamilyConfig = _AS_USUAL,
    tiles: bool = False,
    patch_size: int = 14,
    vision_feature_select_strategy: Literal["default", "full"] = "default",
    num_additional_image_tokens: int = 1,
) -> "TaskEncoder":
    """LLaVA, or LLaVA-NeXT if images are tiled (`tiles`): what the vision tower makes of an image."""
    from bridge_data.encoders import Llava, LlavaNext

    family = (LlavaNext if tiles else Llava)(
        image_processor,
        patch_size=patch_size,
        vision_feature_select_strategy=vision_feature_select_strategy,
        num_additional_image_tokens=num_additional_image_tokens,
    )
    return _of_family(tokenizer, family, conversation, seq_length)


def idefics3(
    tokenizer: Any,
    image_processor: Any,
    seq_length: int,
    *,
    conversation: FamilyConfig = _AS_USUAL,
    image_seq_len: int = 169,
) -> "TaskEncoder":
    """Idefics3 and SmolVLM: tokens of a tile."""
    from bridge_data.encoders import Idefics3

    family = Idefics3(image_processor, image_seq_len=image_seq_len)
    return _of_family(tokenizer, family, conversation, seq_length)


def internvl(
    tokenizer: Any,
    image_processor: Any,
    seq_length: int,
    *,
    conversation: FamilyConfig = _AS_USUAL,
    image_seq_length: int = 256,
) -> "TaskEncoder":
    """InternVL: tokens of a tile."""
    from bridge_data.encoders import InternVL

    family = InternVL(image_processor, image_seq_length=image_seq_length)
    return _of_family(tokenizer, family, conversation, seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Video:
    """Which frames of videos are taken (see `VideoSampling`), and how many pixels they have (see `Qwen2VL`)."""

    fps: float | None = 2.0
    min_frames: int = 4
    max_frames: int = 768
    min_frame_pixels: int | None = None
    max_frame_pixels: int | None = None


def qwen_vl(
    tokenizer: Any,
    image_processor: Any,
    seq_length: int,
    *,
    generation: Literal["2", "2.5", "3"] = "2.5",
    conversation: FamilyConfig = _AS_USUAL,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    video: Video = Video(),
) -> "TaskEncoder":
    """Qwen-VL of `generation` 2, 2.5 or 3: pixels of images (None: what the image processor has), and videos."""
    from bridge_data.encoders import Qwen2_5VL, Qwen2VL, Qwen3VL, QwenVLTaskEncoder, VideoSampling

    kinds: dict[str, type[Qwen2VL]] = {"2": Qwen2VL, "2.5": Qwen2_5VL, "3": Qwen3VL}
    family = kinds[generation](
        image_processor,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        min_frame_pixels=video.min_frame_pixels,
        max_frame_pixels=video.max_frame_pixels,
    )
    sampling = VideoSampling(fps=video.fps, min_frames=video.min_frames, max_frames=video.max_frames)
    return QwenVLTaskEncoder(tokenizer, family, conversation, seq_length=seq_length, sampling=sampling)


def pairs(
    tokenizer: Any,
    image_processor: Any,
    *,
    max_length: int | None = None,
    overlong: Literal["truncate", "skip", "error"] = "truncate",
    empty_text: Literal["skip", "error"] = "skip",
) -> "TaskEncoder":
    """Images and texts of CLIP and SigLIP; `max_length` is the tokens of a text (None: what the tokenizer says)."""
    from bridge_data.plugins.encoders import ContrastiveConfig, ContrastiveTaskEncoder

    config = ContrastiveConfig(max_length=max_length, overlong=overlong, empty_text=empty_text)
    return ContrastiveTaskEncoder(tokenizer, image_processor, config)


def speech(
    tokenizer: Any,
    image_processor: Any,
    *,
    language: str | None = None,
    task: str | None = None,
    max_target_length: int = 448,
    overlong: Literal["skip", "error"] = "skip",
    empty_text: Literal["skip", "error"] = "skip",
) -> "TaskEncoder":
    """Recordings and their words; `language` and `task` are what Whisper's tokenizer writes before the words. A decoder
    starts with the tokenizer's first token, which is left out of targets."""
    from bridge_data.plugins.encoders import SpeechConfig, SpeechTaskEncoder

    if language is not None or task is not None:
        if not hasattr(tokenizer, "set_prefix_tokens"):
            raise ConfigError(
                f"encoder.language and encoder.task: {type(tokenizer).__name__} knows none; expected Whisper's"
            )
        tokenizer.set_prefix_tokens(language=language, task=task)
    config = SpeechConfig(max_target_length=max_target_length, overlong=overlong, empty_text=empty_text)
    start = tokenizer("").input_ids[0]
    return SpeechTaskEncoder(tokenizer, image_processor, config, start_token_id=start)
