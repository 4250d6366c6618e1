"""The fields of JSON parts that become columns: names, values in a sample, and types of values.

Reads names such as `json.score`, and the content of JSON parts. Returns values that a column can hold, and their types:
numbers, texts, booleans, and lists of one of these; what is missing or null is None. Raises for what a column cannot
hold.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.plugins.where.stored_columns import BOOLEAN, INTEGER, LIST, NUMBER, TEXT, column_path

_MAX_INTEGER = 1 << 63


@dataclasses.dataclass(frozen=True, slots=True)
class JsonField:
    """The field at `keys` of the part `part`, under the name `column`."""

    column: str
    part: str
    keys: tuple[str, ...]

    @classmethod
    def parse(cls, column: str) -> "JsonField":
        """The field that a column of this name holds.

        Raises:
            ConfigError: if it is not a field of a JSON part, or has the name of another column.
        """
        names = column.split(".")
        if not all(names) or "json" not in names[:-1]:
            raise ConfigError(
                f"column {column!r}: expected a field of a JSON part, such as json.score, json.meta.score or "
                "left.json.score for the part left.json"
            )
        part, *keys = column_path(column)
        if keys[0].lower() == "bytes":
            raise ConfigError(
                f"column {column!r}: {part}.bytes is the size of the part {part}: a field of this name cannot be stored"
            )
        return cls(column, part, tuple(keys))

    def value(self, content: Any) -> Any:
        """The field's value in the content of the part; None if there is none.

        Raises:
            ValueError: if the content has another structure.
        """
        for number, key in enumerate(self.keys):
            if content is None:
                return None
            if not isinstance(content, dict):
                holder = ".".join((self.part, *self.keys[:number]))
                raise ValueError(f"{holder} is {_named(content)}, expected an object with a field {key!r}")
            content = content.get(key)
        return content


def parse_fields(columns: Sequence[str]) -> list[JsonField]:
    """The fields for columns of these names.

    Raises:
        ConfigError: if a name is wrong, or two of them cannot be distinguished.
    """
    if not columns:
        raise ConfigError("columns: expected at least one field of a JSON part, such as json.score")
    fields = [JsonField.parse(column) for column in columns]
    for one, other in itertools.combinations(columns, 2):
        outer, inner = sorted((one, other), key=len)
        if one == other:
            raise ConfigError(f"column {one!r}: is named twice")
        if one.lower() == other.lower():
            raise ConfigError(f"columns {one!r} and {other!r} differ in case only, which SQL does not distinguish")
        if inner.lower().startswith(f"{outer.lower()}."):
            raise ConfigError(f"columns {outer!r} and {inner!r}: the second is a field of the first; name one")
    return fields


def parse_content(content: bytes) -> Any:
    """The content of a JSON part.

    Raises:
        ValueError: if it is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def typed(value: Any) -> tuple[str, Any]:
    """(type, stored form) of a value that is not None.

    Raises:
        ValueError: if a column cannot hold it.
    """
    if not isinstance(value, list):
        return _typed_item(value)
    kind, items = "", []
    for item in value:
        item_kind, stored = ("", None) if item is None else _typed_item(item)
        both = common_type(kind, item_kind)
        if both is None:
            raise ValueError(f"is a list of {kind} and {item_kind}, expected items of one type")
        kind = both
        items.append(stored)
    return kind + LIST, items


def common_type(one: str, other: str) -> str | None:
    """The type of a column with values of both types: number for integer and number; None if there is none. The type
    of a missing value, and of the items of an empty list, is empty."""
    if not one or not other or one == other:
        return one or other
    if one.endswith(LIST) and other.endswith(LIST):
        inner = common_type(one.removesuffix(LIST), other.removesuffix(LIST))
        return None if inner is None else inner + LIST
    return NUMBER if {one, other} == {INTEGER, NUMBER} else None


def _typed_item(value: Any) -> tuple[str, Any]:
    match value:
        case bool():
            return BOOLEAN, value
        case int() if -_MAX_INTEGER <= value < _MAX_INTEGER:
            return INTEGER, value
        case int():
            try:
                return NUMBER, float(value)
            except OverflowError:
                raise ValueError("is an integer that is too large for a column") from None
        case float():
            return NUMBER, value
        case str():
            return TEXT, value.encode(errors="replace").decode()  # halves of surrogate pairs are no text
        case _:
            raise ValueError(f"is {_named(value)}; columns hold numbers, texts, booleans, and lists of these")


def _named(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}.get(type(value), "a number")
