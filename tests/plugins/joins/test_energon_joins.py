"""Indexes as `energon prepare` of Energon 7.4.1 wrote them for these data sets, byte by byte; `tests/peer` makes new
ones."""

import dataclasses
import pickle
import struct
from pathlib import Path

import pytest

from bridge_data.data import ShardSet, open_shards
from bridge_data.data.index_file import BridgeIndex
from bridge_data.errors import DatasetError
from bridge_data.plugins.joins.energon_joins import EnergonRows
from bridge_data.plugins.joins.joined_records import JoinRecords
from bridge_data.plugins.joins.joins import JoinIndex, JoinMember, Nonmatch, open_join, open_join_at
from tests.data.joins import dataset, join, narrowed, rows

SKIP = "join_index_b8dec00f6f01a9e9dfba92a869aa93f5d7e3798c24e409697a97f1e0bb87ebeb.bin"
NONE = "join_index_4b010431993d785316f18639837874aa12c05d413d732ffdd86d43eb57d8f00a.bin"

WITH_THREE_EXCLUSIONS = (
    "2558af4ad349a7fc73a39f5a449d10b4c2c829510daa73cad5e6cea05c04be5f",
    "6e23cc31b63b5b78c06b06944049b23fe96a0c28838b0764b6fdc007782acf03",
    "d811a26f19642796605d7faf6a9d52c9d6aed3d9e0a0ac984e8fe70edc895397",
    "fff2ce8a185001005549ba8507fe8d65d8cbb6bc65eae763f7c88c30e63704c8",
)
"""Energon's digest takes the excluded samples in an order that is another in each process."""

FIRST, THIRD, FIFTH = ((0, 0, 1024), (1, 0, 1024)), ((1, 0, 1024), (0, 1024, 1024)), ((2, 1024, 1024), (0, 0, 1024))
SECOND = ((0, 1024, 1024), (-1, -1, -1))
ROWS = {SKIP: [FIRST, THIRD, FIFTH], NONE: [FIRST, SECOND, THIRD, FIFTH]}


def encoded(rows: list[tuple[tuple[int, int, int], ...]]) -> bytes:
    return b"JIDX0001" + struct.pack("q", 2) + b"".join(struct.pack("qqq", *place) for row in rows for place in row)


@pytest.fixture
def members(tmp_path: Path) -> tuple[ShardSet, ShardSet]:
    """Two data sets, with the identities for which the indexes were made."""
    dataset(tmp_path / "a", [["1", "2"], ["3"], ["4", "5"]], exclude=["2.tar/4"])
    dataset(tmp_path / "b", [["5", "3"], ["1", "9", "4"]])
    for name, digit in (("a", "1"), ("b", "2")):
        uuid = f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}"
        (tmp_path / name / ".nv-meta" / "index.uuid").write_text(uuid)
    (tmp_path / "m.yaml.cache").mkdir()
    return open_shards(tmp_path / "a", "train"), open_shards(tmp_path / "b", "train")


def opened(folder: Path, members: tuple[ShardSet, ShardSet], nonmatch: Nonmatch) -> JoinIndex:
    return open_join(folder / "m.yaml.joins", [JoinMember(members[0], "error"), JoinMember(members[1], nonmatch)])


@pytest.mark.parametrize(("name", "nonmatch"), [(SKIP, "skip"), (NONE, "none")])
def test_it_has_the_rows_of_ours(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], name: str, nonmatch: Nonmatch
) -> None:
    (tmp_path / "m.yaml.cache" / name).write_bytes(encoded(ROWS[name]))
    index = opened(tmp_path, members, nonmatch)
    ours = join(tmp_path / "ours", members[0], (members[1], nonmatch))
    assert (index.path.name, index.is_energon, ours.is_energon) == (name, True, False)
    assert rows(index) == rows(pickle.loads(pickle.dumps(index))) == rows(ours)
    assert index.counts == ours.counts
    assert index.members == [dataclasses.replace(member, num_missing=0) for member in ours.members]  # not counted
    assert [index.lacks_some(i) for i in (0, 1)] == [ours.lacks_some(i) for i in (0, 1)] == [False, nonmatch == "none"]
    assert rows(open_join_at(index.path, members)) == rows(ours)
    assert rows(opened(tmp_path, members, nonmatch)) == rows(ours)


@pytest.mark.parametrize("byte", [None, 40 + 8, 40 + 200])
def test_its_offsets_are_those_of_both_indexes_of_shards(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], byte: int | None
) -> None:
    """A damaged byte is in the directory of the first shard, or in its page: then the offsets of Energon serve."""
    (tmp_path / "m.yaml.cache" / SKIP).write_bytes(encoded(ROWS[SKIP]))
    index = opened(tmp_path, members, "skip")
    for path in [shards.root / ".nv-meta/index.bridge" for shards in members if byte is not None]:
        data = bytearray(path.read_bytes())
        data[byte or 0] ^= 1
        path.write_bytes(data)
    known = [dataclasses.replace(s, index=BridgeIndex.open(s.root / ".nv-meta/index.bridge")) for s in members]
    assert members[0].index is None is not known[0].index
    for shard_sets in (members, known):
        assert [EnergonRows(index.path, shard_sets).row(n) for n in range(3)] == [[0, 2], [2, 1], [3, 0]]
    reader = JoinRecords(index=index, members=members, parts=(None, None)).reader()
    assert [reader.read(number).key for number in range(3)] == ["1", "3", "5"]


