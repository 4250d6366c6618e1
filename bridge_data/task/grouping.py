"""`batch_group_criterion` from what samples have in common: batches of one kind.

    class Homogeneous(DefaultTaskEncoder):
        batch_group_criterion = group_by(source_of)                          # each batch from one data set

    class ByTask(DefaultTaskEncoder):
        batch_group_criterion = group_by(subflavor("task"), batch_sizes={"caption": 8, "vqa": 4})

Without a criterion, batches mix all samples.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.samples import provenance_of
from bridge_data.samples.collation import generic_concat
from bridge_data.task.task_encoder import stateless

Key = Callable[[Any], Hashable]


class group_by:
    """A `batch_group_criterion` by `keys`, functions of a sample.

    `batch_sizes` maps the key of a group (with several keys, their tuple) to its batch size; other groups have the
    default one.

    >>> from bridge_data import DefaultTaskEncoder, TextSample
    >>> class ByTask(DefaultTaskEncoder):
    ...     batch_group_criterion = group_by(subflavor("task"), batch_sizes={"caption": 8})
    >>> ByTask().batch_group_criterion(TextSample(__key__="1", text="a", __subflavors__={"task": "caption"}))
    ('caption', 8)
    """

    def __init__(self, *keys: Key, batch_sizes: Mapping[Any, int] | None = None) -> None:
        if not keys:
            raise ConfigError("group_by(): expected at least one function of a sample, such as source_of")
        for key in keys:
            if not callable(key):
                raise ConfigError(f"group_by({key!r}): expected functions of a sample, such as source_of")
        self._keys, self._batch_sizes = keys, dict(batch_sizes or {})

    def __call__(self, sample: Any) -> tuple[Hashable, int | None]:
        """(key of the group, its batch size or None)."""
        values = tuple(key(sample) for key in self._keys)
        group = values[0] if len(values) == 1 else values
        try:
            return group, self._batch_sizes.get(group)
        except TypeError:
            raise ConfigError(
                f"group_by: {group!r} cannot be the key of a group; keys are numbers, strings, tuples"
            ) from None


stateless(group_by)


def source_of(sample: Any) -> Hashable:
    """The data set of a sample, or of the first sample of a pack.

    >>> from bridge_data import TextSample
    >>> source_of(TextSample(__key__="1", text="a", __restore_key__=("0123abcd", 0, 7, 0)))
    '0123abcd'
    """
    key = provenance_of(sample, "__restore_key__")
    if key and isinstance(key[1], tuple):  # of a pack: ("pack", key of a member, ...)
        key = key[1]
    if not key:
        raise ConfigError(
            f"source_of: a {type(sample).__name__} has no source; make it by Sample.derive_from in the earlier hooks"
        )
    source: Hashable = key[0]
    return source


def subflavor(name: str) -> Key:
    """The value of a sub-flavor, None if a data set does not have it."""

    def subflavor_of(sample: Any) -> Hashable:
        return (provenance_of(sample, "__subflavors__") or {}).get(name)

    return subflavor_of


def type_of(sample: Any) -> Hashable:
    """The name of a sample's class.

    >>> from bridge_data import TextSample
    >>> type_of(TextSample(__key__="1", text="a"))
    'TextSample'
    """
    return type(sample).__qualname__


def shape_of(field: str) -> Key:
    """The shape of a tensor or array in a sample's field.

    >>> import torch
    >>> shape_of("image")({"image": torch.zeros(3, 8, 6)})
    (3, 8, 6)
    """

    def shape(sample: Any) -> Hashable:
        value = sample[field] if isinstance(sample, dict) else getattr(sample, field)
        return tuple(int(size) for size in value.shape)

    return shape


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Concatenate several batches of one type, by `generic_concat`.

    >>> import torch
    >>> homogeneous_concat_mix([{"tokens": torch.tensor([[1, 2]])}, {"tokens": torch.tensor([[3, 4]])}])
    {'tokens': tensor([[1, 2],
            [3, 4]])}

    Raises:
        ConfigError: if they are of several types.
    """
    types = sorted({type(sample).__qualname__ for sample in samples})
    if len(types) > 1:
        raise ConfigError(
            f"homogeneous_concat_mix: got {', '.join(types)}; expected batches of one type. Keep the types apart "
            "(batch_group_criterion = group_by(type_of)), or return them as a list"
        )
    return generic_concat(samples)
