"""How samples are read: in which blocks, and how far ahead from object stores.

`plan_blocks` returns which sources are read block by block, and which sample by sample, by the bytes that a process may
hold. What is read in blocks is expected to fit; sources that yield most samples per byte held come first.

`ReadAhead` announces to the storage what a lane will read, from a second cursor (the scout) that runs ahead of the
lane's own. Only reads that the lane will need are announced, at most its share of `AHEAD_BYTES` at a time. No sample
depends on whether it was announced.

The scout examines several samples at a time, so that neighbours come with one request; a block is requested with
the first of its samples. Requests wait until they fit the budget, and are announced evenly: a window starts with many
blocks and ends with none, so the scout runs far enough ahead that the blocks of the next window are fetched during this
one. Fetched all at once, they would saturate network and cores for a while, and then leave them idle.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bridge_data import storage
from bridge_data.data import ByteRange, Records
from bridge_data.data.blocks import OVERHEAD_BYTES, Cut
from bridge_data.data.records import READ_BYTES
from bridge_data.data.tar_files import is_gzip
from bridge_data.decode import SourceReader
from bridge_data.errors import DatasetError
from bridge_data.order import Cursor, Geometry, SampleRef
from bridge_data.order.row import UNKNOWN_BLOCK_SIZE, share_open
from bridge_data.plan import Plan

logger = logging.getLogger("bridge_data")

MAX_LOCAL_SAMPLE_BYTES = 1 << 14
"""Larger samples of files on a disk are read singly: what is in the page cache is copied once instead of twice, and
what is not comes hardly slower."""

AHEAD_BYTES = storage.MAX_AHEAD_BYTES * 3 // 4
"""Maximum bytes announced and not yet read, of all lanes of a process, including gaps in requests."""

LOT_SAMPLES = 1024
"""Samples examined at a time; fewer if they fill the budget of bytes."""

MAX_SAMPLES_AHEAD = 1 << 14
"""Maximum number of draws that the scout is ahead."""

BURST_BYTES = 2 << 20
"""Bytes announced at once: they arrive soon."""

LEAD = LOT_SAMPLES // 4
"""Data needed within this many samples are announced at once, whatever their size; at the start, within as many as the
lane has taken: the first batches of all lanes come before the later ones of any."""

PACE = 1.25
"""Otherwise this many times the mean sample size is announced with each sample."""

MAX_SEEN = 1 << 17
"""Number of recent samples in the mean sample size, approximately."""

MAX_OPEN_BLOCKS = 1 << 18
"""Maximum number of blocks remembered as partly met; this drops those of windows that a lane started in the middle."""


class ReadAhead:
    """Announces what a lane will read. `readers` are those of the sources; `num_lanes` run in this process; samples for
    which any of `unread` is true are not read, as far as is known."""

    def __init__(
        self, readers: Sequence[SourceReader], num_lanes: int = 1, unread: Sequence[Callable[[SampleRef], bool]] = ()
    ) -> None:
        self._readers, self._max_bytes, self._unread = readers, AHEAD_BYTES // num_lanes, unread
        self._scout: Cursor
        self._is_ended = False
        self._begin: int | None = None
        """The draw at which this began."""
        self._lead = 0
        self._next_look = 0
        """The draw at which the scout may examine another lot, although there is time."""
        self._waiting: collections.deque[_Request] = collections.deque()
        self._announced: collections.deque[_Request] = collections.deque()
        """Requests that the lane has not reached, by the draw that reaches them."""
        self._known_bytes = self._announced_bytes = 0
        self._credit = float(BURST_BYTES)
        self._cost, self._num_seen = 0, 0
        """Total cost of the requests, and number of samples they are for."""
        self._open: collections.OrderedDict[tuple[int, int, int], tuple[int, bool | None]] = collections.OrderedDict()
        """Blocks met, by source, epoch and first sample: how many of their samples are still to come, and whether
        these come with the block (None: none of them is read so far)."""

    def follow(self, cursor: Cursor, count: int = 1) -> None:
        """Announce what is due when the next `count` samples of `cursor`, the lane's own, are about to be taken."""
        if self._begin is None:
            self._scout = cursor.copy()
            self._begin = self._next_look = cursor.num_drawn
        last_draw = cursor.num_drawn + count - 1
        self._lead = min(LEAD, last_draw + 1 - self._begin)
        while self._announced and self._announced[0].draw < cursor.num_drawn:
            num_bytes = self._announced.popleft().num_bytes
            self._announced_bytes -= num_bytes
            self._known_bytes -= num_bytes
        while self._wants_to_look(last_draw):
            self._look(cursor.num_drawn)
        if self._num_seen:
            self._credit = min(float(BURST_BYTES), self._credit + PACE * count * self._cost / self._num_seen)
        while self._waiting and self._is_due(self._waiting[0], last_draw):
            request = self._waiting.popleft()
            self._credit -= request.num_bytes + storage.REQUEST_BYTES
            self._announced.append(request)
            self._announced_bytes += request.num_bytes
            storage.prefetch(request.ranges)

    def _wants_to_look(self, last_draw: int) -> bool:
        num_ahead = self._scout.num_drawn - last_draw - 1
        if self._is_ended or num_ahead < 0:
            return not self._is_ended
        if self._known_bytes >= self._max_bytes:
            return False
        return num_ahead < self._lead or (last_draw >= self._next_look and num_ahead < MAX_SAMPLES_AHEAD)

    def _look(self, draw: int) -> None:
        """Find the requests of the next lot; the lane is about to take `draw`."""
        begin = self._scout.num_drawn
        lot = self._lot(self._upcoming(), LOT_SAMPLES if self._lead == LEAD else 2 * self._lead)
        self._is_ended = not lot
        self._next_look = max(draw, self._next_look) + max(1, len(lot) // 4)  # gets ahead soon, but gradually
        wanted = {one: begin + number for number, ranges in reversed([*enumerate(lot)]) for one in ranges}
        for group in storage.by_request([one for ranges in lot for one in ranges]):
            request = _Request(min(map(wanted.__getitem__, group)), group, sum(size for *_, size in group))
            self._waiting.append(request)
            self._known_bytes += request.num_bytes
            self._cost += request.num_bytes + storage.REQUEST_BYTES
        self._num_seen += len(lot)
        if self._num_seen > MAX_SEEN:
            self._num_seen, self._cost = self._num_seen // 2, self._cost // 2

    def _is_due(self, request: "_Request", last_draw: int) -> bool:
        if request.draw <= last_draw:
            return True
        if self._announced_bytes + request.num_bytes > self._max_bytes:
            return False
        return self._credit > 0 or request.draw <= last_draw + self._lead

    def announce(self, refs: Iterable[SampleRef]) -> bool:
        """Announce a lot at once, the first of `refs`; return whether there were any."""
        lot = self._lot(refs)
        storage.prefetch([one for ranges in lot for one in ranges])
        return bool(lot)

    def _lot(self, refs: Iterable[SampleRef], most: int = LOT_SAMPLES) -> list[Sequence[ByteRange]]:
        """The byte ranges of each of the next samples, at most `most`; fewer if they fill the budget."""
        lot: list[Sequence[ByteRange]] = []
        num_bytes = 0
        for ref in refs:
            ranges: Sequence[ByteRange] = ()
            try:
                ranges = self._byte_ranges(ref)
            except DatasetError:
                logger.debug("%s cannot be announced", ref, exc_info=True)  # the read says what is wrong
            lot.append(ranges)
            num_bytes += sum(size for *_, size in ranges)
            if num_bytes >= self._max_bytes or len(lot) == most:
                break
        return lot

    def _byte_ranges(self, ref: SampleRef) -> Sequence[ByteRange]:
        """The reads of this sample, except what comes with a sample met before."""
        reader = self._readers[ref.source]
        block = reader.block(ref.index)
        if block is None:
            return () if any(is_unread(ref) for is_unread in self._unread) else reader.byte_ranges(ref.index)
        name = ref.source, ref.epoch, block.start
        num_left, comes_whole = self._open.pop(name, (len(block), None))
        is_read, whole = not any(is_unread(ref) for is_unread in self._unread), None
        if is_read and comes_whole is None:
            whole = reader.block_bytes(block)
            comes_whole = whole is not None
        if num_left > 1:
            self._open[name] = num_left - 1, comes_whole
            if len(self._open) > MAX_OPEN_BLOCKS:
                self._open.popitem(last=False)
        if is_read and not comes_whole:
            return reader.byte_ranges(ref.index)
        return () if whole is None else (whole,)

    def _upcoming(self) -> Iterable[SampleRef]:
        try:
            while True:
                yield self._scout.next()
        except StopIteration:
            return


class _Request(NamedTuple):
    """What comes with one request; the lane reaches it with `draw`."""

    draw: int
    ranges: list[ByteRange]
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkCut:
    """Each shard is cut into chunks of at most `chunk_size` samples, and these into blocks of at most `block_size`,
    as equal as possible, as the order of a source cuts them (`order.row`, by the same arithmetic)."""

    chunk_size: int
    block_size: int

    def block(self, index: int, first: int, count: int) -> range:
        begin, length = _piece(index - first, count, self.chunk_size)
        begin += first
        at, length = _piece(index - begin, length, self.block_size)
        return range(begin + at, begin + at + length)


@dataclasses.dataclass(frozen=True, slots=True)
class RunCut:
    """Runs of `size` samples of concatenated sources, where sample 0 of this source has number `offset`."""

    size: int
    offset: int

    def block(self, index: int, first: int, count: int) -> range:
        begin = index - (index + self.offset) % self.size
        return range(max(begin, first), min(begin + self.size, first + count))


def _piece(position: int, count: int, size: int) -> tuple[int, int]:
    """(first position, length) of the piece around `position`, of `count` samples in pieces of at most `size`."""
    # `piece` of `piece_of` in `order.row`, without their calls, as it is asked twice for each block
    num_pieces = -(-count // size)
    number = ((position + 1) * num_pieces - 1) // count
    begin = number * count // num_pieces
    return begin, (number + 1) * count // num_pieces - begin


def plan_blocks(plan: Plan, geometries: Sequence[Geometry], *, num_lanes: int, max_open_bytes: int) -> list[Cut | None]:
    """How each source of a training order is cut; `geometries` say how it is assigned. A process runs `num_lanes`, and
    may hold `max_open_bytes` of partly read blocks."""
    weights = plan.weights or [1.0] * len(plan.sources)
    cuts: list[Cut | None] = [None] * len(plan.sources)
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
                cuts[number] = ChunkCut(geometry.chunk_size, block_size)
                wanted.append((-weights[number] / num_bytes, num_bytes, number))
    left = float(max_open_bytes)
    for _, num_bytes, number in sorted(wanted):
        if num_bytes <= left:
            left -= num_bytes
        else:
            cuts[number] = None
            if plan.sources[number].records.read_bytes != READ_BYTES:
                _warn_of_pages(str(plan.sources[number].records.root), num_bytes, left, max_open_bytes)
    return cuts


@functools.lru_cache(maxsize=1024)
def _warn_of_pages(path: str, num_bytes: float, left: float, max_open_bytes: int) -> None:
    logger.warning(
        "%s: slow: its rows are read one by one, and each decodes a page. Reading in blocks would "
        "take %d MiB of memory, and %d MiB are left of max_open_bytes=%d. Set a larger max_open_bytes (of "
        "WorkerConfig, or of the DataModule), have more workers, or convert it: `bridge-data convert`",
        *(path, num_bytes // (1 << 20), left // (1 << 20), max_open_bytes),
    )


def plan_runs(plan: Plan, run_size: int) -> list[Cut | None]:
    """How the sources of a validation order are cut: a block is a run of `run_size` samples, which one lane takes."""
    cuts: list[Cut | None] = []
    offset = 0
    for source in plan.sources:
        is_cut = run_size > 1 and source.composition is None and _gains(source.records, _sample_bytes(source.records))
        cuts.append(RunCut(run_size, offset) if is_cut else None)
        offset += source.num_samples
    return cuts


def _gains(records: Records, sample_bytes: float) -> bool:
    """Whether reading neighbours together costs less than reading each."""
    return (
        sample_bytes <= MAX_LOCAL_SAMPLE_BYTES
        or records.read_bytes > READ_BYTES
        or storage.is_remote(records.root)
        or any(is_gzip(name) for name, _ in records.shards)
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
