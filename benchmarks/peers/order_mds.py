"""The orders in which mosaicml-streaming reads MDS shards of numbered texts, through `StreamingDataset`.

Input: a job as JSON (see `benchmarks.mixing.orders`). Output: its streams of numbers in an .npz.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import order
import torchvision_import  # noqa: F401 (before streaming)

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # isort: skip
from streaming.base.util import clean_stale_shared_memory, merge_index  # isort: skip


def convert(folder: Path, counts: list[int]) -> None:
    """One MDS shard for each count, with the same numbers as the tars."""
    shutil.rmtree(folder, ignore_errors=True)
    first = 0
    for shard, count in enumerate(counts):
        with MDSWriter(out=str(folder / f"{shard:05d}"), columns={"text": "str"}, size_limit=None) as writer:
            for number in range(first, first + count):
                writer.write({"text": str(number)})
        first += count
    merge_index(str(folder), keep_local=True)


def batches(job: dict[str, Any], seed: int) -> Iterator[list[str]]:
    """Batches, epoch after epoch."""
    block = {} if job["block"] is None else {"shuffle_block_size": job["block"]}
    dataset = StreamingDataset(
        local=job["mds"], shuffle=True, shuffle_seed=seed, batch_size=job["batch"], num_canonical_nodes=1, **block
    )
    loader = StreamingDataLoader(dataset, batch_size=job["batch"], num_workers=0)
    while True:
        for batch in loader:
            yield batch["text"]


if __name__ == "__main__":
    clean_stale_shared_memory()  # of a run before that was ended
    given = json.loads(sys.argv[1])
    convert(Path(given["mds"]), given["counts"])
    order.write_orders(batches, "mosaicml-streaming")
