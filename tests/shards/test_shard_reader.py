import os
import pickle
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.tars import PrepareConfig, refresh_index
from bridge_data.shards import ShardReader, Subset, open_shards
from bridge_data.shards import prepared as prepared_folders
from bridge_data.shards.blocks import BlockBudget, BlockCache, ChunkCut
from bridge_data.storage import close_files
from tests.object_store import Bucket
from tests.shards.reads import record_reads
from tests.shards.tars import prepare_by_ratio, text_of, write_shards, write_tar

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


def test_reads_every_sample_by_its_number(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    assert len(samples) == 20
    for index in [*range(20), 3, 19, 0]:
        sample = samples.read(index)
        assert sample.key == f"{index:06d}"
        assert sample.full_key == f"data-{index // 5:06d}.tar/{index:06d}"
        assert sample.parts == {"json": f'{{"caption": "c{index}"}}'.encode(), "txt": text_of(index)}
        source = sample.source_info()
        assert (source.dataset_path, source.index, source.shard_name) == (str(tmp_path), index, sample.shard_name)
        assert source.file_names == (f"{index:06d}.json", f"{index:06d}.txt")
    with pytest.raises(IndexError):
        samples.read(20)


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


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text(alphabet="ab/ä0", min_size=1, max_size=120).filter(
            lambda key: key.strip("/") == key and "//" not in key
        ),
        st.dictionaries(st.sampled_from(["txt", "json", "a.b", "png"]), st.binary(max_size=1500), min_size=1),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, dict[str, bytes]], format: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    members = {f"{key}.{part}": content for key, parts in samples.items() for part, content in parts.items()}
    write_tar(folder / "a.tar", members, format)
    for with_index in (True, False):
        found = prepared(folder, with_index)
        assert [(found.read(n).key, found.read(n).parts) for n in range(len(found))] == list(samples.items())


def test_travels_without_its_tables(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    expected = samples.read(7)
    assert pickle.loads(pickle.dumps(samples)).read(7) == expected


def test_a_bounded_number_of_tables_is_kept(tmp_path: Path, with_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_folders, "MAX_KNOWN_SHARDS", 2)
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    assert [samples.read(index).key for index in (0, 19, 5, 10, 1)] == [
        "000000",
        "000019",
        "000005",
        "000010",
        "000001",
    ]
    assert len(samples._tables) == 2


def test_a_missing_shard_is_named_with_the_sample(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    (tmp_path / "data-000001.tar").unlink()
    with pytest.raises(DatasetError, match=r"data-000001\.tar: no such file.*sample 7, number 2 of data-000001\.tar"):
        samples.read(7)
    assert samples.read(4).key == "000004"


def test_a_truncated_shard_is_an_error(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    path = tmp_path / "data-000001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DatasetError, match=r"has 3000 bytes.*truncated or was replaced.*bridge-data prepare"):
        samples.read(5)


def test_a_shard_cut_while_it_is_read_is_an_error(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index)
    samples.read(5)
    with open(tmp_path / "data-000001.tar", "r+b") as file:
        file.truncate(3000)
    with pytest.raises(DatasetError, match=r"the file has 3000.*sample 9"):
        samples.read(9)


def test_a_shard_of_the_same_size_with_other_members_is_found_out(tmp_path: Path) -> None:
    """Its `.tar.idx` was renewed by a tool that does not know our index."""
    path = tmp_path / "a.tar"
    write_tar(path, {"1.txt": b"one", "2.txt": b"x" * 600})
    samples = prepared(tmp_path, with_index=True)
    size = path.stat().st_size
    write_tar(path, {"1.txt": b"x" * 600, "2.txt": b"two"})
    assert path.stat().st_size == size
    with pytest.raises(
        DatasetError, match=r"replaced after it was prepared|truncated or damaged|no readable tar header"
    ):
        samples.read(1)
    (tmp_path / "a.tar.idx").write_bytes(b"".join(n.to_bytes(8, "little") for n in (0, 512 + 1024, 512 * 5)))
    assert ShardReader(open_shards(tmp_path, "train")).read(1).parts == {"txt": b"two"}


@pytest.mark.parametrize("folder", ["", "d" * 120 + "/"])
def test_headers_are_only_read_with_contents_where_a_shard_may_not_be_the_indexed_one(
    tmp_path: Path, folder: str
) -> None:
    """Also with long names, which are in blocks before the plain header."""
    path = write_tar(tmp_path / "a.tar", {f"{folder}{number}.txt": b"text" for number in range(3)}, tarfile.GNU_FORMAT)
    samples = prepared(tmp_path, with_index=True)
    for is_copy in (False, True):
        for number in range(3):
            assert (samples.byte_ranges(number)[0][2] > 512) is is_copy
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
    for cut in (None, ChunkCut(5, 5)):
        reader = ShardReader(open_shards(tmp_path, "train"))
        samples = reader if cut is None else BlockCache(reader, cut, None, BlockBudget(1 << 20))
        for number in range(5):
            if number == damaged and not is_read:
                with pytest.raises(DatasetError, match=r"is not stored where|no readable tar header"):
                    samples.read(number)
            else:
                assert samples.read(number).parts == expected[number]


def test_a_part_that_has_grown_within_its_padding_is_read_whole(tmp_path: Path) -> None:
    for text, with_index in ((b"short", True), (b"a longer one", False)):
        write_tar(
            tmp_path / "a.tar",
            {f"{n}.{part}": b"same" if part == "jpg" else text for n in "12" for part in ("jpg", "txt")},
        )
        if with_index:
            prepared(tmp_path, with_index)
    assert ShardReader(open_shards(tmp_path, "train")).read(0).parts == {"jpg": b"same", "txt": b"a longer one"}


def test_members_of_two_samples_in_the_place_of_one(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"two"})
    prepared(tmp_path, with_index=False)
    write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"two", "3.txt": b"three"})
    (tmp_path / "a.tar.idx").write_bytes(b"".join(n.to_bytes(8, "little") for n in (0, 2048, 3072)))
    with pytest.raises(DatasetError, match="members of '1' and '2' are stored where one sample should be"):
        ShardReader(open_shards(tmp_path, "train")).read(0)


