"""What every maker promises, whoever makes the samples: those of the core, with its skips and its counts."""

import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image

from bridge_data import DefaultTaskEncoder, LaneDataset, Packing, SkipSample, WorkerConfig, stateless
from bridge_data.counts import BatchCounts
from bridge_data.lanes.maker_wrappers import MakerWrapper
from bridge_data.samples.differences import first_difference
from bridge_data.task.task_encoder import together
from tests.prepared import train_dataset, write_dataset

NUM_BATCHES = 12
CAPTIONS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}


def write_captions(folder: Path, size: int = 60) -> Path:
    """A data set of small pictures, each with its number."""

    def jpeg(number: int) -> bytes:
        stored = io.BytesIO()
        Image.new("RGB", (12, 8), (number, 90, 30)).save(stored, "JPEG")
        return stored.getvalue()

    samples = ({"__key__": f"{number:03d}", "jpg": jpeg(number), "txt": str(number)} for number in range(size))
    return write_dataset(folder, samples, definition=CAPTIONS)


class Decoding(DefaultTaskEncoder[Any, Any, Any, Any]):
    """No hook: samples are batched as decoded."""


class Drawing(Decoding):
    def encode_sample(self, sample: Any) -> Any:
        return {"number": int(sample.caption), "drawn": torch.rand(2), "__restore_key__": ()}


class Skipping(Decoding):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.caption) % 3 == 1:
            raise SkipSample("it is one of three")
        return sample


class Failing(Decoding):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.caption) % 3 == 1:
            raise ValueError("it is one of three")
        return sample


class Splitting(Decoding):
    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for more in range(int(sample.caption) % 3):
            yield {"number": int(sample.caption), "more": more, "__restore_key__": ()}


class Returning(Splitting):
    """A plain function that turns out to return a generator."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


class Packed(Decoding):
    select_samples_to_pack = Packing(length=lambda sample: len(sample["tokens"]), capacity=12, overlong="drop")

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        number = int(sample.caption)
        return {"tokens": torch.full((3 + number % 11,), number), "__restore_key__": ()}

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        return sample | {"tokens": sample["tokens"] + 1}

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"tokens": torch.cat([sample["tokens"] for sample in samples]), "__restore_key__": ()}

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return {"tokens": [sample["tokens"].tolist() for sample in samples], "__restore_key__": ()}


class Together(Decoding):
    """What its first hook does can be done for many samples together."""

    @stateless
    @together("many")
    def preencode_sample(self, sample: Any) -> Any:
        if int(sample.caption) % 7 == 1:
            raise SkipSample("it is one of seven")
        return sample

    def many(self, samples: Iterable[Any]) -> Callable[[Any], Any]:
        self.asked = [int(sample.caption) for sample in samples]
        return self.preencode_sample


ENCODERS = (Decoding, Drawing, Skipping, Failing, Splitting, Returning, Packed, Together)

Changed: TypeAlias = Callable[[LaneDataset], LaneDataset]
"""Has a data set make its samples in another way."""


def opened(data: Path, encoder: type[Decoding]) -> LaneDataset:
    """Samples are read one by one: in blocks, who reads them counts the bytes of other samples, too."""
    packs = {"packing_buffer_size": 10, "batch_size": 2} if encoder is Packed else {"batch_size": 4}
    config = WorkerConfig(0, 1, 0, num_lanes=2, max_open_bytes=0)
    return train_dataset(data, worker_config=config, task_encoder=encoder(), **packs)


def produced(dataset: LaneDataset, wrappers: Sequence[MakerWrapper] = ()) -> list[tuple[Any, ...]]:
    """Batches of a lane, each with its key, its state, its skips, and the counts of its samples, images and bytes."""
    lane = dataset.lane(0, dataset.new_state(), wrappers=wrappers)
    found = []
    lane.next()  # with what was read to open the data
    for made in (lane.next() for _ in range(NUM_BATCHES)):
        own = BatchCounts(*made.counts)
        counts = own.samples, own.images, own.bytes_read, own.retries, own.damaged_images, own.first_frames
        batch = made.batch
        key = batch["__restore_key__"] if isinstance(batch, dict) else batch.__restore_key__
        found.append((batch, key, made.state, made.skipped, counts))
    return found


def check_maker(data: Path, encoder: type[Decoding], changed: Changed, wrappers: Sequence[MakerWrapper] = ()) -> None:
    """The maker of `changed`, inside `wrappers`, makes what the core's makes: batches, states, skips and counts."""
    expected = produced(opened(data, encoder))
    assert sum(counts[1] for *_, counts in expected) >= NUM_BATCHES
    assert any(skipped for *_, skipped, _ in expected) == (encoder not in (Decoding, Drawing))
    found = produced(changed(opened(data, encoder)), wrappers)
    difference = first_difference(expected, found)
    assert difference is None, difference
    assert [made[1:] for made in found] == [made[1:] for made in expected]


def unchanged(dataset: LaneDataset) -> LaneDataset:
    """The same data set."""
    return dataset


def wrapped_by(wrapper: MakerWrapper) -> Changed:
    """Wraps the makers of a data set, as an outsider would."""
    return functools.partial(_wrapped, wrapper)


def _wrapped(wrapper: MakerWrapper, dataset: LaneDataset) -> LaneDataset:
    return dataset.changed(wrappers=(*dataset.wrappers, wrapper))
