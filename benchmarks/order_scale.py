"""The order of a large run, without data: time and memory of a lane and of a re-deal.

Input: the samples of each shard of one or many sources, 1,024 ranks with 8 lanes each. Output: rows of figures. What a
re-deal to 768 ranks gives is compared with what the old lanes had left.
"""

import collections
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from bridge_data.order import Cursor, Geometry, Row
from bridge_data.order.cursor import Inbox, entry_size, is_slice
from bridge_data.order.redeal import redeal_shuffled
from bridge_data.order.state import Generation, LoaderState

RANKS, NEW_RANKS, LANES = 1_024, 768, 8
CHUNK, BUFFER, SAMPLE_BYTES = 100, 100, 1_000
MILLION = 1_000_000


def row_of(counts: Sequence[int], num_lanes: int, key: int = 7, buffer: int = BUFFER, first_epoch: int = 0) -> Row:
    """The row of a source of small samples."""
    chosen = Geometry.choose(
        counts,
        num_lanes=num_lanes,
        max_samples_per_sequence=CHUNK,
        shuffle_buffer_size=buffer,
        sample_bytes=SAMPLE_BYTES,
    )
    sizes = chosen.chunk_size, chosen.block_size, chosen.window_size
    return Row(counts, Geometry(num_lanes, *sizes, first_epoch), key)


def measure_lane(name: str, counts: Sequence[int], num_lanes: int, buffer: int = BUFFER) -> dict[str, Any]:
    """Time and memory to start a lane and to draw."""
    starts = []
    for lane in random.Random(0).sample(range(num_lanes), 5):
        begin = time.process_time()
        Cursor([[row_of(counts, num_lanes, buffer=buffer)]], None, lane).take(1)
        starts.append(time.process_time() - begin)
    tracemalloc.start()
    cursor = Cursor([[row_of(counts, num_lanes, buffer=buffer)]], None, 1)
    cursor.take(1)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    begin = time.process_time()
    for _ in range(4_000):
        cursor.take(32)
    draw = (time.process_time() - begin) / (4_000 * 32)
    geometry = row_of(counts, num_lanes, buffer=buffer).geometry
    return {
        "lane of": name,
        "samples": sum(counts),
        "shards": len(counts),
        "lanes": num_lanes,
        "block": geometry.block_size,
        "window": geometry.window_size,
        "first draw, CPU ms": 1e3 * statistics.median(starts),
        "held by a lane, MB": held / 1e6,
        "peak, MB": peak / 1e6,
        "draw, CPU us": 1e6 * draw,
    }


def middle_of_epoch(rows: Sequence[Row], num_lanes: int) -> dict[int, dict[str, Any]]:
    """A state with every lane in the middle of its first epoch of each source."""
    rng = random.Random(1)
    lanes: dict[int, dict[str, Any]] = {}
    sizes = [row.num_samples_to(1, [0] * num_lanes).tolist() for row in rows]
    for lane in range(num_lanes):
        cursors = {}
        for source, row in enumerate(rows):
            taken = rng.randrange(sizes[source][lane])
            cursors[str(source)] = [*row.seek(lane, 0, 0, taken, row.starts_at(1)), taken]
        draws = sum(position[-1] for position in cursors.values())
        lanes[lane] = {"draws": draws, "cursors": cursors, "micro_batches": 0}
    return lanes


