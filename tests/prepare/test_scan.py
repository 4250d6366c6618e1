import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError, WorkerError
from bridge_data.prepare.scan import ShardScan, scan_shard, scan_shards
from bridge_data.shards.segment import Segment
from tests.shards.tars import write_shards, write_tar


def test_finds_samples_and_writes_the_offsets(tmp_path: Path) -> None:
    write_tar(tmp_path / "d/a.tar", {"1.png": b"p" * 600, "1.txt": b"t", "2.png": b"q"})
    found = scan_shard(tmp_path, "d/a.tar")
    segment = Segment.of(found.segment)
    assert segment.keys() == ["1", "2"]
    assert segment.parts(0) == [("png", 512, 600), ("txt", 2048, 1)]
    assert found.left_out == 0
    assert (found.num_bytes, found.mtime_ns) == (
        (tmp_path / "d/a.tar").stat().st_size,
        (tmp_path / "d/a.tar").stat().st_mtime_ns,
    )
    assert (tmp_path / "d/a.tar.idx").read_bytes() == struct.pack("<QQQ", 0, 2560, 3584)


def test_contents_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", {f"{number}.mp4": bytes(2_000_000) for number in range(10)})
    num_bytes = 0
    read = storage.read

    def counting(path: str, start: int, size: int) -> bytes:
        nonlocal num_bytes
        num_bytes += size
        return read(path, start, size)

    monkeypatch.setattr("bridge_data.shards.tar_bytes.storage.read", counting)
    assert len(Segment.of(scan_shard(tmp_path, "a.tar").segment)) == 10
    assert num_bytes < 200_000


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.txt", "2.txt", "1.txt"], r"a\.tar: duplicate key '1': sample number 0.*part 'txt' again"),
        (["1.txt", "1.txt"], r"a\.tar: sample '1' has two members 1\.txt"),
        (["1.png", "2.png", "1.txt", "2.txt"], r"parts of sample '1' are not next to each other: 1\.png.*1\.txt.*sort"),
        (["README"], r"a\.tar: holds no samples; its 1 members, such as 'README'.*--exclude"),
        ([], r"a\.tar: holds no samples\. Remove it"),
    ],
)
def test_members_that_make_no_samples(tmp_path: Path, names: list[str], message: str) -> None:
    import io

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DatasetError, match=message):
        scan_shard(tmp_path, "a.tar")
    assert not (tmp_path / "a.tar.idx").exists()


def test_members_without_a_part_name_are_counted(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"README": b"", "1.txt": b"", "LICENSE": b"", "__meta__/x": b"", "folder/": b""})
    found = scan_shard(tmp_path, "a.tar")
    assert (found.left_out, found.example) == (2, "README")


def test_truncated_and_missing_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"x" * 5000, "2.txt": b"y" * 5000})
    whole = (tmp_path / "a.tar").read_bytes()
    for cut in (0, 300, 4000, 5700, 9000):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match=r"a\.tar: "):
            scan_shard(tmp_path, "a.tar")
    with pytest.raises(DatasetError, match=r"b\.tar: cannot be read: No such file"):
        scan_shard(tmp_path, "b.tar")


@pytest.mark.processes
def test_a_cut_anywhere_is_found(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"x", "2.txt": b"y" * 600})
    whole = path.read_bytes()
    for cut in range(2560):
        path.write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match=r"a\.tar"):
            scan_shard(tmp_path, "a.tar")
    path.write_bytes(whole[:2560])
    with pytest.raises(DatasetError, match=r"ends after sample '2' without the end mark.*truncate -s \+1024"):
        scan_shard(tmp_path, "a.tar")
    with open(path, "r+b") as file:
        file.truncate(2560 + 1024)
    assert len(Segment.of(scan_shard(tmp_path, "a.tar").segment)) == 2


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"aXb.txt": b"x"})
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[1] = 0xFF
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DatasetError, match=r"a\.tar: .*(UTF-8|utf-8)"):
        scan_shard(tmp_path, "a.tar")


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
def test_what_gnu_tar_writes(tmp_path: Path) -> None:
    (tmp_path / "raw/sub").mkdir(parents=True)
    for name in ("1.txt", "1.json", "sub/2.txt", "sub/2.json"):
        (tmp_path / "raw" / name).write_text(name)
    with open(tmp_path / "raw/hole.bin", "wb") as file:
        file.truncate(1 << 20)
    command = ["tar", "--sort=name", "-C", str(tmp_path / "raw"), "-cf"]
    subprocess.run([*command, str(tmp_path / "a.tar"), "--exclude=hole.bin", "."], check=True)
    assert Segment.of(scan_shard(tmp_path, "a.tar").segment).keys() == ["./1", "./sub/2"]
    subprocess.run([*command, str(tmp_path / "b.tar"), "--sparse", "hole.bin"], check=True)
    with pytest.raises(DatasetError, match=r"'hole\.bin' is stored as a sparse file"):
        scan_shard(tmp_path, "b.tar")


