"""The order, pinned. A change of order is a new `VERSION` here, and of states (`bridge_data.order.state.VERSION`):
write a new file with `python -m tests.test_golden_order`, keep the old version refused, and say so in the docs."""

import json
from pathlib import Path
from typing import Any

from bridge_data.order import Blend, Cursor, Geometry, OrderedCursor, OrderedRow, Row
from bridge_data.order.random_draws import key64

VERSION = 2
FILE = Path(__file__).parent / "golden" / f"order_v{VERSION}.json"

SOURCES = ([1_000] * 3 + [17, 0, 983], [5], [70_001] * 2)
"""Samples per shard: an uneven source, one smaller than the lanes, and one with more chunks than a table holds."""

WIDE = [1 / (number % 97 + 1) ** 2 for number in range(300)]
"""The weights of a deep blend, of which each 50th is 0."""
WIDE[::50] = [0.0] * 6


def drawn() -> dict[str, Any]:
    """What the cursors of a fixed plan draw, and where they stand afterwards."""
    lanes = {}
    for lane in (0, 3, 7):
        rows = []
        for number, counts in enumerate(SOURCES):
            geometry = Geometry.choose(
                counts,
                num_lanes=8,
                max_samples_per_sequence=1 if number == 2 else 100,
                shuffle_buffer_size=100,
            )
            rows.append(Row(counts, geometry, key64(11, number), epochs_per_shuffle=2 if number == 1 else 1))
        cursor = Cursor([rows], Blend([5, 0.5, 2], seed=11), lane)
        refs = [list(cursor.next()) for _ in range(1_500)]
        lanes[str(lane)] = {"first": refs[:40], "last": refs[-40:], "state": cursor.state()}
    wide = Blend(WIDE, seed=12)
    ordered = OrderedCursor([10, 3], [OrderedRow(13, 2, 4)], 1)
    return {
        "version": VERSION,
        "shuffled": lanes,
        "wide": {
            "block": wide.draw_block(5, 1_000, 10**9).tolist(),
            "counts": [wide.counts(lane, 1_000, 10**12).tolist()[:100] for lane in (0, 7)],
        },
        "ordered": [list(ordered.next()) for _ in range(5)],
    }


def test_the_order_of_this_version_is_the_pinned_one() -> None:
    assert json.loads(json.dumps(drawn())) == json.loads(FILE.read_text())


if __name__ == "__main__":
    FILE.write_text(json.dumps(drawn()))
