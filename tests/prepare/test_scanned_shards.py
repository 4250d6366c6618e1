import io
import os
import shutil
import struct
import subprocess
import tarfile
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.prepare import tars
from bridge_data.prepare.scan_results import scan_shard
from bridge_data.prepare.splits import split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare
from bridge_data.shards.index_file import Segment
from tests.prepare.odd_tars import LOSING, TWO, tar_of, without_content
from tests.shards.tars import write_tar


def test_finds_samples_and_writes_the_offsets(tmp_path: Path) -> None:
    write_tar(tmp_path / "d/a.tar", {"1.png": b"p" * 600, "1.txt": b"t", "2.png": b"q"})
    found = scan_shard(tmp_path, "d/a.tar")
    segment = Segment.of(found.segment)
    assert segment.keys() == ["1", "2"]
    assert segment.parts(0) == [("png", 512, 600), ("txt", 2048, 1)]
    assert not found.notes.told()
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

    monkeypatch.setattr("bridge_data.shards.tar_files.storage.read", counting)
    assert len(Segment.of(scan_shard(tmp_path, "a.tar").segment)) == 10
    assert num_bytes < 200_000


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.txt", "2.txt", "1.txt"], r"a\.tar: duplicate key '1': sample number 0.*part 'txt' again"),
        (["1.txt", "1.txt"], r"a\.tar: sample '1' has two members 1\.txt"),
        (["1.png", "2.png", "1.txt", "2.txt"], r"parts of sample '1' are not next to each other: 1\.png.*1\.txt.*sort"),
        (["README"], r"a\.tar: holds no samples: its files, such as 'README' of a\.tar.*--exclude"),
    ],
)
def test_members_that_make_no_samples(tmp_path: Path, names: list[str], message: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DatasetError, match=message):
        scan_shard(tmp_path, "a.tar")
    assert not (tmp_path / "a.tar.idx").exists()


def test_members_without_a_part_name_are_counted(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"README": b"", "1.txt": b"", "LICENSE": b"", "__meta__/x": b"", "folder/": b""})
    found = scan_shard(tmp_path, "a.tar")
    assert found.notes.told() == [
        "left out, as they have no part name (0001.jpg): 2 members, such as 'README' of a.tar"
    ]


@pytest.mark.parametrize(("members", "count"), [({}, 0), ({"folder/": b"", "other/": b""}, 2)])
def test_a_shard_without_members_or_with_folders_alone_is_a_note(
    tmp_path: Path, members: dict[str, bytes], count: int
) -> None:
    write_tar(tmp_path / "a.tar", members)
    found = scan_shard(tmp_path, "a.tar")
    assert len(Segment.of(found.segment)) == 0
    assert found.notes.told() == [f"without samples: 1 shards, such as a.tar with {count} members"]


def test_truncated_and_missing_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"x" * 5000, "2.txt": b"y" * 5000})
    whole = (tmp_path / "a.tar").read_bytes()
    for cut in (0, 300, 4000, 5700, 9000):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match=r"a\.tar: "):
            scan_shard(tmp_path, "a.tar")
    with pytest.raises(DatasetError, match=r"b\.tar: no such file"):
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
    with pytest.raises(
        DatasetError, match=r"ends at byte 2560 without the end mark of a tar, after sample '2'.*truncate -s \+1024"
    ):
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
    found = scan_shard(tmp_path, "a.tar")
    assert Segment.of(found.segment).keys() == ["a\udcffb"] == [Segment.of(found.segment).key(0)]
    (note,) = found.notes.told()
    assert note.startswith("names that are not UTF-8: 1 members, such as 'a\\udcffb.txt' at byte 0 of a.tar")


