"""The steps of a run: its saved states, which micro-batches a step took, and which samples they hold.

Enters: a folder of checkpoints, a batch schedule, batches. Leaves: states by position, micro-batches by step, samples
by batch. Guarantee: the samples are those in the batches that the loader makes, with whatever packing and filters do.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.units import BatchKey, SampleKey, UnitKey, read_key
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.tools.view.batch_contents import fields_of


def read_states(path: Path) -> list[Checkpoint]:
    """The saved states at `path`, by position: of a checkpoint's folder or file, or of all `iter_*` folders in it.

    Raises:
        StateError, ConfigError: if there is none, or one cannot be read.
    """
    folders = sorted(path.glob("iter_*")) if path.is_dir() else []
    found = [read_checkpoint(folder) for folder in folders] if folders else [read_checkpoint(path)]
    for one in found:
        if not one.state.is_whole:
            raise StateError(f"{one.path}: lacks lanes: it is the file of one rank; give the folder of all ranks")
    return sorted(found, key=lambda one: one.state.next_slot)


def micro_batches_of(schedule: BatchSchedule, step: int) -> range:
    """The micro-batches of the whole job in a step, numbered from 0.

    Raises:
        ConfigError: for a step below 0.
    """
    if step < 0:
        raise ConfigError(f"step {step}: steps are numbered from 0")
    consumed = number = 0
    while number < step and schedule.size_after(consumed) < schedule.global_batch_size:
        consumed += schedule.size_after(consumed)
        number += 1
    consumed += (step - number) * schedule.global_batch_size
    first = consumed // schedule.micro_batch_size
    return range(first, first + schedule.size_after(consumed) // schedule.micro_batch_size)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSample:
    """A sample in a micro-batch: the number of its source (None: not known), its epoch and its index; `row` is its
    place in the batch."""

    micro_batch: int
    row: int
    source: int | None
    epoch: int
    index: int


def samples_in(batch: Any, number: int, source_names: Sequence[str]) -> list[BatchSample]:
    """The samples of micro-batch `number`, by its restore key; none if it has no such key."""
    numbers = {name: place for place, name in enumerate(source_names)}
    return list(_samples(fields_of(batch), number, numbers))


def _samples(fields: Mapping[str, Any], number: int, numbers: Mapping[str, int]) -> Iterator[BatchSample]:
    key = fields.get("__restore_key__")
    if not key:
        return
    try:
        found = read_key(key)
    except ConfigError:  # of a user's own batch
        return
    units: Sequence[UnitKey] = found.units if isinstance(found, BatchKey) else (found,)
    for row, unit in enumerate(units):
        for member in unit.members:
            yield _sample(member, number, row, numbers)


def _sample(member: SampleKey, number: int, row: int, numbers: Mapping[str, int]) -> BatchSample:
    return BatchSample(number, row, numbers.get(member.source), member.epoch, member.index)
