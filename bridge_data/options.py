"""Arguments of public functions: options that are written once, and checks.

An option is a keyword argument that several functions take: a field of a frozen dataclass (see `run_options`). A
function takes them as `**options` under the decorator `takes_options`, so that `inspect.signature` and `help()` show
each option with its default.

Checks raise errors that say which argument it is, what was given, and what is expected.
"""

import dataclasses
import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.ignored import warn_ignored

F = TypeVar("F", bound=Callable[..., Any])

MAX_STEPS = 10**12
"""More steps, or a later one, no run has: a number that was mistyped."""

MAX_WORKERS = 4096
"""More processes no command can use on a machine."""

MAX_RANKS = 100_000
"""More data-parallel ranks no run has."""


def takes_options(options: Callable[..., Any], ignored: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Let a function whose last parameter is `**options` take what the class `options` takes, and nothing else; but
    arguments that are `ignored`, which it warns of.

    Its signature shows each of them with its default, except those that are parameters of the function itself. The
    function gets what was given. An unknown keyword argument is a TypeError, which names the nearest known one.
    """
    without_effect = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ignored or ()]

    def decorate(function: F) -> F:
        taken = [*inspect.signature(options).parameters.values(), *without_effect]
        signature = _with(inspect.signature(function), taken)
        known = [*signature.parameters]

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known, cutoff=0.6)
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
            if ignored and (unused := ignored.keys() & given.keys()):
                warn_ignored(**{name: given.pop(name) for name in unused})
            return function(*args, **given)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _with(signature: inspect.Signature, options: Iterable[inspect.Parameter]) -> inspect.Signature:
    """`signature`, whose last parameter is `**options`, with the options instead that are no parameters yet."""
    *fixed, _ = signature.parameters.values()
    shown = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for option in options
        if option.name not in signature.parameters
    ]
    return signature.replace(parameters=[*fixed, *shown])


class ShownOptions:
    """The `__signature__` of a class whose `__init__` ends in `**kwargs`: it shows each option.

    A derived class with an `__init__` of its own has the signature of that. The signature of `__init__` itself stays,
    because jsonargparse passes every default of a signature.
    """

    def __init__(self, options: Iterable[inspect.Parameter]) -> None:
        self._options = options
        self._owner: type | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None or inspect.getattr_static(owner, "__init__") is not vars(self._owner)["__init__"]:
            raise AttributeError("__signature__")
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return _with(inspect.Signature(parameters), self._options)


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


def check_at_least(config: Any, least: int, *names: str) -> None:
    """Check that these fields of `config` are at least `least`, or None.

    Raises:
        ConfigError: if not.
    """
    for name in names:
        value = getattr(config, name)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if value is not None and not (is_number and value >= least):
            what = "at least" if is_number else "a number of at least"
            raise ConfigError(f"{type(config).__name__}({name}={value!r}): expected {what} {least}")


def check_choice(config: Any, name: str, choices: Any) -> None:
    """Check that the field `name` of `config` is one of `choices`, a Literal type.

    Raises:
        ConfigError: if not.
    """
    value = getattr(config, name)
    _check_choice(f"{type(config).__name__}({name}={value!r})", value, choices)


def _check_choice(shown: str, value: Any, choices: Any) -> None:
    known = get_args(choices)
    if not (isinstance(value, str) and value in known):
        raise ConfigError(f"{shown}: expected one of {', '.join(map(repr, known))}")


def check_choices(config: Any) -> None:
    """Check that each field of a dataclass whose type is a Literal is one of its choices.

    Raises:
        ConfigError: if not.
    """
    for field in dataclasses.fields(config):
        if get_origin(field.type) is Literal:
            check_choice(config, field.name, field.type)


def check_flag(name: str, value: Any) -> None:
    """Check that `value` is True or False.

    Raises:
        ConfigError: if not.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False")


def check_plain_fields(config: Any, prefix: str = "") -> None:
    """Check the values of the fields of a dataclass that are flags or numbers, or None where their type says so, or
    choices (Literal). Fields that may have other values are left out.

    Raises:
        ConfigError: if a value has another type, or is no choice.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if get_origin(field.type) is Literal:
            _check_choice(f"{prefix}{field.name}={value!r}", value, field.type)
            continue
        kinds = set(get_args(field.type) or [field.type])
        is_number = isinstance(value, int) and not isinstance(value, bool) and not kinds.isdisjoint((int, float))
        if kinds <= _EXPECTED.keys() and not (type(value) in kinds or is_number):
            expected = ", or ".join(text for kind, text in _EXPECTED.items() if kind in kinds)
            raise ConfigError(f"{prefix}{field.name}={value!r}: expected {expected}")


_EXPECTED: dict[Any, str] = {bool: "True or False", int: "an integer", float: "a number", types.NoneType: "None"}
"""The plain types of fields, and what messages call a value of each."""


def path_text(name: str, value: Any) -> str:
    """The path or URL `value` as text.

    Raises:
        ConfigError: if it is neither, or is empty.
    """
    if isinstance(value, (str, os.PathLike)) and isinstance(text := os.fspath(value), str) and text:
        return text
    hint = "; several data sets are a metadataset with `blend:`" if isinstance(value, (list, tuple)) else ""
    raise ConfigError(f"{name}={value!r}: expected a path or a URL{hint}")


def checked_names(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """The names in `value`.

    Raises:
        ConfigError: if it is not a list of names.
    """
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(one, str) for one in value):
        shown = f"[{value!r}]" if isinstance(value, str) else "a list of names"
        raise ConfigError(f"{name}={value!r}: expected {shown}")
    return tuple(value)
