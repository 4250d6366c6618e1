import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.chunks import MIN_CHUNKS_PER_LANE, ChunkTable, Geometry

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


@given(
    counts=COUNTS,
    lanes=st.integers(1, 64),
    longest=st.none() | st.integers(1, 400),
    buffer=st.none() | st.integers(0, 500),
)
def test_geometry_fits_chunks_to_the_lanes(
    counts: list[int], lanes: int, longest: int | None, buffer: int | None
) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=longest, shuffle_buffer_size=buffer)
    assert 1 <= geometry.chunk_size <= min(longest or max(counts), max(counts))
    share = sum(counts) // lanes
    if geometry.chunk_size > 1:
        assert ChunkTable(counts, geometry.chunk_size).num_chunks >= lanes * MIN_CHUNKS_PER_LANE
        assert share >= MIN_CHUNKS_PER_LANE


def test_window_grows_with_the_shuffle_buffer() -> None:
    def window(buffer: int | None, chunk: int) -> int:
        return Geometry.choose(
            [10_000] * 100, num_lanes=8, max_samples_per_sequence=chunk, shuffle_buffer_size=buffer
        ).window_chunks

    assert window(None, 100) == window(100, 100) == 32
    assert window(1_000, 100) == 36
    assert window(1_000, 10) == 216
