"""Values of `data` and `loader` of a recipe as the options of a run take them.

Reads a value of a YAML, of the command line, or of `${oc.env:NAME}`, which is always text. Returns the value in the
option's type: `4` of `"4"`, False of `"false"`. Raises an error that names the option for a value of another type.
"""

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bridge_data.errors import ConfigError
from bridge_data.run_options import option_fields

OWN_KINDS: dict[str, Any] = {"path": str, "seq_length": int | None}
"""The settings of `data` and `loader` that are no options of a run."""
_KINDS = OWN_KINDS | {name: field.type for fields in option_fields().values() for name, field in fields.items()}
_NAMES = {
    types.NoneType: "null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Path: "text",
}


def option_value(section: str, name: str, value: Any) -> Any:
    """`value` of the setting `name`, with the type of that option; as it is if there is none of this name.

    Raises:
        ConfigError: if it has another type.
    """
    return _typed(value, _KINDS.get(name, Any), f"{section}.{name}")


def _typed(value: Any, kind: Any, where: str) -> Any:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    kinds = typing.get_args(kind) if is_union else (kind,)
    choices = [choice for one in kinds if typing.get_origin(one) is Literal for choice in typing.get_args(one)]
    if kind is Any or type(value) in kinds or value in choices:
        return value
    for one in kinds:
        origin = typing.get_origin(one)
        if origin in (Sequence, Collection) and isinstance(value, list | tuple):
            element = typing.get_args(one)[0]
            return [_typed(inner, element, f"{where}[{index}]") for index, inner in enumerate(value)]
        if origin is Mapping and isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(one) and isinstance(value, Mapping):
            fields = {field.name: field.type for field in dataclasses.fields(one)}
            return {name: _typed(inner, fields.get(name, Any), f"{where}.{name}") for name, inner in value.items()}
        if one in (bool, int, float, str) and isinstance(value, str | int | float):
            try:
                return _converted(value, one)
            except ValueError:
                continue
    lists = ["a list" for one in kinds if typing.get_origin(one) in (Sequence, Collection)]
    mappings = ["a mapping" for one in kinds if typing.get_origin(one) is Mapping or dataclasses.is_dataclass(one)]
    plain = dict.fromkeys(_NAMES[one] for one in kinds if one in _NAMES)
    expected = " or ".join([*map(repr, choices), *lists, *mappings, *plain])
    raise ConfigError(f"{where}={value!r}: expected {expected or 'nothing, as recipes cannot set it'}")


def _converted(value: str | int | float, kind: type) -> Any:
    """The value as OmegaConf converts it.

    Raises:
        ValueError: if it cannot.
    """
    from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
    from omegaconf.errors import ValidationError

    nodes: dict[type, Any] = {bool: BooleanNode, int: IntegerNode, float: FloatNode, str: StringNode}
    try:
        return nodes[kind](value)._value()
    except ValidationError as error:
        raise ValueError(str(error)) from error
