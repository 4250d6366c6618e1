import pickle
from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.shards import Subset
from bridge_data.shards.joined_records import JoinedRawSample, JoinRecords
from tests.shards.joins import dataset, join
from tests.shards.tars import write_tar


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


def test_members_have_the_same_key(records: JoinRecords) -> None:
    write_tar(records.members[1].root / "0.tar", {"3.txt": b"3", "2.txt": b"2"})  # the same sizes
    with pytest.raises(DatasetError, match=r"row 0 joins 0.tar/1 with 0.tar/2 of .*/b, which has another key"):
        records.reader().read(0)
