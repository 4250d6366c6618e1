"""Finding a sample by the forms of its name. (That every kind of records finds its samples: `test_records.py`.)"""

import sqlite3
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import Records, Subset
from bridge_data.shards.metadata import INDEX_SQLITE
from bridge_data.shards.sample_lookup import find_sample
from tests.shards.joins import dataset, narrowed


def found(name: str, *several: Records) -> list[tuple[int, int, str]]:
    return [(one.records, one.index, one.name) for one in find_sample(several, name)]


@pytest.mark.parametrize("with_sqlite", [True, False])
def test_a_sample_is_found_by_each_form_of_its_name(tmp_path: Path, with_sqlite: bool) -> None:
    shards = dataset(tmp_path / "a", [["1", "2"], ["3", "x/4:5"]], exclude=["0.tar/2"])
    if not with_sqlite:
        (tmp_path / "a" / ".nv-meta" / INDEX_SQLITE).unlink()
    for name in ("3", "1.tar/3", "1.tar:3", "a/1.tar:3", f"{tmp_path}/a/1.tar/3"):
        assert found(name, shards) == [(0, 1, "1.tar:3")]
    for name in ("x/4:5", "1.tar/x/4:5", "1.tar:x/4:5"):
        assert found(name, shards) == [(0, 2, "1.tar:x/4:5")]
    for name in ("2", "4", "0.tar:3", "0.tar:"):
        with pytest.raises(ConfigError, match=r"no sample has the key .* The first sample there is 0.tar:1"):
            found(name, shards)
    with pytest.raises(ConfigError, match="there are no samples"):
        found("1", Subset(shards, 0, 0))


def test_a_key_of_several_samples_lists_them(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1", "2"], ["1"]]), dataset(tmp_path / "b", [["1"]])
    with pytest.raises(ConfigError, match=r"'1' is the key of 2 samples; say which is meant: 0.tar:1, 1.tar:1$"):
        found("1", a)
    assert found("1.tar:1", a) == [(0, 2, "1.tar:1")]
    assert found("1", narrowed(tmp_path / "a", split_parts={"train": ["1.tar"]})) == [(0, 0, "1.tar:1")]
    with pytest.raises(ConfigError, match=rf"{tmp_path}/a/0.tar:1, {tmp_path}/b/0.tar:1"):
        found("0.tar:1", a, b)
    assert found("b/0.tar:1", a, b) == [(1, 0, "0.tar:1")]
    twice = found("2", a, Subset(a, 1, 3), Subset(a, 2, 3))
    assert twice == [(0, 1, "0.tar:2"), (1, 0, "0.tar:2")]  # a data set that is there twice is one


def test_a_damaged_index_is_told(tmp_path: Path) -> None:
    shards = dataset(tmp_path / "a", [["1", "2"]])
    with sqlite3.connect(tmp_path / "a" / ".nv-meta" / INDEX_SQLITE) as database:
        database.execute("UPDATE samples SET sample_index = 'x'")
    with pytest.raises(DatasetError, match="is damaged: it has '1' at position 'x'"):
        found("1", shards)
