"""Which lists of forgotten samples a run used, and from which micro-batch on: its history, in the extras of its states.

Reads the history that a state keeps, and the lists that a run uses now. Returns the history from there on; the lists
that were used in a micro-batch. Raises a StateError for a list that is older than that of the state, or differs. A run
uses one version of a list until it is restored. Which samples these lists name, and how lanes drop them: see
`forgotten`.

A history is `[[micro-batch, {source: [[version, digest], ...]}], ...]`: from this micro-batch on, these lists apply:
for each source with a list, one entry per data set read for it; version 0 if that data set has none. If
several lists are of a data set, `version` is the sum of theirs, and `digest` has those of all, with `+` between them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from bridge_data.errors import StateError
from bridge_data.plugins.forget.tombstones import counts_at

LIST_FILES = "its .nv-meta/forgotten.jsonl, or the _forgotten.bridge next to its files"
"""Where lists are, for messages."""

ListVersions: TypeAlias = Mapping[str, list[list[Any]]]
"""[version, digest] of the list of each data set of a source, by the source's name."""

History: TypeAlias = Sequence[tuple[int, ListVersions]]
"""(first micro-batch, lists), in ascending order; none before the first."""


def lists_at(history: History, index: int) -> ListVersions:
    """The lists that were valid in a micro-batch."""
    return next((lists for begin, lists in reversed(history) if begin <= index), {})


def with_lists(history: History, index: int, lists: ListVersions) -> list[Any]:
    """The history of a run that uses `lists` from a micro-batch on."""
    kept: list[Any] = [[begin, then] for begin, then in history if begin < index]
    if lists != (kept[-1][1] if kept else {}):
        own = {name: [list(version) for version in versions] for name, versions in lists.items()}
        kept.append([index, own])  # a state may be changed by whoever has it
    return kept


def check_lists(
    history: History,
    index: int,
    known: Mapping[str, Sequence[Sequence[Sequence[str]]]],
    labels: Mapping[str, str],
) -> None:
    """Check that no list is older than that of a state at micro-batch `index`, or differs. `known` are the digests of
    all versions of the lists of each data set, from version 1 on; `labels` name the sources for people.

    Raises:
        StateError: naming the source.
    """
    for name, versions in lists_at(history, index).items():
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