def replaced(folder: Path, bucket: Bucket | None = None) -> tuple[ShardReader, Path]:
    """A reader of a data set, and its one shard, in which samples 1 and 2 will change places."""
    path = folder / "a.tar"
    write_tar(path, {"1.txt": b"one", "2.txt": b"two", "3.txt": b"three"})
    prepare_by_ratio(folder, ALL)
    return ShardReader(open_shards(folder if bucket is None else bucket.url, "train")), path


def change_places(path: Path) -> None:
    """Exchange two samples; the size stays."""
    write_tar(path, {"2.txt": b"two", "1.txt": b"one", "3.txt": b"three"})


def test_samples_that_changed_places_are_found_out_by_their_headers(tmp_path: Path) -> None:
    reader, path = replaced(tmp_path)
    change_places(path)
    for index, key in ((0, "1"), (1, "2")):
        with pytest.raises(DatasetError, match=rf"a\.tar: sample '{key}': its part 'txt'.*was replaced.*restore it"):
            reader.read(index)
    assert reader.read(2).parts == {"txt": b"three"}


def test_samples_that_changed_places_in_a_store_are_found_out(bucket: Bucket) -> None:
    reader, path = replaced(bucket.folder, bucket)
    change_places(path)
    with pytest.raises(DatasetError, match=r"a\.tar: sample '1': its part 'txt'.*was replaced.*copy \.nv-meta with"):
        reader.read(0)
    assert reader.read(2).parts == {"txt": b"three"}


def test_a_shard_in_a_store_that_is_replaced_between_two_reads_is_an_error(bucket: Bucket) -> None:
    """Also if the members are the same: the ETag is another, or the time of change."""
    reader, path = replaced(bucket.folder, bucket)
    assert reader.read(0).parts == {"txt": b"one"}
    write_tar(path, {"1.txt": b"one", "2.txt": b"TWO", "3.txt": b"three"})
    os.utime(path, (1, 1))
    with pytest.raises(DatasetError, match=r"a\.tar: was replaced while it was in use.*sample 1, number 1"):
        reader.read(1)


