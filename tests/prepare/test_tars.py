import json
import random
import sqlite3
import uuid
from pathlib import Path

import braceexpand
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.prepare.tars import (
    collapse,
    find_shards,
    parse_pattern,
    parse_ratio,
    prepare,
    refresh_index,
    split_by_patterns,
    split_by_ratio,
    write_dataset_yaml,
)
from bridge_data.shards import open_shards
from tests.shards.tars import prepare_by_ratio, write_shards, write_tar

ONE = PrepareConfig(num_workers=1)


def test_writes_what_energon_writes(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "2,1,1")
    meta = tmp_path / ".nv-meta"
    assert sorted(path.name for path in meta.iterdir()) == [
        ".info.json",
        "index.bridge",
        "index.sqlite",
        "index.uuid",
        "split.yaml",
    ]
    assert json.loads((meta / ".info.json").read_text()) == {
        "energon_version": "7.4.1",
        "shard_counts": {f"data-00000{number}.tar": 5 for number in range(4)},
    }
    assert yaml.safe_load((meta / "split.yaml").read_text()) == {
        "split_parts": {
            "train": ["data-{000000..000001}.tar"],
            "val": ["data-000002.tar"],
            "test": ["data-000003.tar"],
        },
        "exclude": [],
    }
    uuid.UUID((meta / "index.uuid").read_text())
    assert all((tmp_path / f"data-00000{number}.tar.idx").stat().st_size == 48 for number in range(4))
    db = sqlite3.connect(meta / "index.sqlite")
    assert db.execute("SELECT COUNT(*) FROM samples").fetchone() == (20,)


def test_many_workers_write_the_same(tmp_path: Path) -> None:
    files = []
    for name, num_workers in (("one", 1), ("three", 3)):
        write_shards(tmp_path / name, num_shards=9)
        prepare_by_ratio(tmp_path / name, num_workers=num_workers)
        paths = [*(tmp_path / name).glob("*.idx"), *(tmp_path / name / ".nv-meta").glob("[.s]*")]
        rows = sqlite3.connect(tmp_path / name / ".nv-meta/index.sqlite").execute(
            "SELECT sample_key, byte_offset FROM samples"
        )
        files.append(({path.name: path.read_bytes() for path in paths}, rows.fetchall()))
    assert [names for names, _ in files[0][1]] == [names for names, _ in files[1][1]]
    assert files[0][0].keys() == files[1][0].keys()


