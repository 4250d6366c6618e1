import array
import os
import pickle
import struct
import tarfile
from pathlib import Path

import pytest

from bridge_data.data import ShardReader, Subset, open_shards, shard_set
from bridge_data.data.blocks import BlockBudget, BlockCache, ChunkBlocks
from bridge_data.data.prepared import first_samples
from bridge_data.data.records import verified
from bridge_data.data.sample_offsets import encode_offsets, read_offsets
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from bridge_data.samples import SourceInfo
from bridge_data.storage import close_files
from tests.data.reads import record_reads
from tests.data.tars import prepare_by_ratio, text_of, write_shards, write_tar
from tests.object_store import Bucket

ALL = "1,0,0"


@pytest.fixture(params=["index.bridge", ".tar.idx"])
def with_index(request: pytest.FixtureRequest) -> bool:
    """Whether our index is there."""
    return bool(request.param == "index.bridge")


def prepared(folder: Path, with_index: bool) -> ShardReader:
    prepare_by_ratio(folder, ALL)
    if not with_index:
        (folder / ".nv-meta/index.bridge").unlink()
    close_files()
    return ShardReader(open_shards(folder, "train"))


def test_a_sample_says_where_it_was_read(tmp_path: Path, with_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of however many shards, with bounded memory for tables."""
    monkeypatch.setattr(shard_set, "MAX_TABLE_BYTES", 2 * 2100)
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    for index in (0, 19, 5, 10, 1):
        sample = samples.read(index)
        assert sample.parts == {"json": f'{{"caption": "c{index}"}}'.encode(), "txt": text_of(index)}
        names = (f"{index:06d}.json", f"{index:06d}.txt")
        place = {"index": index, "shard_name": f"data-{index // 5:06d}.tar", "file_names": names}
        assert sample.source_info() == SourceInfo(dataset_path=str(tmp_path), **place)


def test_only_the_parts_that_are_wanted(tmp_path: Path, with_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", {"1.mp4": bytes(5_000_000), "1.txt": b"words", "2.txt": b"more"})
    samples = prepared(tmp_path, with_index)
    reads = record_reads(monkeypatch)
    assert samples.read(0, {"txt", "json"}).parts == {"txt": b"words"}
    assert samples.read(1, frozenset()).parts == {}
    assert sum(num_bytes for _, _, num_bytes in reads) < 200_000
    assert len(samples.read(0).parts["mp4"]) == 5_000_000


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_dialects_and_odd_names(tmp_path: Path, with_index: bool, format: int) -> None:
    members = {
        "folder/": b"",
        "folder/1.left.png": b"left",
        "folder/1.right.png": b"",
        "__meta__/about.txt": b"no data",
        "README": b"no data",
        f"{'d' * 60}/{'f' * 90}.txt": b"long",
        "ä/ü.x.txt": b"umlaut",
        "v1.0/a.txt": b"dots",
    }
    write_tar(tmp_path / "a.tar", members, format)
    samples = prepared(tmp_path, with_index)
    found = [(samples.read(index).key, samples.read(index).parts) for index in range(len(samples))]
    assert found == [
        ("folder/1", {"left.png": b"left", "right.png": b""}),
        (f"{'d' * 60}/{'f' * 90}", {"txt": b"long"}),
        ("ä/ü", {"x.txt": b"umlaut"}),
        ("v1.0/a", {"txt": b"dots"}),
    ]


def test_a_shard_that_is_missing_or_cut_is_named_with_the_sample(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    path = tmp_path / "data-000001.tar"
    whole = path.read_bytes()
    samples = prepared(tmp_path, with_index)
    samples.read(5)
    os.truncate(path, 3000)
    with pytest.raises(DatasetError, match=r"the file has 3000.*sample 9"):
        samples.read(9)
    close_files()
    samples = ShardReader(open_shards(tmp_path, "train"))
    with pytest.raises(DatasetError, match=r"has 3000 bytes.*truncated or was replaced.*bridge-data prepare"):
        samples.read(5)
    path.unlink()
    close_files()
    samples = ShardReader(open_shards(tmp_path, "train"))
    with pytest.raises(DatasetError, match=r"data-000001\.tar: no such file.*sample 7, number 2 of data-000001\.tar"):
        samples.read(7)
    assert samples.read(4).key == "000004"
    path.write_bytes(whole)
    assert samples.read(7).key == "000007"


def write_offsets(folder: Path, *offsets: int) -> None:
    (folder / "a.tar.idx").write_bytes(b"".join(n.to_bytes(8, "little") for n in offsets))


def test_offsets_that_were_renewed_by_a_tool_that_does_not_know_our_index_are_those_that_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"x" * 600})
    samples = prepared(tmp_path, with_index=True)
    size = path.stat().st_size
    write_tar(path, {"1.txt": b"x" * 600, "2.txt": b"two"})
    assert path.stat().st_size == size
    told = r"replaced after it was prepared|truncated or damaged|no readable tar header"
    with pytest.raises(DatasetError, match=told):
        samples.read(1)
    assert "does not fit shard a.tar, which was replaced" in caplog.text
    write_offsets(tmp_path, 0, 512 + 1024, 512 * 5)
    assert ShardReader(open_shards(tmp_path, "train")).read(1).parts == {"txt": b"two"}
    write_tar(path, {"1.jpg": b"same", "1.txt": b"a longer one", "2.jpg": b"same", "2.txt": b"text"})
    write_offsets(tmp_path, 0, 2048, 4096)
    assert ShardReader(open_shards(tmp_path, "train")).read(0).parts == {"jpg": b"same", "txt": b"a longer one"}
    write_tar(path, {"1.txt": b"one", "2.txt": b"two", "3.txt": b"three"})
    write_offsets(tmp_path, 0, 2048, 3072)
    with pytest.raises(DatasetError, match="members of '1' and '2' are stored where one sample should be"):
        ShardReader(open_shards(tmp_path, "train")).read(0)


@pytest.mark.parametrize("folder", ["", "d" * 120 + "/"])
def test_headers_are_only_read_with_contents_where_a_shard_may_not_be_the_indexed_one(
    tmp_path: Path, folder: str
) -> None:
    """Also with long names, which are in blocks before the plain header."""
    path = write_tar(tmp_path / "a.tar", {f"{folder}{number}.txt": b"text" for number in range(3)}, tarfile.GNU_FORMAT)
    samples = prepared(tmp_path, with_index=True)
    for is_copy in (False, True):
        for number in range(3):
            assert (samples.byte_ranges(range(number, number + 1))[0][2] > 512) is is_copy
            assert samples.read(number).parts == {"txt": b"text"}
        os.utime(path, (1, 1))
        samples = ShardReader(open_shards(tmp_path, "train"))
        close_files()


@pytest.mark.parametrize("keeps_time", [True, False])
@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_a_damaged_header_costs_no_other_sample(
    tmp_path: Path, with_index: bool, keeps_time: bool, damaged: int
) -> None:
    """It is not read where a shard is the indexed one by its time and its last sample."""
    path = write_tar(tmp_path / "a.tar", {f"{number}.txt": b"text" for number in range(5)})
    expected = [sample.parts for sample in map(prepared(tmp_path, with_index).read, range(5))]
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(damaged * 1024 + 150)
        file.write(b"damaged")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + (not keeps_time)))
    close_files()
    is_read = with_index and keeps_time and damaged < 4
    for rule in (None, ChunkBlocks(5, 5)):
        reader = ShardReader(open_shards(tmp_path, "train"))
        samples = reader if rule is None else BlockCache(reader.shards.shards, reader, rule, None, BlockBudget(1 << 20))
        for number in range(5):
            if number == damaged and not is_read:
                with pytest.raises(DatasetError, match=r"is not stored where|no readable tar header"):
                    samples.read(number)
            else:
                assert samples.read(number).parts == expected[number]


@pytest.mark.parametrize("in_store", [False, True])
def test_what_was_done_to_a_shard_is_found_out_by_its_headers_size_and_version(in_store: bool, bucket: Bucket) -> None:
    """Samples 1 and 2 change places, the size stays; others have the same members and another time; it grows."""
    path = bucket.folder / "a.tar"
    members = {"1.txt": b"one", "2.txt": b"two", "3.txt": b"three"}

    def prepared() -> ShardReader:
        write_tar(path, members)
        prepare_by_ratio(bucket.folder, ALL)
        close_files()
        return ShardReader(open_shards(bucket.url if in_store else bucket.folder, "train"))

    reader = prepared()
    write_tar(path, dict(sorted(members.items(), key=lambda one: one[1] != b"two")))
    for index, key in ((0, "1"), (1, "2")):
        fix = r"copy \.nv-meta with" if in_store else "restore it"
        with pytest.raises(DatasetError, match=rf"a\.tar: sample '{key}': its part 'txt'.*was replaced.*{fix}"):
            reader.read(index)
    assert reader.read(2).parts == {"txt": b"three"}
    reader = prepared()
    assert reader.read(0).parts == {"txt": b"one"}
    os.utime(write_tar(path.with_name("new"), members | {"2.txt": b"TWO"}).replace(path), (1, 1))
    close_files()
    with pytest.raises(DatasetError, match=r"a\.tar: was replaced while it was in use.*sample 1, number 1"):
        reader.read(1)
    reader = prepared()
    path.write_bytes(path.read_bytes() + bytes(512))
    size = path.stat().st_size
    if in_store:
        with pytest.raises(DatasetError, match=rf"a\.tar: has {size} bytes, but had {size - 512} when it was prepared"):
            reader.read(0)


def test_large_parts_are_checked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "long/" * 30
    members = {f"{name}{n}.{part}": f"{n}{part}".encode() * 30_000 for n in (1, 2) for part in ("jpg", "txt")}
    write_tar(tmp_path / "a.tar", members, tarfile.PAX_FORMAT)
    samples = prepared(tmp_path, with_index=True)
    os.utime(tmp_path / "a.tar", (1, 1))
    reads = record_reads(monkeypatch)
    assert samples.read(1, {"txt"}).parts == {"txt": b"2txt" * 30_000}
    assert sum(num_bytes for _, _, num_bytes in reads) < 130_000 + 3000
    assert [(start, size) for _, start, size in samples.byte_ranges(range(1, 2), {"txt"})] == [reads[-1][1:]]
    assert samples.read(0).parts == {part: f"1{part}".encode() * 30_000 for part in ("jpg", "txt")}


def test_members_that_are_no_parts_may_be_between_those_that_are_checked(tmp_path: Path) -> None:
    members = {"folder/": b"", "1.a": b"one", "README": b"x" * 600, "1.b": b"two", "2.a": b"three"}
    write_tar(tmp_path / "a.tar", members)
    samples = prepared(tmp_path, with_index=True)
    os.utime(tmp_path / "a.tar", (1, 1))
    expected = [{"a": b"one", "b": b"two"}, {"a": b"three"}]
    assert [samples.read(index).parts for index in (0, 1)] == expected
    together = BlockCache(samples.shards.shards, samples, ChunkBlocks(2, 2), None, BlockBudget(1 << 20))
    assert [together.read(index).parts for index in (0, 1)] == expected


def test_digests_are_compared_where_it_is_asked_for(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, ALL)
    with pytest.raises(ConfigError, match=r"verify; run `bridge-data prepare .* --tar-index-only --digest`"):
        verified(open_shards(tmp_path, "train"))
    split = (tmp_path / ".nv-meta/split.yaml").read_text()
    refresh_index(tmp_path, PrepareConfig(num_workers=1, digest=True))
    assert (tmp_path / ".nv-meta/split.yaml").read_text() == split
    path = tmp_path / "data-000001.tar"
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b'"c7"', b'"cX"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    close_files()
    assert ShardReader(open_shards(tmp_path, "train")).read(7).parts["json"] == b'{"caption": "cX"}'
    shards = open_shards(tmp_path, "train")
    for records in (verified(shards), verified(Subset(shards, 0, 20))):
        for rule in (None, ChunkBlocks(5, 5)):
            reader = pickle.loads(pickle.dumps(records)).reader()
            samples = reader if rule is None else BlockCache(records.shards, reader, rule, None, BlockBudget(1 << 20))
            assert samples.read(6).key == "000006"
            with pytest.raises(DatasetError, match=r"-000001\.tar: sample '000007': the content of its part 'json'"):
                samples.read(7)
            assert reader.read(7, {"txt"}).parts == {"txt": text_of(7)}


def test_a_shard_without_its_index_has_no_digests(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"two"})
    prepare_by_ratio(tmp_path, ALL, digest=True)
    write_tar(path, {"1.txt": b"one", "2.txt": b"x" * 9999})
    with pytest.raises(DatasetError, match=r"a\.tar: its digests cannot be checked"):
        verified(open_shards(tmp_path, "train")).reader().read(0)
    (tmp_path / ".nv-meta/index.bridge").unlink()
    with pytest.raises(ConfigError, match=r"has no digests to verify, as it has no index\.bridge"):
        verified(open_shards(tmp_path, "train"))


def test_offsets_are_a_row_of_little_endian_u64_and_those_of_another_shard_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a\.tar\.idx: no such file.*--tar-index-only"):
        read_offsets(tmp_path / "a.tar", 2)
    data = encode_offsets(array.array("Q", [0, 1024, 2**40]))
    assert data == struct.pack("<QQQ", 0, 1024, 2**40)
    (tmp_path / "a.tar.idx").write_bytes(data)
    assert read_offsets(tmp_path / "a.tar", 2).tolist() == [0, 1024, 2**40]
    for num_bytes in (0, 8, 23, 32):
        (tmp_path / "a.tar.idx").write_bytes(bytes(num_bytes))
        with pytest.raises(DatasetError, match=rf"has {num_bytes} bytes, but 2 samples.*take 24"):
            read_offsets(tmp_path / "a.tar", 2)


def test_first_samples_look_no_further(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": b"p", "1.txt": b"t", "2.png": b"q", "3.png": b"r", "4.png": b"s"})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:4300])
    assert first_samples(tmp_path, "a.tar", 2) == {"1": [("png", 512, 1), ("txt", 1536, 1)], "2": [("png", 2560, 1)]}
