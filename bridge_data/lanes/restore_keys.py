"""Restore keys: what a sample, a pack or a batch was made of, under `__restore_key__`.

    sample  (source, epoch, index, part)                part: which of several that a generator made of it
    pack    ("pack", key of a sample, ...)
    batch   ("batch", number, part, key of a sample or pack, ...)

The number of a batch is its index among the micro-batches of the job, for hooks that ask for it. Keys are plain tuples;
read back, lists serve as well, so that they survive JSON.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from bridge_data.errors import ConfigError

Key: TypeAlias = tuple[Any, ...]

_PACK, _BATCH = "pack", "batch"


class SampleKey(NamedTuple):
    """A part of a sample: unique name of its source, epoch, index in the source, number of the part."""

    source: str
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a key
    part: int


@dataclasses.dataclass(frozen=True, slots=True)
class UnitKey:
    """A sample, or a pack of some."""

    members: tuple[SampleKey, ...]
    is_pack: bool


@dataclasses.dataclass(frozen=True, slots=True)
class BatchKey:
    """A micro-batch."""

    number: int
    part: int
    units: tuple[UnitKey, ...]


def pack_key(members: Sequence[Key]) -> Key:
    """The key of a pack of samples with these keys."""
    return _PACK, *members


def batch_key(number: int, part: int, units: Sequence[Key]) -> Key:
    """The key of a batch of samples or packs with these keys."""
    return _BATCH, number, part, *units


def read_key(key: Any) -> UnitKey | BatchKey:
    """The parts of a key.

    Raises:
        ConfigError: if it is none.
    """
    match key:
        case [str(tag), int(number), int(part), *units] if tag == _BATCH and units:
            return BatchKey(number, part, tuple(_unit(unit, key) for unit in units))
        case _:
            return _unit(key, key)


def _unit(unit: Any, key: Any) -> UnitKey:
    match unit:
        case [str(tag), *members] if tag == _PACK and members:
            return UnitKey(tuple(_sample(member, key) for member in members), True)
        case _:
            return UnitKey((_sample(unit, key),), False)


def _sample(sample: Any, key: Any) -> SampleKey:
    match sample:
        case [str(source), int(epoch), int(index), int(part)] if min(epoch, index, part) >= 0:
            return SampleKey(source, epoch, index, part)
    text = repr(key)
    raise ConfigError(
        f"{text if len(text) < 200 else text[:200] + '...'} is no restore key"
        f"{'' if sample is key else f', because of {sample!r} in it'}: expected the __restore_key__ of a sample "
        "(source, epoch, index, part), of a pack ('pack', key, ...) or of a batch ('batch', number, part, key, ...)"
    )
