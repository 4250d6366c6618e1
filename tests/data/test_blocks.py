import gc
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import RecordReader, Records, Subset, open_shards
from bridge_data.data.blocks import BlockBudget, BlockCache, BlockRule, ChunkBlocks, RunBlocks
from bridge_data.data.jsonl_file import open_jsonl
from bridge_data.data.records import counts_of
from bridge_data.order.row import ChunkTable
from bridge_data.plugins.where.choices import ChosenRecords
from bridge_data.plugins.where.choosing import choose
from bridge_data.prepare.index_writing import BridgeIndexWriter, build_segment
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.data.reads import Reads, record_reads
from tests.plugins.where.test_choosing import Clause
from tests.prepared import write_dataset, write_texts

PLENTY = 1 << 30


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """What is read of data files, each call of the storage."""
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    return record_reads(monkeypatch)


def in_blocks(
    records: Records, reader: RecordReader, rule: BlockRule, max_bytes: int = PLENTY
) -> tuple[BlockCache, BlockBudget]:
    """All parts, read in blocks."""
    budget = BlockBudget(max_bytes)
    return BlockCache(records.shards, reader, rule, None, budget), budget


def window(counts: Sequence[int], rule: BlockRule, num_blocks: int, seed: int = 0) -> Iterator[list[int]]:
    """The samples of stretches of `counts`, in permuted windows of `num_blocks` whole blocks each."""
    rng = random.Random(seed)
    blocks, first = [], 0
    for count in counts:
        index = first
        while index < first + count:
            blocks.append(rule.block(index, first, count))
            index = blocks[-1].stop
        first += count
    rng.shuffle(blocks)
    for begin in range(0, len(blocks), num_blocks):
        samples = [index for block in blocks[begin : begin + num_blocks] for index in block]
        rng.shuffle(samples)
        yield samples


counts = st.lists(st.integers(1, 60), min_size=1, max_size=6)
sizes = st.integers(1, 25)


