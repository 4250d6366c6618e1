"""HF datasets on Arrow files, through torchdata's StatefulDataLoader, as its page on streaming and resuming shows."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import epochs
import measure
import work
from torchdata.stateful_dataloader import StatefulDataLoader

FOLDER, ARROW_SHARDS = "arrow", 16


def convert(workload: str, data: Path) -> None:
    """Convert the tars of a workload to Arrow files."""
    part = work.part_of(workload)
    kind = {"txt": datasets.Value("string"), "jpg": datasets.Image(), "json": datasets.Value("string")}[part]
    features = datasets.Features({"key": datasets.Value("string"), "value": kind})
    for folder in work.sets_of(data):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        keys, values = [], []
        for key, parts in work.read_tars(folder / "tars"):
            keys.append(key)
            values.append({"bytes": parts[part], "path": None} if part == "jpg" else parts[part].decode())
        made = datasets.Dataset.from_dict({"key": keys, "value": values}, features=features)
        made.save_to_disk(str(folder / FOLDER), num_shards=ARROW_SHARDS)


def shuffled(dataset: Any) -> Any:
    """The samples of a data set, shuffled: files, and a buffer of samples."""
    return dataset.to_iterable_dataset(num_shards=ARROW_SHARDS).shuffle(seed=0, buffer_size=work.SHUFFLE_BUFFER)


def opened(folder: Path) -> Any:
    """The samples of a folder."""
    return datasets.load_from_disk(str(folder / FOLDER))


class Batch:
    """Makes batches of a workload's samples; a class, so that it can be pickled for workers."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        pairs = [(sample["key"], self._value(sample["value"])) for sample in samples]
        return work.packed_buffer(pairs) if self._workload == "chat" else work.stacked(pairs)

    def _value(self, value: Any) -> Any:
        if self._workload == "photos":
            return work.image_resized(value)
        if self._workload == "chat":
            return work.chat_tokens(value.encode())
        return value if isinstance(value, str) else work.image_tensor(value)


class Loader(epochs.EpochLoader):
    """A StatefulDataLoader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            folders = work.sets_of(data)
            whole = sum(range(1, len(folders) + 1))
            weights = [(number + 1) / whole for number in range(len(folders))]
            sets = [opened(folder) for folder in folders]
            dataset = shuffled(datasets.interleave_datasets(sets, probabilities=weights, seed=0))
        else:
            dataset = shuffled(opened(data))
        settings = {
            "version": version("datasets"),
            "format": f"Arrow, {ARROW_SHARDS} shards",
            "shuffle": f"shards, buffer of {work.SHUFFLE_BUFFER}",
        }
        super().__init__(StatefulDataLoader, dataset, workload, workers, settings, Batch(workload))


if __name__ == "__main__":
    datasets.disable_progress_bars()
    measure.main(Loader, convert)
