"""Forgotten samples: which references a lane leaves out when it draws them, or when they are pending.

Reads the sources of a plan, and versions of their lists. Returns whether a reference is of a forgotten sample. The
versions are fixed when the object is made, in every process that gets it (which computes the numbers of the samples on
first use). Which versions a run used, its states say: see `forgotten_lists`.
"""

import functools
from collections.abc import Container, Sequence
from typing import Any, ClassVar, Self

from bridge_data.errors import StateError
from bridge_data.order import SampleRef
from bridge_data.order.extras import LaneExtra, ShownExtra, StateExtra, data_of
from bridge_data.order.state import LoaderState
from bridge_data.plan import Source
from bridge_data.plugins.forget.forgotten_lists import LIST_FILES, History, ListVersions, check_lists, with_lists
from bridge_data.plugins.forget.record_lists import RecordLists
from bridge_data.plugins.forget.tombstones import Version, counts_at, newest_versions
from bridge_data.task.hooks import FORGOTTEN


class ForgottenSamples(StateExtra):
    """The forgotten samples of `sources`, which states call by these ids, under these versions of their lists."""

    name: ClassVar[str] = "withheld"
    version: ClassVar[int] = 1
    leaves_out: ClassVar[bool] = True

    def __init__(self, sources: Sequence[Source], source_ids: Sequence[str], lists: ListVersions) -> None:
        self.lists = lists
        self._known = known_digests(sources, source_ids)
        self._lists: dict[int, tuple[Any, list[Version]]] = {
            number: (source.withheld, [(number_of, digest) for number_of, digest in lists[name]])
            for number, (source, name) in enumerate(zip(sources, source_ids, strict=True))
            if name in lists
        }

    @classmethod
    def of_data(cls, sources: Sequence[Source], source_ids: Sequence[str]) -> Self:
        """Those under the newest versions."""
        lists = {
            name: [list(version) for version in newest_versions(source.withheld.lists)]
            for source, name in zip(sources, source_ids, strict=True)
            if isinstance(source.withheld, RecordLists)
        }
        return cls(sources, source_ids, lists)

    @classmethod
    def unasked(cls) -> Self:
        """Those of data without a list; `begin` then refuses a state that knows of one."""
        return cls((), (), {})

    @classmethod
    def history(cls, state: LoaderState) -> History:
        """The lists that a run used, as its state says."""
        return [(index, lists) for index, lists in data_of(state.extras, cls) or ()]

    @classmethod
    def under(cls, sources: Sequence[Source], source_ids: Sequence[str], data: ListVersions | None) -> "Self | None":
        """Those under the versions of a state; None if there are none.

        Raises:
            StateError: if the lists of the sources do not have them.
        """
        lists = data or {}
        known = known_digests(sources, source_ids)
        for name, versions in lists.items():
            digests = known.get(name, ())
            if len(digests) != len(versions) or None in map(counts_at, versions, digests):
                raise StateError(
                    f"the run used versions {versions} (number, digest) of the list of forgotten samples of source "
                    f"{name}, which the data set does not have: put back {LIST_FILES}"
                )
        return cls(sources, source_ids, lists) if lists else None

    def begin(self, state: LoaderState) -> Any:
        """The history of the lists, from here on with these.

        Raises:
            StateError: if the state has a newer list, or a different one.
        """
        history, index = self.history(state), state.micro_batch_index
        check_lists(history, index, self._known, dict(state.fingerprint["sources"]))
        return with_lists(history, index, self.lists) or None

    def lane(self, number: int, state: LoaderState) -> LaneExtra:
        return _ForgettingLane(self)

    def agreed(self) -> Any:
        return self.lists

    @classmethod
    def shown(cls, state: LoaderState) -> ShownExtra:
        """Which versions of the lists the run used, by source, and from which micro-batch on."""
        labels, facts, lines = dict(state.fingerprint["sources"]), [], []
        for index, lists in cls.history(state):
            found = [(labels.get(name, name), [number for number, _ in own]) for name, own in lists.items()]
            shown = [f"version {' and '.join(map(str, numbers))} of the list of {source}" for source, numbers in found]
            lines.append(f"from micro-batch {index:,} on: {', '.join(shown) or 'none'}")
            own_lists = [{"source": source, "versions": numbers} for source, numbers in found]
            facts.append({"from_micro_batch": index, "lists": own_lists})
        return ShownExtra("forgotten", facts, lines)

    def __contains__(self, ref: Any) -> bool:
        source, _, index, _ = ref
        return source in self._lists and index in self._numbers[source]

    @functools.cached_property
    def _numbers(self) -> dict[int, Container[int]]:
        return {number: found.forgotten(versions) for number, (found, versions) in self._lists.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_numbers"}


def known_digests(sources: Sequence[Source], source_ids: Sequence[str]) -> dict[str, list[list[list[str]]]]:
    """The digests of all versions of the lists of each source that has some, by its name."""
    return {
        name: [[] if own is None else own.digests for own in source.withheld.lists]
        for source, name in zip(sources, source_ids, strict=True)
        if isinstance(source.withheld, RecordLists)
    }


class _ForgettingLane(LaneExtra):
    """A lane that leaves out forgotten samples."""

    skips_as: ClassVar[str] = FORGOTTEN
    reason: ClassVar[str] = "they are forgotten"

    def __init__(self, forgotten: ForgottenSamples) -> None:
        self._forgotten = forgotten

    def filter(self, refs: Sequence[SampleRef]) -> Sequence[SampleRef]:
        return [ref for ref in refs if ref not in self._forgotten]
