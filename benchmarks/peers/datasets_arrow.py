"""HF datasets on Arrow files, through torchdata's StatefulDataLoader, as its page on streaming and resuming shows."""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import measure
import work
from torchdata.stateful_dataloader import StatefulDataLoader

FOLDER, ARROW_SHARDS = "arrow", 16


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as Arrow files; as many as the tars for the cold start."""
    part = work.part_of(workload)
    kind = {"txt": datasets.Value("string"), "jpg": datasets.Image(), "json": datasets.Value("string")}[part]
    features = datasets.Features({"key": datasets.Value("string"), "value": kind})
    for folder in [data] if (data / "tars").exists() else sorted(data.glob("[0-9][0-9]")):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        keys, values = [], []
        for key, parts in work.read_tars(folder / "tars"):
            keys.append(key)
            values.append({"bytes": parts[part], "path": None} if part == "jpg" else parts[part].decode())
        made = datasets.Dataset.from_dict({"key": keys, "value": values}, features=features)
        made.save_to_disk(str(folder / FOLDER), num_shards=len(keys) // 5 if workload == "cold" else ARROW_SHARDS)


def shuffled(dataset: Any) -> Any:
    """The samples of a data set, shuffled: files, and a buffer of samples."""
    return dataset.to_iterable_dataset(num_shards=ARROW_SHARDS).shuffle(seed=0, buffer_size=work.SHUFFLE_BUFFER)


def opened(folder: Path) -> Any:
    """The samples of a folder."""
    return datasets.load_from_disk(str(folder / FOLDER))


class Batch:
    """Samples of a workload as a batch; an object, so that it can be sent to workers."""

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


class Loader:
    """A StatefulDataLoader, epoch after epoch; packs are made of its samples."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            folders = sorted(data.glob("[0-9][0-9]"))
            whole = sum(range(1, len(folders) + 1))
            weights = [(number + 1) / whole for number in range(len(folders))]
            sets = [opened(folder) for folder in folders]
            dataset = shuffled(datasets.interleave_datasets(sets, probabilities=weights, seed=0))
        else:
            dataset = shuffled(opened(data))
        self._packs = workload == "chat"
        self._size = work.BATCH_SIZES[workload]
        self._loader = StatefulDataLoader(
            dataset,
            batch_size=work.PACKING_BUFFER if self._packs else self._size,
            num_workers=workers,
            collate_fn=Batch(workload),
            persistent_workers=workers > 0,
            drop_last=True,
        )
        self.settings = {
            "version": version("datasets"),
            "format": f"Arrow, {ARROW_SHARDS} shards",
            "decoder": "Pillow",
            "batch_size": self._size,
            "shuffle": f"shards, buffer of {work.SHUFFLE_BUFFER}",
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
    datasets.disable_progress_bars()
    measure.main(Loader, convert)