SCAN_IN_PROCESSES = """
import os, sys
from pathlib import Path
from bridge_data.prepare import scan
scan_shard = scan.scan_shard
def told(root, name, **settings):
    Path(root, name + ".pid").write_text(str(os.getpid()))
    if os.environ.get("DIE") == name:
        os.kill(os.getpid(), 9)
    return scan_shard(root, name, **settings)
scan.scan_shard = told
root = Path(sys.argv[1])
names = sorted(path.name for path in root.glob("*.tar"))
found = list(scan.scan_shards(root, names, num_workers=3))
assert [one.name for one in found] == names
assert os.getpid() not in {int(Path(root, name + ".pid").read_text()) for name in names}
"""


@pytest.mark.processes
def test_processes_do_the_work(tmp_path: Path) -> None:
    write_shards(tmp_path, num_shards=12)
    command = [sys.executable, "-c", SCAN_IN_PROCESSES, str(tmp_path)]
    with subprocess.Popen(command) as program:
        assert program.wait() == 0
    workers = {path.read_text() for path in tmp_path.glob("*.pid")}  # one may do it all where a core is busy
    assert workers and str(program.pid) not in workers
    died = subprocess.run(command, env=os.environ | {"DIE": "data-000004.tar"}, capture_output=True, text=True)
    assert f"{WorkerError.__name__}: a process that scanned shards of {tmp_path} was killed" in died.stderr


@pytest.mark.parametrize("num_workers", [1, 4])
def test_results_keep_their_order_and_faults_are_among_them(tmp_path: Path, num_workers: int) -> None:
    write_shards(tmp_path, num_shards=10)
    (tmp_path / "data-000003.tar").write_bytes(b"no tar")
    names = [f"data-{number:06d}.tar" for number in range(10)]
    done: list[None] = []
    found = list(scan_shards(tmp_path, names, num_workers=num_workers, on_done=lambda: done.append(None)))
    assert len(done) == 10
    assert isinstance(found.pop(3), DatasetError)
    assert [one.name for one in found if isinstance(one, ShardScan)] == names[:3] + names[4:]


def test_many_small_shards_keep_their_order_too(tmp_path: Path) -> None:
    names = [f"{number:03d}.tar" for number in range(150)]
    for name in names:
        write_tar(tmp_path / name, {f"{name[:3]}.txt": name[:3].encode()})
    (tmp_path / "070.tar").unlink()
    done: list[None] = []
    found = list(scan_shards(tmp_path, names, num_workers=2, on_done=lambda: done.append(None)))
    assert len(done) == 150
    assert isinstance(found[70], DatasetError)
    assert [one.name for one in found if isinstance(one, ShardScan)] == names[:70] + names[71:]


def test_offsets_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"t"})
    scan_shard(tmp_path, "a.tar")
    before = (tmp_path / "a.tar.idx").stat()
    scan_shard(tmp_path, "a.tar")
    assert (tmp_path / "a.tar.idx").stat().st_ino == before.st_ino
    right = (tmp_path / "a.tar.idx").read_bytes()
    (tmp_path / "a.tar.idx").write_bytes(right[:-8])
    scan_shard(tmp_path, "a.tar")
    assert (tmp_path / "a.tar.idx").read_bytes() == right
