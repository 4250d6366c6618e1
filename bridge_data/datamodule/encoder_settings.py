"""Settings of task encoders that a front takes beside a ready one: tokenizer, image processor, lengths, sample config.

Reads a task encoder, and the settings given next to it. Raises a ConfigError if the encoder has another value for one;
logs once each setting that the encoder does not name. Tokenizers and image processors are compared by what they do, so
one opened twice from a folder is the same.
"""

import json
import warnings
from collections.abc import Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.task import AugmentTaskEncoder, TaskEncoder

_NAMES = {
    "tokenizer": ("tokenizer", "processor.tokenizer"),
    "image_processor": ("image_processor", "family.image_processor", "processor.image_processor", "feature_extractor"),
    "seq_length": ("seq_length",),
    "decoder_seq_length": ("decoder_seq_length",),
    "multimodal_sample_config": ("config",),
}
"""Where encoders have each setting: the first of these attributes that there is."""

_MADE_OF_IT = ("decoder_seq_length", "multimodal_sample_config")
"""Settings that can only be meant for the encoder, so that one which has none cannot do what is asked."""

_UNKNOWN = object()


def check_beside(
    owner: str, encoder: TaskEncoder[Any, Any, Any, Any], given: Mapping[str, Any], *, tells: bool = True
) -> None:
    """Check that a ready `encoder` has the settings `given` (None: not given) to `owner`; with `tells`, warn of those
    that it does not name.

    Raises:
        ConfigError: for the first that differs.
    """
    while isinstance(encoder, AugmentTaskEncoder):
        encoder = encoder.task_encoder
    name_of_encoder = type(encoder).__name__
    for name, value in given.items():
        if value is None:
            continue
        own = setting_of(encoder, name)
        is_same = None if own is _UNKNOWN else _is_same(own, value)
        if is_same is False or (own is _UNKNOWN and name in _MADE_OF_IT):
            has = "has none" if own is _UNKNOWN else f"has {_shown(own)}"
            raise ConfigError(
                f"{owner}({name}={_shown(value)}): no effect with a ready task_encoder, and {name_of_encoder} {has}: "
                "set it there, or leave one of the two out"
            )
        if is_same is None and tells:
            warnings.warn(
                f"{owner}({name}={_shown(value)}): {name_of_encoder} does not say which {name} it has, so this is not "
                f"compared and changes no batch; name it self.{name} there",
                stacklevel=3,
            )


def setting_of(encoder: TaskEncoder[Any, Any, Any, Any], name: str) -> Any:
    """The encoder's own value of a setting; `_UNKNOWN` if it has no attribute for it."""
    for path in _NAMES[name]:
        found: Any = encoder
        for part in path.split("."):
            found = getattr(found, part, _UNKNOWN) if found is not None else None
        if found is not _UNKNOWN:
            return found
    return _UNKNOWN


def own_seq_length(encoder: TaskEncoder[Any, Any, Any, Any]) -> int | None:
    """How many tokens a sequence of the encoder holds; None if it does not say."""
    while isinstance(encoder, AugmentTaskEncoder):
        encoder = encoder.task_encoder
    found = setting_of(encoder, "seq_length")
    return found if isinstance(found, int) else None


def _is_same(own: Any, given: Any) -> bool | None:
    """Whether two values of a setting make the same samples; None if nobody can tell."""
    if own is given:
        return True
    if own is None or isinstance(given, int):
        return bool(own == given)
    found = _described(own), _described(given)
    if None in found:
        return True if own == given else None
    one, other = found
    assert one is not None and other is not None
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _described(part: Any) -> dict[str, Any] | None:
    """What decides the results of a tokenizer, a processor of images or sound, or a config."""
    if hasattr(part, "get_vocab"):
        template = getattr(part, "chat_template", None)
        return {"vocab": part.get_vocab()} | ({} if template is None else {"chat_template": template})
    if hasattr(part, "to_dict"):
        return {"settings": json.dumps(part.to_dict(), sort_keys=True, default=str)}
    return {"settings": repr(part)} if hasattr(part, "__dataclass_fields__") else None


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, int | str | None) else f"a {type(value).__name__}"
