"""Which sources of a run are read in blocks.

Enters: the sources, the geometry of their order, and the bytes that a process may hold. Leaves: for each source how it
is cut, or None where its samples are read singly. Guarantee: what is read in blocks is expected to fit; the source of
which most samples come for a byte that is held is the first.
"""

import dataclasses
from collections.abc import Sequence

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.order.chunks import READ_BYTES, UNKNOWN_BLOCK_SIZE, Geometry, share_open
from bridge_data.plan import Plan
from bridge_data.shards import Records
from bridge_data.shards.blocks import OVERHEAD_BYTES, ChunkCut, Cut, RunCut
from bridge_data.shards.tar_bytes import is_gzip

MAX_LOCAL_SAMPLE_BYTES = 1 << 14
"""Larger samples of files on a disk are read singly: what is in the page cache is copied once instead of twice, and
what is not comes hardly slower."""


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process: its number of lanes, and the bytes that it may hold of partly read blocks."""

    num_lanes: int
    max_open_bytes: int


def plan_blocks(plan: Plan, geometries: Sequence[Geometry], process: Process) -> list[Cut | None]:
    """How each source of a training order is cut, which is dealt by `geometries`."""
    weights = plan.weights or [1.0] * len(plan.sources)
    cuts: list[Cut | None] = [None] * len(plan.sources)
    wanted: list[tuple[float, float, int]] = []
    for number, (source, geometry) in enumerate(zip(plan.sources, geometries, strict=True)):
        if source.joined is None:
            sample_bytes = _sample_bytes(source.records)
            if not _gains(source.records, sample_bytes):
                continue
            block_size = geometry.block_size
            if not geometry.window_size:  # front to back
                block_size = min(block_size, max(1, int(READ_BYTES / sample_bytes)))
            num_open = _num_open(geometry, block_size, source.num_samples)
            num_bytes = process.num_lanes * num_open * (sample_bytes + OVERHEAD_BYTES)
            if block_size > 1:
                cuts[number] = ChunkCut(geometry.chunk_size, block_size)
                wanted.append((-weights[number] / num_bytes, num_bytes, number))
    left = float(process.max_open_bytes)
    for _, num_bytes, number in sorted(wanted):
        if num_bytes <= left:
            left -= num_bytes
        else:
            cuts[number] = None
    return cuts


def plan_runs(plan: Plan, run_size: int) -> list[Cut | None]:
    """How the sources of a validation order are cut: a block is a run of `run_size` samples, which one lane takes."""
    cuts: list[Cut | None] = []
    offset = 0
    for source in plan.sources:
        is_cut = run_size > 1 and source.joined is None and _gains(source.records, _sample_bytes(source.records))
        cuts.append(RunCut(run_size, offset) if is_cut else None)
        offset += source.num_samples
    return cuts


def _gains(records: Records, sample_bytes: float) -> bool:
    """Whether reading neighbours together costs less than reading each."""
    is_on_disk = not storage.is_remote(records.root) and not any(map(is_gzip, records.names))
    return sample_bytes <= MAX_LOCAL_SAMPLE_BYTES or not is_on_disk


def _num_open(geometry: Geometry, block_size: int, num_samples: int) -> float:
    """Samples of a lane, at most, that are held: those of open blocks that are not taken yet."""
    if not geometry.window_size:
        return block_size
    of_lane = num_samples / geometry.num_lanes
    window = of_lane / max(1, int(of_lane / geometry.window_size))
    return max(block_size, window * share_open(block_size))


def _sample_bytes(records: Records) -> float:
    """Bytes of a sample, on the average; without an index, those of a sample of the first shard that has some."""
    known = records.sample_bytes
    if known is not None:
        return max(1.0, known)
    name, count = next((pair for pair in zip(records.names, records.counts, strict=True) if pair[1]), ("", 1))
    try:
        return max(1.0, storage.size_bytes(records.root / name) / count)
    except DatasetError:  # which a read reports
        return READ_BYTES / UNKNOWN_BLOCK_SIZE
