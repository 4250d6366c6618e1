import gzip
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
from bridge_data.data.index_file import Segment
from bridge_data.errors import DatasetError
from bridge_data.prepare import tars
from bridge_data.prepare.scan_results import scan_shard
from bridge_data.prepare.splits import split_by_ratio
from bridge_data.prepare.tars import PrepareConfig, prepare
from tests.data.tars import prepare_by_ratio, write_tar
from tests.prepare.odd_tars import LOSING, TWO, tar_of, without_content


def keys_and_notes(folder: Path, name: str = "a.tar") -> tuple[list[str], list[str]]:
    """The keys of a shard, and what a scan tells of it."""
    found = scan_shard(folder, name)
    return Segment.of(found.segment).keys(), found.notes.messages()


def test_finds_samples_and_writes_the_offsets_once(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "d/a.tar", {"1.png": b"p" * 600, "1.txt": b"t", "2.png": b"q"})
    found, index = scan_shard(tmp_path, "d/a.tar"), tmp_path / "d/a.tar.idx"
    segment = Segment.of(found.segment)
    assert (segment.keys(), segment.parts(0)) == (["1", "2"], [("png", 512, 600), ("txt", 2048, 1)])
    assert (found.num_bytes, found.mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
    right, inode = struct.pack("<QQQ", 0, 2560, 3584), index.stat().st_ino
    assert not found.notes.messages() and index.read_bytes() == right
    scan_shard(tmp_path, "d/a.tar")
    assert index.stat().st_ino == inode
    index.write_bytes(right[:-8])
    scan_shard(tmp_path, "d/a.tar")
    assert index.read_bytes() == right


def test_contents_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", {f"{number}.mp4": bytes(2_000_000) for number in range(10)})
    sizes: list[int] = []
    read = storage.read
    counting = lambda path, start, size: sizes.append(size) or read(path, start, size)  # noqa: E731
    monkeypatch.setattr("bridge_data.data.tar_files.storage.read", counting)
    assert len(keys_and_notes(tmp_path)[0]) == 10
    assert 0 < sum(sizes) < 200_000


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


def test_a_cut_anywhere_is_found(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"x", "2.txt": b"y" * 600})
    whole = path.read_bytes()
    for cut in {*range(0, 2560, 5), *(512 * block + more for block in range(5) for more in (0, 1, 511))}:
        path.write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match=r"a\.tar"):
            scan_shard(tmp_path, "a.tar")
    path.write_bytes(whole[:2560])
    told = r"ends at byte 2560 without the end mark of a tar, after sample '2'.*truncate -s \+1024"
    with pytest.raises(DatasetError, match=told):
        scan_shard(tmp_path, "a.tar")
    os.truncate(path, 2560 + 1024)
    assert keys_and_notes(tmp_path) == (["1", "2"], [])
    with pytest.raises(DatasetError, match=r"b\.tar: no such file"):
        scan_shard(tmp_path, "b.tar")


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.tar", b""), ("bad.tgz", b""), ("bad.tar.gz", gzip.compress(b"", mtime=0))],
    ids=lambda one: str(one),
)
def test_an_empty_file_among_good_shards_is_named_and_not_to_be_mended(
    tmp_path: Path, name: str, content: bytes
) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", {f"{number}.txt": b"x"})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError) as error:
        prepare_by_ratio(tmp_path)
    assert name in str(error.value) and "empty" in str(error.value) and "truncate" not in str(error.value)


FIFO = [without_content(name, tarfile.FIFOTYPE) for name in ("c.pipe", "plain")]
DEVICES = [without_content("a.dev", tarfile.CHRTYPE), without_content("b.dev", tarfile.BLKTYPE)]
FOLDERS = [without_content(name, tarfile.DIRTYPE) for name in ("folder/", "other/")]


@pytest.mark.parametrize(
    ("data", "keys", "note"),
    [
        (
            tar_of(("README", b""), ("1.txt", b""), ("LICENSE", b""), ("__meta__/x", b""), FOLDERS[0]),
            ["1"],
            "left out, as they have no part name (0001.jpg): 2 members, such as 'README' of a.tar",
        ),
        (tar_of(), [], "without samples: 1 shards, such as a.tar with 0 members"),
        (tar_of(*FOLDERS), [], "without samples: 1 shards, such as a.tar with 2 members"),
        (
            tar_of(("1.txt", b"x"), *DEVICES, *FIFO),
            ["1"],
            "left out, as they hold no data: 3 members, such as 'a.dev', a device, at byte 1024 of a.tar",
        ),
        (
            TWO + bytes(2 << 20),
            ["1", "2"],
            "more than 1,048,576 zeros at the end, as when a copy was cut off: 1 shards, such as a.tar,",
        ),
    ],
)
def test_what_holds_no_samples_is_a_note(tmp_path: Path, data: bytes, keys: list[str], note: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    found, notes = keys_and_notes(tmp_path)
    assert found == keys and [told[: len(note)] for told in notes] == [note]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a\udcffb.txt": b"x"}, tarfile.GNU_FORMAT)
    keys, (note,) = keys_and_notes(tmp_path)
    assert keys == ["a\udcffb"]
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


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
def test_what_gnu_tar_writes(tmp_path: Path) -> None:
    (tmp_path / "raw/sub").mkdir(parents=True)
    for name in ("1.txt", "1.json", "sub/2.txt", "sub/2.json"):
        (tmp_path / "raw" / name).write_text(name)
    (tmp_path / "raw/hole.bin").touch()
    os.truncate(tmp_path / "raw/hole.bin", 1 << 20)
    os.link(tmp_path / "raw/1.txt", tmp_path / "raw/3.txt")

    def tar(*arguments: str) -> None:
        command = ["tar", "--sort=name", "-C", str(tmp_path / "raw"), "-cf", str(tmp_path / "a.tar")]
        subprocess.run([*command, *arguments], check=True)

    tar("--exclude=hole.bin", "--exclude=3.txt", ".")
    assert keys_and_notes(tmp_path)[0] == ["./1", "./sub/2"]
    for arguments, told in (
        (["--format=gnu", "--sparse", "hole.bin"], r"'hole\.bin' is stored as a sparse file"),
        (["--format=posix", "--sparse", "hole.bin"], r"'hole\.bin' is stored as a sparse file"),
        (["1.txt", "3.txt"], r"'3\.txt' at byte 1024 is a hard link"),
    ):
        tar(*arguments)
        with pytest.raises(DatasetError, match=told):
            scan_shard(tmp_path, "a.tar")
    tar("--hard-dereference", "1.txt", "3.txt")
    assert keys_and_notes(tmp_path)[0] == ["1", "3"]


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
