"""Indexes of joins and the records they make. (How they are made: `tests/prepare`; of metadatasets: `tests/plan`.)"""

import pickle
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.plugins.joins.joined_records import JoinedRawSample, JoinRecords
from bridge_data.plugins.joins.joins import JoinIndex, JoinMember, join_folder, join_path, open_join
from bridge_data.storage.atomic import write_file
from tests.data.joins import dataset, join, rows
from tests.data.tars import write_tar


@pytest.fixture
def records(tmp_path: Path) -> JoinRecords:
    a, b = dataset(tmp_path / "a", [["1", "2"], ["3"]]), dataset(tmp_path / "b", [["3", "1"]])
    index = join(join_folder(tmp_path / "m.yaml"), a, (b, "none"))
    return JoinRecords(index=index, members=(a, b), parts=(None, frozenset({"txt", "jpg"})))


@pytest.fixture
def index(records: JoinRecords) -> JoinIndex:
    return records.index


def test_an_index_lies_beside_the_metadataset_and_travels_as_its_path(index: JoinIndex, tmp_path: Path) -> None:
    assert index.path.parent == tmp_path / "m.yaml.joins"
    told = [(member.path, member.num_samples, member.num_missing) for member in index.members]
    assert told == [("a", 3, 0), ("b", 2, 1)]
    assert rows(pickle.loads(pickle.dumps(index))) == rows(index) == [[0, 1], [1, -1], [2, 0]]


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


def test_its_name_stands_for_the_members_as_they_are_now(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1"]]), dataset(tmp_path / "b", [["2"]])
    first, second, last = JoinMember(a, "error"), JoinMember(b, "skip"), JoinMember(b, "none")
    joins = ([first, second], [second, first], [first, last], [first])
    assert len({join_path(tmp_path, members).name for members in joins}) == 4
    with pytest.raises(DatasetError, match=r"this join has no index yet; run `bridge-data prepare /x/m.yaml`"):
        open_join(Path("/x/m.yaml.joins"), [first])
    empty = join(tmp_path / "j", a, (b, "skip"))
    assert (empty.num_rows, empty.counts, empty.num_left_out) == (0, [0], 1)


def test_a_record_has_the_samples_of_all_members(records: JoinRecords) -> None:
    assert (records.shards, records.split_part) == ([("0.tar", 2), ("1.tar", 1)], "train")
    reader = records.reader()
    found = [reader.read(index) for index in range(3)]
    keys = [[member and member.key for member in raw.members] for raw in found if isinstance(raw, JoinedRawSample)]
    assert keys == [["1", "1"], ["2", None], ["3", "3"]]
    raw = found[2]
    assert (raw.full_key, raw.index, raw.parts) == ("1.tar/3", 2, {"txt": b"3"})
    for parts, sizes in ((None, [1, 1]), ({"txt"}, [1, 1]), ({"jpg"}, [0, 0]), ((), [0, 0])):
        assert [len(member.parts) for member in reader.read(0, parts).members] == sizes  # type: ignore[attr-defined]


def test_members_have_the_same_key(records: JoinRecords) -> None:
    write_tar(records.members[1].root / "0.tar", {"3.txt": b"3", "2.txt": b"2"})  # the same sizes
    with pytest.raises(DatasetError, match=r"row 0 joins 0.tar/1 with 0.tar/2 of .*/b, which has another key"):
        records.reader().read(0)
