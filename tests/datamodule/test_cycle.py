import itertools
from collections.abc import Iterator

import pytest

from bridge_data import DatasetError, cyclic_iter


def test_it_goes_round_and_round() -> None:
    assert list(itertools.islice(cyclic_iter([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_one_empty_pass_is_forgiven_as_after_a_restore_at_the_end() -> None:
    passes = iter([[], [1, 2], [3]])

    class Restored:
        def __iter__(self) -> Iterator[int]:
            return iter(next(passes))

    assert list(itertools.islice(cyclic_iter(Restored()), 3)) == [1, 2, 3]


def test_nothing_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(DatasetError, match="passes 1 and 2 through the list yielded nothing"):
        next(cyclic_iter([]))


def test_what_can_be_iterated_only_once_is_an_error_when_it_is_over() -> None:
    items = cyclic_iter(iter([1]))
    assert next(items) == 1
    with pytest.raises(DatasetError, match="can be iterated more than once"):
        next(items)


class Faltering:
    """Fails once between its two items."""

    def __init__(self) -> None:
        self.items: list[int | Exception] = [1, ValueError("once"), 2]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


def test_an_exception_does_not_end_it() -> None:
    items = cyclic_iter(Faltering())
    assert next(items) == 1
    with pytest.raises(ValueError, match="once"):
        next(items)
    assert next(items) == 2
