import pickle
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.samples import SourceInfo
from bridge_data.shards import RawSample, ShardReader, open_shards, shard_reader
from bridge_data.storage import close_files
from tests.shards.reads import record_reads
from tests.shards.tars import prepare_by_ratio, text_of, write_shards, write_tar


def test_a_raw_sample_says_where_it_was_read() -> None:
    sample = RawSample("images/0001", "a.tar", 7, {"jpg": b"", "seg.png": b""}, "/data/a")
    assert sample.full_key == "a.tar/images/0001"
    assert sample.source_info() == SourceInfo(
        dataset_path="/data/a", index=7, shard_name="a.tar", file_names=("images/0001.jpg", "images/0001.seg.png")
    )


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
    monkeypatch.setattr(shard_reader, "MAX_KNOWN_SHARDS", 2)
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
