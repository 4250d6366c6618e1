"""torchdata's StatefulDataLoader over a map-style data set; it has no format of its own, so a sample is a file."""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import torch
import work
from torch.utils.data import ConcatDataset, Dataset, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

FOLDER = "files"


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as files."""
    part = work.part_of(workload)
    for folder in work.sets_of(data):
        target = folder / FOLDER
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for key, parts in work.read_tars(folder / "tars"):
            (target / f"{key}.{part}").write_bytes(parts[part])


class Files(Dataset):
    """Files of a folder."""

    def __init__(self, workload: str, folder: Path) -> None:
        self._files = sorted((folder / FOLDER).glob(f"*.{work.part_of(workload)}"))
        self._decode = work.DECODERS.get(workload, ("", bytes.decode))[1]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> Any:
        file = self._files[at]
        return file.stem, self._decode(file.read_bytes())


class Loader:
    """A StatefulDataLoader over data sets of the class `samples`, epoch after epoch; packs are made of its samples."""

    samples: type[Dataset] = Files

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        order: dict[str, Any] = {"shuffle": True}
        if workload == "blend":
            sets: list[Any] = [self.samples(workload, folder) for folder in work.sets_of(data)]
            weights = [(number + 1) / len(one) for number, one in enumerate(sets) for _ in range(len(one))]
            dataset: Any = ConcatDataset(sets)
            order = {"sampler": WeightedRandomSampler(torch.tensor(weights), len(dataset))}
        else:
            dataset = self.samples(workload, data)
        self._packs = workload == "chat"
        self._size = work.BATCH_SIZES[workload]
        self._loader = StatefulDataLoader(
            dataset,
            batch_size=work.PACKING_BUFFER if self._packs else self._size,
            num_workers=workers,
            collate_fn=work.packed_buffer if self._packs else work.stacked,
            persistent_workers=workers > 0,
            drop_last=True,
            **order,
        )
        self.settings = {
            "version": version("torchdata"),
            "format": "a file a sample",
            "decoder": "Pillow",
            "batch_size": self._size,
            "shuffle": "all of it (shuffle=True)",
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        batches = self._epochs()
        return work.batches_of((pack for packs in batches for pack in packs), self._size) if self._packs else batches

    def _epochs(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return work.described(batch)

    def save(self) -> Any:
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        self._loader.load_state_dict(state)

    def wait_ready(self) -> None:
        """It does not tell."""

    def close(self) -> None:
        """The process ends with its workers."""


if __name__ == "__main__":
    measure.main(Loader, convert)
