"""How much of a table is decoded at once, and so how many of its rows are read together.

Enters: what a file has to decode for one row, such as a page. Leaves: the size of a block. Guarantee: what takes long
is told once for each file, and what is too much is an error before the first sample is read.
"""

import functools
import logging
from collections.abc import Sequence

from bridge_data.errors import ConfigError
from bridge_data.shards.blocks import OVERHEAD_BYTES, READ_BYTES
from bridge_data.shards.table_columns import Column, TableFile

logger = logging.getLogger("bridge_data")

MAX_READ_BYTES = 1 << 20
"""A block is not larger: what is decoded for it is a page, of about this size."""

MAX_HELD_BYTES = 1 << 18
"""A block of small samples does not take more memory, so that the windows of 8 lanes fit into the `max_open_bytes` that
are the default: each has up to 128 blocks. Samples that did not fit would be read one by one, a page for each."""

SLOW_UNIT_BYTES = 1 << 24
"""Where more has to be decoded for one sample, a warning says so."""

MAX_UNIT_BYTES = 1 << 28
"""More is not decoded at once."""

MAX_SMALL_BYTES = 1 << 14
"""Samples are small up to this size, as `lanes.read_ahead` has it."""


def block_bytes(unit_bytes: int, sample_bytes: float | None) -> int:
    """Bytes of a block, where `unit_bytes` are decoded for one sample: many samples for what is decoded, but no more
    than can be held."""
    if unit_bytes <= READ_BYTES or sample_bytes is None:
        return READ_BYTES
    if sample_bytes > MAX_SMALL_BYTES:
        return min(MAX_READ_BYTES, unit_bytes)
    num_samples = MAX_HELD_BYTES / (sample_bytes + OVERHEAD_BYTES)
    return min(MAX_READ_BYTES, unit_bytes, int(num_samples * sample_bytes) + 1)


def checked_unit(table: TableFile, group: int, columns: Sequence[Column]) -> int:
    """The most bytes that are decoded at once of one of these columns."""
    largest = 0
    for column in columns:
        unit = table.unit_bytes(group, column)
        largest = max(largest, unit)
        if unit <= SLOW_UNIT_BYTES:
            continue
        told = f"{table.path}: {table.group_name} {group}, column {column.name!r}: {unit >> 20} MiB are decoded at once"
        if column.is_whole and unit > MAX_UNIT_BYTES:
            raise ConfigError(
                f"{told}, more than the {MAX_UNIT_BYTES >> 20} MiB allowed: its lists are stored so that they cannot "
                "be had alone. Write the file with row groups of up to 16 MiB, or `bridge-data convert` it."
            )
        _warn_once(table.path, told)
    return largest


@functools.lru_cache(maxsize=1024)
def _warn_once(path: str, told: str) -> None:
    logger.warning(
        "%s for each block of samples, which is slow: write the file with row groups of up to %d MiB",
        told,
        SLOW_UNIT_BYTES >> 20,
    )
