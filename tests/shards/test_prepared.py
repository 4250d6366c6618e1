import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import PreparedDataset, ShardSet, open_shards
from tests.shards.tars import keys_of, set_split


def test_split_parts_and_their_shards_are_known_without_reading_them(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert (dataset.split_parts(), dataset.part_names()) == (["train", "val", "test"], ["json", "txt"])
    train, size = dataset.split("train"), os.stat(folder / "data-000000.tar").st_size
    assert (train.names, train.counts) == (("data-000000.tar", "data-000001.tar"), [5, 5])
    assert keys_of(open_shards(str(folder), "val")) == [f"{number:06d}" for number in range(10, 15)]
    assert dataset.shard_bytes("data-000000.tar") == size
    (folder / ".nv-meta/index.bridge").unlink()
    dataset = PreparedDataset.open(folder)
    assert (dataset.shard_bytes("data-000000.tar"), dataset.part_names()) == (size, ["json", "txt"])
    for path in folder.glob("*.tar*"):
        path.unlink()
    assert open_shards(folder, "train").num_samples == 10


def test_parts_that_cannot_be_opened_are_named(folder: Path) -> None:
    for parts, error, told in (
        ("train: [], val: []", ConfigError, r"split\.yaml: there is no split part 'test'; there is train, val"),
        ("test: ['data-{000000..000001}.tar', data-000001.tar]", ConfigError, r"names 'data-000001\.tar' 2 times"),
        ("test: ['data-{000003..000006}.tar']", DatasetError, r"'data-000004\.tar' and 2 more shards.*-data prepare"),
    ):
        set_split(folder, f"split_parts: {{{parts}}}")
        with pytest.raises(error, match=told):
            open_shards(folder, "test")


def test_our_index_is_left_aside_when_it_is_of_another_preparation(folder: Path) -> None:
    assert PreparedDataset.open(folder).index is not None
    uuid = folder / ".nv-meta/index.uuid"
    mine = uuid.read_text()
    uuid.write_text("another")
    assert PreparedDataset.open(folder).index is None
    assert keys_of(open_shards(folder, "train")) == [f"{number:06d}" for number in range(10)]
    uuid.write_text(mine)
    assert PreparedDataset.open(folder).index is not None
    info = folder / ".nv-meta/.info.json"
    info.write_text(info.read_text().replace('"data-000003.tar": 5', '"data-000003.tar": 4'))
    assert PreparedDataset.open(folder).index is None


def test_an_older_preparation_without_uuid_sqlite_and_json(folder: Path) -> None:
    meta = folder / ".nv-meta"
    for name in ("index.uuid", "index.sqlite", "index.bridge", ".info.json"):
        (meta / name).unlink()
    (meta / ".info.yaml").write_text("shard_counts:\n" + "".join(f"  data-00000{n}.tar: 5\n" for n in range(4)))
    assert keys_of(open_shards(folder, "train")) == [f"{number:06d}" for number in range(10)]


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=6))
def test_numbers_pass_over_what_is_excluded(kept: list[list[bool]]) -> None:
    """`kept` tells for every sample of every shard whether it is in."""
    shards = ShardSet(
        root=Path("/data"),
        split_part="train",
        names=tuple(f"{number}.tar" for number in range(len(kept))),
        stored_counts=tuple(map(len, kept)),
        excluded_positions={
            number: tuple(position for position, is_in in enumerate(shard) if not is_in)
            for number, shard in enumerate(kept)
        },
    )
    expected = [(n, position) for n, shard in enumerate(kept) for position, is_in in enumerate(shard) if is_in]
    assert [shards.locate(index) for index in range(len(shards))] == expected
    assert shards.counts == [sum(shard) for shard in kept]
    assert shards.num_samples == len(expected)
