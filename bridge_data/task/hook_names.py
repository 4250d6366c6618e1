"""Finds misspelt names of hooks and settings in a task encoder: such a hook would never be called.

Reads the attributes of an encoder's classes, and the names that their code uses. Raises `ConfigError` for a name that
nearly is a hook's or a setting's, and for a method with `@stateless` that nothing calls.
"""

import difflib
import functools
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.task.augment import AugmentTaskEncoder
from bridge_data.task.task_encoder import HOOKS, TaskEncoder, get_stateless

_SHORT = 8
"""A name with fewer letters is taken for another if one letter differs; a longer one, if two do."""

_KEEPERS = (functools.partial, functools.partialmethod, functools.cached_property)
"""Wrappers that have their function as `func`. (Others may make any attribute on access.)"""

_TOLERANCE = "__default_failure_tolerance__"

_ALIASES = {"failuretolerance": _TOLERANCE}
"""Other common names of attributes."""


def check_hook_names(encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
    """Look for hooks and settings of `encoder`, and of the encoders inside it, that are misspelt.

    A name is taken for misspelt if it begins as that of a hook does and has nearly its letters, or if it is decorated
    with `@stateless` without being a hook or a cooker; and if no other method of the encoder uses it. A name that
    begins with an underscore is not, unless it is decorated.

    Raises:
        ConfigError: if there is one.
    """
    encoders = [encoder]
    while isinstance(encoders[-1], AugmentTaskEncoder):
        encoders.append(encoders[-1].task_encoder)
    classes = list(dict.fromkeys(cls for one in encoders for cls in type(one).__mro__ if cls is not object))
    ours = [cls for cls in classes if cls.__module__.partition(".")[0] == "bridge_data"]
    known = {
        name: _is_method(value) for cls in ours for name, value in vars(cls).items() if _may_be_overridden(name, value)
    }
    cookers = {id(_function_of(cooker.cook)) for one in encoders for cooker in one.cookers}
    used = [(name, _names_in(value)) for cls in classes for name, value in vars(cls).items()]
    for cls in classes:
        for name, value in vars(cls).items() if cls not in ours else ():
            is_used = id(_function_of(value)) in cookers or any(name in names for user, names in used if user != name)
            if name not in known and not is_used:
                _check(f"{cls.__module__}.{cls.__qualname__}.{name}", name, value, known)


def _check(where: str, name: str, value: Any, known: Mapping[str, bool]) -> None:
    """Check a name of the user against those that are `known`, each with whether it is a method."""
    is_setting = not _is_method(value)
    alike = {_folded(one): one for one, is_method in known.items() if is_method != is_setting}
    near = _nearest(_folded(name), alike | (_ALIASES if is_setting else {})) if _is_public(name) else None
    if near is not None:
        raise ConfigError(
            f"{where} is used by nothing; did you mean {near!r}? If not, rename it: less like it, or "
            "with a leading underscore"
        )
    if not is_setting and get_stateless(_function_of(value)):
        raise ConfigError(
            f"{where} is decorated with @stateless like a hook, but it is not a hook, and nothing calls it. "
            f"The hooks are {', '.join(HOOKS)}; remove the decorator if it is something else"
        )


def _may_be_overridden(name: str, value: Any) -> bool:
    """Whether an attribute of a class of this package is a hook or a setting."""
    return _is_public(name) and not isinstance(value, (property, functools.cached_property))


def _is_public(name: str) -> bool:
    return not name.startswith("_") or "_toler" in name


def _is_method(value: Any) -> bool:
    return isinstance(value, (staticmethod, classmethod)) or (
        callable(value) and not isinstance(value, (type, SampleDecoder))
    )


def _function_of(value: Any) -> Any:
    """The function inside a method, a partial or a decorator's wrapper."""
    if isinstance(value, _KEEPERS):
        return _function_of(value.func)
    for name in ("__func__", "__wrapped__"):
        inner = getattr(value, name, None)
        if inner is not None:
            return _function_of(inner)
    return value


def _nearest(name: str, alike: Mapping[str, str]) -> str | None:
    """The known name that `name` probably means; None if it is like none of them."""
    for other in sorted(alike, key=lambda other: (_num_other_letters(name, other), other)):
        most = 1 if len(other) < _SHORT else 2
        if name[:1] == other[:1] and _num_other_letters(name, other) <= most:
            return alike[other]
    return None


def _num_other_letters(name: str, other: str) -> int:
    """How many letters were changed, added or left out, as `difflib` aligns the names; two swapped letters are one."""
    if len(name) == len(other):
        pairs = [pair for pair in zip(name, other, strict=True) if pair[0] != pair[1]]
        if len(pairs) == 2 and pairs[0] == pairs[1][::-1]:
            return 1
    steps = difflib.SequenceMatcher(None, name, other, autojunk=False).get_opcodes()
    return sum(max(stop - start, to - since) for tag, start, stop, since, to in steps if tag != "equal")


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _names_in(value: Any) -> set[str]:
    """The names and texts that the code of a method or property uses."""
    functions = [value.fget, value.fset] if isinstance(value, property) else [value]  # a cached one has a `func`
    codes = (getattr(_function_of(function), "__code__", None) for function in functions)
    return {name for code in codes if code is not None for name in _names_of(code)}


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
        elif isinstance(constant, str):
            yield constant
