"""A pack source written outside the package: packs of one group only, each group from a buffer of its own size."""

import collections
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bridge_data import DefaultTaskEncoder, LaneDataset, get_savable_loader, merge_states, stateless
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane import Held, SampleFeed
from bridge_data.lanes.maker import Item, Pack
from bridge_data.lanes.pack_source import PackedData, PackSources
from bridge_data.order import SampleRef
from bridge_data.order.state import LoaderState
from tests.prepared import train_dataset, write_texts

SIZE = 150
GroupOf = Callable[[Any], tuple[str, int]]
"""A sample -> its group, and the size of the packing buffer of that."""


class GroupPacks(PackSources):
    """Opens pack sources that pack by group."""

    def __init__(self, group_of: GroupOf) -> None:
        self.group_of = group_of

    def fingerprint(self, dataset: PackedData) -> dict[str, Any]:
        return {"packing": "by group"}

    def open(self, dataset: PackedData, feed: SampleFeed, lane: int, state: LoaderState) -> "GroupPacker":
        return GroupPacker(feed, self.group_of)


class GroupPacker:
    """Draws samples into the buffer of their group, and packs the first buffer that is full; at the end, all."""

    def __init__(self, feed: SampleFeed, group_of: GroupOf) -> None:
        self.feed, self.group_of = feed, group_of
        self.restored: list[Item] = []
        self.buffers: dict[str, list[Item]] = {}
        self.packs: collections.deque[list[Item]] = collections.deque()

    @property
    def held(self) -> Held:
        return Held([*self.restored, *itertools.chain(*self.buffers.values())], self.packs)

    def next(self) -> list[Item]:
        restored, self.restored = self.restored, []
        for item in restored:
            if self.feed.read(item):
                self.add(item)
        while not self.packs:
            try:
                item = self.feed.next()
            except StopIteration:
                if not self.buffers:
                    raise
                self.choose(next(iter(self.buffers)))
                continue
            if self.feed.read(item):
                group, size = self.add(item)
                if len(self.buffers[group]) >= size:
                    self.choose(group)
        return self.packs.popleft()

    def add(self, item: Item) -> tuple[str, int]:
        group, size = self.group_of(item.sample)
        self.buffers.setdefault(group, []).append(item)
        return group, size

    def choose(self, group: str) -> None:
        packs, left = self.feed.select(self.buffers.pop(group), at_end=True)
        self.packs.extend(packs)
        if left:
            self.buffers[group] = left

    def pack(self, items: list[Item]) -> Pack | None:
        return self.feed.pack(items)

    def state(self) -> None:
        """It follows from what is held: the group of a sample is a function of it."""

    def seek(self, state: Any, held: Held) -> None:
        self.restored, self.packs = held.carried, held.packs

    def upcoming(self, num_packs: int, most: int) -> Sequence[SampleRef]:
        return self.feed.upcoming(most, most) if num_packs > len(self.packs) else []


def by_length(sample: Any) -> tuple[str, int]:
    """Few samples are long: they wait in a small buffer."""
    return ("long", 6) if len(sample.text) > 12 else ("short", 24)


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs as (number of the sample, length) of each; all but the last of a buffer are chosen, three at a time."""

    largest: ClassVar[collections.Counter[str]] = collections.Counter()

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        _, size = by_length(samples[0])
        assert len(samples) <= size
        chosen = samples if len(samples) < size else samples[:-1]
        return [chosen[begin : begin + 3] for begin in range(0, len(chosen), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [(sample.__restore_key__[2], len(sample.text)) for sample in samples]

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouped") / "texts"
    write_texts(folder, SIZE, lambda number: "a" * (20 if number % 9 == 4 else 1 + number % 12))
    return folder


def grouped(data: Path, **settings: Any) -> LaneDataset:
    """A rank's data, packed by group."""
    made = train_dataset(data, task_encoder=Encoder(), packing_buffer_size=24, **settings)
    return made.changed(pack_sources=GroupPacks(by_length))


def test_packs_are_of_one_group_and_have_each_sample_once(texts: Path) -> None:
    with get_savable_loader(grouped(texts, repeat=False)) as loader:
        packs = [pack for batch in loader for pack in batch]
    assert all(len({by_group for _, length in pack if (by_group := length > 12) is not None}) == 1 for pack in packs)
    assert sorted(number for pack in packs for number, _ in pack) == [*range(SIZE)]


def pack_by_length(dataset: LaneDataset) -> LaneDataset:
    """What a package of others offers as the extension `by_length` of the kind `packings`."""
    return dataset.changed(pack_sources=GroupPacks(by_length))


def test_a_package_of_others_names_a_value_of_the_option_packing(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "theirs-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[bridge_data.packings]\nby_length = {__name__}:pack_by_length\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    settings: dict[str, Any] = {"task_encoder": Encoder(), "packing_buffer_size": 24, "repeat": False}
    with (
        get_savable_loader(train_dataset(texts, **settings, packing="by_length")) as named,
        get_savable_loader(grouped(texts, repeat=False)) as expected,
    ):
        assert [*named] == [*expected]
    with pytest.raises(ConfigError, match=r"packing='by_lenght': expected one of 'online', 'planned', or the name of"):
        train_dataset(texts, **settings, packing="by_lenght")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_resumed_at_every_step_equals_one_that_was_not_interrupted(texts: Path, num_workers: int) -> None:
    settings = {"num_workers": num_workers, "num_lanes": 4, "repeat": False}
    with get_savable_loader(grouped(texts, **settings)) as loader:
        expected = [*loader]
    found: list[Any] = []
    with get_savable_loader(grouped(texts, **settings)) as loader:
        state = loader.save_state_rank()
        while len(found) < len(expected):
            loader.restore_state_rank(json.loads(json.dumps(state)))  # all that lanes have in memory is gone
            found.append(next(iter(loader)))
            state = loader.save_state_rank()
    assert found == expected


def test_what_buffers_hold_is_assigned_to_other_ranks(texts: Path) -> None:
    before = [get_savable_loader(grouped(texts, rank=rank, world_size=2, repeat=False)) for rank in range(2)]
    packs = [pack for loader in before for batch in itertools.islice(loader, 5) for pack in batch]
    merged = merge_states([loader.save_state_rank() for loader in before])
    for rank in range(3):
        loader = get_savable_loader(grouped(texts, rank=rank, world_size=3, num_lanes=3, repeat=False))
        loader.restore_state_rank(merged)
        packs += [pack for batch in loader for pack in batch]
    assert sorted(number for pack in packs for number, _ in pack) == [*range(SIZE)]