def test_a_shard_that_is_replaced_between_two_reads_is_an_error(tmp_path: Path, with_index: bool) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"two"})
    reader = prepared(tmp_path, with_index)
    assert reader.read(0).parts == {"txt": b"one"}
    write_tar(tmp_path / "new", {"1.txt": b"one", "2.txt": b"TWO"}).replace(tmp_path / "a.tar")
    close_files()
    with pytest.raises(DatasetError, match=r"a\.tar: was replaced while it was in use.*sample 1, number 1"):
        reader.read(1)


def test_a_shard_in_a_store_that_has_grown_is_found_out_by_its_size(bucket: Bucket) -> None:
    reader, path = replaced(bucket.folder, bucket)
    with open(path, "ab") as file:
        file.write(bytes(512))
    size = path.stat().st_size
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
    assert [(start, size) for _, start, size in samples.byte_ranges(1, {"txt"})] == [reads[-1][1:]]
    assert samples.read(0).parts == {part: f"1{part}".encode() * 30_000 for part in ("jpg", "txt")}


def test_members_that_are_no_parts_may_be_between_those_that_are_checked(tmp_path: Path) -> None:
    members = {"folder/": b"", "1.a": b"one", "README": b"x" * 600, "1.b": b"two", "2.a": b"three"}
    write_tar(tmp_path / "a.tar", members)
    samples = prepared(tmp_path, with_index=True)
    os.utime(tmp_path / "a.tar", (1, 1))
    expected = [{"a": b"one", "b": b"two"}, {"a": b"three"}]
    assert [samples.read(index).parts for index in (0, 1)] == expected
    together = BlockCache(samples, ChunkCut(2, 2), None, BlockBudget(1 << 20))
    assert [together.read(index).parts for index in (0, 1)] == expected


def test_a_damaged_page_of_the_index_is_not_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shards(tmp_path)
    samples = prepared(tmp_path, with_index=True)
    assert samples.shards.index is not None
    path, entry = tmp_path / ".nv-meta/index.bridge", samples.shards.index.entries["data-000001.tar"]
    data = bytearray(path.read_bytes())
    data[entry.segment_start + entry.segment_bytes - 9] ^= 1
    path.write_bytes(data)
    assert [samples.read(index).key for index in range(20)] == [f"{index:06d}" for index in range(20)]
    (message,) = caplog.messages
    assert message.startswith(f"{path}: is damaged where shard data-000001.tar is described")
    assert "run `bridge-data prepare`" in message


def test_digests_are_compared_where_it_is_asked_for(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, ALL)
    with pytest.raises(ConfigError, match=r"verify; run `bridge-data prepare .* --tar-index-only --digest`"):
        open_shards(tmp_path, "train").verified()
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
    for records in (shards.verified(), Subset(shards, 0, 20).verified()):
        for cut in (None, ChunkCut(5, 5)):
            reader = pickle.loads(pickle.dumps(records)).reader()
            samples = reader if cut is None else BlockCache(reader, cut, None, BlockBudget(1 << 20))
            assert samples.read(6).key == "000006"
            with pytest.raises(DatasetError, match=r"-000001\.tar: sample '000007': the content of its part 'json'"):
                samples.read(7)
            assert reader.read(7, {"txt"}).parts == {"txt": text_of(7)}


def test_a_shard_without_its_index_has_no_digests(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"one", "2.txt": b"two"})
    prepare_by_ratio(tmp_path, ALL, digest=True)
    write_tar(path, {"1.txt": b"one", "2.txt": b"x" * 9999})
    with pytest.raises(DatasetError, match=r"a\.tar: its digests cannot be checked"):
        open_shards(tmp_path, "train").verified().reader().read(0)
    (tmp_path / ".nv-meta/index.bridge").unlink()
    with pytest.raises(ConfigError, match=r"has no digests to verify, as it has no index\.bridge"):
        open_shards(tmp_path, "train").verified()
