"""A task encoder by its name, `package.module:Class`, with arguments from YAML or the command line.

Enters: the name of a class (or of a function that makes an encoder), its arguments, and what every recipe has
(tokenizer, image processor, sequence length), which is passed to parameters of these names. Leaves: the task encoder.
An argument for a parameter that is a dataclass is a mapping of its fields.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from recipes.overrides import near

if TYPE_CHECKING:
    from bridge_data.task import TaskEncoder

NAME, ARGUMENTS = "task_encoder", "task_encoder_arguments"
"""The settings of a recipe, for errors."""


def named_encoder(name: str, arguments: Mapping[str, Any], provided: Mapping[str, Any]) -> "TaskEncoder":
    """The task encoder `name` with `arguments`, and those of `provided` that it has parameters for.

    Raises:
        ConfigError: if there is none, an argument is missing or unknown, or something else is made.
    """
    from bridge_data.task import TaskEncoder
    from bridge_data.tools.named_encoder import find_named

    _, make = find_named(name)
    if not callable(make):
        raise ConfigError(f"{NAME}={name}: got {make!r}, expected a class or function")
    parameters = inspect.signature(make).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for given in arguments:
        if given not in parameters and not takes_any:
            raise ConfigError(
                f"{ARGUMENTS}.{given}: {name} has no such parameter{near(given, list(parameters))}; it has "
                f"{', '.join(parameters)}"
            )
    hints = _hints(make)
    options = {key: value for key, value in provided.items() if key in parameters}
    options |= {key: _fitted(value, hints.get(key), f"{ARGUMENTS}.{key}") for key, value in arguments.items()}
    for parameter in parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and parameter.name not in options:
            raise ConfigError(f"{NAME}={name}: it needs {ARGUMENTS}.{parameter.name}")
    made = make(**options)
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"{NAME}={name}: it makes a {type(made).__name__}, expected a TaskEncoder")
    return made


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters, as far as they can be resolved."""
    try:
        return typing.get_type_hints(getattr(make, "__init__") if isinstance(make, type) else make)  # noqa: B009
    except (NameError, TypeError):
        return {}


def _fitted(value: Any, hint: Any, where: str) -> Any:
    """The value; a mapping for a dataclass as that dataclass."""
    union = (
        typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else ()
    )
    kind = next((one for one in union or (hint,) if isinstance(one, type) and dataclasses.is_dataclass(one)), None)
    if kind is None or not isinstance(value, Mapping):
        return value
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for key in value:
        if key not in known:
            raise ConfigError(f"{where}.{key}: {kind.__name__} has no such field{near(key, known)}")
    hints = _hints(kind)
    return kind(**{key: _fitted(one, hints.get(key), f"{where}.{key}") for key, one in value.items()})
