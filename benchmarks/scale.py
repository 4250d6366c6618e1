"""A large run: 1,024 ranks with 8 lanes each.

States (`state_scale.py`): their size, what building, sending, gathering and restoring them takes, and the files of a
checkpoint. The order, over a billion samples and without data: starting one lane (time, memory), one draw, and a
re-deal in mid-epoch to 768 ranks, whose slices are then compared with what a sample of the old lanes had left.

    python -m benchmarks.scale [--only states,checkpoint,order] [--json FILE]
"""

import argparse
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import state_scale
from bridge_data.order import Geometry, Row, ShuffledCursor
from bridge_data.order.inbox import Inbox, is_slice
from bridge_data.redeal import redeal_shuffled
from bridge_data.state import Generation, LoaderState

RANKS, NEW_RANKS, WORKERS = 1_024, 768, 8
SHARDS, CHUNK = 100_000, 100


def geometry(counts: Sequence[int], num_lanes: int, first_epoch: int = 0) -> Geometry:
    chosen = Geometry.choose(counts, num_lanes=num_lanes, max_samples_per_sequence=CHUNK, shuffle_buffer_size=100)
    return Geometry(num_lanes, chosen.chunk_size, chosen.window_chunks, first_epoch)


def mid_epoch(row: Row, num_lanes: int) -> dict[int, dict[str, Any]]:
    """Every lane some windows into its epoch, and some samples into a window."""
    rng = random.Random(1)
    lanes = {}
    for lane in range(num_lanes):
        taken = 0
        for _ in range(rng.randrange(12)):
            _, taken = row.window_size(lane, taken)
        size, _ = row.window_size(lane, taken)
        lanes[lane] = {"draws": 1, "cursors": [[taken, rng.randrange(size)]], "micro_batches": 0}
    return lanes


def check(state: LoaderState, dealt: LoaderState, row: Row, sampled: Sequence[int]) -> None:
    """The slices of a sample of old lanes, in the sequence of the new lanes, are what those lanes had left."""
    slices: dict[int, list[Any]] = {lane: [] for lane in sampled}
    for new in dealt.lanes.values():
        for entry in new.get("inbox", {}).get("0", []):
            if is_slice(entry) and entry[1] in slices:
                slices[entry[1]].append(entry)
    for lane in sampled:
        old = ShuffledCursor([[row]], None, lane)
        old.seek(state.lanes[lane])
        for entry in slices[lane]:
            inbox = Inbox([entry], [row])
            while inbox:
                assert inbox.next()[:2] == old.next()[1:3]
        assert old.next().epoch == 1, "nothing of the first epoch is left over"


def measure(name: str, counts: list[int]) -> dict[str, Any]:
    num_lanes, new_lanes = RANKS * WORKERS, NEW_RANKS * WORKERS
    starts = []
    for lane in random.Random(0).sample(range(num_lanes), 5):
        begin = time.perf_counter()
        cursor = ShuffledCursor([[Row(counts, geometry(counts, num_lanes), key=7)]], None, lane)
        cursor.next()
        starts.append(time.perf_counter() - begin)
    tracemalloc.start()
    cursor = ShuffledCursor([[Row(counts, geometry(counts, num_lanes), key=7)]], None, 1)
    cursor.next()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    begin = time.perf_counter()
    for _ in range(100_000):
        cursor.next()
    draw = (time.perf_counter() - begin) / 100_000

    row = Row(counts, geometry(counts, num_lanes), key=7)
    state = LoaderState({}, [(num_lanes, [])], 0, mid_epoch(row, num_lanes))

    def generation(first_epochs: Sequence[int]) -> Generation:
        new = geometry(counts, new_lanes, first_epochs[0])
        return new_lanes, [[new.chunk_size, new.window_chunks, new.first_epoch]]

    begin = time.perf_counter()
    dealt = redeal_shuffled(state, [row], lambda lane: ShuffledCursor([[row]], None, lane), generation)
    redeal = time.perf_counter() - begin
    check(state, dealt, row, random.Random(2).sample(range(num_lanes), 4))
    entries = [new.get("inbox", {}).get("0", []) for new in dealt.lanes.values()]
    sizes = [sum(entry[-1] for entry in lane) for lane in entries]
    assert max(sizes) - min(sizes) <= 1
    return {
        "plan": name,
        "samples": sum(counts),
        "chunks": int(sum(-(-np.array(counts) // CHUNK))),
        "lane start, ms": 1e3 * statistics.median(starts),
        "lane start, peak MB": peak / 1e6,
        "draw, us": 1e6 * draw,
        f"re-deal {num_lanes} -> {new_lanes} lanes, s": redeal,
        "slices in a new lane, at most": max(map(len, entries)),
        "samples in a new lane, spread": max(sizes) - min(sizes),
    }


def order() -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [
        measure("equal shards", [10_000] * SHARDS),
        measure("shards of 9,000 to 11,000", [rng.randint(9_000, 11_000) for _ in range(SHARDS)]),
    ]


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "states": lambda: [state_scale.measure(num_sources) for num_sources in (1, 100, 1_000)],
    "checkpoint": lambda: [state_scale.checkpoint_bytes()],
    "order": order,
}


def show(columns: Sequence[dict[str, Any]]) -> None:
    width = max(map(len, columns[0])) + 2
    for name in columns[0]:
        values = "".join(f"{c[name] if isinstance(c[name], str) else format(c[name], ',.4g'):>28s}" for c in columns)
        print(f"{name:{width}s}{values}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures = {}
    for part in arguments.only.split(","):
        figures[part] = PARTS[part]()
        show(figures[part])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
