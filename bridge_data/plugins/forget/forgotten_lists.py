"""Which lists of forgotten samples a run used, and from which micro-batch on: its history, in the extras of its states.

Enters: the extras of a state, the lists that a run uses now. Leaves: extras; the lists that were used in a slot.
Guarantee: a run uses one version of a list until it is restored; a list that is older than that of the state, or
differs, is an error. Which samples these lists name, and how lanes drop them: see `lanes.forgotten`.

`{"forgotten": {"version": 1, "data": [[slot, {source: [[version, digest], ...]}], ...]}}`: from this slot on, these
lists apply: for each source with a list, one entry per data set read for it; version 0 if that data set has none. If
several lists are of a data set, `version` is the sum of theirs, and `digest` has those of all, with `+` between them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from bridge_data.errors import StateError
from bridge_data.plugins.forget.tombstones import counts_at

NAME = "forgotten"
"""The name of the extra."""
VERSION = 1

LIST_FILES = "its .nv-meta/forgotten.jsonl, or the _forgotten.bridge next to its files"
"""Where lists are, for messages."""

ListVersions: TypeAlias = Mapping[str, list[list[Any]]]
"""[version, digest] of the list of each data set of a source, by the source's name."""


def history_of(extras: Mapping[str, Any]) -> list[tuple[int, ListVersions]]:
    """(first slot, lists) of a state with these checked extras; none before the first."""
    return [(slot, lists) for slot, lists in extras[NAME]["data"]] if NAME in extras else []


def lists_at(extras: Mapping[str, Any], slot: int) -> ListVersions:
    """The lists that were valid in a slot."""
    return next((lists for begin, lists in reversed(history_of(extras)) if begin <= slot), {})


def changes_between(extras: Mapping[str, Any], begin: int, end: int) -> list[tuple[int, ListVersions]]:
    """(slot, lists) of the changes after slot `begin` and before slot `end`."""
    return [(slot, lists) for slot, lists in history_of(extras) if begin < slot < end]


def with_lists(extras: Mapping[str, Any], slot: int, lists: ListVersions) -> dict[str, Any]:
    """The extras of a run that uses `lists` from a slot on."""
    history = [[begin, then] for begin, then in history_of(extras) if begin < slot]
    if lists != (history[-1][1] if history else {}):
        own = {name: [list(version) for version in versions] for name, versions in lists.items()}
        history.append([slot, own])  # a state may be changed by whoever has it
    others = {name: extra for name, extra in extras.items() if name != NAME}
    return {**others, **({NAME: {"version": VERSION, "data": history}} if history else {})}


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
