from pathlib import Path

import pytest

from bridge_data.data import ShardSet
from bridge_data.plugins.joins.joined_records import JoinRecords
from bridge_data.plugins.tables.table_files import open_keys
from bridge_data.plugins.view.data_catalog import BrowsedSplit
from tests.data.joins import dataset, join
from tests.plugins.joins.test_energon_joins import FIFTH, FIRST, NONE, SECOND, THIRD, encoded, opened
from tests.plugins.joins.test_energon_joins import members as members  # a fixture
from tests.tables import table_of, write_parquet


def found(records: JoinRecords, key: str) -> list[int]:
    """The rows whose key begins with `key`."""
    part = BrowsedSplit("train", None, [records])
    return [address.index for address in part.search.find(key, list(part.sources), 10)]


def test_a_row_of_a_join_is_found_by_the_key_of_its_first_member_or_table(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1", "2", "22"], ["3", "4"]]), dataset(tmp_path / "b", [["4", "22", "1", "b"]])
    table = write_parquet(tmp_path / "a.parquet", table_of({"__key__": list("abcd")}), per_group=3)
    for first, expected in (
        (a, {"1": [0], "2": [1], "3": [], "4": [2]}),
        (open_keys(str(table), "train"), {"a": [], "b": [0], "a.parquet/b": [0]}),
    ):
        index = join(tmp_path / "j", first, (b, "skip"))
        records = JoinRecords(index=index, members=(first, b), parts=(None, None))
        assert {key: found(records, key) for key in expected} == expected


@pytest.mark.parametrize("first", [[FIRST, SECOND], [SECOND, FIRST]], ids=["in order", "in another order"])
def test_a_row_of_a_join_that_energon_made_is_found_in_any_order_of_a_shard(
    tmp_path: Path, members: tuple[ShardSet, ShardSet], first: list
) -> None:
    (tmp_path / "m.yaml.cache" / NONE).write_bytes(encoded([*first, THIRD, FIFTH]))
    records = JoinRecords(index=opened(tmp_path, members, "none"), members=members, parts=(None, None))
    rows = [records.row_of(number) for number in range(records.num_samples)]
    assert rows == ([0, 1, 2, 3] if first[0] is FIRST else [1, 0, 2, 3])
    assert found(records, "2") == [rows[1]]
