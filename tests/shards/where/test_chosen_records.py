"""Chosen samples as a data set of their own: it reads what the whole one does. (Blocks: see `tests/properties`.)"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.shards import open_shards
from bridge_data.shards.where.choosing import choose
from bridge_data.shards.where.chosen_records import ChosenRecords
from tests.prepared import write_texts
from tests.shards.where.test_choices import written
from tests.shards.where.test_choosing import Clause

SIZE = 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "data", SIZE, lambda number: f"{number} " * (number % 9))


@settings(max_examples=30)
@given(chosen=st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE).map(sorted))
def test_samples_keep_key_shard_and_content(
    root: Path, tmp_path_factory: pytest.TempPathFactory, chosen: list[int]
) -> None:
    records = open_shards(root, "train")
    view = ChosenRecords(records, written(tmp_path_factory.mktemp("choice") / "a.choice", chosen, list(records.counts)))
    whole, part = records.reader(), view.reader()
    assert view.num_samples == len(chosen) == sum(view.counts)
    assert len(view.names) == len(view.counts) == len({sample // 50 for sample in chosen}) and 0 not in view.counts
    for number, sample in enumerate(chosen):
        assert part.read(number) == whole.read(sample)
        assert view.describe(number) == records.describe(sample)
        assert view.from_base(sample) == number
    others = set(range(SIZE)) - set(chosen)
    assert all(
        view.from_base(sample) is None for sample in random.Random(0).sample(sorted(others), min(9, len(others)))
    )
    for outside in (-1, len(chosen)):
        with pytest.raises(IndexError, match=rf": sample {outside} of {len(chosen)}"):
            part.read(outside)


def a_seventh(root: Path) -> ChosenRecords:
    records = open_shards(root, "train")
    return ChosenRecords(records, choose(records, [Clause("index % 7 = 0")]))


def test_forgotten_samples_are_known_by_their_number_among_the_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    root = write_texts(tmp_path / "data", SIZE)
    before = a_seventh(root)
    forget_samples(root, ["000014", "000015", "000280"], "asked for")
    after = a_seventh(root)
    assert after.identity() == before.identity() and after.num_samples == 43
    (tombstones,) = after.tombstones
    assert tombstones is not None
    gone = after.forgotten([tombstones.newest])
    assert [number for number in range(43) if number in gone] == [2, 40]
