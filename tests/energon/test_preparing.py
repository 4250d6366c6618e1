"""Preparing from Python, with the arguments of Energon's functions."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
import yaml
from bridge_data.energon.flavors.webdataset.prepare import WebdatasetPreparator
from bridge_data.energon.media.extractor import MediaFilterConfig, MediaFilterStrategy
from bridge_data.energon.media.filesystem_prepare import prepare_filesystem_dataset

from bridge_data import CrudeJsonlDatasetFactory, CrudeWebdataset, WorkerConfig, get_loader, get_val_dataset
from bridge_data.energon import BaseWebdatasetFactory
from bridge_data.errors import ConfigError
from tests.decode.pictures import encoded, picture
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
