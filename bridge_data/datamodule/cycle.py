"""Going through something again and again, but never in vain."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from bridge_data.errors import DatasetError

T = TypeVar("T")


def cyclic_iter(iter: Iterable[T]) -> Iterator[T]:
    """The items of `iter`, from the first again after the last, for ever.

    An exception on the way does not end it: the next call goes on, as far as `iter` itself does.

    Raises:
        DatasetError: when two passes in a row have no item at all, as all but the first of something that can be
            iterated only once.
    """
    return _Cycle(iter)


class _Cycle(Iterator[T]):
    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterable = iterable
        self._pass: Iterator[T] | None = None
        self._num_passes = 0

    def __next__(self) -> T:
        if self._pass is not None:
            try:
                return next(self._pass)
            except StopIteration:
                pass
        for _ in range(2):  # the first pass after a restore may begin at its end
            self._pass = iter(self._iterable)
            self._num_passes += 1
            try:
                return next(self._pass)
            except StopIteration:
                pass
        raise DatasetError(
            f"passes {self._num_passes - 1} and {self._num_passes} through the {type(self._iterable).__name__} yielded "
            "nothing, so going on would never end. Check that this rank has data, and that it can be iterated more "
            "than once"
        )
