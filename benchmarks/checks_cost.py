"""What the checks of data cost while it is read: CPU time with them, over that without; see `turns`.

Taken out are: the checksums of the pages of `index.bridge`, the comparison of shards with their index as they are
opened, that of the version of a shard in each read, and the limit of pixels.

    python -m benchmarks.checks_cost [--rounds 100] [--data .bench] [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.turns import ROOT, Replaced, Slices, line, measure
from bridge_data import storage
from bridge_data.decode import sample_decoder
from bridge_data.shards.paged_file import PagedFile
from bridge_data.shards.shard_table import TarShard
from bridge_data.storage import PinnedFile, locations

CASES = {"text": 1000, "jpeg": 4}
"""Workload: batches of a slice."""


def checks() -> list[Replaced]:
    """What checks, each replaced by what only reads."""

    def read(self: PinnedFile, start: int, num_bytes: int) -> bytes:
        return locations.read_with_version(self.path, start, num_bytes)[0]

    def read_page(self: PagedFile, start: int, num_bytes: int, checksum: int) -> bytes:
        return storage.read(self.path, start, num_bytes)

    return [
        (PinnedFile, "read", read),
        (PagedFile, "read", read_page),
        (TarShard, "is_intact", lambda *_: True),
        (sample_decoder, "image_within", lambda _, handler, data: handler(data)),
    ]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print all cases."""
    from benchmarks.speed import data

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    print("checks of data, CPU time with them over that without")
    for workload, num_batches in CASES.items():
        folder = data.make(workload, chosen.data.absolute())
        slices = Slices(num_rounds=chosen.rounds, num_batches=num_batches)
        found = measure(folder, {"without": checks, "with": list}, slices)
        results[workload] = found["with"]
        print(line(workload, found["with"], found["without"]["us_per_sample"]))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