@pytest.mark.parametrize("name", LOSING)
def test_no_reader_of_tars_loses_what_is_accepted(tmp_path: Path, name: str) -> None:
    data, message = LOSING[name]
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DatasetError, match=message) as caught:
        scan_shard(tmp_path, "a.tar")
    assert str(tmp_path / "a.tar") in str(caught.value)
    assert not (tmp_path / "a.tar.idx").exists()


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("name", LOSING)
def test_tarfile_and_gnu_tar_do_lose_it(tmp_path: Path, name: str) -> None:
    """What the error says is so: files that are in the tar are not among those that readers take."""
    path = tmp_path / "a.tar"
    path.write_bytes(LOSING[name][0])
    with tarfile.open(path) as archive:
        taken = [member.name for member in archive if member.isreg()]
    with tarfile.open(path, ignore_zeros=True) as archive:
        there = [member.name for member in archive]
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=False).stdout.split()
    if name in ("zeros for a header", "bytes behind the end"):  # no reader knows what was there
        assert taken == listed == there[: len(taken)]
    else:
        assert set(taken) < set(there)
        assert "link" in name or listed == taken


def test_devices_and_fifos_hold_nothing_and_are_counted(tmp_path: Path) -> None:
    kinds = {"a.dev": tarfile.CHRTYPE, "b.dev": tarfile.BLKTYPE, "c.pipe": tarfile.FIFOTYPE, "plain": tarfile.FIFOTYPE}
    (tmp_path / "a.tar").write_bytes(
        tar_of(("1.txt", b"x"), *(without_content(name, kind) for name, kind in kinds.items()))
    )
    found = scan_shard(tmp_path, "a.tar")
    assert Segment.of(found.segment).keys() == ["1"]
    assert found.notes.told() == [
        "left out, as they hold no data: 3 members, such as 'a.dev', a device, at byte 1024 of a.tar"
    ]


def test_a_long_run_of_zeros_at_the_end_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TWO + bytes(2 << 20))
    (note,) = scan_shard(tmp_path, "a.tar").notes.told()
    assert note.startswith("more than 1,048,576 zeros at the end, as when a copy was cut off: 1 shards, such as a.tar,")
    (tmp_path / "a.tar").write_bytes(TWO)
    assert not scan_shard(tmp_path, "a.tar").notes.told()


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
    for format in ("gnu", "posix"):
        subprocess.run([*command, str(tmp_path / "b.tar"), f"--format={format}", "--sparse", "hole.bin"], check=True)
        with pytest.raises(DatasetError, match=r"'hole\.bin' is stored as a sparse file"):
            scan_shard(tmp_path, "b.tar")


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
def test_files_that_gnu_tar_stored_as_hard_links(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/1.txt").write_text("one")
    os.link(tmp_path / "raw/1.txt", tmp_path / "raw/2.txt")
    command = ["tar", "--sort=name", "-C", str(tmp_path / "raw"), "-cf", str(tmp_path / "a.tar")]
    subprocess.run([*command, "1.txt", "2.txt"], check=True)
    with pytest.raises(DatasetError, match=r"'2\.txt' at byte 1024 is a hard link"):
        scan_shard(tmp_path, "a.tar")
    subprocess.run([*command, "--hard-dereference", "1.txt", "2.txt"], check=True)
    assert Segment.of(scan_shard(tmp_path, "a.tar").segment).keys() == ["1", "2"]


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


NAMES = ["a.tar", "b.tar", "c.tar"]
SPLIT = partial(split_by_ratio, ratio=(Fraction(1), Fraction(0), Fraction(0)))


def test_an_interrupted_run_is_found_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        write_tar(tmp_path / name, {"0.txt": b"x", "1.txt": b"y"})
    whole = tars._prefix

    def interrupted(path: Path, folder: str) -> bool:
        if path.name == NAMES[-1]:
            raise KeyboardInterrupt
        return whole(path, folder)

    fix = PrepareConfig(num_workers=1, fix_duplicates=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tars, "_prefix", interrupted)
        prepare(tmp_path, SPLIT, fix)
    with pytest.raises(DatasetError, match=r"was interrupted.*--fix-duplicates again"):
        prepare(tmp_path, SPLIT, PrepareConfig(num_workers=1))
    prepare(tmp_path, SPLIT, fix)
    for name in NAMES:
        with tarfile.open(tmp_path / name) as tar:
            assert tar.getnames() == [f"{name}/0.txt", f"{name}/1.txt"]
    prepare(tmp_path, SPLIT, PrepareConfig(num_workers=1))
