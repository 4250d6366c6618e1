"""Whether a value is what the annotation of its field says.

Enters: a value and a type. Leaves: yes or no; yes, where the type says nothing that can be checked (`Any`, a protocol).
"""

import types
import typing
from typing import Any

_FIRST_ITEMS = 100


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether `value` fits `hint`; of long lists and dicts, the first hundred items are looked at."""
    if hint is Any:
        return True
    if hint is None:
        return value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(is_of_type(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return is_of_type(value, arguments[0])
    if isinstance(origin, type):
        return _is_container(value, origin, arguments)
    if not isinstance(hint, type):
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    try:
        return isinstance(value, hint)
    except TypeError:  # a protocol that cannot be checked
        return True


def _is_container(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple and isinstance(value, list):  # as JSON has it
        value = tuple(value)
    if not isinstance(value, origin):
        return False
    if isinstance(value, dict) and len(arguments) == 2:
        items = list(value.items())[:_FIRST_ITEMS]
        return all(is_of_type(key, arguments[0]) and is_of_type(item, arguments[1]) for key, item in items)
    if isinstance(value, tuple) and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(is_of_type, value, arguments))
    if isinstance(value, (list, tuple)) and arguments:
        return all(is_of_type(item, arguments[0]) for item in value[:_FIRST_ITEMS])
    return True
