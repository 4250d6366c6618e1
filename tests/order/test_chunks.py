import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.numbers_data import write_shards
from bridge_data import WorkerConfig, get_loader, get_train_dataset
from bridge_data.order import Row
from bridge_data.order.chunks import MIN_CHUNKS_PER_LANE, ChunkTable, Geometry, share_open
from bridge_data.tools.mixing import overlap

COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(sum)


@given(counts=COUNTS, size=st.integers(1, 400))
def test_chunks_cover_each_sample_once_and_cross_no_shard(counts: list[int], size: int) -> None:
    table = ChunkTable(counts, size)
    starts, lengths = table.spans(np.arange(table.num_chunks))
    covered = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    assert np.array_equal(covered, np.arange(sum(counts)))
    shard_of = np.repeat(np.arange(len(counts)), counts)
    assert all(shard_of[s] == shard_of[s + n - 1] for s, n in zip(starts, lengths, strict=True))
    assert 1 <= lengths.min() <= lengths.max() <= size
    assert table.lengths().tolist() == lengths.tolist()
    chunks, offsets = table.chunk_of(covered)
    assert np.array_equal(chunks, np.repeat(np.arange(table.num_chunks), lengths))
    assert np.array_equal(offsets, covered - starts[chunks])
    unique = np.unique_counts(lengths)
    assert [column.tolist() for column in table.counts_by_length()] == [column.tolist() for column in unique]


def test_chunks_of_a_few_large_shards_among_many_small_and_empty_ones_are_found() -> None:
    counts = [0, 9, 0, 0, *[1] * 5_000, 100_000, *[0] * 3_000, *[1, 0, 2] * 2_000, 70_000, 0]
    table = ChunkTable(counts, 2)
    starts, lengths = table.spans(np.arange(table.num_chunks)[::-1])
    assert lengths[::-1].tolist() == table.lengths().tolist()
    assert (starts[::-1] + lengths[::-1]).tolist() == np.cumsum(lengths[::-1]).tolist()
    assert starts.min() == 0 and lengths.sum() == sum(counts)


@given(counts=COUNTS, size=st.integers(1, 400), num_epochs=st.integers(1, 3))
def test_no_chunks_have_fewer_samples_than_the_shortest(counts: list[int], size: int, num_epochs: int) -> None:
    table = ChunkTable(counts, size)
    shortest = np.sort(np.tile(table.lengths(), num_epochs))
    least = table.least_samples(np.arange(len(shortest) + 1), num_epochs)
    assert least.tolist() == [0, *np.cumsum(shortest).tolist()]


@given(
    counts=COUNTS,
    lanes=st.integers(1, 64),
    longest=st.none() | st.integers(1, 400),
    buffer=st.none() | st.integers(0, 500),
    sample_bytes=st.none() | st.floats(1, 1e9),
)
def test_geometry_fits_chunks_to_the_lanes(
    counts: list[int], lanes: int, longest: int | None, buffer: int | None, sample_bytes: float | None
) -> None:
    geometry = Geometry.choose(
        counts,
        num_lanes=lanes,
        max_samples_per_sequence=longest,
        shuffle_buffer_size=buffer,
        sample_bytes=sample_bytes,
    )
    assert 1 <= geometry.block_size <= geometry.chunk_size <= min(longest or max(counts), max(counts))
    mixes = longest is not None or buffer is not None
    least = lanes * MIN_CHUNKS_PER_LANE if mixes else lanes
    if geometry.chunk_size > 1:
        assert ChunkTable(counts, geometry.chunk_size).num_chunks >= least
    if mixes:
        assert geometry.window_size == max(buffer or 0, 1024, 64 * geometry.block_size)
    else:
        assert (geometry.block_size, geometry.window_size) == (geometry.chunk_size, 0)


def chosen(buffer: int | None, sample_bytes: float | None, chunk: int | None = 100) -> tuple[int, int]:
    """(block size, window size)."""
    geometry = Geometry.choose(
        [10_000] * 1_000,
        num_lanes=8,
        max_samples_per_sequence=chunk,
        shuffle_buffer_size=buffer,
        sample_bytes=sample_bytes,
    )
    return geometry.block_size, geometry.window_size


def test_a_window_is_as_large_as_the_shuffle_buffer() -> None:
    assert chosen(None, None) == chosen(100, None) == (8, 1_024)
    assert chosen(5_000, None) == (8, 5_000)
    assert chosen(1_000_000, None)[1] == 1_000_000


def test_a_block_is_what_one_read_holds() -> None:
    assert chosen(None, 1_000) == (100, 6_400)
    assert chosen(0, 1_000, chunk=None) == (262, 16_768)
    assert chosen(None, 55_000) == (4, 1_024)
    assert chosen(None, 300_000) == (1, 1_024)
    assert chosen(0, 10, chunk=None) == (1_024, 65_536)


