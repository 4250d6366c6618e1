"""Data of many tables: what their footers say is read once on a machine, and never taken for that of other files."""

import os
from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.plugins.tables import table_records
from tests.object_store import Bucket, Server, faulty_proxy
from tests.tables import table_of, write_parquet

NUM_FILES = 100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "copies"))  # as that of `bucket`
    return tmp_path / "copies" / "tables"


def write(folder: Path, number: int, first: str = "a") -> None:
    """A file of four rows in two groups."""
    table = table_of({"text": [f"{first}{number}", "b", "c", "d"], "score": [1, 2, 3, 4]})
    write_parquet(folder / name_of(number), table, per_group=2)


def name_of(number: int) -> str:
    """The name of a file."""
    return f"train-{number:05d}-of-{NUM_FILES:05d}.parquet"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files that together have just enough groups to be kept."""
    monkeypatch.setattr(table_records, "MANY_GROUPS", 3 * NUM_FILES)
    for number in range(NUM_FILES):
        write(tmp_path / "tables", number)
    return tmp_path / "tables"


def opened(path: object) -> object:
    """All that the records of the data say, and some samples."""
    (source,) = load_plan(str(path)).sources
    records = source.records
    reader = records.reader()
    samples = [reader.read(index).parts for index in (0, 5, records.num_samples - 1)]
    return records.identity(), records.shards, records.sample_bytes, records.read_bytes, samples


def test_a_second_opening_finds_the_same_and_opens_one_file(
    tables: Path, cache: Path, bucket: Bucket, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tables)
    assert len(list(cache.iterdir())) == 1
    assert opened(tables) == first
    bucket_copy = bucket.folder / "tables"
    os.rename(tables, bucket_copy)
    with faulty_proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        in_store = opened(f"{bucket.url}/tables")
        assert in_store == first
        assert len(proxy.requests) > NUM_FILES
        proxy.requests.clear()
        assert opened(f"{bucket.url}/tables") == first
        assert len(proxy.requests) < 60  # of which most read the samples


def test_what_is_kept_is_never_taken_for_other_files(
    tables: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(tables)
    last = tables / name_of(NUM_FILES - 1)
    time_ns = last.stat().st_mtime_ns
    write(tables, NUM_FILES - 1, "x")
    os.utime(last, ns=(time_ns, time_ns))  # it has the size and the time of the one before
    changed = opened(tables)
    assert changed != first
    assert opened(tables) == changed
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-9] + b"damaged]}")
    assert opened(tables) == changed
    assert "damaged" in caplog.text


def test_few_tables_are_not_kept(tmp_path: Path, cache: Path) -> None:
    for number in range(3):
        write(tmp_path / "few", number)
    load_plan(tmp_path / "few" / "*.parquet")
    assert not cache.exists()
