"""The lists of forgotten samples of records, as of the first look in a process, and the numbers of these samples.

Reads records. Returns `RecordLists`, which are pickled with the versions that were read. A sample that is made of
others, as of a selection or of a join, is forgotten if one of these is. Raises `DatasetError` for a list that is
damaged, or that names files that have changed since.
"""

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from bridge_data.data import Records
from bridge_data.data.records import derivation_of
from bridge_data.data.withheld import Nothing, SampleKey, StoredFiles, Withheld, files_of
from bridge_data.plugins.forget.tombstones import ForgetList, Version, newest_versions, read_lists

_READ: "weakref.WeakKeyDictionary[Records, tuple[ForgetList | None, ...]]" = weakref.WeakKeyDictionary()
"""The lists of records in files, so that all who open the same records have the same versions."""


class RecordLists:
    """The lists of `records`: of the data set itself, or of its `members`, which its samples are made of."""

    def __init__(
        self, records: Records, own: Sequence[ForgetList | None] = (), members: "Sequence[RecordLists]" = ()
    ) -> None:
        self._records, self._members = records, tuple(members)
        self.slots: list[ForgetList | None] = [*own, *(one for member in members for one in member.slots)]
        """The list of each data set in it, None for one without a list: as many with lists as without, as states have
        versions by their positions."""

    @property
    def lists(self) -> Sequence[ForgetList | None]:
        """The same; empty if no data set has a list."""
        return self.slots if any(self.slots) else ()

    def __bool__(self) -> bool:
        return any(self.slots)

    def __contains__(self, index: Any) -> bool:
        return index in self._newest

    @functools.cached_property
    def _newest(self) -> Container[int]:
        return self.forgotten(newest_versions(self.lists))

    def forgotten(self, versions: Sequence[Version]) -> Container[int]:
        """The numbers of the samples forgotten under these versions of `lists`."""
        if not self._members:
            return frozenset(self._numbers(versions))
        left, by_member = iter(versions), {}
        for at, member in enumerate(self._members):
            own = list(itertools.islice(left, len(member.slots)))
            if any(number for number, _ in own):
                by_member[at] = member.forgotten(own)
        derivation = derivation_of(self._records)
        assert derivation is not None
        return _MadeOf(derivation.row, by_member)

    def _numbers(self, versions: Sequence[Version]) -> Iterator[int]:
        """The same, of data that are no others' samples."""
        if (files := files_of(self._records) if self else None) is not None:
            for own, version in zip(self.slots, versions, strict=True):
                for file, position, _ in own.samples(version) if own else ():
                    if (number := files.number_in(file, position)) is not None:
                        yield number

    @property
    def keys(self) -> frozenset[SampleKey]:
        """(shard, key) of all samples on the newest lists, also of other split parts."""
        if self._members:
            return frozenset(key for member in self._members for key in member.keys)
        files = files_of(self._records) if self else None
        own = () if files is None else _newest_samples(self.slots)
        return frozenset((files.names[file], key) for file, _, key in own) if files else frozenset()

    def facts(self) -> dict[str, Any] | None:
        """How many samples are forgotten, and the versions of the lists; None for what is made of other data."""
        if self._members or not self:
            return None
        versions = newest_versions(self.slots)
        numbers = dict.fromkeys(number for number, _ in versions if number)
        return {"num_samples": sum(1 for _ in self._numbers(versions)), "versions": [*numbers]}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_newest"}


@dataclasses.dataclass(frozen=True)
class _MadeOf(Container[int]):
    """The samples that are made of one of these samples of a member: `row` has the number of that in each member."""

    row: Callable[[int], Sequence[int]]
    by_member: dict[int, Container[int]]

    def __contains__(self, number: Any) -> bool:
        row = self.row(number)
        return any(row[member] in forgotten for member, forgotten in self.by_member.items())


def _newest_samples(lists: Sequence[ForgetList | None]) -> Iterator[tuple[int, int, str]]:
    """(number of the file, position, key) of the samples on the newest lists."""
    return (one for own in lists if own for one in own.samples(own.newest))


def lists_of(records: Records) -> Withheld:
    """The lists of `records`."""
    found = _lists_of(records)
    return found if found else Nothing()


def _lists_of(records: Records) -> RecordLists:
    derivation = derivation_of(records)
    if derivation is not None:
        return RecordLists(records, members=[_lists_of(member) for member in derivation.members])
    if (files := files_of(records)) is None:
        return RecordLists(records, (None,))
    if records not in _READ:
        _READ[records] = read_lists(files)
    return RecordLists(records, _READ[records])


def forgotten_in(files: StoredFiles) -> Iterator[tuple[int, int, str]]:
    """(number of the file, position, key) of the forgotten samples in `files`, which are read now."""
    return _newest_samples(read_lists(files))
