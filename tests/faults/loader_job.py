"""A process that reads batches: python -m tests.faults.loader_job DATA NUM_BATCHES [SETTING=VALUE ...]

Prints the keys of each batch as a line of JSON, or the error that ended it. Settings, besides those of the loader:
`mib`, the size of a sample's tensor; `hungry` and `hungry_mib`, a key whose encoding takes so much memory, and
`hungry_once`, a file that says that it has done so already; `step_s`, the time that a training step takes.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bridge_data import (
    BridgeDataError,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

Batch = tuple[list[str], list[torch.Tensor]]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts with a tensor of `mib` MiB each."""

    def __init__(self, mib: float = 0, hungry: str = "", hungry_mib: int = 0, hungry_once: str = "") -> None:
        super().__init__()
        self.mib, self.hungry, self.hungry_mib, self.hungry_once = mib, hungry, hungry_mib, hungry_once

    @stateless
    def encode_sample(self, sample: TextSample) -> tuple[str, torch.Tensor]:
        if sample.__key__.endswith(self.hungry or "/"):
            self._take_memory()
        return sample.__key__, torch.full((int(self.mib * 2**18),), float(sample.text))

    def _take_memory(self) -> None:
        if self.hungry_once and Path(self.hungry_once).exists():
            return
        if self.hungry_once:
            Path(self.hungry_once).touch()
        assert len(b"\1" * (self.hungry_mib << 20))

    @stateless
    def batch(self, samples: list[tuple[str, torch.Tensor]]) -> Batch:
        return [key for key, _ in samples], [tensor for _, tensor in samples]


def main(data: str, num_batches: int, num_workers: int = 2, step_s: float = 0, **settings: Any) -> None:
    names = ("mib", "hungry", "hungry_mib", "hungry_once")
    encoder = Encoder(**{name: settings.pop(name) for name in names if name in settings})
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    dataset = get_train_dataset(
        data,
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=20,
        task_encoder=encoder,
    )
    with get_savable_loader(dataset, **settings) as loader:
        for _, (keys, tensors) in zip(range(num_batches), loader, strict=False):
            print(
                json.dumps([[key, float(tensor.sum())] for key, tensor in zip(keys, tensors, strict=True)]), flush=True
            )
            time.sleep(step_s)


if __name__ == "__main__":
    options = dict(option.split("=", 1) for option in sys.argv[3:])
    try:
        main(sys.argv[1], int(sys.argv[2]), **{name: json.loads(value) for name, value in options.items()})
    except BridgeDataError as error:
        sys.exit(f"{type(error).__name__}: {error}")
