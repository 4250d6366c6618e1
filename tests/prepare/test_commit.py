"""The files of a preparation replace those of before together, and one process at a time prepares a folder."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.data import PreparedDataset, open_shards
from bridge_data.data.index_file import BridgeIndex
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.stores.object_store import ObjectStore
from bridge_data.prepare import commit
from bridge_data.prepare.commit import preparing_alone, scratch_folder
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.prepare.tars import PrepareConfig, find_shards, prepare, refresh_index, scan_share
from bridge_data.storage import RemotePath
from bridge_data.storage.atomic import temporary_name
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.object_store import Bucket, Server, faulty_proxy
from tests.prepare.same_indexes import rows_of, schema_of


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left = [tmp_path / ".nv-meta/.index.sqlite.123.tmp", tmp_path / "in/.a.tar.idx.99.tmp"]
    kept = [tmp_path / ".nv-meta/index.sqlite", tmp_path / "in/a.tar", tmp_path / "in/.hidden.tmp"]
    for path in left + kept:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with scratch_folder(tmp_path / "in", "packing") as scratch:
        shutil.copytree(scratch, left_folder := scratch.with_name(f"{scratch.name}.99.tmp"))
    (left_folder / "b.tar").touch()
    left += [left_folder, scratch]
    with preparing_alone(tmp_path) as remove_temporary:
        remove_temporary([tmp_path / ".nv-meta", tmp_path / "in", tmp_path / "none"])
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)


@pytest.mark.processes
def test_another_process_waits_in_vain_and_a_killed_one_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from bridge_data.prepare.commit import preparing_alone\nimport time\nfrom pathlib import Path\n\
with preparing_alone(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        monkeypatch.setattr(commit, "PATIENCE_S", 0.1)
        with pytest.raises(DatasetError, match="another process is preparing it"), preparing_alone(tmp_path):
            pass
        other.kill()
        other.wait()
    with preparing_alone(tmp_path):
        pass


TWO = PrepareConfig(num_workers=2)


def split(names: Sequence[str]) -> dict[str, list[str]]:
    return {"train": list(names[:-1]), "val": list(names[-1:])}


def upload(folder: Path, root: RemotePath) -> RemotePath:
    for path in sorted(folder.rglob("*.tar")):
        storage.upload(root / str(path.relative_to(folder)), path)
    return root


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_shards(tmp_path / "local", num_shards=6)
    return tmp_path / "local"


@pytest.fixture
def root(bucket: Bucket, local: Path) -> RemotePath:
    return upload(local, RemotePath(f"{bucket.url}/photos"))


def contents(index: BridgeIndex | None) -> list[tuple[str, int, bytes]]:
    """All that an index says but times of change."""
    assert index is not None
    return [(name, entry.num_bytes, index.segment_bytes(name)) for name, entry in index.entries.items()]


def assert_same(bucket: Bucket, root: RemotePath, local: Path) -> None:
    """What was written to the store is what was written beside the same shards on a disk."""
    stored = bucket.folder / root.name
    names = {str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()}
    assert {str(path.relative_to(stored)) for path in stored.rglob("*") if path.is_file()} == names
    for name in names - {".nv-meta/index.bridge", ".nv-meta/index.sqlite"}:
        assert (stored / name).read_bytes() == (local / name).read_bytes(), name
    assert rows_of(stored) == rows_of(local)
    assert schema_of(stored) == schema_of(local)
    assert contents(PreparedDataset.open(root).index) == contents(PreparedDataset.open(local).index)


def test_a_store_gets_what_a_disk_gets_by_one_or_several_tasks_and_again(
    root: RemotePath, local: Path, bucket: Bucket
) -> None:
    assert scan_share(root, ScanTask(2, 3), TWO)[:2] == (2, 2)
    with pytest.raises(DatasetError, match=r"4 of 6 shards .* tasks 0, 1 of 3 \(counted from 0\) have not finished"):
        prepare(root, split, PrepareConfig(num_workers=2, merge=True))
    told = [scan_share(root, ScanTask(index, 3), TWO)[:2] for index in (0, 1, 1)]
    assert told == [(2, 2), (2, 2), (2, 0)]
    definitions = {"dataset.yaml": {"sample_type": "x"}}
    done = prepare(root, split, PrepareConfig(num_workers=2, merge=True), definitions=definitions)
    prepare(local, split, TWO, definitions=definitions)
    assert done.num_samples == 30
    assert_same(bucket, root, local)
    stored, on_disk = open_shards(str(root), "train"), open_shards(local, "train")
    assert stored.identity() == on_disk.identity()
    of_both = [[shards.reader().read(number).parts for number in range(25)] for shards in (stored, on_disk)]
    assert of_both[0] == of_both[1]
    same_size = (local / "data-000002.tar").read_bytes().replace(b'"caption"', b'"Caption"')
    (local / "data-000002.tar").write_bytes(same_size)
    write_tar(local / "data-000006.tar", {"new.txt": b"x"})
    for name in ("data-000002.tar", "data-000006.tar"):
        storage.upload(root / name, local / name)
    assert prepare(root, split, TWO).num_scanned == 2
    prepare(local, split, TWO)
    assert_same(bucket, root, local)
    assert prepare(root, split, TWO).num_scanned == 0
    assert refresh_index(root, PrepareConfig(num_workers=2, rescan=True)).num_scanned == 7
    assert_same(bucket, root, local)


class Crash(BaseException):
    """Ends a preparation as if the process were killed: nothing that it would still do in the store is done."""


def crashing(step: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do this, but crash at request number `step` of those that change the store; whether that many were made."""
    made = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object) -> object:
            nonlocal made
            if made >= step:
                made += 1
                raise Crash
            made += 1
            return call(*arguments)

        return counting

    with monkeypatch.context() as patch:
        for name in ("write", "delete"):
            patch.setattr(ObjectStore, name, counted(getattr(ObjectStore, name)))
        try:
            action()
        except Crash:
            return True
    return False


