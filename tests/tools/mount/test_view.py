import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.tools.mount.view import Catalog
from tests.tools.mount.datasets import MEMBERS, SHARDS, write_dataset


def pieces(keys: set[str], prefix: str) -> set[tuple[str, bool]]:
    """What stands directly below a prefix."""
    rests = [key[len(prefix) :].partition("/") for key in keys if key.startswith(prefix)]
    return {(piece, not slash) for piece, slash, _ in rests}


KEYS = st.lists(st.sampled_from(["a", "b", "a-b", "ä", "0"]), min_size=1, max_size=4).map("/".join)


@settings(deadline=None, max_examples=30)
@given(keys=st.sets(KEYS, min_size=1, max_size=30))
def test_what_is_below_is_listed_once_in_order(tmp_path_factory: pytest.TempPathFactory, keys: set[str]) -> None:
    root = tmp_path_factory.mktemp("keys")
    write_dataset(root)
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as db:
        db.execute("DELETE FROM samples")
        rows = ((number % 2, key, number, 0, 0) for number, key in enumerate(sorted(keys)))
        db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
    catalog = Catalog(root)
    for prefix in ("", "a/", "a/b/", "no/"):
        for shard in (None, 0, 1):
            own = {key for number, key in enumerate(sorted(keys)) if shard in (None, number % 2)}
            listed = list(catalog.names_below(prefix, shard))
            assert len(listed) == len(set(listed))
            assert set(listed) == pieces(own, prefix)
            assert catalog.has_below(prefix, shard) == bool(listed)


def test_parts_are_found_by_key(tmp_path: Path) -> None:
    catalog = Catalog(write_dataset(tmp_path))
    assert [part.part for part in catalog.parts("b")] == ["txt", "left.png"]
    assert catalog.parts("nothing") == []
    shard = catalog.shards.index("last.tar")
    assert catalog.parts("b", shard) == []
    assert [part.part for part in catalog.parts("ä", shard)] == ["json"]


def test_an_older_index_without_parts_is_enough(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    keys = ("b", "in/x", "in", "in/deep/zz")
    new = {key: Catalog(tmp_path).parts(key) for key in keys}
    with sqlite3.connect(tmp_path / ".nv-meta/index.sqlite") as db:
        db.execute("DROP TABLE sample_parts")
    old = Catalog(tmp_path)
    assert {key: old.parts(key) for key in keys} == new
    assert all(new.values())


def test_ranges_of_parts_are_read(tmp_path: Path) -> None:
    catalog = Catalog(write_dataset(tmp_path))
    (part,) = catalog.parts("in/x")
    whole = MEMBERS["in/x.txt"]
    for start, size in ((0, 10), (4990, 100), (0, 10_000), (9000, 1)):
        assert catalog.read(part, start, size) == whole[start : start + size]


def test_sizes(tmp_path: Path) -> None:
    catalog = Catalog(write_dataset(tmp_path))
    num_bytes, num_samples = catalog.size()
    assert num_samples == 8
    assert num_bytes > sum(len(content) for members in SHARDS.values() for content in members.values())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a prepared data set"):
        Catalog(tmp_path)
    write_dataset(tmp_path)
    (tmp_path / ".nv-meta/index.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(DatasetError, match="cannot be read"):
        Catalog(tmp_path)
    (tmp_path / ".nv-meta/index.sqlite").unlink()
    with pytest.raises(ConfigError, match=r"has no index of its keys, index\.sqlite; run `bridge-data prepare"):
        Catalog(tmp_path)