def test_ours_comes_first_and_who_made_the_index_is_part_of_the_identity(
    tmp_path: Path, members: tuple[ShardSet, ShardSet]
) -> None:
    """Within a shard, Energon's rows need not be in our order."""
    (tmp_path / "m.yaml.cache" / SKIP).write_bytes(encoded(ROWS[SKIP]))
    theirs = opened(tmp_path, members, "skip")
    join(tmp_path / "m.yaml.joins", members[0], (members[1], "skip"))
    ours = opened(tmp_path, members, "skip")
    assert (theirs.is_energon, ours.is_energon) == (True, False)
    found = [JoinRecords(index=one, members=members, parts=(None, None)).identity() for one in (theirs, ours)]
    assert found[0] == {**found[1], "index": "energon"}


@pytest.mark.parametrize("digest", WITH_THREE_EXCLUSIONS)
def test_several_exclusions_are_found_in_any_order(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], digest: str
) -> None:
    a = narrowed(tmp_path / "a", exclude=["2.tar/4", "0.tar/2", "1.tar/3"])
    (tmp_path / "m.yaml.cache" / f"join_index_{digest}.bin").write_bytes(encoded([FIRST, FIFTH]))
    assert rows(opened(tmp_path, (a, members[1]), "skip")) == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (encoded(ROWS[NONE])[:-8], "is damaged, or no join of 2 data sets"),
        (b"JIDX0002" + encoded(ROWS[NONE])[8:], "is damaged"),
        (b"JIDX0001" + struct.pack("q", 3) + bytes(3 * 24), "is damaged, or no join of 2 data sets"),
        (b"", "has 0 of the 4 samples of .*/a .train.: Energon made this index of a join for another split part"),
        (encoded([FIRST, SECOND, THIRD]), "has 3 of the 4 samples"),
        (encoded([FIRST, FIRST, FIRST, FIFTH]), "for other shards than those of .*/a .train."),
        (encoded([FIRST, SECOND, THIRD, ((3, 0, 1024), (0, 0, 1024))]), "for other shards than those"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], content: bytes, says: str
) -> None:
    (tmp_path / "m.yaml.cache" / NONE).write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{says}.*; run `bridge-data prepare {tmp_path}/m.yaml`"):
        opened(tmp_path, members, "none")


@pytest.mark.parametrize(
    ("row", "folder"),
    [
        ((FIRST[0], (2, 0, 1024)), "b"),
        ((FIRST[0], (1, 1000, 1024)), "b"),
        ((FIRST[0], (1, 9999, 1024)), "b"),
        (((2, 0, 1024), (1, 2048, 1024)), "a"),  # which is excluded
    ],
)
def test_a_row_of_no_sample_is_an_error(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], row: tuple[tuple[int, int, int], ...], folder: str
) -> None:
    (tmp_path / SKIP).write_bytes(encoded([row]))
    with pytest.raises(DatasetError, match=rf"for other shards than those of .*/{folder} \[train\]"):
        EnergonRows(tmp_path / SKIP, members).row(0)


def test_shards_that_are_excluded_count(tmp_path: Path, members: tuple[ShardSet, ShardSet]) -> None:
    path = tmp_path / SKIP
    path.write_bytes(encoded([THIRD, FIFTH]))
    without = narrowed(tmp_path / "a", exclude=["0.tar", "2.tar/4"])
    assert EnergonRows(path, (without, members[1])).row(1) == [1, 0]
    path.write_bytes(encoded(ROWS[SKIP]))
    with pytest.raises(DatasetError, match=r"has samples of a shard of .*/a that is excluded"):
        EnergonRows(path, (without, members[1]))


def test_one_that_is_out_of_date_or_changes_under_its_reader_is_told(
    tmp_path: Path, members: tuple[ShardSet, ShardSet]
) -> None:
    path, uuid = tmp_path / "m.yaml.cache" / SKIP, tmp_path / "b/.nv-meta/index.uuid"
    path.write_bytes(encoded(ROWS[SKIP]))
    found = pickle.loads(pickle.dumps(EnergonRows(path, members)))
    says = r"Energon's index of this join in .*m.yaml.cache is out of date: .*; run `bridge-data prepare .*/m.yaml`"
    for nonmatch, change in (("none", lambda: None), ("skip", lambda: uuid.write_text("new")), ("skip", uuid.unlink)):
        change()
        with pytest.raises(DatasetError, match=says):
            opened(tmp_path, members, nonmatch)  # type: ignore[arg-type]
    path.write_bytes(encoded([FIRST]))
    with pytest.raises(DatasetError, match="was replaced while it was in use"):
        found.row(0)
