"""A run with planned packs: data with a cost index, an encoder, jobs of any number of ranks."""

import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data import DefaultTaskEncoder, LaneDataset, SavableDataLoader, SkipSample, get_savable_loader, stateless
from bridge_data.task import Packing
from tests.costs import KEY, save_costs
from tests.prepared import train_dataset, write_texts

CAPACITY = 64


def is_split(index: int) -> bool:
    """Whether the encoder makes two samples of a text."""
    return index % 11 == 3


def write_measured(folder: Path, size: int, *, skipped: Collection[int] = (), seed: int = 0, **texts: Any) -> list[int]:
    """Texts of 1 to 70 letters, most of them short, and their cost index, in which some are skipped. Returns their
    lengths."""
    lengths = [min(70, 1 + int(random.Random(f"{seed}/{one}").lognormvariate(2.3, 0.9))) for one in range(size)]
    write_texts(folder, size, lambda number: "a" * lengths[number], **texts)
    write_costs(folder, lengths, skipped)
    return lengths


def write_costs(folder: Path, lengths: Sequence[int], skipped: Collection[int] = ()) -> None:
    """The cost index of texts of these lengths."""
    parts = [
        [] if one in skipped else [{"tokens": len(text), "texts": 1} for text in halves("a" * length, one)]
        for one, length in enumerate(lengths)
    ]
    save_costs(train_dataset(folder, task_encoder=Encoder()).plan.sources[0].records, parts, ("tokens", "texts"))


def halves(text: str, index: int) -> list[str]:
    """What the encoder makes of a text."""
    return [text[: len(text) // 2], text[len(text) // 2 :]] if is_split(index) else [text]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs of texts as (source, epoch, index, part, length) of each; `lost` texts are skipped when they are read,
    and texts are `longer` than was measured."""

    def __init__(self, *, lost: Collection[int] = (), longer: int = 0, **packing: Any) -> None:
        super().__init__()
        self.lost, self.longer = lost, longer
        settings = {"capacity": CAPACITY, "overlong": "drop", "costs": self.costs} | packing
        self.select_samples_to_pack = Packing(length=len, **settings)  # type: ignore[method-assign]

    def costs_key(self, source: Any = None) -> str:
        return KEY

    def costs(self, sample: Any) -> dict[str, int]:
        return {"tokens": len(sample), "texts": 1}

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        *key, index, _ = sample.__restore_key__
        if index in self.lost:
            raise SkipSample("it is lost")
        texts = enumerate(halves(sample.text + "a" * self.longer, index))
        made = [Text(text, (*key, index, part)) for part, text in texts]
        return made[0] if len(made) == 1 else iter(made)

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [(*one.key, len(one)) for one in samples]

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


class Text(str):
    """A text with its restore key."""

    key: tuple[Any, ...]

    def __new__(cls, text: str, key: tuple[Any, ...]) -> "Text":
        made = super().__new__(cls, text)
        made.key = key
        return made

    def __getnewargs__(self) -> tuple[str, tuple[Any, ...]]:
        return str(self), self.key


def planned(data: Path, encoder: Encoder | None = None, **settings: Any) -> LaneDataset:
    """A rank's data, packed by plan in windows of 128 samples."""
    encoder = encoder or Encoder()
    options = {"packing": "planned", "planning_window": 128, "task_encoder": encoder}
    made = train_dataset(data, **(options | settings))
    if encoder.lost or encoder.longer:
        made.wrappers = ()  # the first samples that differ would end the run
    return made


class Job:
    """The loaders of `num_ranks` ranks, from `state` on."""

    def __init__(self, num_ranks: int, make: Any, state: dict[str, Any] | None = None) -> None:
        self.loaders: list[SavableDataLoader] = []
        for rank in range(num_ranks):
            loader = get_savable_loader(make(rank=rank, world_size=num_ranks))
            if state is not None:
                loader.restore_state_rank(state)
            self.loaders.append(loader)
        self._iterators = [iter(loader) for loader in self.loaders]

    def batches(self, count: int) -> list[Any]:
        """The next `count` micro-batches of the job."""
        return [next(self._iterators[number % len(self.loaders)]) for number in range(count)]

    def step(self) -> list[Any]:
        """A micro-batch of each rank that has one."""
        return [batch for iterator in self._iterators if (batch := next(iterator, None)) is not None]

    def rest(self) -> Iterator[Any]:
        """All that is left."""
        for iterator in self._iterators:
            yield from iterator

    def states(self) -> Sequence[dict[str, Any]]:
        return [loader.save_state_rank() for loader in self.loaders]
