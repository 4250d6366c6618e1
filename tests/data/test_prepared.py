"""Prepared folders: their metadata, split parts, and exclusions, by whichever index is there."""

import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import PreparedDataset, ShardSet, open_shards
from bridge_data.data.index_file import IndexPage, Segment, is_meta_member, split_name
from bridge_data.data.metadata import meta_folder, read_shard_counts, read_split, read_uuid
from bridge_data.errors import ConfigError, DatasetError
from tests.data.tars import keys_of, set_split
from tests.prepared import write_texts


def test_split_parts_and_their_shards_are_known_without_reading_them(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert (dataset.split_parts(), dataset.part_names()) == (["train", "val", "test"], ["json", "txt"])
    train, size = dataset.split("train"), os.stat(folder / "data-000000.tar").st_size
    assert (train.names, train.counts) == (("data-000000.tar", "data-000001.tar"), [5, 5])
    assert keys_of(open_shards(str(folder), "val")) == [f"{number:06d}" for number in range(10, 15)]
    assert dataset.shard_bytes("data-000000.tar") == size
    (folder / ".nv-meta/index.bridge").unlink()
    dataset = PreparedDataset.open(folder)
    assert (dataset.shard_bytes("data-000000.tar"), dataset.part_names()) == (size, ["json", "txt"])
    for path in folder.glob("*.tar*"):
        path.unlink()
    assert open_shards(folder, "train").num_samples == 10


def test_parts_that_cannot_be_opened_are_named(folder: Path) -> None:
    for parts, error, told in (
        ("train: [], val: []", ConfigError, r"split\.yaml: there is no split part 'test'; there is train, val"),
        ("test: ['data-{000000..000001}.tar', data-000001.tar]", ConfigError, r"names 'data-000001\.tar' 2 times"),
        ("test: ['data-{000003..000006}.tar']", DatasetError, r"'data-000004\.tar' and 2 more shards.*-data prepare"),
    ):
        set_split(folder, f"split_parts: {{{parts}}}")
        with pytest.raises(error, match=told):
            open_shards(folder, "test")


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


EXCLUDE = (
    "split_parts: {train: ['data-{000000..000002}.tar'], val: [data-000003.tar]}\n"
    "exclude: [data-000001.tar, 'data-000000.tar/00000{0,3}', data-000003.tar/000016]\n"
)
KEPT = ["000001", "000002", "000004", "000010", "000011", "000012", "000013", "000014"]


def no_samples(folder: Path) -> None:
    """As an older database, which knows none."""
    (folder / ".nv-meta/index.bridge").unlink()
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as db:
        db.execute("DROP TABLE samples")


def damaged_page(folder: Path) -> None:
    index = folder / ".nv-meta/index.bridge"
    content = bytearray(index.read_bytes())
    content[content.index(b"000000000001")] ^= 1
    index.write_bytes(content)


def lose(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / ".nv-meta" / name).unlink()

    return change


@pytest.mark.parametrize(
    "change", [lose(), lose("index.bridge"), lose("index.bridge", "index.sqlite"), no_samples, damaged_page]
)
def test_exclusions_by_each_index(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    set_split(folder, EXCLUDE)
    dataset = PreparedDataset.open(folder)
    train = dataset.split("train")
    assert (train.names, train.counts) == (("data-000000.tar", "data-000002.tar"), [3, 5])
    assert train.excluded == {"data-000000.tar/000000", "data-000000.tar/000003"}
    assert keys_of(train) == KEPT
    assert keys_of(dataset.split("val")) == ["000015", "000017", "000018", "000019"]


def test_an_exclusion_of_nothing_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_split(
        folder, "split_parts: {train: [data-000000.tar]}\nexclude: [data-000000.tar/gone, data-000000.tar/000001]"
    )
    with caplog.at_level(logging.WARNING):
        assert open_shards(folder, "train").counts == [4]
    assert "`exclude` names gone of shard data-000000.tar" in caplog.text


@pytest.mark.parametrize(
    ("first", "left"),
    [
        ("[data-000001.tar, 'data-000000.tar/00000{0,3}']", [2, 4]),
        ("[data-000001.tar]", [0, 2, 3, 4]),
        ("[]", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_all_lists_of_exclusions_hold_if_there_are_several(
    folder: Path, caplog: pytest.LogCaptureFixture, first: str, left: list[int]
) -> None:
    split = f"split_parts: {{train: ['data-{{000000..000002}}.tar']}}\nexclude: {first}\n\n"
    set_split(folder, split + "exclude:\n- data-000002.tar\n- data-000000.tar/000001\n")
    with caplog.at_level(logging.WARNING):
        assert [int(key) for key in keys_of(open_shards(folder, "train"))] == left
    assert f"{folder / '.nv-meta/split.yaml'}:4: 'exclude' is already in line 2" in caplog.text


@pytest.mark.parametrize("split", ["exclude: all\nsplit_parts: {}\nexclude: []", "split_parts: {}\nsplit_parts: {}"])
def test_another_key_twice_is_refused_with_both_lines(folder: Path, split: str) -> None:
    set_split(folder, split)
    with pytest.raises(ConfigError, match=r"split\.yaml:[23]: key '\w+' is already in line 1"):
        open_shards(folder, "train")


@pytest.mark.parametrize("change", ["sample_index = 1 - sample_index WHERE sample_index < 2", "sample_index = 99"])
def test_positions_that_only_energons_index_has_are_not_believed(folder: Path, change: str) -> None:
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as db:
        db.execute("DROP INDEX IF EXISTS idx_samples_by_tar_and_idx")
        db.execute(f"UPDATE samples SET {change}")
    set_split(folder, EXCLUDE)
    assert keys_of(open_shards(folder, "train")) == KEPT


@pytest.mark.parametrize("kind", ["data-000000.tar.idx", "damaged", "data-000000.tar"])
def test_exclusions_that_cannot_be_found_are_an_error(folder: Path, kind: str) -> None:
    for name in ("index.bridge", "index.sqlite"):
        (folder / ".nv-meta" / name).unlink()
    if kind == "damaged":
        content = bytearray((folder / "data-000000.tar").read_bytes())
        content[:512] = b"x" * 512
        (folder / "data-000000.tar").write_bytes(content)
    else:
        (folder / kind).unlink()
    set_split(folder, EXCLUDE)
    with pytest.raises(DatasetError, match=r"data-000000\.tar"):
        open_shards(folder, "train")


def test_opening_reads_only_the_pages_of_excluded_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_texts(tmp_path / "large", 3000, per_shard=1500)
    read_page, pages = Segment.read_page, []

    def counted(segment: Segment, number: int) -> IndexPage:
        pages.append(number)
        return read_page(segment, number)

    monkeypatch.setattr(Segment, "read_page", counted)
    set_split(folder, "split_parts: {train: ['data-{0000..0001}.tar']}\nexclude: [data-0001.tar/002999]\n")
    shards = open_shards(folder, "train")
    assert (shards.counts, shards.excluded_positions) == ([1500, 1499], {1: (1499,)})
    assert pages == [1499 // 256]


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
    assert {part: split.shards(part) for part in split.split_parts} == {
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
    assert (list(split.split_parts), split.shards("train")) == (["train", "test", "val"], ["a.tar"])
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


def test_damage_of_our_index_is_told_once_and_samples_are_read_without_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = keys_of(open_shards(folder, "train"))
    path, index = folder / ".nv-meta/index.bridge", PreparedDataset.open(folder).index
    assert index is not None
    content, entry = bytearray(path.read_bytes()), index.entries["data-000000.tar"]
    content[entry.segment_start + entry.segment_bytes - 9] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert keys_of(open_shards(folder, "train")) == expected
    (message,) = caplog.messages
    assert message.startswith(f"{path}: is damaged where shard data-000000.tar")
