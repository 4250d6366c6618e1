"""Prepared data sets for tests: real tars, written by webdataset and prepared by us."""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import webdataset as wds

from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare, write_dataset_yaml

TEXT = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}, "field_map": {"text": "txt"}}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_dataset(
    folder: Path,
    samples: Iterable[dict[str, Any]],
    *,
    per_shard: int = 50,
    ratio: str = "1,0,0",
    definition: dict[str, Any] | None = None,
) -> Path:
    """A prepared data set of samples `{"__key__": ..., "txt": ...}`, of text samples unless `definition` says else."""
    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(folder / "data-%04d.tar"), maxcount=per_shard, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio(ratio)))
    write_dataset_yaml(folder, definition or TEXT, "dataset.yaml")
    return folder


def write_texts(
    folder: Path, size: int, text: Callable[[int], str] = str, *, per_shard: int = 50, ratio: str = "1,0,0"
) -> Path:
    """A prepared data set of `size` text samples; by default each says its own number."""
    samples = ({"__key__": f"{number:06d}", "txt": text(number)} for number in range(size))
    return write_dataset(folder, samples, per_shard=per_shard, ratio=ratio)


def write_blend(
    file: Path,
    weights: dict[str, float],
    *,
    val: str | None = None,
    epochized: bool = False,
    where: Mapping[str, str] | None = None,
) -> Path:
    """A metadataset that blends data sets beside it for training (if `epochized`, by repetitions), with the condition
    `where` of each, and validates on one."""
    kind, key = ("blend_epochized", "repetitions") if epochized else ("blend", "weight")
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", f"    {kind}:"]
    for path, weight in weights.items():
        lines += [f"      - path: {path}", f"        {key}: {weight}", f"        subflavors: {{origin: {path}}}"]
        if where is not None and path in where:
            lines.append(f"        where: {where[path]}")
    if val is not None:
        lines += ["  val:", f"    path: {val}"]
    file.write_text("\n".join(lines) + "\n")
    return file
