"""The keys of samples: from a number to a key, and back.

Reads records, and numbers or keys. Returns keys, or the numbers of all samples that have one. A kind of data registers
how its index does that; without, every sample is read once. Says, too, why the keys of some data are not known to
others, who join by them.
"""

import functools
from collections.abc import Collection, Iterator

from bridge_data.data.records import Records, Selection, count_samples

NO_MEMBER = "a member of a join is the path of a prepared folder of tars, of tables or of a JSONL file"
"""Why data of other kinds cannot be joined."""


@functools.singledispatch
def keys_of(records: Records, samples: range) -> Iterator[str]:
    """The keys of these samples, read front to back, without their contents: from an index, if there is one, which is
    opened for each call; else out of the samples.

    Raises:
        DatasetError: if they cannot be read.
    """
    return read_keys(records, samples)


@functools.singledispatch
def find(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """(number, key) of all samples that have one of `keys`; for data without an index of keys, all are read once.

    Raises:
        DatasetError: if keys cannot be read.
    """
    return scan_keys(records, keys)


@functools.singledispatch
def join_problem(records: Records) -> str | None:
    """Why the samples cannot be joined by their keys, for messages; None if they can."""
    return NO_MEMBER


@functools.singledispatch
def fix_repeated_keys(records: Records) -> str:
    """How keys that several samples share become unique, for messages; empty if there is no need, or no way."""
    return ""


def scan_keys(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`find` for data that have no index of keys."""
    return ((at, key) for at, key in enumerate(keys_of(records, range(count_samples(records)))) if key in keys)


def read_keys(records: Records, samples: range) -> Iterator[str]:
    """`keys_of` data that have no index of keys: out of the samples, one by one."""
    reader = records.reader()
    return (reader.read(index, ()).key for index in samples)


def number_of_key(key: str) -> int | None:
    """The number that the key of a sample without its own key is; None if it is none."""
    return int(key) if key.isascii() and key.isdigit() and key == str(int(key[:20])) else None


@keys_of.register
def _keys(records: Selection, samples: range) -> Iterator[str]:
    if not samples:
        return
    wanted = map(records.to_base, samples)
    number, end = next(wanted), records.to_base(samples[-1]) + 1
    for at, key in enumerate(keys_of(records.records, range(number, end)), start=number):
        if at == number:
            yield key
            number = next(wanted, end)


@find.register
def _find(records: Selection, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    found = ((records.from_base(number), key) for number, key in find(records.records, keys))
    return ((index, key) for index, key in found if index is not None)


@join_problem.register
def _problem(records: Selection) -> str | None:
    return join_problem(records.records)


@fix_repeated_keys.register
def _fix(records: Selection) -> str:
    return fix_repeated_keys(records.records)
