"""What Megatron-Bridge does with data settings and loaders, in a few lines of our own: it needs CUDA packages itself.

Facts out of its releases 0.3.1 and 0.6.2 on PyPI; what differs between them is told by their number.
"""

import abc
import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FIELDS = {
    "0.3": {
        "dataloader_type": "external",
        "num_workers": ...,
        "data_sharding": True,
        "pin_memory": True,
        "persistent_workers": False,
        "trust_remote_code": None,
        "path": ...,
        "image_processor": None,
        "seq_length": ...,
        "micro_batch_size": ...,
        "global_batch_size": ...,
        "task_encoder": None,
    },
    "0.6": {
        "dataloader_type": "external",
        "num_workers": 2,
        "data_sharding": True,
        "pin_memory": True,
        "drop_last": True,
        "persistent_workers": True,
        "trust_remote_code": None,
        "dataloader_save": None,
        "dataloader_load": None,
        "path": None,
        "seq_length": ...,
        "micro_batch_size": ...,
        "task_encoder": ...,
        "do_validation": True,
        "do_test": False,
        "num_val_workers": None,
        "shuffle_buffer_size": 100,
        "max_samples_per_sequence": None,
        "packing_buffer_size": None,
        "dataset_kwargs": {},
        "enable_in_batch_packing": False,
        "defer_in_batch_packing_to_step": False,
        "pad_to_max_length": False,
        "pad_to_multiple_of": 128,
        "in_batch_packing_pad_to_multiple_of": 1,
    },
}
"""The fields of `EnergonProvider` and of `EnergonDatasetConfig`, with their defaults (`...`: none)."""


@dataclasses.dataclass(frozen=True)
class Context:
    """`DatasetBuildContext`; 0.3 has no `pg_collection`."""

    train_samples: int
    valid_samples: int
    test_samples: int
    tokenizer: Any = None
    pg_collection: Any = None


@contextmanager
def in_use(module: str) -> Iterator[type[Any]]:
    """A `DatasetProvider` where Bridge has it, an abstract class by which it tells what it can build."""

    class DatasetProvider(abc.ABC):
        @abc.abstractmethod
        def build_datasets(self, context: Context) -> tuple[Any, Any, Any]: ...

    sys.modules[module] = types.ModuleType(module)
    vars(sys.modules[module])["DatasetProvider"] = DatasetProvider
    try:
        yield DatasetProvider
    finally:
        del sys.modules[module]


def to_dict(value: Any) -> Any:
    """What `ConfigContainer.to_dict` makes of its parts, for the YAML beside a checkpoint."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name[0] != "_"}
        return {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", **parts}
    if isinstance(value, dict):
        return {name: to_dict(part) for name, part in value.items()}
    return [to_dict(part) for part in value] if isinstance(value, list | tuple) else value


def state_file(folder: Path, iteration: int, groups: Any) -> Path:
    """Where the position of a data-parallel rank is."""
    return folder / f"iter_{iteration:07d}" / f"train_dataloader_dprank{groups.dp.rank():03d}.pt"


def save_dataloader(iterator: Any, folder: Path, iteration: int, groups: Any, release: str) -> bool:
    """Save as all ranks do it, of which only some ask the loader; whether this one did. Megatron-LM does as 0.3."""
    zero = [groups.tp, groups.pp] + ([groups.cp] if release == "0.6" else [])
    if any(group.rank() for group in zero):
        return False
    content = {"dataloader_state_dict": iterator.iterable.save_state()}
    file = state_file(folder, iteration, groups)
    dist.barrier(group=groups.dp)
    if groups.dp.rank() == 0:
        os.makedirs(file.parent, exist_ok=True)
    dist.barrier(group=groups.dp)
    torch.save(content, file)
    return True


def load_dataloader(iterator: Any, folder: Path, iteration: int, groups: Any) -> None:
    """Restore as 0.6 does: every rank for itself, from the file of its data-parallel rank, which must be there."""
    file = state_file(folder, iteration, groups)
    if not file.is_file():
        raise RuntimeError(f"{file} is missing")
    content = torch.load(file, weights_only=True)  # Bridge's own reader allows no more of our states
    iterator.iterable.restore_state(content["dataloader_state_dict"])
