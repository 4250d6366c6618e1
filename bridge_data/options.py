"""Options: keyword arguments that several functions take, each written once, in a TypedDict.

A function takes them as `**options: Unpack[SomeOptions]` under the decorator `takes_options`. So `inspect.signature`,
`help()` and editors show each option with its default, and the function gets all of them.
"""

import difflib
import functools
import inspect
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
        *fixed, _ = inspect.signature(function).parameters.values()
        shown = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=filled[name], annotation=annotation)
            for name, annotation in options.__annotations__.items()
        ]
        known = [parameter.name for parameter in (*fixed, *shown)]

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*args, **filled | given)

        signature = inspect.signature(function).replace(parameters=[*fixed, *shown])
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
