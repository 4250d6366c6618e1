import collections
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.chunks import Geometry
from bridge_data.order.row import SPREAD, Row, Window

COUNTS = st.lists(st.integers(0, 120), min_size=1, max_size=8).filter(sum)
EPOCHS = st.fractions(Fraction(1, 10), 3, max_denominator=60)


def rounded(number: Fraction) -> int:
    """The nearest integer, the upper one of two."""
    return math.floor(number + Fraction(1, 2))


def windows(row: Row, lane: int, epochs: int) -> list[Window]:
    """The windows of a lane that begin before epoch `epochs`."""
    found, taken = [], 0
    while (window := row.window(lane, taken)) is not None and window.epochs[0] < epochs:
        found.append(window)
        taken = window.next_chunk
    return found


@given(
    counts=COUNTS,
    lanes=st.integers(1, 12),
    longest=st.integers(1, 100),
    per_shuffle=st.sampled_from([None, 1, 2, 3]),
    key=st.integers(0, 2**32),
)
def test_every_epoch_is_dealt_exactly_once(
    counts: list[int], lanes: int, longest: int, per_shuffle: int | None, key: int
) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=longest, shuffle_buffer_size=20)
    row = Row(counts, geometry, key, epochs_per_shuffle=per_shuffle)
    epochs = 2 * (per_shuffle or 1)
    dealt = collections.Counter(
        (epoch, index)
        for lane in range(lanes)
        for window in windows(row, lane, epochs)
        for epoch, index in zip(window.epochs.tolist(), window.indices.tolist(), strict=True)
    )
    assert dealt == {(epoch, index): 1 for epoch in range(epochs) for index in range(sum(counts))}


@given(counts=COUNTS, lanes=st.integers(1, 6))
def test_unshuffled_lanes_read_in_the_order_of_the_data(counts: list[int], lanes: int) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=10, shuffle_buffer_size=20)
    row = Row(counts, geometry, 5, epochs_per_shuffle=None)
    dealt = [np.concatenate([w.indices for w in windows(row, lane, 1)] or [np.array([])]) for lane in range(lanes)]
    assert all((np.diff(indices) > 0).all() for indices in dealt)
    if lanes == 1:
        assert dealt[0].tolist() == list(range(sum(counts)))


def test_a_row_that_does_not_repeat_ends_after_one_shuffle() -> None:
    geometry = Geometry(num_lanes=3, chunk_size=5, window_chunks=32)
    row = Row([50], geometry, 1, num_epochs=1)
    total = sum(len(w.indices) for lane in range(3) for w in windows(row, lane, 10))
    assert total == row.num_samples == 50


@given(
    counts=COUNTS,
    lanes=st.integers(1, 9),
    longest=st.integers(1, 60),
    num_epochs=EPOCHS,
    per_shuffle=st.integers(1, 2),
)
def test_a_row_of_some_epochs_and_a_fraction_ends_to_the_sample(
    counts: list[int], lanes: int, longest: int, num_epochs: Fraction, per_shuffle: int
) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=longest, shuffle_buffer_size=20)
    row = Row(counts, geometry, 5, num_epochs=num_epochs, epochs_per_shuffle=per_shuffle)
    dealt = collections.Counter(
        (epoch, index)
        for lane in range(lanes)
        for window in windows(row, lane, 10)
        for epoch, index in zip(window.epochs.tolist(), window.indices.tolist(), strict=True)
    )
    assert max(dealt.values(), default=1) == 1
    whole = int(num_epochs / per_shuffle) * per_shuffle
    assert {(epoch, index) for epoch in range(whole) for index in range(sum(counts))} <= dealt.keys()
    assert len(dealt) == rounded(num_epochs * sum(counts))


