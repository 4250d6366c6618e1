import pickle
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards import Subset
from bridge_data.shards.joins import (
    JoinedRawSample,
    JoinIndex,
    JoinMember,
    JoinRecords,
    join_folder,
    join_path,
    open_join,
)
from bridge_data.storage.atomic import write_file
from tests.shards.joins import dataset, join, rows


@pytest.fixture
def index(tmp_path: Path) -> JoinIndex:
    a, b = dataset(tmp_path / "a", [["1", "2"], ["3"]]), dataset(tmp_path / "b", [["3", "1"]])
    return join(tmp_path / "m.yaml.joins", a, (b, "none"))


def test_it_lies_beside_the_metadataset(index: JoinIndex, tmp_path: Path) -> None:
    assert index.path.parent == join_folder(tmp_path / "m.yaml") == tmp_path / "m.yaml.joins"
    assert [(member.path, member.num_samples, member.num_missing) for member in index.members] == [
        ("a", 3, 0),
        ("b", 2, 1),
    ]


def test_it_travels_as_its_path(index: JoinIndex) -> None:
    index.row(0)
    again = pickle.loads(pickle.dumps(index))
    assert "_rows" not in vars(again)
    assert rows(again) == rows(index) == [[0, 1], [1, -1], [2, 0]]


def test_a_damaged_file_is_taken_for_absent(index: JoinIndex) -> None:
    data = index.path.read_bytes()
    for damaged in (b"", data[:-1], data[:30], b"X" + data[1:], data[:-4] + b"####", data[:8] + bytes(4) + data[12:]):
        index.path.write_bytes(damaged)
        assert JoinIndex.open(index.path) is None
    index.path.write_bytes(data)
    assert JoinIndex.open(index.path) is not None


def test_a_file_that_changes_under_its_reader_is_an_error(index: JoinIndex) -> None:
    again = pickle.loads(pickle.dumps(index))
    write_file(index.path, b"another")
    assert rows(index) == [[0, 1], [1, -1], [2, 0]]  # the page was read before
    storage.close_files()
    with pytest.raises(DatasetError, match="was replaced or removed while it was in use"):
        again.row(0)


def test_a_join_of_nothing_has_no_rows(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1"]]), dataset(tmp_path / "b", [["2"]])
    empty = join(tmp_path / "j", a, (b, "skip"))
    assert (empty.num_rows, empty.counts, empty.num_left_out) == (0, [0], 1)


def test_its_name_stands_for_the_members_as_they_are_now(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1"]]), dataset(tmp_path / "b", [["1"]])
    first, second = JoinMember(a, "error"), JoinMember(b, "skip")
    names = {
        join_path(tmp_path, members).name
        for members in ([first, second], [second, first], [first, JoinMember(b, "none")], [first])
    }
    assert len(names) == 4
    assert join_path(tmp_path, [first, second]).name in names


def test_a_missing_index_names_the_command(tmp_path: Path) -> None:
    a = dataset(tmp_path / "a", [["1"]])
    with pytest.raises(DatasetError, match=r"this join has no index yet; run `bridge-data prepare /x/m.yaml`"):
        open_join(Path("/x/m.yaml.joins"), [JoinMember(a, "error")])


@pytest.fixture
def records(tmp_path: Path) -> JoinRecords:
    a, b = dataset(tmp_path / "a", [["1", "2"], ["3"]]), dataset(tmp_path / "b", [["3", "1"]])
    index = join(tmp_path / "j", a, (b, "none"))
    return JoinRecords(index=index, members=(a, b), parts=(None, frozenset({"txt", "jpg"})))


def keys(raw: object) -> list[str | None]:
    assert isinstance(raw, JoinedRawSample)
    return [None if member is None else member.key for member in raw.members]


def test_stretches_are_those_of_the_first_member(records: JoinRecords) -> None:
    assert (records.names, list(records.counts), records.num_samples) == (("0.tar", "1.tar"), [2, 1], 3)
    assert (records.split_part, records.root.name) == ("train", "a")
    assert records.part_names(0) == ["txt"]
    assert records.describe(2) == "1.tar"


def test_a_record_has_the_samples_of_all_members(records: JoinRecords) -> None:
    reader = records.reader()
    assert [keys(reader.read(index)) for index in range(3)] == [["1", "1"], ["2", None], ["3", "3"]]
    raw = reader.read(2)
    assert (raw.full_key, raw.index, raw.parts) == ("1.tar/3", 2, {"txt": b"3"})
    assert raw.members[1] is not None
    assert raw.members[1].source_info().dataset_path.endswith("/b")


def test_parts_are_those_wanted_by_both(records: JoinRecords) -> None:
    for parts, sizes in ((None, [1, 1]), ({"txt"}, [1, 1]), ({"jpg"}, [0, 0]), ((), [0, 0])):
        raw = records.reader().read(0, parts)
        assert [len(member.parts) for member in raw.members if member] == sizes


def test_there_are_no_others(records: JoinRecords) -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"sample {index} of 3"):
            records.reader().read(index)


def test_a_subset_of_a_join_is_one(records: JoinRecords) -> None:
    reader = pickle.loads(pickle.dumps(Subset(records, 1, 3).reader()))
    assert [keys(reader.read(index)) for index in range(2)] == [["2", None], ["3", "3"]]
