"""Data for benchmarks: text samples that say their own number, prepared for this loader and for Energon."""

import functools
from pathlib import Path

import webdataset as wds

from bridge_data.index.prepare import prepare, write_dataset_yaml
from bridge_data.index.splits import parse_ratio, split_by_ratio


def write_numbers(folder: Path, samples: int, per_shard: int) -> None:
    """Samples 0..samples-1, `per_shard` to a tar, all for training."""
    with wds.ShardWriter(str(folder / "data-%04d.tar"), maxcount=per_shard, verbose=0) as sink:
        for number in range(samples):
            sink.write({"__key__": f"{number:07d}", "txt": str(number)})
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    sample_type = {"__module__": "megatron.energon", "__class__": "TextSample"}
    write_dataset_yaml(folder, {"sample_type": sample_type, "field_map": {"text": "txt"}}, "dataset.yaml")
