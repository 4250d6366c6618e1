"""How samples are read: in which blocks; and the seam for reading ahead from object stores.

`plan_blocks` returns which sources are read block by block, and which sample by sample, by the bytes that a process may
hold. What is read in blocks is expected to fit; sources that yield most samples per byte held come first.

No sample depends on whether an `Announcer` announced it.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from bridge_data import storage
from bridge_data.data import Records
from bridge_data.data.blocks import OVERHEAD_BYTES, BlockRule, ChunkBlocks, RunBlocks
from bridge_data.data.records import READ_BYTES
from bridge_data.data.tar_files import any_gzip
from bridge_data.decode import SourceReader
from bridge_data.errors import DatasetError
from bridge_data.extensions import Feature
from bridge_data.order import Cursor, Geometry, SampleRef
from bridge_data.order.row import UNKNOWN_BLOCK_SIZE, share_open
from bridge_data.plan import Plan

logger = logging.getLogger("bridge_data")

MAX_LOCAL_SAMPLE_BYTES = 1 << 14
"""Larger samples of files on a disk are read singly: what is in the page cache is copied once instead of twice, and
what is not comes hardly slower."""


class Announcer(Protocol):
    """Announces to the storage what a lane will read, so that it is there in time."""

    def follow(self, cursor: Cursor, count: int = 1) -> None:
        """Announce what is due when the next `count` samples of `cursor`, the lane's own, are about to be taken."""

    def announce(self, refs: Iterable[SampleRef]) -> bool:
        """Announce the first of `refs` at once, as many as fit together; return whether there were any."""


READ_AHEAD = Feature[Callable[[Sequence[SourceReader], int, Sequence[Callable[[SampleRef], bool]]], Announcer]](
    "read_ahead"
)
"""The announcer of a lane that reads with these readers of its sources, one of so many lanes in this process; samples
for which one of the functions is true are not read, as far as is known."""


def plan_blocks(
    plan: Plan, geometries: Sequence[Geometry], *, num_lanes: int, max_open_bytes: int
) -> list[BlockRule | None]:
    """How each source of a training order is cut; `geometries` say how it is assigned. A process runs `num_lanes`, and
    may hold `max_open_bytes` of partly read blocks."""
    weights = plan.weights or [1.0] * len(plan.sources)
    rules: list[BlockRule | None] = [None] * len(plan.sources)
    wanted: list[tuple[float, float, int]] = []
    for number, (source, geometry) in enumerate(zip(plan.sources, geometries, strict=True)):
        if source.composition is None:
            sample_bytes = _sample_bytes(source.records)
            if not _gains(source.records, sample_bytes):
                continue
            block_size = geometry.block_size
            if not geometry.window_size:  # front to back
                block_size = min(block_size, max(1, int(source.records.read_bytes / sample_bytes)))
            num_open = _num_open(geometry, block_size, source.num_samples)
            num_bytes = num_lanes * num_open * (sample_bytes + OVERHEAD_BYTES)
            if block_size > 1:
                rules[number] = ChunkBlocks(geometry.chunk_size, block_size)
                wanted.append((-weights[number] / num_bytes, num_bytes, number))
    left = float(max_open_bytes)
    for _, num_bytes, number in sorted(wanted):
        if num_bytes <= left:
            left -= num_bytes
        else:
            rules[number] = None
            if plan.sources[number].records.read_bytes != READ_BYTES:
                _warn_of_pages(str(plan.sources[number].records.root), num_bytes, left, max_open_bytes)
    return rules


@functools.lru_cache(maxsize=1024)
def _warn_of_pages(path: str, num_bytes: float, left: float, max_open_bytes: int) -> None:
    logger.warning(
        "%s: slow: its rows are read one by one, and each decodes a page. Reading in blocks would "
        "take %d MiB of memory, and %d MiB are left of max_open_bytes=%d. Set a larger max_open_bytes (of "
        "WorkerConfig, or of the DataModule), have more workers, or convert it: `bridge-data convert`",
        path,
        num_bytes // (1 << 20),
        left // (1 << 20),
        max_open_bytes,
    )


def plan_runs(plan: Plan, run_size: int) -> list[BlockRule | None]:
    """How the sources of a validation order are cut: a block is a run of `run_size` samples, which one lane takes."""
    rules: list[BlockRule | None] = []
    offset = 0
    for source in plan.sources:
        is_run = run_size > 1 and source.composition is None and _gains(source.records, _sample_bytes(source.records))
        rules.append(RunBlocks(run_size, offset) if is_run else None)
        offset += source.num_samples
    return rules


def _gains(records: Records, sample_bytes: float) -> bool:
    """Whether reading neighbours together costs less than reading each."""
    return (
        sample_bytes <= MAX_LOCAL_SAMPLE_BYTES
        or records.read_bytes > READ_BYTES
        or storage.is_remote(records.root)
        or any_gzip(name for name, _ in records.shards)
    )


def _num_open(geometry: Geometry, block_size: int, num_samples: int) -> float:
    """Maximum number of samples that a lane holds: those of open blocks that are not taken yet."""
    if not geometry.window_size:
        return block_size
    of_lane = num_samples / geometry.num_lanes
    window = of_lane / max(1, int(of_lane / geometry.window_size))
    return max(block_size, window * share_open(block_size))


def _sample_bytes(records: Records) -> float:
    """Average bytes of a sample; without an index, those of a sample of the first shard that is not empty."""
    known = records.sample_bytes
    if known is not None:
        return max(1.0, known)
    name, count = next((shard for shard in records.shards if shard[1]), ("", 1))
    try:
        return max(1.0, storage.size_bytes(records.root / name) / count)
    except DatasetError:  # which a read reports
        return READ_BYTES / UNKNOWN_BLOCK_SIZE
