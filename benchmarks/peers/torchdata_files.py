"""torchdata's StatefulDataLoader over a map-style data set; it has no format of its own, so a sample is a file."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import epochs
import files
import measure
import torch
import work
from torch.utils.data import ConcatDataset, Dataset, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Files(Dataset):
    """Files of a folder."""

    def __init__(self, workload: str, folder: Path) -> None:
        self._files = files.files_of(workload, folder)
        self._decode = work.DECODERS.get(workload, ("", bytes.decode))[1]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> Any:
        file = self._files[at]
        return file.stem, self._decode(file.read_bytes())


class Loader(epochs.EpochLoader):
    """A StatefulDataLoader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        order: dict[str, Any] = {"shuffle": True}
        if workload == "blend":
            sets: list[Any] = [Files(workload, folder) for folder in work.sets_of(data)]
            weights = [(number + 1) / len(one) for number, one in enumerate(sets) for _ in range(len(one))]
            dataset: Any = ConcatDataset(sets)
            order = {"sampler": WeightedRandomSampler(torch.tensor(weights), len(dataset))}
        else:
            dataset = Files(workload, data)
        settings = {"version": version("torchdata"), "format": "a file a sample", "shuffle": "all of it (shuffle=True)"}
        super().__init__(StatefulDataLoader, dataset, workload, workers, settings, **order)


if __name__ == "__main__":
    measure.main(Loader, files.convert)
