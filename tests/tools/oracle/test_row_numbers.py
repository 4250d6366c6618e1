"""The samples of rows by number, compared with rows read from their beginnings."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.order import Geometry, Row
from bridge_data.order.cursor import Stream
from bridge_data.tools.sample_numbers import RowNumbers

SETTINGS = st.sampled_from([(None, None), (None, 5), (100, None), (100, 100), (7, 30), (1, 20)])


def read(row: Row, lane: int, count: int) -> list[tuple[int, int]]:
    """The first samples of a lane."""
    stream, found = Stream(row, lane), []
    while len(found) < count:
        epochs, indices = stream.take(count - len(found))
        if not indices:
            break
        found += zip(epochs, indices, strict=True)
    return found


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 3_000), min_size=1, max_size=6).filter(any),
    num_lanes=st.integers(1, 9),
    shuffle=SETTINGS,
    together=st.sampled_from([1, 1, 3, None]),
    num_epochs=st.sampled_from([None, None, 1, 2, Fraction(5, 3)]),
    equal=st.booleans(),
    sample_bytes=st.sampled_from([None, 300.0, 60_000.0]),
)
def test_every_number_and_every_sample_is_found_where_the_row_has_it(
    counts, num_lanes, shuffle, together, num_epochs, equal, sample_bytes
):
    if equal:
        counts = [max(counts)] * len(counts)
    chunk, buffer = shuffle
    geometry = Geometry.choose(
        counts,
        num_lanes=num_lanes,
        max_samples_per_sequence=chunk,
        shuffle_buffer_size=buffer,
        sample_bytes=sample_bytes,
    )
    row = Row(counts, geometry, 5, epochs_per_shuffle=together, num_epochs=num_epochs)
    numbers = RowNumbers(Row(counts, geometry, 5, epochs_per_shuffle=together, num_epochs=num_epochs))
    rng = np.random.default_rng(len(counts) + sum(counts))
    for lane in {0, num_lanes - 1, int(rng.integers(num_lanes))}:
        lane_row = read(row, lane, 2 * 4 * sum(counts) // num_lanes + 5)
        if num_epochs is not None:
            assert numbers.total(lane) == len(lane_row)
            with pytest.raises(IndexError, match="samples"):
                numbers.position(lane, len(lane_row))
        if not lane_row:
            continue
        for number in {0, len(lane_row) - 1, *rng.integers(len(lane_row), size=12).tolist()}:
            position = numbers.position(lane, number)
            assert numbers.number_at(lane, *position[:3]) == number
            assert [(e[0], i[0]) for e, i in [Stream(row, lane, position).take(1)]] == [lane_row[number]]
            epoch, index = lane_row[number]
            shuffle = (epoch - row.first_epoch_of(0)) // row.epochs_per_shuffle
            assert (lane, number, epoch) in list(numbers.find(index, shuffle))
            later = RowNumbers(row, since=int(rng.integers(shuffle + 1)))
            own = number - numbers.num_before(lane, later.since)
            assert later.position(lane, own) == position
            assert (lane, own, epoch) in list(later.find(index, shuffle))
            assert own + 1 > later.least_before(lane, shuffle)


def test_a_billion_samples_need_no_table_of_chunks():
    counts = [10_000] * 100_000
    geometry = Geometry.choose(
        counts, num_lanes=512, max_samples_per_sequence=100, shuffle_buffer_size=100, sample_bytes=1e5
    )
    numbers = RowNumbers(Row(counts, geometry, 3))
    for number in (5_000_000, 1_000_000_000):
        position = numbers.position(77, number)
        epochs, indices = Stream(numbers.row, 77, position).take(1)
        ((lane, found, epoch),) = numbers.find(indices[0], position[0])
        assert (lane, found, epoch) == (77, number, epochs[0])


def test_lanes_of_many_unequal_chunks_are_counted_one_by_one():
    counts = [10, 11] * 40_000
    geometry = Geometry.choose(counts, num_lanes=4_000, max_samples_per_sequence=12, shuffle_buffer_size=10)
    row = Row(counts, geometry, 3)
    numbers = RowNumbers(row)
    for lane in (0, 3_999):
        samples = read(row, lane, 700)
        for number in (0, 209, 210, 433, 699):
            position = numbers.position(lane, number)
            assert read(row, lane, number + 1)[-1] == samples[number]
            epochs, indices = Stream(row, lane, position).take(1)
            assert (epochs[0], indices[0]) == samples[number]
            assert (lane, number, epochs[0]) in list(numbers.find(indices[0], epochs[0]))