def measure_redeal(name: str, sources: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Time and memory for one rank to re-deal the rest of an epoch to 768 ranks, of which it is one."""
    num_lanes, new_lanes = RANKS * LANES, NEW_RANKS * LANES
    rows = [row_of(counts, num_lanes, key) for key, counts in enumerate(sources)]
    state = LoaderState({}, [(num_lanes, [])], 0, middle_of_epoch(rows, num_lanes))

    def generation(first_epochs: Sequence[int]) -> Generation:
        new = [
            row_of(counts, new_lanes, first_epoch=e).geometry for counts, e in zip(sources, first_epochs, strict=True)
        ]
        return new_lanes, [[g.chunk_size, g.block_size, g.window_size, g.first_epoch] for g in new]

    def dealt_to(lanes: Sequence[int]) -> LoaderState:
        fresh = [row_of(counts, num_lanes, key) for key, counts in enumerate(sources)]
        return redeal_shuffled(state, fresh, lambda lane: Cursor([fresh], None, lane), generation, lanes)

    own = range(5, new_lanes, NEW_RANKS)
    gc.collect()
    begin = time.process_time()
    dealt_to(own)
    seconds = time.process_time() - begin
    tracemalloc.start()
    dealt_to(own)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    some = range(new_lanes // 3)
    dealt = dealt_to(some)
    after = [row_of(counts, new_lanes, key, first_epoch=1) for key, counts in enumerate(sources)]
    num_slices, spread = check(state, dealt, rows, after, random.Random(2).sample(range(num_lanes // 4), 4))
    return {
        f"re-deal {num_lanes:,} to {new_lanes:,} lanes": name,
        "sources": len(sources),
        "samples": sum(map(sum, sources)),
        "CPU of a rank, s": seconds,
        "memory of a rank, peak MB": peak / 1e6,
        "slices of a source in a new lane, at most": num_slices,
        "samples of a source in a new lane, spread": spread,
    }


def check(
    state: LoaderState, dealt: LoaderState, rows: Sequence[Row], after: Sequence[Row], sampled: Sequence[int]
) -> tuple[int, int]:
    """See that the slices of some old lanes, in the sequence of the new lanes, are what those lanes had left of `rows`,
    which `after` follow.

    Leaves the most slices of a source in a lane, and by how much lanes differ in the samples of a source.
    """
    slices: dict[tuple[int, int], list[Any]] = collections.defaultdict(list)
    sizes: dict[int, list[int]] = collections.defaultdict(list)
    num_slices = 0
    for lane in sorted(dealt.lanes):
        for source in range(len(rows)):
            entries = dealt.lanes[lane].get("inbox", {}).get(str(source), [])
            sizes[source].append(sum(map(entry_size, entries)))
            num_slices = max(num_slices, len(entries))
            for entry in entries:
                assert is_slice(entry)
                slices[source, entry[1]].append(entry)
    for source in (0, len(rows) - 1):
        for lane in sampled:
            old = Cursor([[rows[source]]], None, lane)
            position = state.lanes[lane]["cursors"][str(source)]
            old.seek({"draws": position[-1], "cursors": {"0": position}})
            for entry in slices[source, lane]:
                inbox = Inbox([entry], [rows[source], after[source]], "inbox")
                while taken := inbox.take(256):
                    assert [sample[:2] for sample in taken] == [ref[1:3] for _, ref in old.take(len(taken))]
            assert old.next().epoch == 1, "nothing of the first epoch is left over"
    return num_slices, max(max(of_source) - min(of_source) for of_source in sizes.values())


def lanes() -> list[dict[str, Any]]:
    """The table of lanes."""
    equal, rng = [10_000] * 100_000, random.Random(0)
    unequal = [rng.randint(9_000, 11_000) for _ in range(100_000)]
    return [
        measure_lane("equal shards", equal, RANKS * LANES),
        measure_lane("9,000 to 11,000", unequal, RANKS * LANES),
        measure_lane("8 lanes", unequal, 8),
        measure_lane("windows of a million", unequal, 8, MILLION),
    ]


def redeals() -> list[dict[str, Any]]:
    """The table of re-deals."""
    rng = random.Random(0)
    unequal = [rng.randint(9_000, 11_000) for _ in range(100_000)]
    return [
        measure_redeal("1e9 samples", [unequal]),
        measure_redeal("100 sources", [_million(rng) for _ in range(100)]),
    ]


def _million(rng: random.Random) -> list[int]:
    """A million samples in unequal shards."""
    counts: list[int] = []
    left = MILLION
    while left:
        counts.append(min(left, rng.randint(500, 1_500)))
        left -= counts[-1]
    return counts
