"""Prepared data sets for tests: real tars, written by webdataset and prepared by us."""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import webdataset as wds
import yaml

from bridge_data import DefaultTaskEncoder, LaneDataset, WorkerConfig, get_train_dataset, get_val_dataset
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare

TEXT = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}, "field_map": {"text": "txt"}}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_dataset_yaml(folder: Path, definition: dict[str, Any], name: str) -> None:
    """Say what the samples of a prepared folder are, in its file `name`."""
    (folder / ".nv-meta" / name).write_text(yaml.safe_dump(definition, sort_keys=False, allow_unicode=True))


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
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio(ratio)), PrepareConfig(num_workers=1))
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


def write_pair(folder: Path, a: int, b: int) -> Path:
    """A blend of two data sets beside it, of `a` and `b` text samples, 3 to 1."""
    write_texts(folder / "a", a)
    write_texts(folder / "b", b)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


def encoder_with(**hooks: Any) -> Any:
    """A task encoder with these hooks, which take it as their first argument."""
    return type("Mine", (DefaultTaskEncoder,), hooks)()


def train_dataset(
    data: Any,
    *,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    num_lanes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> LaneDataset:
    """Data for training in batches of 2, shuffled a little, as a rank has it."""
    config = WorkerConfig(rank, world_size, num_workers, seed_offset=seed, num_lanes=num_lanes)
    small = {"worker_config": config, "batch_size": 2, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    return get_train_dataset(data, **(small | options))


def val_dataset(
    data: Any, *, rank: int = 0, world_size: int = 1, num_workers: int = 0, num_lanes: int | None = None, **options: Any
) -> LaneDataset:
    """The part "train" for validation in batches of 2, as a rank has it."""
    config = WorkerConfig(rank, world_size, num_workers, num_lanes=num_lanes)
    return get_val_dataset(data, **({"worker_config": config, "batch_size": 2, "split_part": "train"} | options))
