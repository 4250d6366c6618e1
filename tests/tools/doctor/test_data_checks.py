import os
import shutil
from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.tools.doctor import data_checks
from bridge_data.tools.doctor.data_checks import ShardsSeen, check_data
from bridge_data.tools.doctor.planned_run import Finding, Level
from tests.object_store import Bucket
from tests.prepared import write_texts


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 60, per_shard=10)


def found(path: Path | str) -> tuple[dict[str, Finding], ShardsSeen]:
    seen = ShardsSeen()
    return {finding.code: finding for finding in check_data(load_plan(path).sources, seen)}, seen


def test_sound_data(texts: Path) -> None:
    assert found(texts) == ({}, ShardsSeen(6, 6))


def test_no_shard_is_opened(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = load_plan(texts).sources
    opened = []
    real = os.open

    def note(path: str, *arguments: object, **named: object) -> int:
        opened.append(str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", note)
    list(check_data(sources, ShardsSeen()))
    assert not [path for path in opened if path.endswith(".tar")]


def test_a_shard_of_another_size_stops(texts: Path) -> None:
    with (texts / "data-0002.tar").open("ab") as shard:
        shard.write(bytes(512))
    findings, _ = found(texts)
    assert findings["index-outdated"].level is Level.STOPS
    assert "1 shard such as data-0002.tar are of another size" in findings["index-outdated"].what


def test_a_shard_that_is_gone_stops(texts: Path) -> None:
    (texts / "data-0003.tar").unlink()
    findings, _ = found(texts)
    assert findings["missing-shard"].level is Level.STOPS
    assert "data-0003.tar" in findings["missing-shard"].what


def test_shards_with_another_time_of_change_are_compared_when_they_are_read(texts: Path) -> None:
    os.utime(texts / "data-0001.tar", (1, 1))
    findings, _ = found(texts)
    assert [*findings] == ["index-times"]
    assert findings["index-times"].level is Level.SLOWS


def test_data_without_our_index(texts: Path) -> None:
    (texts / ".nv-meta" / "index.bridge").unlink()
    findings, _ = found(texts)
    assert findings["index-missing"].change == f"run `bridge-data prepare {texts} --tar-index-only`"


def test_faults_of_the_metadata_are_those_of_lint(texts: Path) -> None:
    shutil.copy(texts / "data-0000.tar", texts / "more.tar")
    findings, _ = found(texts)
    assert findings["unprepared-shard"].level is Level.NOTE
    assert "more.tar" in findings["unprepared-shard"].what


def test_of_many_shards_some_are_looked_at(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_checks, "MAX_LOOKED_AT", 3)
    (texts / "data-0002.tar").unlink()
    findings, seen = found(texts)
    assert seen == ShardsSeen(6, 3)
    assert findings["missing-shard"].what.endswith("1 shard such as data-0002.tar are gone")


def test_shards_in_an_object_store_are_counted(texts: Path, bucket: Bucket) -> None:
    shutil.copytree(texts, bucket.folder / "texts")
    assert found(f"{bucket.url}/texts") == ({}, ShardsSeen(num_remote=6))


def test_many_small_shards(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_checks, "MANY_SHARDS", 6)
    findings, _ = found(texts)
    assert [*findings] == ["small-shards"]
    assert "6 shards of 0.0" in findings["small-shards"].what
