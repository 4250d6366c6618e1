"""Checks of arguments: an error says which argument it is, what was given, and what is expected."""

import os
from collections.abc import Iterable
from typing import Any

from bridge_data.errors import ConfigError


def check_integer(name: str, value: Any, least: int, *, or_none: bool = False) -> None:
    """Check that `value` is an integer of at least `least`.

    Raises:
        ConfigError: if not.
    """
    if (value is None and or_none) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return
    raise ConfigError(f"{name}={value!r}: expected an integer of at least {least}{', or None' if or_none else ''}")


def check_number(name: str, value: Any, expected: str, *, or_none: bool = False) -> None:
    """Check that `value` is a positive number, which messages call `expected`.

    Raises:
        ConfigError: if not.
    """
    if (value is None and or_none) or (isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0):
        return
    raise ConfigError(f"{name}={value!r}: expected {expected}{', or None' if or_none else ''}")


def check_flag(name: str, value: Any) -> None:
    """Check that `value` is True or False.

    Raises:
        ConfigError: if not.
    """
    if not isinstance(value, (bool, int)):
        raise ConfigError(f"{name}={value!r}: expected True or False")


def path_text(name: str, value: Any) -> str:
    """The path or URL `value` as text.

    Raises:
        ConfigError: if it is none, or is empty.
    """
    if isinstance(value, (str, os.PathLike)) and isinstance(text := os.fspath(value), str) and text:
        return text
    hint = "; several data sets are a metadataset with `blend:`" if isinstance(value, (list, tuple)) else ""
    raise ConfigError(f"{name}={value!r}: expected a path or a URL{hint}")


def names(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """The names in `value`.

    Raises:
        ConfigError: if it is a single name, or none.
    """
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(one, str) for one in value):
        shown = f"[{value!r}]" if isinstance(value, str) else "a list of names"
        raise ConfigError(f"{name}={value!r}: expected {shown}")
    return tuple(value)
