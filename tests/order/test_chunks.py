import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.chunks import MIN_CHUNKS_PER_LANE, ChunkTable, Geometry, share_open

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
    unique = np.unique_counts(lengths)
    assert [column.tolist() for column in table.counts_by_length()] == [column.tolist() for column in unique]


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
    assert chosen(100_000, 1_000)[0] == 2  # 100 MB, of which a quarter lies in blocks of two, read in part
    assert chosen(1_000_000, 1_000)[0] == 1
    for block in range(1, 40):  # the share is at most when so many samples are left
        left = np.linspace(0, 1, 10_001)
        assert abs((left - left**block).max() - share_open(block)) < 1e-6


def test_a_few_long_shards_do_not_make_long_chunks() -> None:
    """The slots of a lane, as many for each chunk, are not much more than the blocks."""
    counts = [10] * 10_000 + [1_000_000]
    geometry = Geometry.choose(counts, num_lanes=8, max_samples_per_sequence=None, shuffle_buffer_size=1)
    table = ChunkTable(counts, geometry.chunk_size)
    assert table.longest <= 3 * table.num_samples / table.num_chunks
