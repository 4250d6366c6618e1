"""Tokenizers and image processors by name, for configuration files.

Enters: an object of transformers, or the folder (or hub id) that it was saved to. Leaves: the object.
"""

from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError


def open_tokenizer(given: Any) -> Any:
    """The tokenizer in the folder or with the hub id `given`; an object is returned unchanged.

    Raises:
        ConfigError: if there is none.
    """
    return _open("AutoTokenizer", "tokenizer", given)


def open_image_processor(given: Any) -> Any:
    """The image processor in the folder or with the hub id `given`; an object is returned unchanged.

    Raises:
        ConfigError: if there is none.
    """
    return _open("AutoImageProcessor", "image_processor", given)


def _open(auto_class: str, argument: str, given: Any) -> Any:
    if not isinstance(given, str | Path):
        return given
    import transformers

    try:
        return getattr(transformers, auto_class).from_pretrained(given)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{argument}={str(given)!r}: transformers.{auto_class} finds none in such a folder, or on the hub under "
            f"such an id: {error}"
        ) from error
