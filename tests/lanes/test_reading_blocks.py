import dataclasses
import gzip
from pathlib import Path
from typing import Any, cast

import pytest

from bridge_data import TextSample, WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.reading import ChunkBlocks, RunBlocks, plan_blocks, plan_runs
from bridge_data.order import Geometry
from bridge_data.plan import Plan, load_plan
from bridge_data.plugins.compressed.gzip_tar import GzipTar
from bridge_data.plugins.tables.table_columns import block_bytes
from bridge_data.plugins.tables.table_records import TableRecords
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.data.reads import Reads, record_reads
from tests.object_store import Bucket
from tests.prepared import TEXT, write_blend, write_dataset_yaml, write_texts
from tests.tables import write_text_table

MANY = {"num_lanes": 8, "max_open_bytes": 256 << 20}
GEOMETRY = Geometry(8, 50, 10, 100)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """What is read of data, each call of the storage or of a compressed tar."""
    seen = record_reads(monkeypatch)
    pread = GzipTar.read_exactly

    def recorded_inside(tar: GzipTar, start: int, num_bytes: int) -> bytes:
        seen.append((tar._path, start, num_bytes))
        return pread(tar, start, num_bytes)

    monkeypatch.setattr(GzipTar, "read_exactly", recorded_inside)
    return seen


def large(folder: Path) -> Path:
    return write_texts(folder, 64, lambda n: f"{n:05d}" * 6000, per_shard=16)


def compressed(folder: Path, tars: Path) -> Path:
    folder.mkdir()
    for tar in tars.glob("*.tar"):
        (folder / tar.name).with_suffix(".tgz").write_bytes(gzip.compress(tar.read_bytes()))
    prepare(folder, lambda shards: split_by_ratio(shards, ratio=parse_ratio("1,0,0")))
    write_dataset_yaml(folder, TEXT, "dataset.yaml")
    return folder


def plan_of(path: object, split_part: str = "train") -> Plan:
    return load_plan(str(path), split_part=split_part)


def test_sources_of_which_most_is_drawn_for_what_is_held_come_first(tmp_path: Path) -> None:
    for name in "abc":
        write_texts(tmp_path / name, 800, lambda n, name=name: name * 900)
    plan = plan_of(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 3, "c": 2}))
    one = 8 * 100 * 2800  # with what the ends of tars have
    fitting = {
        number: [
            rule is not None
            for rule in plan_blocks(plan, [GEOMETRY] * 3, num_lanes=8, max_open_bytes=int(number * one))
        ]
        for number in (0, 1, 2, 3)
    }
    assert fitting == {0: [False] * 3, 1: [False, True, False], 2: [False, True, True], 3: [True] * 3}


def texts(dataset: LaneDataset) -> list[str]:
    with get_loader(dataset) as loader:
        return [text for batch in loader for text in batch.text]


def training(path: object, **settings: Any) -> LaneDataset:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, **settings)
    return get_train_dataset(
        str(path),
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
        repeat=False,
    )


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["tar", "gzip", "without an index"])
def test_each_block_of_an_epoch_is_read_once_and_samples_are_those_that_are_read_singly(
    tmp_path: Path, reads: Reads, kind: str
) -> None:
    folder = write_texts(tmp_path / "a", 3000, lambda n: f"text {n}", per_shard=300)
    if kind == "without an index":
        (folder / ".nv-meta/index.bridge").unlink()
    elif kind == "gzip":
        folder = compressed(tmp_path / "b", folder)
    expected = texts(training(folder, max_open_bytes=0))
    assert sum(size < 4096 for *_, size in reads) >= 3000
    reads.clear()
    dataset = training(folder)
    assert texts(dataset) == expected and len(set(expected)) == 3000
    loader = dataset.opened.readers[0]
    blocks = {loader.block(index) for index in range(3000)}
    ranges = {loader.block_bytes(block) for block in blocks if block is not None}
    assert len([read for read in reads if read in ranges]) == len(ranges) == len(blocks) < 500
    assert sum(size for *_, size in reads) < 1.2 * 3000 * 2048
    assert dataset.opened.budget.num_bytes == 0


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["small", "large"])
def test_what_is_held_is_what_was_expected(bucket: Bucket, kind: str) -> None:
    num_samples, num_bytes = (20_000, 900) if kind == "small" else (3200, 30_000)
    write_texts(bucket.folder / "a", num_samples, lambda n: "x" * num_bytes, per_shard=num_samples // 10)
    path = bucket.folder / "a" if kind == "small" else f"{bucket.url}/a"
    dataset = training(path)
    num_lanes, geometry = dataset.new_state().generations[-1]
    plan, geometries = plan_of(path), [Geometry(num_lanes, *numbers) for numbers in geometry]
    megabytes = range(1 << 20, 256 << 20, 1 << 20)
    fits = next(size for size in megabytes if plan_blocks(plan, geometries, num_lanes=8, max_open_bytes=size) != [None])
    most = 0
    with get_loader(dataset) as loader:
        for _ in loader:
            most = max(most, dataset.opened.budget.num_bytes)
    assert 0.7 * fits < most < 1.1 * fits
    assert dataset.opened.budget.num_bytes == 0


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_validation_reads_each_run_once(tmp_path: Path, reads: Reads, num_lanes: int) -> None:
    write_texts(tmp_path / "a", 500, lambda n: f"text {n}", ratio="0,1,0")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes)
    dataset = get_val_dataset(str(tmp_path / "a"), worker_config=config, batch_size=16)
    reads.clear()  # the first bytes, which are a part of the identity
    assert texts(dataset) == [f"text {number}" for number in range(500)]
    loader = dataset.opened.readers[0]
    ranges = {loader.block_bytes(block) for block in map(loader.block, range(500)) if block is not None}
    assert (
        len([read for read in reads if read in ranges]) == len(ranges) == 40  # 8 runs go on in a next shard
    )  # 32, and 7 that go on in the next shard


