import json
import re
from pathlib import Path

import pytest
import yaml
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.index_file import is_meta_member, split_name
from bridge_data.shards.metadata import meta_folder, read_shard_counts, read_split, read_uuid


def test_folders_that_are_no_data_sets(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "tars" / "below").mkdir(parents=True)
    (tmp_path / "tars" / "below" / "a.tar").touch()
    for name, told in (
        ("no", f"{tmp_path}/no: no such folder"),
        ("file", "expected the folder of a data set, got a file"),
        ("empty", f"neither .*nor tars; run `bridge-data convert {tmp_path}/empty DST`"),
        ("tars", f"has no .nv-meta folder; run `bridge-data prepare {tmp_path}/tars`"),
    ):
        with pytest.raises(ConfigError, match=told):
            meta_folder(tmp_path / name)
    with pytest.raises(ConfigError, match=r"\.info\.json: no such file; run `bridge-data prepare"):
        read_shard_counts(tmp_path)
    with pytest.raises(ConfigError, match=r"split\.yaml: no such file"):
        read_split(tmp_path)
    assert read_uuid(tmp_path) is None


def test_counts_from_json_and_from_the_older_yaml(tmp_path: Path) -> None:
    (tmp_path / ".info.yaml").write_text("energon_version: 3.0.0\nshard_counts:\n  a.tar: 3\n  b/c.tar: 10\n")
    assert read_shard_counts(tmp_path) == {"a.tar": 3, "b/c.tar": 10}
    (tmp_path / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": {"a.tar": 4}}))
    assert read_shard_counts(tmp_path) == {"a.tar": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"\.info\.json:1: not readable as JSON"),
        ("[]", "expected a mapping with `shard_counts`"),
        ('{"shard_counts": [1]}', "expected a mapping with `shard_counts`"),
        ('{"shard_counts": {"a.tar": -1}}', "shard 'a.tar': expected a number of samples, got -1"),
        ('{"shard_counts": {"a.tar": "3"}}', "expected a number of samples, got '3'"),
        ('{"shard_counts": {"a.tar": 3, "a.tar": 4}}', r"\.info\.json: .* key 'a\.tar' is there 2 times"),
    ],
)
def test_damaged_counts(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / ".info.json").write_text(text)
    with pytest.raises((ConfigError, DatasetError), match=message):
        read_shard_counts(tmp_path)


def test_splits_with_brace_patterns_and_exclusions(tmp_path: Path) -> None:
    parts = ["data-{000000..000002}.tar", "plain.tar", "{a,b}/x.tar", "a}b.tar"]
    exclude = ["data-000001.tar", "data-00000{0,2}.tar/0007"]
    document = {"split_parts": {"train": parts, "val": [], "test": None}, "exclude": exclude}
    (tmp_path / "split.json").write_text(json.dumps(document))
    split = read_split(tmp_path)
    assert {part: split.shards(part) for part in split.parts} == {
        "train": [*(f"data-00000{n}.tar" for n in range(3)), "plain.tar", "a/x.tar", "b/x.tar", "a}b.tar"],
        "val": [],
        "test": [],
    }
    assert split.excluded() == ["data-000001.tar", "data-000000.tar/0007", "data-000002.tar/0007"]
    (tmp_path / "mine.yaml").write_text("split_parts: {train: [b.tar]}")
    assert read_split(tmp_path, "mine.yaml").shards("train") == ["b.tar"]
    with pytest.raises(ConfigError, match=r"other\.yaml: no such file"):
        read_split(tmp_path, "other.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("split_parts: [", r"split\.yaml:[12]: not readable as YAML"),
        ("exclude: []", "expected a mapping with `split_parts`"),
        ("split_parts: {train: a.tar}", "split part 'train': expected a list of names, got 'a.tar'"),
        ("split_parts: {train: [1]}", "split part 'train': expected a list of names"),
        ("split_parts: {train: ['a{.tar']}", "cannot be expanded"),
        ("split_parts:\n  train: [a.tar]\n  train: [b.tar]\n", r"split\.yaml:3: key 'train' is already in line 2"),
        (
            "exclude: [a.tar]\nsplit_parts: &a {train: []}\nsplit_parts: {}\n",
            r"split\.yaml:3: key 'split_parts' is already",
        ),
    ],
)
def test_wrong_splits(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "split.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_split(tmp_path).shards("train")


def test_a_part_that_nobody_reads_may_be_wrong(tmp_path: Path) -> None:
    (tmp_path / "split.yaml").write_text("split_parts: {train: [a.tar], test: ['x-{0..1.tar'], val: 3}")
    split = read_split(tmp_path)
    assert (list(split.parts), split.shards("train")) == (["train", "test", "val"], ["a.tar"])
    for part, told in (
        ("test", r"split part 'test': pattern 'x-\{0..1.tar' cannot be expanded"),
        ("val", "split part 'val': expected a list of names, got 3"),
        ("tset", r"'tset'; there is train, test, val\. Ask for one of these \(split_part\), list"),
    ):
        with pytest.raises(ConfigError, match=told):
            split.shards(part)


def test_runs_of_numbers_are_what_brace_patterns_say(tmp_path: Path) -> None:
    for pattern in ["d-{000..123}.tar", "{7..9}", "{8..12}.tar", "{12..08}", "{0..2}{0..1}", "a}b{1..2}", "{08..11}"]:
        (tmp_path / "split.yaml").write_text(yaml.safe_dump({"split_parts": {"train": [pattern, "x{a..c}"]}}))
        try:
            assert read_split(tmp_path).shards("train") == [*braceexpand(pattern), "xa", "xb", "xc"]
        except ConfigError as error:
            assert "cannot be expanded" in str(error)
            with pytest.raises(ValueError):
                list(braceexpand(pattern))


@given(st.text(alphabet="a_./", max_size=12) | st.sampled_from(["a/b.c/0001.left.png", "__meta__/x.txt", "__a.txt"]))
def test_names_are_split_as_webdataset_and_energon_do(name: str) -> None:
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
    meta = re.match(r"__[^/]*__($|/)", name)
    assert split_name(name) == (match.groups() if match and not meta else None)
    assert is_meta_member(name) == bool(meta)
