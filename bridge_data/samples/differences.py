"""What differs between two samples, batches or other values that hooks made.

Reads any two objects. Returns where the first difference is, and what it is: in items, fields and attributes, as deep
as they go, until values can be compared by `==`; NaN equals NaN. Objects that compare neither by that nor by what
pickle stores of them count as equal, as they cannot be distinguished; so do restore keys, which say where a sample came
from.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

_NOT_CONTENT = "__restore_key__"
_SHOWN = 60
_VALUES = (str, bytes, int, float, complex, set, frozenset, enum.Enum)

_Seen: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]
"""By their ids, the pairs that have been compared, or are; held, so that no other object gets the id."""


def first_difference(one: Any, other: Any, where: str = "") -> str | None:
    """`where.field: 3, then 4` for the first difference; None if there is none."""
    return _difference(one, other, where, {})


def _difference(one: Any, other: Any, where: str, seen: _Seen) -> str | None:
    if one is other or (id(one), id(other)) in seen:
        return None
    if type(one).__qualname__ != type(other).__qualname__:
        return f"{where}: {_shown(one)}, then {_shown(other)}"
    seen[id(one), id(other)] = one, other
    if getattr(one, "is_nested", False) and getattr(other, "is_nested", False):  # tensors without a shape
        one, other = list(one.unbind()), list(other.unbind())
    if hasattr(one, "dtype") and hasattr(one, "shape"):
        return _of_arrays(one, other, where, seen)
    if isinstance(one, Mapping):
        return _of_items(one, other, where, "[{!r}]", seen)
    if isinstance(one, (list, tuple)):
        return _of_items(dict(enumerate(one)), dict(enumerate(other)), where, "[{}]", seen)
    if dataclasses.is_dataclass(one):
        return _of_items(_fields(one), _fields(other), where, ".{}", seen)
    try:
        is_equal = bool(one == other or (one != one and other != other))
    except Exception:  # a class compares by itself, but not to a truth value
        is_equal = False
    if is_equal:
        return None
    if isinstance(one, _VALUES):
        return f"{where}: {_shown(one)}, then {_shown(other)}"
    return _difference(_stored(one), _stored(other), f"{where}.{type(one).__name__}", seen)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _of_items(one: Mapping[Any, Any], other: Mapping[Any, Any], where: str, step: str, seen: _Seen) -> str | None:
    for name in [*one, *(name for name in other if name not in one)]:
        if name == _NOT_CONTENT:
            continue
        if name not in one or name not in other:
            return f"{where}{step.format(name)}: {'only then' if name in other else 'not any more'}"
        found = _difference(one[name], other[name], where + step.format(name), seen)
        if found is not None:
            return found
    return None


def _of_arrays(one: Any, other: Any, where: str, seen: _Seen) -> str | None:
    """Of tensors, and of arrays and numbers of numpy."""
    try:
        if (one.dtype, tuple(one.shape)) != (other.dtype, tuple(other.shape)):
            return f"{where}: {one.dtype} {tuple(one.shape)}, then {other.dtype} {tuple(other.shape)}"
        same = (one == other) | ((one != one) & (other != other))
        num_differing = int((~same).sum())
    except Exception:  # a layout that has no shape, or does not compare
        return _difference(_stored(one), _stored(other), f"{where}.{type(one).__name__}", seen)
    return f"{where}: {num_differing} of its values {tuple(one.shape)} differ" if num_differing else None


def _stored(value: Any) -> Any:
    """What pickle would store of it."""
    with contextlib.suppress(Exception):  # it has no state
        state = value.__getstate__()
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # of a class with slots
            return {**(state[0] or {}), **state[1]}
        if state:
            return state
    with contextlib.suppress(Exception):  # it cannot be pickled
        reduced: Any = value.__reduce_ex__(4)
        if not isinstance(reduced, str):  # the name of something that there is once
            return [part if number < 2 else list(part or ()) for number, part in enumerate(reduced[1:5])]
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
