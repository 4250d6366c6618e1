import collections
import dataclasses
import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.row import Geometry, Row, _staggered

COUNTS = st.lists(st.integers(0, 120), min_size=1, max_size=8).filter(sum)
EPOCHS = st.fractions(Fraction(1, 10), 3, max_denominator=60)


def rounded(number: Fraction) -> int:
    """The nearest integer, the upper one of two."""
    return math.floor(number + Fraction(1, 2))


Numbers = tuple[int, int]


def windows(row: Row, lane: int, shuffles: int) -> dict[Numbers, list[Numbers]]:
    """The (epoch, index) of the windows of a lane in the first `shuffles` shuffles, by (shuffle, number)."""
    found, at = {}, (0, 0)
    while at is not None and at[0] < shuffles:
        window = row.window(lane, *at)
        if window is not None:
            epochs, indices = window.take(0, len(window))
            found[at] = list(zip(epochs.tolist(), indices.tolist(), strict=True))
        at = row.after(lane, *at)
    return found


def samples(row: Row, lane: int, shuffles: int) -> list[Numbers]:
    """All of them, in the lane's order."""
    return list(itertools.chain.from_iterable(windows(row, lane, shuffles).values()))


@st.composite
def geometries(draw: st.DrawFn, counts: list[int], first_epoch: int = 0) -> Geometry:
    """Any geometry, those that `Geometry.choose` makes among them."""
    lanes = draw(st.integers(1, 12), label="lanes")
    longest, buffer = draw(st.none() | st.integers(1, 100)), draw(st.none() | st.integers(0, 2_000))
    size = draw(st.none() | st.floats(1, 1e8))
    chosen = Geometry.choose(
        counts, num_lanes=lanes, max_samples_per_sequence=longest, shuffle_buffer_size=buffer, sample_bytes=size
    )
    if draw(st.booleans()):
        return dataclasses.replace(chosen, first_epoch=first_epoch)
    block, window = draw(st.integers(1, chosen.chunk_size)), draw(st.integers(0, 200))
    return Geometry(lanes, chosen.chunk_size, block, window, first_epoch)


@given(counts=COUNTS, per_shuffle=st.sampled_from([None, 1, 2, 3]), key=st.integers(0, 2**32), data=st.data())
def test_every_epoch_is_assigned_exactly_once(
    counts: list[int], per_shuffle: int | None, key: int, data: st.DataObject
) -> None:
    geometry = data.draw(geometries(counts, first_epoch=3))
    row = Row(counts, geometry, key, epochs_per_shuffle=per_shuffle)
    assigned = collections.Counter(sample for lane in range(geometry.num_lanes) for sample in samples(row, lane, 2))
    epochs = range(3, 3 + 2 * (per_shuffle or 1))
    assert assigned == {(epoch, index): 1 for epoch in epochs for index in range(sum(counts))}


@given(counts=COUNTS, lanes=st.integers(1, 6))
def test_without_settings_a_shard_comes_in_its_own_order(counts: list[int], lanes: int) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=None, shuffle_buffer_size=None)
    row = Row(counts, geometry, 5)
    shard_of = np.repeat(np.arange(len(counts)), counts)
    for lane in range(lanes):
        for window in windows(row, lane, 2).values():
            indices = [index for _, index in window]
            assert indices == list(range(indices[0], indices[-1] + 1))
            assert shard_of[indices[0]] == shard_of[indices[-1]]
    if lanes == 1:
        assert sorted(map(len, windows(row, 0, 1).values())) == sorted(count for count in counts if count)


@given(counts=COUNTS, num_epochs=EPOCHS, per_shuffle=st.integers(1, 2), data=st.data())
def test_a_row_of_some_epochs_and_a_fraction_ends_to_the_sample(
    counts: list[int], num_epochs: Fraction, per_shuffle: int, data: st.DataObject
) -> None:
    geometry = data.draw(geometries(counts))
    row = Row(counts, geometry, 5, num_epochs=num_epochs, epochs_per_shuffle=per_shuffle)
    assigned = collections.Counter(sample for lane in range(geometry.num_lanes) for sample in samples(row, lane, 10))
    assert max(assigned.values(), default=1) == 1
    whole = int(num_epochs / per_shuffle) * per_shuffle
    assert {(epoch, index) for epoch in range(whole) for index in range(sum(counts))} <= assigned.keys()
    assert len(assigned) == rounded(num_epochs * sum(counts))