@given(counts, sizes, sizes)
def test_blocks_are_pieces_of_the_chunks_that_are_assigned(counts: list[int], chunk_size: int, block_size: int) -> None:
    rule, table = ChunkBlocks(chunk_size, block_size), ChunkTable(counts, chunk_size)
    stretches = list(zip(itertools.accumulate([0, *counts[:-1]]), counts, strict=True))
    for begin, length in zip(*map(np.ndarray.tolist, table.spans(np.arange(table.num_chunks))), strict=True):
        ((first, count),) = ((first, count) for first, count in stretches if first <= begin < first + count)
        num_blocks = -(-length // block_size)
        blocks = [
            range(begin + number * length // num_blocks, begin + (number + 1) * length // num_blocks)
            for number in range(num_blocks)
        ]
        assert [rule.block(index, first, count) for block in blocks for index in block] == [
            block for block in blocks for _ in block
        ]


@given(counts, st.integers(1, 25), st.integers(0, 40))
def test_runs_are_those_of_the_whole_row_of_sources(counts: list[int], size: int, offset: int) -> None:
    rule, first = RunBlocks(size, offset), 0
    for count in counts:
        for index in range(first, first + count):
            block = rule.block(index, first, count)
            run = (index + offset) // size
            assert list(block) == [i for i in range(first, first + count) if (i + offset) // size == run]
        first += count


LINES = [f'{{"n": {number}}}' for number in range(500)]


def lines(path: Path, texts: Iterable[str] = LINES) -> Records:
    """One file of lines, in a new folder."""
    path.mkdir()
    (path / "a.jsonl").write_text("".join(text + "\n" for text in texts))
    prepare_jsonl(path / "a.jsonl")
    return open_jsonl(path / "a.jsonl", "train")


def with_our_index(folder: Path) -> Records:
    return open_shards(write_texts(folder, 500, lambda n: f"text {n}"), "train")


def without(folder: Path) -> Records:
    records = with_our_index(folder)
    (folder / ".nv-meta/index.bridge").unlink()
    return open_shards(records.root, "train")


def with_several_parts(folder: Path) -> Records:
    samples = ({"__key__": f"{n:04d}", "a.txt": "a" * (n % 9), "b.txt": f"b {n}"} for n in range(500))
    return open_shards(write_dataset(folder, samples), "train")


def without_some(folder: Path) -> Records:
    write_texts(folder, 500)
    text = (folder / ".nv-meta/split.yaml").read_text()
    excluded = ", ".join(f"data-0001.tar/{key:06d}" for key in (50, 57, 58, 99))
    (folder / ".nv-meta/split.yaml").write_text(text.replace("exclude: []", f"exclude: [{excluded}]"))
    records = open_shards(folder, "train")
    assert records.num_samples == 496
    return records


def some_of_them(folder: Path) -> Records:
    return Subset(with_our_index(folder), 33, 471)


def chosen_ones(folder: Path) -> Records:
    """Two of three samples, without those of the second shard of 50."""
    records = with_our_index(folder)
    return ChosenRecords(records, choose(records, [Clause("index % 3 <> 0 and index // 50 <> 1")]))


def some_of_the_chosen(folder: Path) -> Records:
    return Subset(chosen_ones(folder), 11, 222)


KINDS = [
    with_our_index,
    without,
    with_several_parts,
    without_some,
    some_of_them,
    chosen_ones,
    some_of_the_chosen,
    lines,
]


@pytest.mark.parametrize("records_in", KINDS)
@pytest.mark.parametrize("rule", [ChunkBlocks(20, 6), ChunkBlocks(50, 50), ChunkBlocks(7, 1), RunBlocks(8, 3)], ids=str)
def test_samples_are_those_that_are_read_singly_and_each_block_is_read_once(
    tmp_path: Path, reads: Reads, records_in: Callable[[Path], Records], rule: BlockRule
) -> None:
    records = records_in(tmp_path / "data")
    alone, below = records.reader(), records.reader()
    reader, budget = in_blocks(records, below, rule)
    for samples in window(counts_of(records), rule, 16):
        for index in samples:  # opens every shard
            alone.read(index), below.byte_ranges(range(index, index + 1))
        reads.clear()
        taken = [reader.read(index) for index in samples]
        blocks = {reader.block(index) for index in samples}
        if records_in is without:  # headers beside blocks are read, too: a .tar.idx has no checksum
            reads[:] = [read for read in reads if read in {reader.block_bytes(block) for block in blocks}]
            blocks = {block for block in blocks if len(block) > 1}
        assert len(reads) == len(set(reads)) == len(blocks)
        assert {reader.block_bytes(block) for block in blocks if len(block) > 1} <= set(reads)
        assert taken == [alone.read(index) for index in samples]
        assert budget.num_bytes == 0


@pytest.mark.parametrize("records_in", [with_our_index, lines])
def test_beyond_the_budget_no_more_is_held_and_no_block_is_read_again(
    tmp_path: Path, reads: Reads, records_in: Callable[[Path], Records]
) -> None:
    records, rule = records_in(tmp_path / "data"), ChunkBlocks(50, 10)
    alone, below = records.reader(), records.reader()
    (samples,) = window(counts_of(records), rule, 1000)
    for index in samples:
        alone.read(index), below.read(index)
    reader, free = in_blocks(records, below, rule)
    most = 0
    for index in samples:
        reader.read(index)
        most = max(most, free.num_bytes)
    for max_bytes in (2 * most, most // 3, most // 20):
        reader, budget = in_blocks(records, below, rule, max_bytes)
        reads.clear()
        taken = []
        for index in samples:
            taken.append(reader.read(index))
            assert budget.num_bytes <= max_bytes
        assert len(reads) == len(set(reads))
        assert len(reads) == 50 if max_bytes > most else 50 < len(reads) < 500
        assert taken == [alone.read(index) for index in samples]
        assert budget.num_bytes == 0


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_large_samples_are_let_go_one_by_one(tmp_path: Path, reads: Reads, kind: str) -> None:
    samples = ({"__key__": f"{n:04d}", "bin": bytes([n]) * 20_000} for n in range(20))
    if kind == "tar":
        records: Records = open_shards(write_dataset(tmp_path / "data", samples), "train")
    else:
        records = lines(tmp_path / "data", (json.dumps({"text": f"{number:02}" * 10_000}) for number in range(20)))
    alone, below = records.reader(), records.reader()
    expected = [alone.read(index) for index in range(20)]
    below.read(0)
    reader, budget = in_blocks(records, below, ChunkBlocks(20, 5))
    reads.clear()
    assert reader.read(7) == expected[7]
    for left, index in ((4, 9), (3, 5), (2, 8), (1, 6)):
        assert 20_000 * left < budget.num_bytes < 22_500 * left
        assert reader.read(index) == expected[index]
    assert (budget.num_bytes, len(reads)) == (0, 1)


def test_what_was_released_before_its_block_is_read_is_not_held(tmp_path: Path, reads: Reads) -> None:
    """Also if that was in another epoch, and is wanted now."""
    write_texts(tmp_path, 10)
    records = open_shards(tmp_path, "train")
    cache, budget = in_blocks(records, records.reader(), ChunkBlocks(10, 10))
    for index in (7, 8, 9):
        cache.release(index)
    for index in range(7):
        cache.read(index)
    assert not cache.held
    for index in (7, 8, 9):
        cache.release(index)
    for order in (range(10), [*range(9, -1, -1)]):
        assert [cache.read(index).parts["txt"] for index in order] == [str(index).encode() for index in order]
    assert (budget.num_bytes, [*cache.held]) == (0, [])


def test_a_reader_that_goes_lets_go_of_its_blocks(tmp_path: Path) -> None:
    records = with_our_index(tmp_path / "data")
    reader, budget = in_blocks(records, records.reader(), ChunkBlocks(50, 10))
    reader.read(3)
    assert budget.num_bytes > 9 * 2048
    gc.disable()
    try:
        del reader
        assert budget.num_bytes == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("video_bytes", "num_reads"), [(20_000, 12), (200, 2)])
def test_parts_that_nobody_wants_are_not_read_if_they_are_large(
    tmp_path: Path, reads: Reads, video_bytes: int, num_reads: int
) -> None:
    samples = ({"__key__": f"{n:04d}", "mp4": bytes(video_bytes), "txt": f"caption {n}"} for n in range(12))
    records = open_shards(write_dataset(tmp_path / "data", samples), "train")
    below = records.reader()
    below.read(0)
    reader = BlockCache(records.shards, below, ChunkBlocks(12, 6), ("txt",), BlockBudget(PLENTY))
    reads.clear()
    for index in random.Random(1).sample(range(12), 12):
        assert reader.read(index).parts == {"txt": f"caption {index}".encode()}
    assert len(reads) == num_reads
    place = reader.block_bytes(range(6))
    assert place is None if num_reads == 12 else place in reads


def test_threads_get_the_samples_too(tmp_path: Path) -> None:
    records, rule = with_our_index(tmp_path / "data"), ChunkBlocks(50, 10)
    reader, budget = in_blocks(records, records.reader(), rule, 100_000)

    def wrong(seed: int) -> list[int]:
        numbers = itertools.chain.from_iterable(window(counts_of(records), rule, 20, seed))
        return [n for n in numbers if reader.read(n).parts["txt"] != f"text {n}".encode()]

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(wrong, range(4))] == [[]] * 4
    assert budget.num_bytes <= 100_000


@pytest.mark.parametrize("num_parts", [1, 2])
def test_parts_outside_of_a_block_are_what_they_are_when_they_are_read_singly(tmp_path: Path, num_parts: int) -> None:
    """An index that leads astray must not cut the neighbours of a part short."""
    samples = (
        {"__key__": str(n), "txt": f"{n:040}", **({"cls": f"{n:040}"} if num_parts == 2 else {})} for n in range(20)
    )
    write_dataset(tmp_path, samples, per_shard=20)
    index = open_shards(tmp_path, "train").index
    assert index is not None
    (entry,) = index.entries.values()
    segment = index.segment(entry.name)
    parts = [row[1:] for row in segment.rows()]
    name, far, _ = parts[0]
    parts[5 * num_parts] = (name, far, parts[5 * num_parts][2])
    astray = build_segment(segment.keys(), segment.offsets(), range(num_parts, 20 * num_parts + 1, num_parts), parts)
    with open(tmp_path / ".nv-meta/index.bridge", "wb") as file:
        writer = BridgeIndexWriter(file)
        writer.add(entry.name, entry.num_bytes, entry.mtime_ns, astray, entry.head_checksum)
        writer.finish(index.uuid)
    records = open_shards(tmp_path, "train")
    expected = [records.reader().read(index) for index in range(20)]
    assert expected[5].parts[name] == expected[0].parts[name]
    reader, _ = in_blocks(records, records.reader(), ChunkBlocks(20, 4))
    assert [reader.read(index) for index in range(20)] == expected
