"""Decoding as it is asked for beside the task encoder, by the older arguments of `get_train_dataset`."""

import copy
from typing import Any

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.task.task_encoder import TaskEncoder


def with_decoding(
    encoder: TaskEncoder[Any, Any, Any, Any], auto_decode: bool | None, **settings: Any
) -> TaskEncoder[Any, Any, Any, Any]:
    """The encoder itself, or a copy that decodes with `settings` of `SampleDecoder`, or not at all.

    Settings that are None are not asked for.

    Raises:
        ConfigError: if the encoder has a decoder of its own.
    """
    asked = {name: value for name, value in settings.items() if value is not None}
    if auto_decode is not False and not asked:
        return encoder
    if encoder.decoder is not TaskEncoder.decoder:
        names = ", ".join(asked) or "auto_decode"
        raise ConfigError(
            f"{names}: {type(encoder).__name__} has a decoder of its own, and so it is not known which one is meant; "
            "leave the argument out, and set `decoder` in the task encoder"
        )
    changed = copy.copy(encoder)
    changed.decoder = None if auto_decode is False else SampleDecoder(**asked)
    return changed