@given(
    counts=COUNTS,
    num_epochs=st.none() | EPOCHS,
    per_shuffle=st.integers(1, 2),
    data=st.data(),
)
def test_what_all_lanes_have_left_is_counted_in_bulk(
    counts: list[int], num_epochs: Fraction | None, per_shuffle: int, data: st.DataObject
) -> None:
    geometry = data.draw(geometries(counts))
    row = Row(counts, geometry, 5, num_epochs=num_epochs, epochs_per_shuffle=per_shuffle)
    end = data.draw(st.integers(0, 3), label="shuffles")
    begins, left = [], []
    for lane in range(geometry.num_lanes):
        begins.append(data.draw(st.integers(0, end), label="shuffle of the lane"))
        left.append(sum(len(found) for at, found in windows(row, lane, end).items() if at[0] >= begins[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge_data.order.row._BULK", 7)
        assert row.num_samples_to(end, begins).tolist() == left


@given(counts=COUNTS, per_shuffle=st.integers(1, 2), bulk=st.sampled_from([7, 1 << 17]), data=st.data())
def test_a_stream_is_entered_at_any_sample(counts: list[int], per_shuffle: int, bulk: int, data: st.DataObject) -> None:
    geometry = data.draw(geometries(counts))
    row = Row(counts, geometry, 5, epochs_per_shuffle=per_shuffle)
    lane = data.draw(st.integers(0, geometry.num_lanes - 1), label="lane")
    sizes = {at: len(found) for at, found in windows(row, lane, 3).items()}
    positions = [(*at, offset) for at, size in sizes.items() for offset in range(size)]
    if positions:
        number = data.draw(st.integers(0, len(positions) - 1), label="sample")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bridge_data.order.row._BULK", bulk)
            assert row.seek(lane, 0, 0, number, row.starts_at(3)) == positions[number]
            with pytest.raises(ValueError, match="ends 0 samples before"):
                row.seek(lane, 0, 0, len(positions), row.starts_at(3))


def test_windows_have_their_size_or_somewhat_more() -> None:
    """At chunks of equal lengths. The numbers of chunks and of slots are coprime, equal, and neither."""
    for num_chunks, block in itertools.product((63, 64, 100, 101, 250), (1, 3, 8, 25, 100)):
        window = 64 * block
        row = Row([100] * num_chunks, Geometry(1, 100, block, window), 1)
        sizes = [len(found) for found in windows(row, 0, 1).values()]
        assert sum(sizes) == 100 * num_chunks
        assert window - 2 * block <= min(sizes) <= max(sizes) <= 2 * window + 2 * block, (num_chunks, block)


def test_a_block_comes_in_one_window_and_a_window_has_blocks_of_many_chunks() -> None:
    row = Row([100] * 200, Geometry(2, 100, 10, 640), 3)
    window_of = {}
    for at, found in windows(row, 0, 1).items():
        chunks = collections.Counter(index // 100 for _, index in found)
        assert len(chunks) >= 60  # of 64 blocks
        for _, index in found:
            assert window_of.setdefault(index // 10, at) == at


def test_windows_of_a_million_samples_are_made_as_they_are_taken() -> None:
    row = Row([100] * 40_000, Geometry(2, 100, 1, 1_000_000), 3)
    tracemalloc.start()
    try:
        window = row.window(0, 0, 0)
        assert window is not None
        held, _ = tracemalloc.get_traced_memory()
        epochs, indices = window.take(500_000, 500_256)
    finally:
        tracemalloc.stop()
    assert held < 17 * len(window)
    assert len(set(indices.tolist())) == 256
    assert not epochs.any()


@given(num_chunks=st.integers(1, 30), num_slots=st.integers(1, 30), data=st.data())
def test_chunks_are_staggered_and_each_time_has_one_visit(num_chunks: int, num_slots: int, data: st.DataObject) -> None:
    """Also where the numbers of chunks and slots have a common divisor, which golden orders lack."""
    num_times = num_chunks * num_slots
    found = sorted(zip(*map(np.ndarray.tolist, _staggered(num_chunks, num_slots, 0, num_times)), strict=True))
    assert [(chunk, visit) for chunk, visit, _ in found] == list(itertools.product(range(num_chunks), range(num_slots)))
    assert sorted(time for _, _, time in found) == list(range(num_times))
    divisor = math.gcd(num_chunks, num_slots)
    for chunk, visit, time in found:
        assert time - time % divisor == (chunk * num_slots + visit * num_chunks) % num_times
        assert time % divisor == chunk // (num_chunks // divisor)
    begin = data.draw(st.integers(0, num_times))
    end = data.draw(st.integers(begin, num_times))
    part = zip(*map(np.ndarray.tolist, _staggered(num_chunks, num_slots, begin, end)), strict=True)
    assert sorted(part) == [one for one in found if begin <= one[2] < end]


@pytest.mark.parametrize("num_samples", [1, 2, 7])
@pytest.mark.parametrize("buffer", [None, 100])
def test_fewer_samples_than_lanes_starve_no_lane(num_samples: int, buffer: int | None) -> None:
    geometry = Geometry.choose([num_samples], num_lanes=8, max_samples_per_sequence=None, shuffle_buffer_size=buffer)
    row = Row([num_samples], geometry, 1)
    for lane in range(8):
        assert len(samples(row, lane, 8)) == num_samples
