"""Forgotten samples: which references a lane drops when it draws them, or when they are pending.

Enters: the sources of a plan, and versions of their lists. Leaves: whether a reference is of a forgotten sample.
Guarantee: versions are fixed when the object is made, in every process that gets it (which computes the numbers of the
samples on first use). Which versions a run used, its states say: see `order.forgotten_lists`.
"""

import collections
import functools
from collections.abc import Container, Sequence
from typing import Any, Self

from bridge_data.errors import StateError
from bridge_data.lanes.survival import Survivals
from bridge_data.order import SampleRef
from bridge_data.order.pending import Drawn, Pending
from bridge_data.plan import Source
from bridge_data.plugins.forget.forgotten_lists import LIST_FILES, ListVersions
from bridge_data.plugins.forget.record_lists import RecordLists
from bridge_data.plugins.forget.tombstones import Version, counts_at, newest_versions
from bridge_data.task import Hooks
from bridge_data.task.hooks import FORGOTTEN


class ForgottenSamples:
    """The forgotten samples of `sources`, whose unique names are `names`, under these versions of their lists."""

    def __init__(self, sources: Sequence[Source], names: Sequence[str], lists: ListVersions) -> None:
        self.lists = lists
        self._lists: dict[int, tuple[Any, list[Version]]] = {
            number: (source.withheld, [(number_of, digest) for number_of, digest in lists[name]])
            for number, (source, name) in enumerate(zip(sources, names, strict=True))
            if name in lists
        }

    @classmethod
    def newest(cls, sources: Sequence[Source], names: Sequence[str]) -> "Self | None":
        """Those under the newest versions; None if there are no lists."""
        lists = {
            name: [list(version) for version in newest_versions(source.withheld.lists)]
            for source, name in zip(sources, names, strict=True)
            if isinstance(source.withheld, RecordLists)
        }
        return cls(sources, names, lists) if lists else None

    @classmethod
    def under(cls, sources: Sequence[Source], names: Sequence[str], lists: ListVersions) -> "Self | None":
        """Those under the versions of a state; None if there are none.

        Raises:
            StateError: if the lists of the sources do not have them.
        """
        known = known_digests(sources, names)
        for name, versions in lists.items():
            digests = known.get(name, ())
            if len(digests) != len(versions) or None in map(counts_at, versions, digests):
                raise StateError(
                    f"the run used versions {versions} (number, digest) of the list of forgotten samples of source "
                    f"{name}, which the data set does not have: put back {LIST_FILES}"
                )
        return cls(sources, names, lists) if lists else None

    def __contains__(self, ref: Any) -> bool:
        source, _, index, _ = ref
        return source in self._lists and index in self._numbers[source]

    @functools.cached_property
    def _numbers(self) -> dict[int, Container[int]]:
        return {number: found.forgotten(versions) for number, (found, versions) in self._lists.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_numbers"}


def known_digests(sources: Sequence[Source], names: Sequence[str]) -> dict[str, list[list[list[str]]]]:
    """The digests of all versions of the lists of each source that has some, by its name."""
    return {
        name: [[] if own is None else own.digests for own in source.withheld.lists]
        for source, name in zip(sources, names, strict=True)
        if isinstance(source.withheld, RecordLists)
    }


def drop_draws(
    drawn: list[tuple[int, SampleRef]], forgotten: Container[SampleRef], hooks: Hooks, survivals: Survivals
) -> list[tuple[int, SampleRef]]:
    """(draw, reference) of samples that are not forgotten. The others are counted as skips, also in the survival of
    their source; they are not read."""
    kept = [pair for pair in drawn if pair[1] not in forgotten]
    if len(kept) < len(drawn):
        hooks.count_skip(FORGOTTEN, len(drawn) - len(kept), "they are forgotten")
        for _, ref in drawn:
            if ref in forgotten:
                survivals[ref.source].count_skip(*hooks.last_skip)
    return kept


def drop_pending(
    pending: Pending[Drawn, list[Drawn]], forgotten: Container[SampleRef], hooks: Hooks
) -> Pending[Drawn, list[Drawn]]:
    """`pending` without forgotten samples, which are counted as skips. Packs, buckets and micro-batches lose members;
    empty ones are dropped, and none is refilled."""

    def left(items: Sequence[Drawn]) -> list[Drawn]:
        return [item for item in items if item.ref not in forgotten]

    def units_left(units: Sequence[list[Drawn]]) -> list[list[Drawn]]:
        return [kept for unit in units if (kept := left(unit))]

    buckets = {name: units_left(bucket) for name, bucket in pending.buckets.items()}
    opened = [(units_left(units), emitted) for units, emitted in pending.open]
    kept: Pending[Drawn, list[Drawn]] = Pending(
        queue=collections.deque(left([*pending.queue])),
        carried=left(pending.carried),
        packs=collections.deque(units_left([*pending.packs])),
        buckets={name: bucket for name, bucket in buckets.items() if bucket},
        open=collections.deque(batch for batch in opened if batch[0]),
    )
    hooks.skipped[FORGOTTEN] += sum(1 for _ in pending.items()) - sum(1 for _ in kept.items())
    return kept
