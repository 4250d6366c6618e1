"""Data that several branches of a blend read: allowed, as with other subflavors, and told, as it is easily done without
noticing, when a metadataset names another one.

Reads the sources of a plan, and their shares. Returns what is the same data: the same samples of the same split part of
the same folder or file, whatever symbolic links or relative paths led there. Another split part, another range or other
`where:` clauses are not the same.
"""

import collections
import dataclasses
import os
from collections.abc import Hashable, Sequence

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.plan.source import Source


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RepeatedData:
    """The same data in several branches, and the share of what is drawn that each has; None for validation."""

    sources: tuple[Source, ...]
    shares: tuple[float, ...] | None

    def __str__(self) -> str:
        first, *others = self.sources
        drawn = ""
        if self.shares is not None:
            each = " and ".join(f"{share:.2%}" for share in self.shares)
            drawn = f", which draw {each}, together {sum(self.shares):.2%}"
        has_others = any(source.subflavors != first.subflavors for source in others)
        return (
            f"{first.path} [{first.split_part}] is read by {len(self.sources)} branches"
            f"{' with different subflavors' if has_others else ''}{drawn}: each has an order of its own, so a sample "
            "of one comes again in the others. If this is not meant, leave out all but one"
        )


def repeated_data(sources: Sequence[Source], phases: Sequence[Sequence[float]]) -> list[RepeatedData]:
    """What several of `sources` read, in the same phase of the weights if there are any: `phases` are the shares of all
    sources in each."""
    groups: dict[Hashable, list[int]] = collections.defaultdict(list)
    for number, source in enumerate(sources):
        groups[_place(source)].append(number)
    found = []
    for numbers in groups.values():
        same: dict[str, list[int]] = collections.defaultdict(list)
        for number in numbers if len(numbers) > 1 else ():
            try:
                same[sources[number].fingerprint].append(number)
            except DatasetError:  # a shard is missing: whoever reads it says so
                continue
        for repeated in same.values():
            found += _drawn_together(sources, repeated, phases)
    return found


def _drawn_together(
    sources: Sequence[Source], numbers: Sequence[int], phases: Sequence[Sequence[float]]
) -> list[RepeatedData]:
    """The same data, if several of these sources are drawn from in one phase."""
    for shares in phases:
        drawn = [number for number in numbers if shares[number]]
        if len(drawn) > 1:
            return [RepeatedData(tuple(sources[n] for n in drawn), tuple(shares[n] for n in drawn))]
    if phases or len(numbers) < 2:
        return []
    return [RepeatedData(tuple(sources[number] for number in numbers), None)]


def _place(source: Source) -> Hashable:
    """Where the data of a source are, and which part of them it is."""
    return tuple((_real(member.path), member.split_part) for member in source.members)


def _real(path: str) -> str:
    return path if storage.is_remote(path) else os.path.realpath(path)
