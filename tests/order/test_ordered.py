"""The samples of one lane in one row, shuffled or in the order of validation."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order import Geometry, OrderedRow, Row
from bridge_data.order.cursor import Stream


def shuffled(first_epoch: int = 0, num_epochs: int | None = None) -> Row:
    return Row([30, 7], Geometry(3, 5, 2, 16, first_epoch), key=1, num_epochs=num_epochs)


def drained(stream: Any, count: int) -> list[Any]:
    """All that is left, `count` at a time."""
    taken: list[Any] = []
    while part := stream.take(count):
        if isinstance(stream, Stream):
            part = list(zip(*part, strict=True))
            if not part:
                return taken
        taken += part
    return taken


@given(
    num_samples=st.integers(1, 60), num_lanes=st.integers(1, 7), block_size=st.integers(1, 9), size=st.integers(1, 9)
)
def test_the_micro_batches_of_validation_are_the_data_from_start_to_end(
    num_samples: int, num_lanes: int, block_size: int, size: int
) -> None:
    row = OrderedRow(num_samples, num_lanes, block_size)
    lanes = [[index for _, index in drained(Stream(row, lane), size)] for lane in range(num_lanes)]
    blocks = [iter(_cut(lane, block_size)) for lane in lanes]
    turns = range(-(-num_samples // block_size))
    job = itertools.chain.from_iterable(next(blocks[turn % num_lanes]) for turn in turns)
    assert list(job) == list(range(num_samples))


@given(num_lanes=st.integers(1, 7), first_block=st.integers(0, 20), lane=st.integers(0, 6), taken=st.integers(0, 40))
def test_the_block_after_the_last_one_touched_is_untouched(
    num_lanes: int, first_block: int, lane: int, taken: int
) -> None:
    row = OrderedRow(1_000, num_lanes, 3, first_block)
    stream = Stream(row, lane % num_lanes)
    touched = [int(index) // 3 for index in stream.take(taken)[1]] if taken else []
    assert row.untouched_block(lane % num_lanes, taken) == max(touched, default=first_block - 1) + 1


def _cut(samples: list[int], size: int) -> list[list[int]]:
    return [samples[start : start + size] for start in range(0, len(samples), size)]


@given(lane=st.integers(0, 2), before=st.integers(0, 25), unread=st.integers(0, 3), is_ordered=st.booleans())
def test_a_stream_continues_at_the_position_of_another(lane: int, before: int, unread: int, is_ordered: bool) -> None:
    row = OrderedRow(37, 3, 4) if is_ordered else shuffled(num_epochs=2)
    first = Stream(row, lane)
    taken = 0
    while taken < before:
        epochs, _ = first.take(before - taken)
        if not epochs:
            return
        taken, last = taken + len(epochs), len(epochs)
    unread = min(unread, last) if taken else 0
    again = Stream(row, lane, first.position(unread))
    assert again.fault(taken) is None
    assert drained(again, 5) == drained(Stream(row, lane), 5)[taken - unread :]


@pytest.mark.parametrize(
    ("position", "says"),
    [
        ((0, 0, 3, 4), "in validation a position is"),
        ((1, 0, 0, 0), "in validation a position is"),
        ((0, 0, 99, 99), "99 samples taken of the 13 that the lane has"),
        ((0, 0, 9, 9), "9 samples were taken before it, in 8 draws"),
    ],
)
def test_a_position_that_validation_never_had_is_a_fault(position: tuple[int, ...], says: str) -> None:
    assert says in (Stream(OrderedRow(37, 3, 4), 0, position).fault(8) or "")
