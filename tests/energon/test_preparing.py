"""Preparing from Python, with the arguments of Energon's functions."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
import yaml
from bridge_data.energon.flavors.webdataset.prepare import WebdatasetPreparator
from bridge_data.energon.media.extractor import MediaFilterConfig, MediaFilterStrategy
from bridge_data.energon.media.filesystem_prepare import prepare_filesystem_dataset

from bridge_data import (
    CrudeJsonlDatasetFactory,
    CrudeWebdataset,
    WorkerConfig,
    get_loader,
    get_val_dataset,
    prepare_metadataset,
)
from bridge_data.energon import BaseWebdatasetFactory
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from tests.decode.pictures import encoded, picture
from tests.plan.joins import BY_FIELDS, joined, metadataset, own, texts
from tests.prepared import TEXT

ALONE = WorkerConfig(0, 1, 0)
JPEG = encoded(picture((32, 16)), "JPEG")


def write_tars(folder: Path, num_shards: int = 4, *, same_names: bool = False, **parts: Any) -> list[str]:
    (folder / "parts").mkdir(parents=True)
    for number in range(num_shards):
        with wds.TarWriter(str(folder / f"parts/{number}.tar")) as sink:
            for sample in range(3):
                key = f"{sample}" if same_names else f"{number}{sample}"
                sink.write({"__key__": key, "txt": f"text {number} {sample}", **parts})
    return [f"parts/{{0..{num_shards - 1}}}.tar"]


def split_of(folder: Path, name: str = "split.yaml") -> Any:
    return yaml.safe_load((folder / ".nv-meta" / name).read_text())["split_parts"]


def test_a_split_by_ratio_has_parts_of_any_name_in_order_or_shuffled(tmp_path: Path) -> None:
    paths, ratio = write_tars(tmp_path), [("learn", 3.0), ("check", 1.0)]
    steps: list[Any] = []

    def counted(items: Any, total: int) -> Any:
        for item in items:
            steps.append((item, total))
            yield item

    found = BaseWebdatasetFactory.prepare_dataset(
        tmp_path, paths, split_parts_ratio=ratio, shuffle_seed=None, progress_fn=counted, workers=1
    )
    assert found == {"txt"} and steps == [(number, 4) for number in range(4)]
    assert split_of(tmp_path) == {"learn": ["parts/{0..2}.tar"], "check": ["parts/3.tar"]}
    WebdatasetPreparator.prepare_dataset(tmp_path, paths, split_parts_ratio=ratio, split_config="other.json", workers=1)
    shuffled = json.loads((tmp_path / ".nv-meta/other.json").read_text())["split_parts"]
    assert shuffled == {"learn": ["parts/2.tar", "parts/1.tar", "parts/3.tar"], "check": ["parts/0.tar"]}


def test_a_split_by_patterns_and_only_some_of_the_tars(tmp_path: Path) -> None:
    write_tars(tmp_path)
    patterns = [("train", "parts/[01]"), ("val", "parts/2")]
    CrudeWebdataset.prepare_dataset(tmp_path, ["parts/{0..2}.tar"], split_parts_patterns=patterns, workers=2)
    assert split_of(tmp_path) == {"train": ["parts/{0..1}.tar"], "val": ["parts/2.tar"]}
    assert len(json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"]) == 3
    assert BaseWebdatasetFactory.prepare_dataset(tmp_path, ["parts/0.tar"], tar_index_only=True) == {"txt"}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "expected one of split_parts_ratio and split_parts_patterns"),
        ({"split_parts_ratio": [("train", 0.0)]}, "none below 0 and not all 0"),
        ({"split_parts_ratio": [("train", 1.0)], "split_config": "split.txt"}, r"ends with \.yaml or \.json"),
        ({"split_parts_ratio": [("train", 1.0)], "split_config": "../split.yaml"}, "expected the name of a file"),
    ],
)
def test_wrong_settings_are_errors(tmp_path: Path, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        BaseWebdatasetFactory.prepare_dataset(tmp_path, write_tars(tmp_path), workers=1, **settings)
    with pytest.raises(ConfigError, match="paths is empty"):
        BaseWebdatasetFactory.prepare_dataset(tmp_path, [])


def test_keys_in_several_shards_are_told_or_get_the_name_of_their_shard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write_tars(tmp_path, 2, same_names=True)
    settings: dict[str, Any] = {"split_parts_ratio": [("val", 1.0)], "shuffle_seed": None, "workers": 1}
    BaseWebdatasetFactory.prepare_dataset(tmp_path, paths, **settings)
    assert "3 keys occur in several shards, such as '0' in parts/0.tar and parts/1.tar" in caplog.text
    for _ in range(2):  # the second time there is nothing to fix
        BaseWebdatasetFactory.prepare_dataset(tmp_path, paths, fix_duplicates=True, **settings)
        with tarfile.open(tmp_path / "parts/1.tar") as tar:
            assert tar.getnames() == [f"parts/1.tar/{number}.txt" for number in range(3)]
    (tmp_path / ".nv-meta/dataset.yaml").write_text(yaml.safe_dump(TEXT))
    loader = get_loader(get_val_dataset(tmp_path, worker_config=ALONE, batch_size=None))
    assert [sample.text for sample in loader] == [f"text {shard} {number}" for shard in (0, 1) for number in range(3)]


def test_long_names_stay_whole_when_they_get_the_name_of_their_shard(tmp_path: Path) -> None:
    name = "k" * 120
    for shard in ("a.tar", "b.tar"):
        with tarfile.open(tmp_path / shard, "w") as tar:
            member = tarfile.TarInfo(f"{name}.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(shard[:1].encode() * 2))
    settings: dict[str, Any] = {"split_parts_ratio": [("val", 1.0)], "workers": 1}
    BaseWebdatasetFactory.prepare_dataset(tmp_path, ["a.tar", "b.tar"], fix_duplicates=True, **settings)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == [f"b.tar/{name}.txt"]


def test_hard_links_and_permissions_stay_when_members_get_the_name_of_their_shard(tmp_path: Path) -> None:
    write_tars(tmp_path, 2, same_names=True)
    paths = ["parts/0.tar", "parts/1.tar"]
    for path in paths:
        with tarfile.open(tmp_path / path, "a") as tar:
            link = tarfile.TarInfo("l" * 120)
            link.type, link.linkname = tarfile.LNKTYPE, "1.txt"
            tar.addfile(link)
    (tmp_path / paths[1]).chmod(0o640)
    settings: dict[str, Any] = {"split_parts_ratio": [("val", 1.0)], "workers": 1}
    BaseWebdatasetFactory.prepare_dataset(tmp_path, paths, fix_duplicates=True, **settings)
    assert (tmp_path / paths[1]).stat().st_mode & 0o777 == 0o640
    with tarfile.open(tmp_path / paths[1]) as tar:
        content = tar.extractfile(f"{paths[1]}/{'l' * 120}")
        assert content is not None and content.read() == b"text 1 1"


def test_media_of_tars_and_of_plain_folders_are_measured(tmp_path: Path) -> None:
    rule = MediaFilterConfig(strategy=MediaFilterStrategy.EXTENSION)
    paths = write_tars(tmp_path / "tars", 1, jpg=JPEG)
    BaseWebdatasetFactory.prepare_dataset(
        tmp_path / "tars", paths, split_parts_ratio=[("train", 1.0)], media_filter=rule, workers=1
    )
    assert WebdatasetPreparator.add_media_metadata(tmp_path / "tars", media_filter=rule, workers=1) == 3
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/x.jpg").write_bytes(JPEG)
    assert prepare_filesystem_dataset(tmp_path / "plain", rule, progress=False, workers=1) == 1


def test_the_lines_of_a_jsonl_file_are_indexed_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "a.jsonl") == 2
    assert (tmp_path / "a.jsonl.idx").is_file()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dcba")
    return tmp_path


JOIN = {"join": [{"path": "a"}, {"path": "b"}], "joiner": BY_FIELDS}


def test_joins_at_any_depth_are_prepared_where_they_stand(folder: Path) -> None:
    (folder / "sub").mkdir()
    turned = {"join": [{"path": "../b"}, {"path": "../a"}], "joiner": own("Nobody")}
    metadataset(folder / "sub" / "inner.yaml", {"blend": [turned, {"path": "../a"}]})
    path = metadataset(
        folder / "outer.yaml", {"blend_epochized": [{"blend_epochized": [JOIN]}, {"path": "sub/inner.yaml"}]}, test=None
    )
    first, second = prepare_metadataset(path)
    assert first.path.parent == folder / "outer.yaml.joins"
    assert second.path.parent == folder / "sub" / "inner.yaml.joins"
    assert [[member.path for member in index.members] for index in (first, second)] == [["a", "b"], ["../b", "../a"]]


def test_a_join_is_found_below_the_first_format_and_under_paths_with_variables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(folder))
    joined(folder / "j.yaml", [{"path": "${DATA}/a"}, {"path": "b"}])
    (folder / "first.yaml").write_text("splits: {train: {datasets: [{path: $DATA/j.yaml}, {path: a}]}}\n")
    (index,) = prepare_metadataset(folder / "first.yaml")
    assert index.path.parent == folder / "j.yaml.joins"
    assert load_plan(folder / "first.yaml").num_samples == 8


def test_each_split_has_its_own_index_and_equal_ones_are_shared(folder: Path) -> None:
    other = {"join": [{"path": "b"}, {"path": "a"}], "joiner": BY_FIELDS}
    path = metadataset(
        folder / "j.yaml", JOIN, val={**other, "split_part": "train"}, test={**JOIN, "split_part": "train"}
    )
    assert len(prepare_metadataset(path)) == 2
    assert load_plan(path, split_part="val", training=False).num_samples == 4


def test_what_is_of_no_use_any_more_is_removed(folder: Path) -> None:
    path = joined(folder / "j.yaml", JOIN["join"])
    (old,) = prepare_metadataset(path)
    joined(path, [{"path": "b"}, {"path": "a"}])
    (new,) = prepare_metadataset(path)
    assert os.listdir(folder / "j.yaml.joins") == [new.path.name] != [old.path.name]


def test_a_metadataset_without_joins_has_nothing_to_prepare(folder: Path) -> None:
    assert prepare_metadataset(metadataset(folder / "j.yaml", {"path": "a"})) == []
    assert sorted(os.listdir(folder)) == ["a", "b", "j.yaml"]


def test_samples_without_match_fail_the_preparation(folder: Path) -> None:
    texts(folder / "c", "ab")
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "c"}])
    with pytest.raises(
        DatasetError, match=r"c \[train\]: has no sample for 2 of the 4 samples of .*0001.tar/c, data-0"
    ):
        prepare_metadataset(path)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"path": "j.yaml"}, "refers to itself"),
        ({"path": "other.yaml"}, "other.yaml:1: splits: no split 'train' is declared"),
    ],
)
def test_mistakes_on_the_way_are_named(folder: Path, train: dict[str, str], says: str) -> None:
    (folder / "other.yaml").write_text("splits: {val: {path: a}}\n")
    with pytest.raises(ConfigError, match=says):
        prepare_metadataset(metadataset(folder / "j.yaml", train))


def test_only_metadatasets_are_taken(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a metadataset .yaml, found no such file"):
        prepare_metadataset(folder / "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"expected a metadataset .yaml$"):
        prepare_metadataset(folder / "a")
    (folder / "x.yaml").write_text("splits: 1\n")
    with pytest.raises(ConfigError, match=r"x.yaml:1: splits: expected a mapping, got 1"):
        prepare_metadataset(folder / "x.yaml")
