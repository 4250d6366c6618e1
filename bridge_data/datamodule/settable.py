"""Frozen dataclasses whose fields can be set until they are used, as the overrides of Megatron-Bridge set them.

Bridge sets each field of each dataclass below a config, and only warns where that is refused: an override of a frozen
one would have no effect. `settable` gives for a value the same with fields that can be set: an instance of the same
class, by `isinstance`, with the same fields. `settled` gives the frozen value again, made and checked by its class.

    >>> from bridge_data import MultiModalSampleConfig
    >>> config = settable(MultiModalSampleConfig(patch_size=16))
    >>> config.policies.overlong = "skip"
    >>> settled(config, "config").policies.overlong, config.patch_size
    ('skip', 16)
"""

import copy
import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

from bridge_data.datamodule.class_paths import typed
from bridge_data.errors import BridgeDataError, ConfigError

_PLAIN = (str, int, float, list, dict, type(None))


def settable(value: Any) -> Any:
    """`value`; if it is a frozen dataclass, or has such in its fields, with fields that can be set. A dataclass that is
    not frozen stays the same object."""
    if isinstance(value, _Settable) or not _is_dataclass(value):
        return value
    if not type(value).__dataclass_params__.frozen:
        for name, held in _fields_of(value).items():
            if (opened := settable(held)) is not held:
                setattr(value, name, opened)
        return value
    try:
        kind: Any = _settable_class(type(value))  # type: ignore[arg-type]  # classes are hashable
    except TypeError:  # a class of which none can be derived
        return value
    return _open(kind.__new__(kind), value)


def settled(value: Any, where: str) -> Any:
    """What a `settable` value stands for: the object that it was made of, or if fields were set, a new one. `where` it
    stands, for errors.

    Raises:
        ConfigError: if a field has a value of another type, or the class refuses it.
    """
    if not _is_dataclass(value):
        return value
    held = {name: settled(inner, f"{where}.{name}") for name, inner in _fields_of(value).items()}
    if not isinstance(value, _Settable):
        changed = {name: inner for name, inner in held.items() if inner is not getattr(value, name)}
        return _with_fields(value, changed) if changed else value
    original = value._original
    held = {name: _like(inner, getattr(original, name)) for name, inner in held.items()}
    changed = {name: inner for name, inner in held.items() if not _is_same(inner, getattr(original, name))}
    if not changed:
        return original
    kinds = _kinds_of(type(original))
    for name, inner in changed.items():
        if isinstance(inner, _PLAIN) and name in kinds:
            changed[name] = typed(inner, kinds[name], f"{where}.{name}")
    try:
        return dataclasses.replace(original, **changed)
    except BridgeDataError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {type(original).__name__}: {error}") from error


def assign(value: Any, settings: Mapping[str, Any]) -> Any:
    """`value`, a dataclass, as a `settable` one in which `settings` are set, by the names of its fields; or `settings`
    itself, if it has other names."""
    opened = settable(copy.copy(value))
    if not settings.keys() <= _fields_of(opened).keys():
        return settings
    for name, held in settings.items():
        current = getattr(opened, name)
        setattr(opened, name, assign(current, held) if _is_dataclass(current) and isinstance(held, Mapping) else held)
    return opened


class _Settable:
    """An instance of a frozen dataclass whose fields can be set."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    _frozen: type
    _original: Any

    def __init__(self, *args: Any, **fields: Any) -> None:
        _open(self, self._frozen(*args, **fields))  # as `dataclasses.replace` does

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        theirs = other._frozen if isinstance(other, _Settable) else type(other)
        return self._frozen is theirs and _fields_of(self) == _fields_of(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._original, _fields_of(self))


@functools.cache
def _settable_class(frozen: type) -> type:
    own = {"__slots__": ("_original",), "_frozen": frozen, "__doc__": frozen.__doc__}
    names = {"__module__": frozen.__module__, "__qualname__": frozen.__qualname__}
    return type(frozen)(frozen.__name__, (_Settable, frozen), own | names)


def _open(made: Any, original: Any) -> Any:
    fields = {name: settable(held) for name, held in _fields_of(original).items()}
    for name, value in {**fields, "_original": original}.items():
        setattr(made, name, value)
    return made


def _remade(original: Any, fields: Mapping[str, Any]) -> Any:
    made = settable(original)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _with_fields(value: Any, changed: Mapping[str, Any]) -> Any:
    again = copy.copy(value)
    for name, inner in changed.items():
        setattr(again, name, inner)
    return again


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def _kinds_of(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError:  # of a type that only type checkers import
        return {}


def _like(value: Any, original: Any) -> Any:
    """`value`; tuples again, where the overrides of Bridge made lists of them."""
    return tuple(value) if isinstance(original, tuple) and isinstance(value, list) else value


def _is_same(value: Any, original: Any) -> bool:
    return value is original or (type(value) is type(original) and bool(value == original))