@given(counts=COUNTS, num_epochs=EPOCHS, first=st.integers(0, 4), lanes=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_a_row_ends_with_the_same_sample_whatever_epoch_it_begins_with(
    counts: list[int], num_epochs: Fraction, first: int, lanes: tuple[int, int]
) -> None:
    """As after a re-deal, from `first` on and to another number of lanes."""
    ends = []
    for first_epoch, num_lanes in ((0, lanes[0]), (first, lanes[1])):
        row = Row(counts, Geometry(num_lanes, 7, 4, first_epoch), 5, num_epochs=num_epochs)
        samples = sum(len(window.indices) for lane in range(num_lanes) for window in windows(row, lane, 10))
        ends.append(first_epoch * sum(counts) + samples)
    assert ends == [rounded(num_epochs * sum(counts)), max(first * sum(counts), ends[0])]


def test_one_and_a_half_epochs_of_51_samples_are_77() -> None:
    rows = [Row([51], Geometry(2, 5, 32, first), 1, num_epochs=Fraction(3, 2)) for first in (0, 1)]
    assert [row.num_samples_to(2, [0, 0]).sum() for row in rows] == [77, 26]


def test_a_fraction_cuts_one_chunk_and_leaves_the_order_of_the_others() -> None:
    """Chunks of equal lengths are not counted one by one, those of unequal lengths are; both end alike."""
    for counts in ([40] * 10, [41] * 10):
        geometry = Geometry(num_lanes=2, chunk_size=20, window_chunks=1)
        whole, part = Row(counts, geometry, 1, num_epochs=2), Row(counts, geometry, 1, num_epochs=Fraction("1.35"))
        taken = [[w.indices.tolist() for w in windows(row, lane, 2)] for row in (whole, part) for lane in range(2)]
        shorter = []
        for all_of_lane, some_of_lane in zip(taken[:2], taken[2:], strict=True):
            pairs = list(zip(all_of_lane, some_of_lane, strict=False))
            shorter += [(len(a), len(b)) for a, b in pairs if a != b]
            assert all(set(b) <= set(a) for a, b in pairs)
        assert len(shorter) <= 1
        assert sum(map(len, itertools.chain(*taken[2:]))) == rounded(Fraction("1.35") * sum(counts))


@given(
    counts=COUNTS,
    lanes=st.integers(1, 9),
    longest=st.integers(1, 60),
    num_epochs=st.none() | EPOCHS,
    per_shuffle=st.integers(1, 2),
    data=st.data(),
)
def test_what_all_lanes_have_left_is_counted_in_bulk(
    counts: list[int], lanes: int, longest: int, num_epochs: Fraction | None, per_shuffle: int, data: st.DataObject
) -> None:
    geometry = Geometry.choose(counts, num_lanes=lanes, max_samples_per_sequence=longest, shuffle_buffer_size=20)
    row = Row(counts, geometry, 5, num_epochs=num_epochs, epochs_per_shuffle=per_shuffle)
    end = data.draw(st.integers(0, 3), label="shuffles")
    taken, left = [], []
    for lane in range(lanes):
        ahead = windows(row, lane, end * per_shuffle)
        done = data.draw(st.integers(0, len(ahead)), label="windows taken")
        taken.append(ahead[done - 1].next_chunk if done else 0)
        left.append(sum(len(window.indices) for window in ahead[done:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge_data.order.row._BULK", 7)
        assert row.num_samples_to(end, taken).tolist() == left


def test_windows_of_an_epoch_are_nearly_equal() -> None:
    geometry = Geometry(num_lanes=4, chunk_size=10, window_chunks=32)
    sizes = [len(w.indices) for w in windows(Row([1_000] * 20, geometry, 1), 0, 1)]
    assert len(sizes) == 500 // 32
    assert max(sizes) - min(sizes) <= 10


def test_a_chunk_is_read_front_to_back_in_parts() -> None:
    """Within a window no sample comes more than SPREAD places out of its chunk's sequence."""
    geometry = Geometry(num_lanes=2, chunk_size=100, window_chunks=32)
    window = Row([100] * 200, geometry, 3).window(0, 0)
    assert window is not None
    for chunk in np.unique(window.indices // 100):
        places = window.indices[window.indices // 100 == chunk] % 100
        assert np.maximum.accumulate(places).max() == 99
        assert (np.maximum.accumulate(places) - places).max() < SPREAD
        assert not np.array_equal(places, np.arange(100))


def test_epochs_and_lanes_differ() -> None:
    geometry = Geometry(num_lanes=2, chunk_size=1, window_chunks=32)
    row = Row([64], geometry, 1)
    streams = [tuple(w.indices.tolist()) for lane in range(2) for w in windows(row, lane, 3)]
    assert len(set(streams)) == len(streams) == 6


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_fewer_samples_than_lanes_starve_no_lane(samples: int) -> None:
    geometry = Geometry.choose([samples], num_lanes=8, max_samples_per_sequence=None, shuffle_buffer_size=None)
    row = Row([samples], geometry, 1)
    for lane in range(8):
        assert sum(len(w.indices) for w in windows(row, lane, 8)) == samples