def test_an_older_info_yaml_is_kept_in_step(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta/.info.yaml").write_text("shard_counts: {data-000000.tar: 3}")
    prepare_by_ratio(tmp_path)
    assert yaml.safe_load((tmp_path / ".nv-meta/.info.yaml").read_text())["shard_counts"]["data-000000.tar"] == 5


def test_shards_are_found_below_and_sorted_folder_by_folder(tmp_path: Path) -> None:
    for name in ("b/0.tar", "a-x.tar", "a/1.tar", "a/0.tar", "a/notes.txt"):
        write_tar(tmp_path / name, {"1.txt": b""})
    assert find_shards(tmp_path) == ["a/0.tar", "a/1.tar", "a-x.tar", "b/0.tar"]
    assert find_shards(tmp_path, "^a/|x") == ["b/0.tar"]
    with pytest.raises(ConfigError, match="leaves out all 4 tars"):
        find_shards(tmp_path, "tar")


def test_shards_are_files_and_links_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a/0.tar", {"1.txt": b"t"})
    (tmp_path / "a/1.tar").mkdir()
    (tmp_path / "a/2.tar").symlink_to(tmp_path / "gone")
    (tmp_path / "a/3.tar").symlink_to(tmp_path / "a/0.tar")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert find_shards(Path()) == find_shards(tmp_path) == ["a/0.tar", "a/3.tar"]


def test_folders_without_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are no \.tar files.*bridge-data pack"):
        find_shards(tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        find_shards(tmp_path / "no")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="expected a folder of tars"):
        find_shards(tmp_path / "file")


def test_odd_splits_are_told(tmp_path: Path) -> None:
    write_shards(tmp_path)
    found = prepare(tmp_path, lambda names: {"a": list(names[:2]), "b": list(names[1:3])}, ONE)
    assert found.notes == ("1 of 4 shards are in no split part", "1 shards are in more than one split part")


def test_a_shard_twice_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with pytest.raises(ConfigError, match=r"split part 'a' names 'data-000000\.tar' 2 times: name it once"):
        prepare(tmp_path, lambda names: {"a": [names[0], names[0]]}, ONE)
    with pytest.raises(ConfigError, match=r"the list of tars names 'data-000001\.tar' 2 times"):
        prepare(tmp_path, lambda names: {"a": list(names)}, ONE, names=["data-000001.tar"] * 2)
    assert not (tmp_path / ".nv-meta").exists()


def test_the_index_is_refreshed_and_the_rest_left_alone(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    meta = tmp_path / ".nv-meta"
    write_dataset_yaml(tmp_path, {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}, "dataset.yaml")
    (meta / "split.yaml").write_text("split_parts: {train: [data-000000.tar]}")
    kept = {name: (meta / name).read_bytes() for name in (".info.json", "split.yaml", "dataset.yaml")}
    for path in [*tmp_path.glob("*.idx"), meta / "index.bridge", meta / "index.sqlite", meta / "index.uuid"]:
        path.unlink()
    assert refresh_index(tmp_path, ONE).num_scanned == 4
    assert {name: (meta / name).read_bytes() for name in kept} == kept
    assert open_shards(tmp_path, "train").index is not None
    assert len(list(tmp_path.glob("*.idx"))) == 4


def test_refreshing_an_older_data_set_gives_it_a_json(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    counts = {f"data-00000{number}.tar": 5 for number in range(4)}
    (tmp_path / ".nv-meta/.info.yaml").write_text(yaml.safe_dump({"shard_counts": counts}))
    refresh_index(tmp_path, ONE)
    assert json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"] == counts
    with pytest.raises(ConfigError, match="bridge-data prepare"):
        refresh_index(tmp_path / "no", ONE)


NAMES = [f"data-{number:06d}.tar" for number in range(10)]


@pytest.mark.parametrize(
    ("ratio", "sizes"),
    [
        ("8,1,1", [8, 1, 1]),
        ("10,0,0", [10, 0, 0]),
        ("0.5, 0.2, 0.3", [5, 2, 3]),
        ("0.7,0.2,0.1", [7, 2, 1]),
        ("6,3,1", [6, 3, 1]),
    ],
)
def test_ratio(ratio: str, sizes: list[int]) -> None:
    """Exact shares: 0.6 + 0.3 + 0.1 in floats is less than 1, and would lose the last shard."""
    parts = split_by_ratio(NAMES, parse_ratio(ratio))
    assert list(parts) == ["train", "val", "test"]
    assert [len(names) for names in parts.values()] == sizes
    assert [name for names in parts.values() for name in names] == NAMES


@given(st.integers(0, 60), st.tuples(*[st.decimals(0, 20, places=2)] * 3).filter(lambda shares: sum(shares) > 0))
def test_every_shard_is_in_one_part(num_shards: int, shares: tuple[object, ...]) -> None:
    names = [str(number) for number in range(num_shards)]
    parts = split_by_ratio(names, parse_ratio(",".join(map(str, shares))))
    assert [name for part in parts.values() for name in part] == names


def test_shuffled_shards_are_energons() -> None:
    parts = split_by_ratio(NAMES, parse_ratio("5,5,0"), shuffle=True)
    shuffled = list(NAMES)
    random.Random(42).shuffle(shuffled)
    assert parts["train"] + parts["val"] == shuffled != NAMES
    assert sorted(parts["train"] + parts["val"]) == NAMES


@pytest.mark.parametrize("text", ["", "8,1", "8,1,1,1", "a,b,c", "-1,1,1", "0,0,0", "1/0,1,1"])
def test_wrong_ratios(text: str) -> None:
    with pytest.raises(ConfigError, match="expected three numbers"):
        parse_ratio(text)


def test_patterns_are_braces_and_then_expressions_from_the_beginning() -> None:
    names = ["train/0.tar", "train/1.tar", "train/2.tar", "val/0.tar", "xtrain/0.tar"]
    rules = [("train", "train/{0..1}.tar"), ("train", "train/2"), ("val", r"val/\d\.tar"), ("all", ".*0")]
    assert split_by_patterns(names, rules) == {
        "train": ["train/0.tar", "train/1.tar", "train/2.tar"],
        "val": ["val/0.tar"],
        "all": ["train/0.tar", "val/0.tar", "xtrain/0.tar"],
    }


def test_ten_thousand_names_and_patterns() -> None:
    names = [f"data-{number:06d}.tar" for number in range(10_000)]
    rules = [("train", "data-{000000..008999}.tar"), ("val", "data-{009000..009999}.tar")]
    parts = split_by_patterns(names, rules)
    assert (len(parts["train"]), len(parts["val"])) == (9_000, 1_000)


def test_wrong_patterns() -> None:
    assert parse_pattern("train:a:b.tar") == ("train", "a:b.tar")
    for text in ("train", ":a.tar", "train:"):
        with pytest.raises(ConfigError, match='expected "name:pattern"'):
            parse_pattern(text)
    with pytest.raises(ConfigError, match=r"split part val:valid: no shard is called so; there is data-000000\.tar"):
        split_by_patterns(NAMES, [("val", "valid")])
    with pytest.raises(ConfigError, match="not a regular expression"):
        split_by_patterns(NAMES, [("val", "(")])


def test_runs_collapse() -> None:
    assert collapse(NAMES) == ["data-{000000..000009}.tar"]
    assert collapse(["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar", "x.tar"]) == ["a/{0..1}.tar", "b/{0..1}.tar", "x.tar"]
    assert collapse(["s9.tar", "s10.tar", "s11.tar"]) == ["s9.tar", "s{10..11}.tar"]
    assert collapse(["p0-1", "p0-2", "p1-2"]) == ["p0-{1..2}", "p1-2"]
    assert collapse([]) == []


@given(st.lists(st.text(alphabet="a01{},\\.", min_size=1, max_size=6), max_size=12))
def test_what_is_collapsed_expands_to_the_same(names: list[str]) -> None:
    assert [name for pattern in collapse(names) for name in braceexpand.braceexpand(pattern)] == names
