"""Grain on ArrayRecord files: a MapDataset that is shuffled, decoded and batched, with its own worker processes."""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grain
import measure
import torch
import work
from array_record.python.array_record_module import ArrayRecordWriter

FOLDER = "records"


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as one file of records: a key, a zero, and the content."""
    part = work.part_of(workload)
    for folder in work.sets_of(data):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        (folder / FOLDER).mkdir()
        writer = ArrayRecordWriter(str(folder / FOLDER / "all.array_record"), "group_size:1")
        for key, parts in work.read_tars(folder / "tars"):
            writer.write(key.encode() + b"\0" + parts[part])
        writer.close()


class Decode:
    """Key and value of a record."""

    def __init__(self, workload: str) -> None:
        self._decode = work.DECODERS.get(workload, ("", bytes.decode))[1]

    def __call__(self, record: bytes) -> tuple[str, Any]:
        key, _, content = record.partition(b"\0")
        return key.decode(), self._decode(content)


def as_arrays(samples: Any) -> Any:
    """Tensors as arrays, which workers hand over in shared memory."""
    if isinstance(samples, dict):
        return {key: as_arrays(value) for key, value in samples.items()}
    if isinstance(samples, list | tuple):
        return type(samples)(as_arrays(one) for one in samples)
    return samples.numpy() if torch.is_tensor(samples) else samples


def stacked(samples: list[Any]) -> Any:
    """A batch as arrays."""
    return as_arrays(work.stacked(samples))


def packed(samples: list[Any]) -> Any:
    """The packs of one buffer as arrays."""
    return as_arrays(work.packed_buffer(samples))


class Loader(measure.Loader):
    """A MapDataset as an iterator."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        self._packs, self._size = workload == "chat", work.BATCH_SIZES[workload]
        sets = [
            grain.MapDataset.source(grain.sources.ArrayRecordDataSource([str(folder / FOLDER / "all.array_record")]))
            for folder in work.sets_of(data)
        ]
        sets = [one.shuffle(seed=number).repeat() for number, one in enumerate(sets)]
        weights = [number + 1.0 for number in range(len(sets))]
        dataset = grain.MapDataset.mix(sets, weights) if workload == "blend" else sets[0]
        size, collate = (work.PACKING_BUFFER, packed) if self._packs else (self._size, stacked)
        threads = grain.ReadOptions(num_threads=0)  # a process each, as all others; its 16 threads make texts slower
        batches = dataset.map(Decode(workload)).batch(size, batch_fn=collate).to_iter_dataset(threads)
        if workers:
            options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
            batches = batches.mp_prefetch(options)
        self._batches = iter(batches)
        self.settings = {
            "version": version("grain"),
            "format": "ArrayRecord",
            "decoder": "Pillow",
            "batch_size": self._size,
            "shuffle": "all of it",
            "prefetch": "2 batches a worker",
        }

    def __iter__(self) -> Iterator[Any]:
        if self._packs:
            return work.batches_of((_tensors(pack) for packs in self._batches for pack in packs), self._size)
        return (batch | {"value": _tensors(batch["value"])} for batch in self._batches)

    def save(self) -> Any:
        return self._batches.get_state()

    def restore(self, state: Any) -> None:
        self._batches.set_state(state)


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_tensors(one) for one in value)
    return value if isinstance(value, str | list) else torch.from_numpy(value)


if __name__ == "__main__":
    measure.main(Loader, convert)
