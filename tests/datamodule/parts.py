"""A DataModule over numbered text samples, and what it yields."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule
from tests.prepared import write_texts

NUM_TRAIN, NUM_VAL = 96, 24


def write_numbers(folder: Path) -> Path:
    """Samples 0 to 95 for training in six shards, 96 to 119 for validation in two, each saying its number."""
    return write_texts(folder, NUM_TRAIN + NUM_VAL, per_shard=12, ratio="8,2,0")


def make_module(path: Path | str, **options: Any) -> EnergonMultiModalDataModule:
    """A DataModule that leaves the samples as they are; no workers unless asked for."""
    chosen = {"task_encoder": DefaultTaskEncoder(), "num_workers": 0, "shuffle_buffer_size": 8, **options}
    return EnergonMultiModalDataModule(path, None, **chosen)


def take(batches: Iterable[Any], count: int) -> list[list[int]]:
    """The numbers in the next `count` batches."""
    return [numbers(batch) for batch in itertools.islice(batches, count)]


def draw(loader: Any, count: int) -> list[list[int]]:
    """The numbers in the next `count` batches, drawn as Megatron does, by `next` alone."""
    return [numbers(next(loader)) for _ in range(count)]


def numbers(batch: Any) -> list[int]:
    return [int(text) for text in batch.text]
