from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge_data.order import Geometry, Row
from bridge_data.order.cursor import Stream
from bridge_data.order.random_draws import DRAWS_PER_BLOCK, Blend, Schedule
from bridge_data.tools.sample_numbers import DrawNumbers, RowNumbers

OF_THREE = st.lists(st.sampled_from([0.0, 1e-6, 0.2, 1.0]), min_size=3, max_size=3).filter(any)
PHASES = st.dictionaries(st.integers(1, 3_000), OF_THREE, min_size=1, max_size=5)


@settings(max_examples=20)
@given(phases=PHASES, lane=st.integers(0, 3), first=st.integers(0, 10**9), since=st.sampled_from([None, 0, 700]))
def test_counts_and_draws_are_those_of_the_blend_and_its_schedule(phases, lane, first, since):
    later = zip([0, *sorted(phases)[1:]], phases.values(), strict=True)
    blend = Blend(next(iter(phases.values())), 4) if since is None else Schedule([*later], 4).since(since)
    numbers = DrawNumbers(blend, lane, 4)
    for begin in (0, first):
        counts = blend.counts(lane, 4, begin)
        for draw in range(begin, begin + 1_000 if begin == 0 else begin + DRAWS_PER_BLOCK):
            source = int(blend.block(lane, 4, draw // DRAWS_PER_BLOCK)[draw % DRAWS_PER_BLOCK])
            if draw % 37 == 0:
                assert [numbers.count(each, draw) for each in range(3)] == counts.tolist()
                assert numbers.source_of(draw) == source
                assert numbers.draw_of(source, int(counts[source])) == draw
            counts[source] += 1


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
@example(  # more chunks than have a table
    counts=[10, 11] * 33_000,
    num_lanes=4_000,
    shuffle=(12, 10),
    together=1,
    num_epochs=None,
    equal=False,
    sample_bytes=None,
)
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