def test_killed_at_every_step_nothing_half_written_is_opened(
    root: RemotePath, local: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = PrepareConfig(num_workers=1)
    prepare_by_ratio(local)
    before = prepare(root, split, one).shard_counts
    write_tar(local / "data-000001.tar", {"changed.txt": b"x", "too.txt": b"y"})
    storage.upload(root / "data-000001.tar", local / "data-000001.tar")
    after = before | {"data-000001.tar": 2}
    seen = []
    for step in range(100):
        crashed = crashing(step, lambda: prepare(root, split, one), monkeypatch)
        try:
            dataset = PreparedDataset.open(root)
        except ConfigError as error:
            assert "is being prepared now, or was until that was interrupted" in str(error)
            seen.append("refused")
            continue
        assert dataset.index is not None and dataset.index.describes(dataset.shard_counts, dataset.index.uuid)
        seen.append({json.dumps(before): "before", json.dumps(after): "after"}[json.dumps(dataset.shard_counts)])
        if not crashed:
            break
    assert seen[0] == "before" and seen.count("refused") >= 5 and seen[-1] == "after"
    prepare(local, split, one)
    assert_same(bucket, root, local)


def test_of_two_preparations_at_once_one_fails_and_says_so(
    root: RemotePath, local: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ObjectStore.write

    def interrupted(store: ObjectStore, url: str, content: bytes | Path) -> object:
        if url.endswith("index.uuid"):
            monkeypatch.setattr(ObjectStore, "write", write)
            prepare(root, split, TWO)
            PreparedDataset.open(root)
        return write(store, url, content)

    monkeypatch.setattr(ObjectStore, "write", interrupted)
    with pytest.raises(DatasetError, match=r"photos: another process has prepared it at the same time.*bridge-data"):
        prepare(root, split, TWO)
    with pytest.raises(ConfigError, match="is being prepared now"):
        PreparedDataset.open(root)
    prepare(root, split, TWO)
    prepare(local, split, TWO)
    assert_same(bucket, root, local)


def test_contents_that_are_large_are_not_read(
    bucket: Bucket, s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "large" / "0.tar", {f"{number}.bin": bytes(3 << 20) for number in range(8)})
    root = upload(tmp_path / "large", RemotePath(f"{bucket.url}/large"))
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setattr("bridge_data.plugins.stores.clients._clients.buckets", {})
        proxy.faults.extend([503, "cut"])
        scan_share(root, ScanTask(0, 1), PrepareConfig(num_workers=1))
        ranges = [header.removeprefix("bytes=").split("-") for _, _, header in proxy.requests if header]
    monkeypatch.setattr("bridge_data.plugins.stores.clients._clients.buckets", {})
    assert sum(int(end) - int(start) + 1 for start, end in ranges) < 6 << 20  # of 24 MiB


def test_what_is_damaged_or_takes_a_disk_says_so_and_nothing_is_written(
    root: RemotePath, local: Path, bucket: Bucket
) -> None:
    with pytest.raises(ConfigError, match="photos: fix_duplicates writes the tars again, which is done on a disk"):
        prepare(root, split, PrepareConfig(fix_duplicates=True))
    for name, content, told in (
        ("data-000004.tar", (local / "data-000004.tar").read_bytes()[:2000], r"photos/data-000004\.tar: "),
        ("a.tgz", b"x", r"a\.tgz: compressed shards are read on a disk only: decompress it"),
    ):
        storage.upload(root / name, content)
        with pytest.raises(DatasetError, match=told):
            prepare(root, split, TWO)
    assert not (bucket.folder / "photos/.nv-meta").exists()
    with pytest.raises(ConfigError, match="nothing: no such folder"):
        find_shards(RemotePath(f"{bucket.url}/nothing"))
    left = root / temporary_name("a.tar")
    storage.upload(left, b"x")
    with preparing_alone(root), preparing_alone(root) as remove_temporary:  # it is not locked, and nothing is removed
        remove_temporary([root])
    assert storage.read_all(left) == b"x"