def test_a_block_shrinks_where_a_window_would_hold_too_much() -> None:
    assert chosen(100_000, 1_000)[0] == 2  # a window of 100 MB, a quarter of it in partly consumed blocks of two
    assert chosen(1_000_000, 1_000)[0] == 1
    for block in range(1, 40):  # the share is largest when this many samples are left
        left = np.linspace(0, 1, 10_001)
        assert abs((left - left**block).max() - share_open(block)) < 1e-6


def test_a_few_long_shards_do_not_make_long_chunks() -> None:
    """The slots of a lane, as many for each chunk, are not much more than the blocks."""
    counts = [10] * 10_000 + [1_000_000]
    geometry = Geometry.choose(counts, num_lanes=8, max_samples_per_sequence=None, shuffle_buffer_size=1)
    table = ChunkTable(counts, geometry.chunk_size)
    assert table.longest <= 3 * table.num_samples / table.num_chunks


UNEQUAL = tuple(20 + 960 * number // 19 for number in range(20))


def geometry_of(counts: tuple[int, ...], num_lanes: int, chunk: int | None) -> Geometry:
    return Geometry.choose(counts, num_lanes=num_lanes, max_samples_per_sequence=chunk, shuffle_buffer_size=100)


def shares(counts: tuple[int, ...], geometry: Geometry, seed: int, num_epochs: int) -> np.ndarray:
    """What each lane has of the first epochs."""
    return Row(counts, geometry, seed).num_samples_to(num_epochs, [0] * geometry.num_lanes)


def repeats(shares: np.ndarray) -> float:
    """What lanes lack that have less than an equal share: they draw it of the next epoch."""
    return float(np.maximum(0, shares.mean() - shares).sum())


@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(sum).map(tuple),
    num_lanes=st.integers(1, 20),
    chunk=st.none() | st.integers(1, 200),
    num_epochs=st.integers(1, 4),
)
def test_the_bounds_hold(counts: tuple[int, ...], num_lanes: int, chunk: int | None, num_epochs: int) -> None:
    geometry = geometry_of(counts, num_lanes, chunk)
    found = overlap(ChunkTable(counts, geometry.chunk_size), num_lanes, num_epochs)
    for seed in range(3):
        of_lanes = shares(counts, geometry, seed, num_epochs)
        assert found.fewest <= of_lanes.min() <= of_lanes.max() <= found.most
        assert repeats(of_lanes) <= found.most_repeats + 1e-6


def test_the_bounds_are_reached_by_the_unluckiest_deal() -> None:
    chunks = ChunkTable([100, 100, 10, 10], 100)
    assert overlap(chunks, 2).most_repeats == 200 - 110
    assert (overlap(chunks, 2).fewest, overlap(chunks, 2).most) == (20, 200)
    one_more = overlap(ChunkTable([10] * 5, 10), 2)
    assert (one_more.fewest, one_more.most, one_more.most_repeats, one_more.mean_repeats) == (20, 30, 5, 5)


def test_equal_shares_do_not_overlap() -> None:
    found = overlap(ChunkTable([1_000] * 20, 100), 8, 5)
    assert (found.fewest, found.most, found.most_repeats, found.mean_repeats) == (12_500, 12_500, 0, 0)
    assert overlap(ChunkTable(UNEQUAL, 100), 1).mean_repeats == 0


@pytest.mark.parametrize("num_epochs", [1, 9])
@pytest.mark.parametrize(("chunk", "num_lanes"), [(100, 8), (None, 8), (30, 3), (20, 64)])
def test_typical_figures_are_those_of_many_seeds(chunk: int | None, num_lanes: int, num_epochs: int) -> None:
    geometry = geometry_of(UNEQUAL, num_lanes, chunk)
    found = overlap(ChunkTable(UNEQUAL, geometry.chunk_size), num_lanes, num_epochs)
    of_seeds = np.array([shares(UNEQUAL, geometry, seed, num_epochs) for seed in range(200)])
    assert np.mean([*map(repeats, of_seeds)]) == pytest.approx(found.mean_repeats, rel=0.1)
    assert of_seeds.std(axis=0).mean() == pytest.approx(found.share_std, rel=0.1)


@pytest.mark.processes
def test_a_job_draws_so_many_samples_again_before_others_come(tmp_path: Path) -> None:
    """Through the public API: of the draws of one epoch, by 8 lanes of batches of 1."""
    counts, num_lanes = tuple(10 + 480 * number // 19 for number in range(20)), 8
    write_shards(tmp_path, counts)
    found = overlap(ChunkTable(counts, geometry_of(counts, num_lanes, 100).chunk_size), num_lanes)
    num_repeats = []
    for seed in range(4):
        dataset = get_train_dataset(
            tmp_path,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes, seed_offset=seed),
            batch_size=1,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
        )
        drawn = [batch.text[0] for batch in itertools.islice(get_loader(dataset), sum(counts))]
        num_repeats.append(len(drawn) - len(set(drawn)))
    assert min(num_repeats) > 0
    assert max(num_repeats) <= found.most_repeats + num_lanes  # lanes are at most one draw apart
    assert np.mean(num_repeats) == pytest.approx(found.mean_repeats, rel=0.25)
