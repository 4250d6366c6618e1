import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order import Row
from bridge_data.order.row import MIN_CHUNKS_PER_LANE, ChunkTable, Geometry
from tests.order.overlaps import overlap

MANY = [0, 9, 0, 0, *[1] * 500, 10_000, *[0] * 300, *[1, 0, 2] * 200, 7_000, 0]
"""A few large shards among many small and empty ones."""
COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(sum)


@given(counts=COUNTS | st.just(MANY), size=st.integers(1, 400))
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
    shortest = np.sort(np.tile(lengths, 2))
    assert table.least_samples(np.arange(len(shortest) + 1), 2).tolist() == [0, *np.cumsum(shortest).tolist()]


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


@pytest.mark.parametrize(
    ("buffer", "sample_bytes", "chunk", "expected"),
    [
        (None, None, 100, (8, 1_024)),  # a window is at least this long, and else the shuffle buffer
        (100, None, 100, (8, 1_024)),
        (5_000, None, 100, (8, 5_000)),
        (None, 1_000, 100, (100, 6_400)),  # a block is what one read holds
        (0, 1_000, None, (262, 16_768)),
        (None, 55_000, 100, (4, 1_024)),
        (None, 300_000, 100, (1, 1_024)),
        (0, 10, None, (1_024, 65_536)),
        (100_000, 1_000, 100, (2, 100_000)),  # of 100 MB a quarter is in partly consumed blocks of two
        (1_000_000, 1_000, 100, (1, 1_000_000)),
    ],
)
def test_blocks_and_windows_follow_the_size_of_the_samples(
    buffer: int | None, sample_bytes: float | None, chunk: int | None, expected: tuple[int, int]
) -> None:
    geometry = Geometry.choose(
        [10_000] * 1_000,
        num_lanes=8,
        max_samples_per_sequence=chunk,
        shuffle_buffer_size=buffer,
        sample_bytes=sample_bytes,
    )
    assert (geometry.block_size, geometry.window_size) == expected


def test_a_few_long_shards_do_not_make_long_chunks() -> None:
    """The slots of a lane, as many for each chunk, are not much more than the blocks."""
    counts = [10] * 10_000 + [1_000_000]
    geometry = Geometry.choose(counts, num_lanes=8, max_samples_per_sequence=None, shuffle_buffer_size=1)
    table = ChunkTable(counts, geometry.chunk_size)
    assert table.longest <= 3 * table.num_samples / table.num_chunks


def shares(counts: tuple[int, ...], geometry: Geometry, seed: int, num_epochs: int) -> np.ndarray:
    """What each lane has of the first epochs."""
    return Row(counts, geometry, seed).num_samples_to(num_epochs, [0] * geometry.num_lanes)


def repeats(shares: np.ndarray) -> float:
    """What lanes lack that have less than an equal share: they draw it of the next epoch."""
    return float(np.maximum(0, shares.mean() - shares).sum())


@given(
    counts=COUNTS.map(tuple),
    num_lanes=st.integers(1, 20),
    chunk=st.none() | st.integers(1, 200),
    num_epochs=st.integers(1, 4),
)
def test_how_far_epochs_overlap_is_bounded(
    counts: tuple[int, ...], num_lanes: int, chunk: int | None, num_epochs: int
) -> None:
    geometry = Geometry.choose(counts, num_lanes=num_lanes, max_samples_per_sequence=chunk, shuffle_buffer_size=100)
    found = overlap(ChunkTable(counts, geometry.chunk_size), num_lanes, num_epochs)
    for seed in range(3):
        of_lanes = shares(counts, geometry, seed, num_epochs)
        assert found.fewest <= of_lanes.min() <= of_lanes.max() <= found.most
        assert repeats(of_lanes) <= found.most_repeats + 1e-6


@pytest.mark.parametrize(
    ("counts", "size", "num_lanes", "num_epochs", "expected"),
    [
        ([100, 100, 10, 10], 100, 2, 1, (20, 200, 200 - 110)),  # the unluckiest assignment
        ([10] * 5, 10, 2, 1, (20, 30, 5)),
        ([1_000] * 20, 100, 8, 5, (12_500, 12_500, 0)),
    ],
)
def test_the_bounds_of_an_overlap_are_reached(
    counts: list[int], size: int, num_lanes: int, num_epochs: int, expected: tuple[int, int, int]
) -> None:
    found = overlap(ChunkTable(counts, size), num_lanes, num_epochs)
    assert (found.fewest, found.most, found.most_repeats) == expected


@pytest.mark.parametrize("num_epochs", [1, 9])
@pytest.mark.parametrize(("chunk", "num_lanes"), [(100, 8), (20, 64)])
def test_the_typical_overlap_is_that_of_many_seeds(chunk: int, num_lanes: int, num_epochs: int) -> None:
    counts = tuple(20 + 960 * number // 19 for number in range(20))
    geometry = Geometry.choose(counts, num_lanes=num_lanes, max_samples_per_sequence=chunk, shuffle_buffer_size=100)
    found = overlap(ChunkTable(counts, geometry.chunk_size), num_lanes, num_epochs)
    of_seeds = np.array([shares(counts, geometry, seed, num_epochs) for seed in range(100)])
    assert np.mean([*map(repeats, of_seeds)]) == pytest.approx(found.mean_repeats, rel=0.15)
    assert of_seeds.std(axis=0).mean() == pytest.approx(found.share_std, rel=0.15)