@pytest.mark.parametrize("sample_bytes", [10, 1000, 16_000])
@pytest.mark.parametrize("num_samples", [200_000, 1_000_000_000])
def test_tables_of_any_size_are_read_in_blocks_and_it_is_told_where_they_are_not(
    sample_bytes: int, num_samples: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Read one by one, each would take a page: some hundred times as long."""
    write_text_table(tmp_path / "a.parquet", 10)
    data = get_train_dataset(
        tmp_path / "a.parquet",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        sample_type=TextSample,
        field_map={"text": "text"},
    )
    (source,) = data.plan.sources
    records = dataclasses.replace(
        cast(TableRecords, source.records),
        counts=[num_samples],
        sample_bytes=sample_bytes,
        read_bytes=block_bytes(1 << 20, sample_bytes),
    )
    plan = dataclasses.replace(data.plan, sources=(dataclasses.replace(source, records=records),))
    assert data.order.shuffle is not None
    geometry = data.order.shuffle.geometry(plan.sources[0], 8)
    default = WorkerConfig(rank=0, world_size=1, num_workers=0).max_open_bytes
    (rule,) = plan_blocks(plan, [geometry], num_lanes=8, max_open_bytes=default)
    assert isinstance(rule, ChunkBlocks)
    assert rule.block_size >= min(10, geometry.chunk_size)
    assert not caplog.records
    assert plan_blocks(plan, [geometry], num_lanes=8, max_open_bytes=1 << 20) == [None]
    assert "each decodes a page" in caplog.text


def test_what_gains_by_it_is_read_in_blocks(bucket: Bucket, tmp_path: Path) -> None:
    """Large samples of stores and of compressed shards, but not those of a disk."""
    folder, rule = large(bucket.folder / "a"), ChunkBlocks(50, 10)
    small, packed = write_texts(tmp_path / "c", 50), compressed(tmp_path / "b", folder)
    for path, expected in ((folder, None), (f"{bucket.url}/a", rule), (packed, rule), (small, rule)):
        assert plan_blocks(plan_of(path), [GEOMETRY], **MANY) == [expected], path
    gzipped = compressed(tmp_path / "f", folder)
    for path, expected in ((large(tmp_path / "d"), None), (write_texts(tmp_path / "e", 50), rule), (gzipped, rule)):
        (path / ".nv-meta/index.bridge").unlink()  # then the sizes of the shards tell
        assert plan_blocks(plan_of(path), [GEOMETRY], **MANY) == [expected], path
    (front,) = plan_blocks(plan_of(small), [Geometry(1, 500, 500, 0)], num_lanes=1, max_open_bytes=1 << 20)
    assert isinstance(front, ChunkBlocks) and 100 < front.block_size < 200  # 256 KiB of 2 KiB each
    blend = plan_of(write_blend(tmp_path / "blend.yaml", {"c": 1, "../" + tmp_path.name + "/c": 3}))
    assert (plan_runs(blend, 8), plan_runs(blend, 1)) == ([RunBlocks(8, 0), RunBlocks(8, 50)], [None, None])
    assert plan_runs(plan_of(folder), 8) == [None]
