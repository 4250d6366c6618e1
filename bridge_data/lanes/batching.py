"""Batching: how many samples are in a micro-batch, and which ones if the encoder groups them.

Enters: the settings of a run; the units of a lane, one by one. Leaves: the units of the next full micro-batch.
Guarantee: a batch has units of one group only, and a group has one batch size.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from bridge_data.errors import ConfigError
from bridge_data.lanes.packs import Unit
from bridge_data.lanes.work import Work
from bridge_data.task import hook_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How samples become micro-batches.

    `batch_size` None: a sample is a batch, unless the encoder groups samples and sets each group's batch size.
    `packing_buffer_size` None: no packing. `max_micro_batches`: the job ends after this many (None: with its data).
    """

    batch_size: int | None
    drop_last: bool = False
    packing_buffer_size: int | None = None
    max_micro_batches: int | None = None


class UnitStream(Protocol):
    """The units of a lane: its samples, or with packing its packs."""

    def next_unit(self) -> Unit:
        """The next one; `StopIteration` at the end of the data."""

    def keep(self, what: str) -> None:
        """Count one of `what` that was kept."""

    def leave_out(self, what: str) -> None:
        """Count one of `what` that a hook skipped."""


_GROUPED = "samples or packs to be grouped"


class BatchGroups:
    """Groups the units of one lane as the encoder of `work` says. `batch_size` is for groups without their own.

    `buckets` are the waiting units of each group.
    """

    def __init__(self, work: Work, batch_size: int | None, buckets: dict[str, list[Unit]]) -> None:
        self._hooks, self._first_key = work.hooks, work.first_key
        self._batch_size, self._buckets = batch_size, buckets
        self._criterion = f"batch_group_criterion of {type(work.hooks.encoder).__name__}"
        self._sizes: dict[str, int] = {}

    def next_bucket(self, units: UnitStream) -> list[Unit]:
        """Remove and return the first full bucket."""
        while True:
            unit = units.next_unit()
            group = self._group(unit)
            if group is None:
                units.leave_out(_GROUPED)
                continue
            units.keep(_GROUPED)
            name, size = group
            bucket = self._buckets.setdefault(name, [])
            bucket.append(unit)
            if len(bucket) >= self._size_of(name, size):
                return self._buckets.pop(name)

    def _group(self, unit: Unit) -> tuple[str, int | None] | None:
        """(group, its batch size or None) of a unit; None if it is skipped."""
        hook, key = hook_of(self._hooks.encoder, "batch_group_criterion"), self._first_key(unit.items[0])
        result = self._hooks.run("batch_group_criterion", hook, unit.sample, key, len(unit.items))
        if not result:
            return None
        try:
            group, size = result[0]
        except (TypeError, ValueError):
            raise ConfigError(
                f"{self._criterion} returned {result[0]!r}; expected a pair: key of the group, its batch size or None"
            ) from None
        name = repr(group)
        if " at 0x" in name:
            raise ConfigError(
                f"{self._criterion} returned the key {name}, which cannot be saved; return numbers, strings or tuples "
                "of them"
            )
        return name, size

    def _size_of(self, group: str, asked: int | None) -> int:
        """The batch size of a group; the encoder `asked` for this one.

        Raises:
            ConfigError: if it is invalid, or differs from the earlier one.
        """
        if asked is not None and asked < 1:
            raise ConfigError(
                f"{self._criterion} gave group {group} the batch size {asked}; expected 1 or more, or None"
            )
        size = asked or self._batch_size
        if size is None:
            raise ConfigError(
                f"batch_size is None, and {self._criterion} has no batch size for group {group}; give one of them"
            )
        if self._sizes.setdefault(group, size) != size:
            raise ConfigError(
                f"{self._criterion} gave group {group} the batch size {size}, and before {self._sizes[group]}; a group "
                "has one batch size"
            )
        return size
