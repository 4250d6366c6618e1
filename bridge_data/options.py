"""Arguments of public functions: options that are written once, and arguments of Energon that have no effect.

An option is a keyword argument that several functions take. All options are keys of a TypedDict. A function takes them
as `**options: Unpack[SomeOptions]` under the decorator `takes_options`. So `inspect.signature`, `help()` and editors
show each option with its default, and the function gets all of them.

Calls written for Energon keep working: `IGNORED` lists the arguments that are accepted without effect, with one warning
each, and what replaces them.
"""

import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Let a function whose last parameter is `**options` take the keys of the TypedDict `options`, and no others.

    A key that is not in `defaults` is None unless it is given. An unknown keyword argument is a TypeError, which names
    the nearest known one.
    """
    filled = {name: defaults.get(name) for name in options.__annotations__}

    def decorate(function: F) -> F:
        signature = _with_options(inspect.signature(function), options, filled)
        known = [*signature.parameters]

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*args, **filled | given)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _with_options(signature: inspect.Signature, options: type, defaults: Mapping[str, Any]) -> inspect.Signature:
    """`signature`, whose last parameter is `**options`, with each option instead."""
    *fixed, _ = signature.parameters.values()
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in options.__annotations__.items()
    ]
    return signature.replace(parameters=[*fixed, *shown])


class ShownOptions:
    """The `__signature__` of a class whose `__init__` ends in `**kwargs: Unpack[SomeOptions]`: it shows each option.

    A derived class with an `__init__` of its own has the signature of that. The signature of `__init__` itself stays,
    because jsonargparse passes on every default that a signature has, and `__init__` tells given options from others.
    """

    def __init__(self, options: type, defaults: Callable[[], Mapping[str, Any]]) -> None:
        self._options, self._defaults = options, defaults
        self._owner: type | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None or inspect.getattr_static(owner, "__init__") is not vars(self._owner)["__init__"]:
            raise AttributeError("__signature__")
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return _with_options(inspect.Signature(parameters), self._options, self._defaults())


IGNORED = {
    "checkpoint_every_sec": "workers keep no checkpoints of themselves: the state comes with each batch, at no cost",
    "checkpoint_every_min_n_samples": "workers keep no checkpoints of themselves",
    "n_checkpoints": "workers keep no checkpoints of themselves",
    "gc_collect_every_n_steps": "workers free memory as they go, and leave the rest to Python",
    "max_samples_per_sequence": "the order is made for all data sets together: give it to get_train_dataset",
    "parallel_shard_iters": "how many shards are mixed follows from shuffle_buffer_size and max_samples_per_sequence",
    "ignore_decoder_errors": "what cannot be decoded is left out, counted, told to WorkerConfig.global_error_handler",
    "handler": "failures are told to WorkerConfig.global_error_handler",
}
"""The arguments, and why they have no effect."""

_warned: set[str] = set()


def warn_ignored(**given: Any) -> None:
    """Warn of arguments that are not None, each once in a process; `given` are names of `IGNORED`."""
    for name, value in given.items():
        reason = IGNORED[name]
        if value is not None and name not in _warned:
            _warned.add(name)
            message = f"{name} has no effect in bridge_data and may be left out: {reason}"
            warnings.warn(message, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The `stacklevel` at which `warn_ignored` shows the first line outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bridge_data."):
        level, frame = level + 1, frame.f_back
    return level
