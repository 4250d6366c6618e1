import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import PreparedDataset, ShardSet, open_shards
from tests.shards.tars import keys_of, set_split


def test_split_parts_and_their_shards(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert dataset.split_parts() == ["train", "val", "test"]
    assert dataset.part_names() == ["json", "txt"]
    train = dataset.split("train")
    assert train.names == ("data-000000.tar", "data-000001.tar")
    assert train.counts == [5, 5]
    assert keys_of(open_shards(str(folder), "val")) == [f"{number:06d}" for number in range(10, 15)]


def test_opening_touches_no_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in folder.glob("*.tar*"):
        path.rename(path.with_suffix(".away"))
    assert open_shards(folder, "train").num_samples == 10


def test_an_unknown_part_names_those_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"split\.yaml: there is no split part 'trian'; there is train, val, test"):
        open_shards(folder, "trian")


def test_a_declared_part_may_be_empty(folder: Path) -> None:
    set_split(folder, "split_parts: {train: [data-000000.tar], val: []}")
    assert open_shards(folder, "val").num_samples == 0


def test_a_shard_twice_in_a_part_is_refused(folder: Path) -> None:
    (folder / ".nv-meta/split.yaml").write_text("split_parts: {train: ['data-{000000..000001}.tar', data-000001.tar]}")
    with pytest.raises(
        ConfigError, match=r"split\.yaml: split part 'train' names 'data-000001\.tar' 2 times.*Name it once"
    ):
        open_shards(folder, "train")


def test_shards_that_were_not_prepared_are_an_error(folder: Path) -> None:
    set_split(folder, "split_parts: {train: ['data-{000003..000006}.tar']}")
    with pytest.raises(DatasetError, match=r"'train' names 'data-000004\.tar' and 2 more shards.*bridge-data prepare"):
        open_shards(folder, "train")


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


def test_sizes_come_from_the_index_or_the_files(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    size = os.stat(folder / "data-000000.tar").st_size
    assert dataset.shard_bytes("data-000000.tar") == size
    (folder / ".nv-meta/index.bridge").unlink()
    dataset = PreparedDataset.open(folder)
    assert dataset.shard_bytes("data-000000.tar") == size == storage.size_bytes(folder / "data-000000.tar")
    assert dataset.part_names() == ["json", "txt"]


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


def test_out_of_range() -> None:
    shards = ShardSet(root=Path("/data"), split_part="val", names=("a.tar",), stored_counts=(3,))
    assert shards.path(0) == Path("/data/a.tar")
    for index in (-1, 3):
        with pytest.raises(IndexError, match=rf"/data \[val\]: sample {index} of 3"):
            shards.locate(index)
