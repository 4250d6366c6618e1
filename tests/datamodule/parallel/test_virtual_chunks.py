from typing import Any

import pytest

from bridge_data import ConfigError
from bridge_data.datamodule.parallel import virtual_chunks, virtual_iterators


class Counting:
    """A loader that counts."""

    def __init__(self) -> None:
        self.next = 0

    def __next__(self) -> int:
        self.next += 1
        return self.next - 1

    def save_state(self) -> dict[str, Any]:
        return {"next": self.next}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def test_each_chunk_gets_every_batch_and_each_batch_is_drawn_once() -> None:
    loader = Counting()
    first, second, third = virtual_iterators(loader, 3)
    assert [next(first) for _ in range(4)] == [0, 1, 2, 3]
    assert [next(second) for _ in range(2)] == [0, 1]
    assert [next(third) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [next(second) for _ in range(3)] == [2, 3, 4]
    assert loader.next == 5


def test_a_saved_position_is_restored_for_all_chunks() -> None:
    loader = Counting()
    chunks = virtual_iterators(loader, 2)
    for chunk in chunks:
        assert [next(chunk) for _ in range(3)] == [0, 1, 2]
    state = chunks[0].save_state()
    next(chunks[0])
    chunks[1].restore_state(state)
    assert [next(chunk) for chunk in chunks] == [3, 3]


def test_chunks_that_draw_nothing_are_named_and_hold_nothing_up() -> None:
    first, second, third = virtual_iterators(Counting(), 3, drawing=[0, 2])
    for number in range(virtual_chunks.MAX_APART + 10):
        assert next(first) == next(third) == number
    with pytest.raises(ConfigError, match=r"model chunk 1 draws a batch, but only \[0, 2\]"):
        next(second)


def test_a_chunk_that_does_not_draw_is_noticed() -> None:
    first, _ = virtual_iterators(Counting(), 2)
    for _ in range(virtual_chunks.MAX_APART):
        next(first)
    with pytest.raises(ConfigError, match="1024 batches ahead of chunk 1"):
        next(first)
