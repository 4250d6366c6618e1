import gzip
import pickle
import random
import sys
from pathlib import Path

import pytest

from bridge_data.data import ShardReader, open_shards, shard_set
from bridge_data.data.tar_files import SMALL_STEP_BYTES, FileTar, MemoryTar, seek_index_path
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.compressed import gzip_tar
from bridge_data.plugins.compressed.gzip_tar import GzipTar
from bridge_data.prepare.tars import find_shards
from tests.data.reads import record_reads
from tests.data.tars import prepare_by_ratio, set_split, write_shards, write_tar


def test_near_headers_come_together_and_far_contents_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(0).randbytes(4_000_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    tar, memory, reads = FileTar(str(path), len(content)), MemoryTar(content, 0), record_reads(monkeypatch)
    for starts, num_reads, num_bytes in (
        (range(0, 60_000, 1024), 2, len(content)),
        (range(1_000_000, len(content), 500_000), 6, 20_000),
    ):
        reads.clear()
        for start in starts:
            assert tar.read(start, 512) == memory.read(start, 512) == content[start : start + 512]
        assert len(reads) <= num_reads and sum(size for *_, size in reads) < num_bytes
    assert all(size <= SMALL_STEP_BYTES for *_, size in reads)
    assert tar.read(5_000_000, 10) == b""


ALL = "1,0,0"


def compress(folder: Path, suffix: str = ".tgz", **shards: int) -> Path:
    """Compress the shards in `folder`, of the sizes of `write_shards`."""
    write_shards(folder, **shards)
    for path in folder.glob("*.tar"):
        path.with_suffix(suffix).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


def keys_and_parts(shards: ShardReader) -> list[tuple[str, dict[str, bytes]]]:
    return [(shards.read(index).key, shards.read(index).parts) for index in range(len(shards))]


@pytest.mark.parametrize("suffix", [".tgz", ".tar.gz"])
@pytest.mark.parametrize(
    "lost", [[], [".nv-meta/index.bridge"], ["*.gzidx"], [".nv-meta/index.bridge", "*.gzidx"]], ids=str
)
def test_compressed_shards_are_read_like_others(tmp_path: Path, suffix: str, lost: list[str]) -> None:
    """The offsets are those of the tar inside; so Energon writes them too."""
    write_shards(tmp_path / "plain")
    prepare_by_ratio(tmp_path / "plain", ALL)
    folder = compress(tmp_path / "compressed", suffix)
    prepare_by_ratio(folder, ALL)
    offsets = [next(path.glob("data-000000*.idx")).read_bytes() for path in (folder, tmp_path / "plain")]
    assert offsets[0] == offsets[1]
    for path in [path for pattern in lost for path in folder.glob(pattern)]:
        path.unlink()
    shards = ShardReader(open_shards(folder, "train"))
    expected = keys_and_parts(ShardReader(open_shards(tmp_path / "plain", "train")))
    assert keys_and_parts(shards) == keys_and_parts(pickle.loads(pickle.dumps(shards))) == expected
    assert shards.read(7, {"txt"}).parts == {"txt": expected[7][1]["txt"]}
    assert shards.read(7).full_key == f"data-000001{suffix}/000007"
    set_split(folder, f"split_parts: {{train: [data-000000{suffix}]}}\nexclude: [data-000000{suffix}/000003]\n")
    left = ShardReader(open_shards(folder, "train"))
    assert keys_and_parts(left) == [one for one in expected[:5] if one[0] != "000003"]


def test_points_are_used_and_their_absence_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gzip_tar, "SPACING_BYTES", 1 << 16)
    monkeypatch.setattr(shard_set, "MAX_TABLE_BYTES", 1)
    noise, points = random.Random(1).randbytes(640_000), seek_index_path(tmp_path / "a.tgz")
    tar = write_tar(tmp_path / "a.tar", {f"{number}.bin": noise[number::10] for number in range(10)})
    for name in ("a.tgz", "b.tgz"):
        (tmp_path / name).write_bytes(gzip.compress(tar.read_bytes()))
    size = tar.stat().st_size
    tar.unlink()
    prepare_by_ratio(tmp_path, ALL)
    assert GzipTar(str(tmp_path / "a.tgz")).end == size
    assert len(list(GzipTar(str(tmp_path / "a.tgz"))._file.seek_points())) > 5
    for damage in (lambda: None, points.unlink, lambda: points.write_bytes(b"nonsense")):
        damage()
        reader = ShardReader(open_shards(tmp_path, "train"))
        for number in (9, 15, 3):
            assert reader.read(number).parts["bin"] == noise[number % 10 :: 10]
    (record,) = caplog.records
    assert "compressed shards without their .gzidx" in record.getMessage()


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the compressed shards that are opened from now on."""
    names: list[str] = []
    open_tar = gzip_tar._opened
    monkeypatch.setattr(gzip_tar, "_opened", lambda path: names.append(Path(path).name) or open_tar(path))
    return names


def test_each_of_many_compressed_shards_is_opened_once_while_their_points_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compress(tmp_path, num_shards=90, samples_per_shard=2)
    prepare_by_ratio(folder, ALL)
    reader = ShardReader(open_shards(folder, "train"))
    expected, names = keys_and_parts(reader), opened(monkeypatch)
    assert keys_and_parts(reader) == expected and not names


def test_beyond_that_the_shard_that_was_not_used_for_the_longest_time_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compress(tmp_path, num_shards=8, samples_per_shard=1)
    prepare_by_ratio(folder, ALL)
    held = GzipTar(str(folder / "data-000000.tgz")).held_bytes
    monkeypatch.setattr(shard_set, "MAX_TABLE_BYTES", 4 * held)
    reader, names = ShardReader(open_shards(folder, "train")), opened(monkeypatch)
    for number in (0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 1, 0):
        reader.read(number)
    assert names == [f"data-{number:06d}.tgz" for number in (0, 1, 2, 3, 4, 5, 6, 7, 1)]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_shard_that_was_replaced_is_found_out(tmp_path: Path, with_index: bool) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"one" * 999, "2.txt": b"two" * 999})
    (tmp_path / "a.tgz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    (tmp_path / "a.tar").unlink()
    prepare_by_ratio(tmp_path, ALL)
    if not with_index:
        (tmp_path / ".nv-meta/index.bridge").unlink()
    write_tar(tmp_path / "b", {"3.txt": b"three"})
    (tmp_path / "a.tgz").write_bytes(gzip.compress((tmp_path / "b").read_bytes()[:2048]))
    with pytest.raises(DatasetError, match=r"a\.tgz.*sample 1, number 1 of a\.tgz"):
        ShardReader(open_shards(tmp_path, "train")).read(1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], r"member '00000\d\.bin' takes bytes .*The tar is truncated or damaged"),
        (
            lambda data: data[:2000] + bytes([data[2000] ^ 0xFF]) + data[2001:],
            "cannot be decompressed: .*It is damaged",
        ),
        (
            lambda data: gzip.compress(gzip.decompress(data)[: 9 * 2560]),
            "ends at byte 23040 without the end mark of a tar, after sample '000008'.* Write it again",
        ),
        (lambda data: gzip.decompress(data), "is not compressed by gzip, as its name says: call it .tar"),
        (lambda data: b"", "is not compressed by gzip, as its name says: it is empty"),
    ],
)
def test_damaged_shards_are_named(tmp_path: Path, damage: object, message: str) -> None:
    write_tar(tmp_path / "a.tar", {f"{n:06d}.bin": random.Random(n).randbytes(2000) for n in range(9)})
    data = gzip.compress((tmp_path / "a.tar").read_bytes())
    (tmp_path / "a.tar").unlink()
    (tmp_path / "a.tgz").write_bytes(damage(data))  # type: ignore[operator]
    with pytest.raises(DatasetError, match=rf"a\.tgz: {message}"):
        prepare_by_ratio(tmp_path, ALL)


def test_what_stands_in_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compress(tmp_path, num_shards=1)
    write_tar(tmp_path / "data-000000.tar", {"1.txt": b""})
    with pytest.raises(ConfigError, match=r"data-000000\.tar and data-000000\.tgz would share .*data-000000\.tar\.idx"):
        find_shards(tmp_path)
    assert find_shards(tmp_path, exclude="tgz$") == ["data-000000.tar"]
    (tmp_path / "data-000000.tar").unlink()
    with pytest.raises(DatasetError, match=r"a\.tgz: no such file"):
        GzipTar(str(tmp_path / "a.tgz"))
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(ConfigError, match=r"pip install indexed_gzip, or decompress them"):
        prepare_by_ratio(tmp_path, ALL)
