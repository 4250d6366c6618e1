"""Samples and batches as objects of the user's own types, field by field."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.samples import required_fields
from bridge_data.samples.collation import collected, columns_of, generic_batch


def as_type(value: Any, target: type | None) -> Any:
    """`value` as an object of `target`, field by field; unchanged if it is one, or `target` is None."""
    if target is None or isinstance(value, target):
        return value
    columns = columns_of([value])
    if columns is None:
        raise ConfigError(f"cannot turn a {type(value).__name__} into {target.__name__}: it has no named fields")
    return _made(target, {name: column[0] for name, column in columns.items()}, type(value))


def batch_as(
    samples: Sequence[Any],
    target: type,
    actions: Mapping[str, Callable[[list[Any]], Any]],
    default_action: Callable[[list[Any]], Any] = generic_batch,
) -> Any:
    """Collate the samples to one object of `target`, field by field: by the field's action, or the default one.

    A dataclass with `from_samples` (such as a `Batch`) makes its batch itself.
    """
    if dataclasses.is_dataclass(target) and hasattr(target, "from_samples"):
        return target.from_samples(samples)
    columns = columns_of(samples)
    if columns is None:
        raise ConfigError(f"cannot batch {type(samples[0]).__name__} by field: it has no named fields; override batch")
    fields = {
        name: actions[name](column) if name in actions else collected(name, column, default_action)
        for name, column in columns.items()
    }
    return _made(target, fields, type(samples[0]))


def _made(target: type, fields: dict[str, Any], origin: type) -> Any:
    if issubclass(target, dict):
        return fields if target is dict else target(fields)
    known, needed = _fields_of(target)
    extra, missing = [name for name in fields if name not in known], [name for name in needed if name not in fields]
    if extra or missing:
        raise ConfigError(
            f"cannot turn the fields of {origin.__name__} into {target.__name__}: "
            + "; ".join(
                f"{target.__name__} {what} {', '.join(names)}"
                for what, names in (("has no", extra), ("also needs", missing))
                if names
            )
            + ". Give both the same fields, or override the hook"
        )
    return target(**fields)


def _fields_of(target: type) -> tuple[Sequence[str], list[str]]:
    """The names of a type's fields, and of the required ones."""
    if dataclasses.is_dataclass(target):
        return [field.name for field in dataclasses.fields(target) if field.init], required_fields(target)
    if issubclass(target, tuple) and hasattr(target, "_fields"):
        defaults: dict[str, Any] = getattr(target, "_field_defaults", {})
        return target._fields, [name for name in target._fields if name not in defaults]
    raise ConfigError(f"fields cannot be mapped to {target.__name__}: use a dataclass, NamedTuple or dict")
