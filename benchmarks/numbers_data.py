"""Data for benchmarks: text samples that contain their own number, prepared for bridge_data and for Energon."""

import functools
from collections.abc import Sequence
from pathlib import Path

import webdataset as wds
import yaml

from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare


def write_numbers(folder: Path, samples: int, per_shard: int) -> None:
    """Samples 0..samples-1, `per_shard` to a tar, all for training."""
    write_shards(folder, [min(per_shard, samples - first) for first in range(0, samples, per_shard)])


def write_shards(folder: Path, counts: Sequence[int]) -> None:
    """One tar per count, with consecutive numbers, all for training."""
    first = 0
    for shard, count in enumerate(counts):
        with wds.TarWriter(str(folder / f"data-{shard:04d}.tar"), mtime=0) as sink:  # whole seconds: no pax headers
            for number in range(first, first + count):
                sink.write({"__key__": f"{number:07d}", "txt": str(number)})
        first += count
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    sample_type = {"__module__": "megatron.energon", "__class__": "TextSample"}
    definition = {"sample_type": sample_type, "field_map": {"text": "txt"}}
    (folder / ".nv-meta/dataset.yaml").write_text(yaml.safe_dump(definition))
