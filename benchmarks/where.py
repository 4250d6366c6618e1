"""What choosing samples by `where` costs: the first time, later, and without a condition.

Input: generated samples, as a Parquet file of texts and numbers, and as prepared tars of short JSON parts, of which one
field is stored by `prepare --columns`; and a Parquet file with a column of one's own. Output: for each condition the
processor time until the data set is open, in a new process each, and by how much the memory of that process grows at
most. Imports are not counted.

    python -m benchmarks.where --num-samples 1_000_000
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge_data.prepare import prepare_columns
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare, write_dataset_yaml
from tests.prepared import CRUDE

PER_SHARD = 10_000
CASES = (
    ("table.parquet", "score < 50", None),
    ("table.parquet", "text like '%7'", None),
    ("tars", "json.bytes > 12", None),
    ("tars", "key like '%7'", None),
    ("tars", "json.score < 50", None),
    ("tars", "mine < 50", "mine.parquet"),
)

_OPEN = """
import json, sys, time
import duckdb, numpy, pyarrow.parquet
from bridge_data.plan import load_plan

def peak_mib():
    with open("/proc/self/status") as status:  # the peak of getrusage may be that of the parent
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))

path, where, columns = json.loads(sys.argv[1])
before, started = peak_mib(), time.process_time()
(source,) = load_plan(path, where=where, columns=columns).sources
print(json.dumps([time.process_time() - started, peak_mib() - before, source.num_samples]))
"""


def write_data(folder: Path, num_samples: int) -> None:
    """The data sets of `CASES`."""
    scores = np.random.default_rng(0).integers(0, 100, num_samples)
    texts = [f"text of sample {number}" for number in range(num_samples)]
    pq.write_table(pa.table({"text": texts, "score": scores}), folder / "table.parquet", row_group_size=50_000)
    keys = [f"{number:09d}" for number in range(num_samples)]
    pq.write_table(pa.table({"key": keys, "mine": scores}), folder / "mine.parquet")
    (folder / "tars").mkdir()
    for start in range(0, num_samples, PER_SHARD):
        with tarfile.open(folder / "tars" / f"data-{start // PER_SHARD:06d}.tar", "w") as tar:
            for key, score in zip(keys[start : start + PER_SHARD], scores[start : start + PER_SHARD], strict=True):
                content = b'{"score": %d}' % score
                member = tarfile.TarInfo(f"{key}.json")
                member.size = len(content)
                tar.fileobj.write(member.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0"))  # type: ignore[union-attr]
                tar.offset += 1024
    prepare(folder / "tars", functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    write_dataset_yaml(folder / "tars", CRUDE, "dataset.yaml")
    prepare_columns(folder / "tars", ["json.score"])


def opened(folder: Path, path: str, where: str | None, columns: str | None) -> tuple[float, float, int]:
    """(processor time in s, growth of memory in MiB, samples) of opening a data set in a new process."""
    arguments: list[Any] = [str(folder / path), where, None if columns is None else str(folder / columns)]
    environment = os.environ | {"BRIDGE_DATA_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", _OPEN, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, mebibytes, num_samples = json.loads(done.stdout)
    return seconds, mebibytes, num_samples


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, options.num_samples)
        print("| data | condition | chosen | s, the first time | later | without | MiB, the first time | later |")
        print("|---" * 8 + "|")
        for path, where, columns in CASES:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            first = opened(folder, path, where, columns)
            later = opened(folder, path, where, columns)
            without = opened(folder, path, None, None)
            times = " | ".join(f"{seconds:.3f}" for seconds, _, _ in (first, later, without))
            print(f"| {path} | `{where}` | {first[2]:,} | {times} | {first[1]:.0f} | {later[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
