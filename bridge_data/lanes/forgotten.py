"""Forgotten samples: which references a lane drops when it draws them, or when they are pending; and which lists of
them a run used, and from which micro-batch on, which its states say.

Enters: the sources of a plan, and versions of their lists; the extras of a state. Leaves: whether a reference is of a
forgotten sample; extras. Guarantees: versions are fixed when the object is made, in every process that gets it (which
computes the numbers of the samples on first use); a run uses one version of a list until it is restored; a list that is
older than that of the state, or differs, is an error.

`{"forgotten": {"version": 1, "data": [[slot, {source: [[version, digest], ...]}], ...]}}`: from this slot on, these
lists apply: for each source with a list, one entry per data set read for it; version 0 if that data set has none. If
several lists are of a data set, `version` is the sum of theirs, and `digest` has those of all, with `+` between them.
"""

import collections
import functools
import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Any, Self, TypeAlias

from bridge_data.errors import StateError
from bridge_data.lanes.survival import Survivals
from bridge_data.order import SampleRef
from bridge_data.order.pending import Drawn, Pending
from bridge_data.order.state import EXTRAS
from bridge_data.order.state import FORGOTTEN as IN_STATES
from bridge_data.plan import Source
from bridge_data.shards.records import Forgetting
from bridge_data.shards.tombstones import counts_at, newest_versions
from bridge_data.task import Hooks
from bridge_data.task.hooks import FORGOTTEN

LIST_FILES = "its .nv-meta/forgotten.jsonl, or the _forgotten.bridge next to its files"
"""Where lists are, for messages."""

ListVersions: TypeAlias = Mapping[str, Sequence[Sequence[Any]]]
"""(version, digest) of the list of each data set of a source, by the source's name."""


class ForgottenSamples:
    """The forgotten samples of `sources`, whose unique names are `names`, under these versions of their lists."""

    def __init__(self, sources: Sequence[Source], names: Sequence[str], lists: ListVersions) -> None:
        self.lists = lists
        self._records = {
            number: (source.records, [(number_of, digest) for number_of, digest in lists[name]])
            for number, (source, name) in enumerate(zip(sources, names, strict=True))
            if name in lists
        }

    @classmethod
    def newest(cls, sources: Sequence[Source], names: Sequence[str]) -> "Self | None":
        """Those under the newest versions; None if there are no lists."""
        lists = {
            name: newest_versions(source.tombstones)
            for source, name in zip(sources, names, strict=True)
            if source.tombstones
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
        return source in self._records and index in self._numbers[source]

    @functools.cached_property
    def _numbers(self) -> dict[int, Container[int]]:
        return {
            number: records.forgotten(versions)
            for number, (records, versions) in self._records.items()
            if isinstance(records, Forgetting)
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_numbers"}


def known_digests(sources: Sequence[Source], names: Sequence[str]) -> dict[str, list[list[list[str]]]]:
    """The digests of all versions of the lists of each source that has some, by its name."""
    return {
        name: [[] if own is None else own.digests for own in source.tombstones]
        for source, name in zip(sources, names, strict=True)
        if source.tombstones
    }


def history_of(extras: Mapping[str, Any]) -> list[tuple[int, ListVersions]]:
    """(first slot, lists) of a state with these checked extras; none before the first."""
    return [(slot, lists) for slot, lists in extras[IN_STATES]["data"]] if IN_STATES in extras else []


def lists_at(extras: Mapping[str, Any], slot: int) -> ListVersions:
    """The lists that were valid in a slot."""
    return next((lists for begin, lists in reversed(history_of(extras)) if begin <= slot), {})


def changes_between(extras: Mapping[str, Any], begin: int, end: int) -> list[tuple[int, ListVersions]]:
    """(slot, lists) of the changes after slot `begin` and before slot `end`."""
    return [(slot, lists) for slot, lists in history_of(extras) if begin < slot < end]


def plain_lists(lists: ListVersions) -> dict[str, list[list[Any]]]:
    """`lists` as states have them."""
    return {name: [list(version) for version in versions] for name, versions in lists.items()}


def with_lists(extras: Mapping[str, Any], slot: int, lists: ListVersions) -> dict[str, Any]:
    """The extras of a run that uses `lists` from a slot on."""
    history = [[begin, then] for begin, then in history_of(extras) if begin < slot]
    plain = plain_lists(lists)
    if plain != (history[-1][1] if history else {}):
        history.append([slot, plain])
    others = {name: extra for name, extra in extras.items() if name != IN_STATES}
    return {**others, **({IN_STATES: {"version": EXTRAS[IN_STATES], "data": history}} if history else {})}


def check_lists(
    extras: Mapping[str, Any],
    slot: int,
    known: Mapping[str, Sequence[Sequence[Sequence[str]]]],
    labels: Mapping[str, str],
) -> None:
    """Check that no list is older than that of a state in `slot`, or differs. `known` are the digests of all versions
    of the lists of each data set, from version 1 on; `labels` name the sources for people.

    Raises:
        StateError: naming the source.
    """
    for name, versions in lists_at(extras, slot).items():
        padded = [*known.get(name, ()), *itertools.repeat((), len(versions))]
        for version, lists in zip(versions, padded, strict=False):
            if counts_at(version, lists) is None:
                number, newest = version[0], sum(map(len, lists))
                found = f"has version {newest}" if newest else "has none"
                found = "has another list with a version of this number" if number <= newest else found
                raise StateError(
                    f"the state was saved by a run that used version {number} of the list of forgotten samples of "
                    f"{labels.get(name, name)}, and the data set {found}: forgotten samples would come again. Put back "
                    f"{LIST_FILES}; if it was written just now on a shared file system, start again in "
                    "a minute. Samples are taken back by `bridge-data forget --restore`"
                )


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
                survivals[ref.source].leave_out(*hooks.last_skip)
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
