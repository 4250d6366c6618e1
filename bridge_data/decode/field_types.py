"""Whether a value has the type that a field of a sample class declares.

Reads the annotations of a class, once. Returns, for a field, a `FieldType`, which says of a value whether it fits; and
for messages, the value in short. A field for text takes only text, one for a number only a number (an integer is a
float, a bool is neither), one for a list no text. None fits where the annotation says so. A field for another class,
such as `torch.Tensor`, takes what decoders make: arrays, images and clips in any form, bytes that were not decoded, and
lists of these or of numbers; but no text, number, bool, object or None. A value fits what cannot be checked: `Any`, a
protocol, a name that cannot be resolved. Of long lists and dicts, the first hundred items are checked.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from bridge_data.errors import SampleError
from bridge_data.later import numpy

_FIRST_ITEMS = 100
_MAX_SHOWN = 60

_PLAIN = (type(None), bool, int, float, str, dict)
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


class FieldTypeError(SampleError):
    """A field of a sample has a value of another type than its class declares."""


@dataclasses.dataclass(slots=True, eq=False)
class FieldType:
    """The declared type of a field: its annotation."""

    hint: Any
    known: set[type] = dataclasses.field(default_factory=set)
    """The types whose values all fit, as far as they were seen."""

    def fits(self, value: Any) -> bool:
        """Whether `value` fits."""
        kind = type(value)
        if kind in self.known:
            return True
        if not is_of_type(value, self.hint):
            return False
        if kind not in _CONTAINERS and not _has_literals(self.hint):
            self.known.add(kind)
        return True

    def __str__(self) -> str:
        return self.hint.__name__ if isinstance(self.hint, type) else str(self.hint)


def field_types(sample_class: type[Any]) -> Mapping[str, FieldType]:
    """The types of the fields of a class, by name, without those that take any value."""
    known = _TYPES.get(sample_class)
    if known is None:
        hints = _hints(sample_class)
        known = {name: FieldType(hint) for name, hint in hints.items() if hint not in (Any, object)}
        _TYPES[sample_class] = known
    return known


_TYPES: weakref.WeakKeyDictionary[type[Any], Mapping[str, FieldType]] = weakref.WeakKeyDictionary()


def shown(value: Any) -> str:
    """A value of the wrong type, for messages: `null`, `the int 5`, `the list ['a', 'b']`."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, (*_PLAIN, list)) else ""
    return f"the {type(value).__name__} {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}".rstrip()


def _hints(sample_class: type[Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(sample_class)
    except Exception:  # a name that only a type checker imports; others can still be resolved
        hints: dict[str, Any] = {}
        for one in reversed(sample_class.__mro__):
            for name, annotation in vars(one).get("__annotations__", {}).items():
                alone = type(one.__name__, (), {"__annotations__": {name: annotation}})
                try:
                    hints |= typing.get_type_hints(alone, vars(sys.modules[one.__module__]))
                except Exception:
                    hints[name] = Any
        return hints


def _has_literals(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal or any(map(_has_literals, typing.get_args(hint)))


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether `value` fits the annotation `hint`."""
    if hint is Any or hint is object:
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
    return not isinstance(hint, type) or _is_of_class(value, hint)


def _is_of_class(value: Any, hint: type) -> bool:
    if hint is float:
        return isinstance(value, (int, float, numpy.number)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, (int, numpy.integer)) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, (bool, numpy.bool_))
    if hint.__module__ == "builtins":
        return _is_container(value, hint, ()) if hint in _CONTAINERS else isinstance(value, hint)
    try:
        if isinstance(value, hint):
            return isinstance(value, (str, bytes)) <= (not issubclass(hint, Iterable) or issubclass(hint, (str, bytes)))
    except TypeError:  # a protocol that cannot be checked
        return True
    if isinstance(value, (list, tuple)):
        return all(_is_number(item) or _is_of_class(item, hint) for item in value[:_FIRST_ITEMS])
    return not isinstance(value, _PLAIN)


def _is_number(value: Any) -> bool:
    return _is_of_class(value, float)


def _is_container(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, (str, bytes)):  # a sequence of its characters
        return False
    if isinstance(value, numpy.ndarray):
        value = value.tolist()
    if issubclass(origin, tuple) and isinstance(value, list):  # as JSON has it
        value = tuple(value)
    if not isinstance(value, origin):
        return False
    if isinstance(value, dict) and len(arguments) == 2:
        items = list(value.items())[:_FIRST_ITEMS]
        return all(is_of_type(key, arguments[0]) and is_of_type(item, arguments[1]) for key, item in items)
    if isinstance(value, tuple) and arguments and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(is_of_type, value, arguments))
    if isinstance(value, (list, tuple)) and arguments:
        return all(is_of_type(item, arguments[0]) for item in value[:_FIRST_ITEMS])
    return True
