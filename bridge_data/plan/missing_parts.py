"""How many samples lack a part that a field map names, by the index alone.

Reads the index of tars, and a field map. Returns for each field how many samples have none of its parts, and how many
have two that mean the same. No shard is read. Of large data sets, shards that are evenly spread stand for all, up to
some number of samples.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.data import ShardSet
from bridge_data.data.index_file import IndexPage
from bridge_data.plan.source import FieldAccess, other_names

Numbers: TypeAlias = NDArray[np.int64]

MAX_SAMPLES = 1_000_000
"""Samples that are looked at unless all are asked for, which takes about a second."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartCount:
    """Of `num_samples` that were looked at, `count` have none of the parts of `field`, or, if `is_double`, two that
    mean the same. `example` is the name of one in its shard, and its parts."""

    field: str
    access: str
    count: int
    num_samples: int
    example: str
    is_double: bool = False

    def __str__(self) -> str:
        what, then = f"have no {self.access}", "they are left out, and many in a row stop a run"
        if self.is_double:
            what, then = f"have several parts for {self.access}", "that of this very name is taken, or none"
        share = f"{self.count:,} of {self.num_samples:,} samples"
        return f"field {self.field!r}: {share} {what}, such as {self.example}: {then}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def count_parts(
    shards: ShardSet, field_map: Mapping[str, FieldAccess], max_samples: int | None = MAX_SAMPLES
) -> list[PartCount]:
    """What samples of `shards` lack, field by field; empty if all have all, or the tars have no index of ours."""
    counts: dict[tuple[str, bool], int] = {}
    examples: dict[tuple[str, bool], str] = {}
    num_samples = 0
    for shard in _spread(shards, max_samples):
        name = shards.names[shard]
        segment = None if shards.index is None else shards.index.segment_if_intact(name)
        if segment is None:
            return []
        for page in segment.pages():
            num_samples += len(page)
            for field, is_double, samples in _odd_samples(page, segment.names, field_map):
                counts[field, is_double] = counts.get((field, is_double), 0) + len(samples)
                if (field, is_double) not in examples:
                    key, parts = page.sample(int(samples[0]))
                    examples[field, is_double] = f"{name}/{key} ({', '.join(part for part, _, _ in parts)})"
    return [
        PartCount(
            field=field,
            access=str(field_map[field]),
            count=count,
            num_samples=num_samples,
            example=examples[field, is_double],
            is_double=is_double,
        )
        for (field, is_double), count in counts.items()
    ]


def _spread(shards: ShardSet, max_samples: int | None) -> Sequence[int]:
    """The numbers of shards that are looked at."""
    step = 1 if max_samples is None else max(1, -(-sum(shards.stored_counts) // max_samples))
    return range(0, len(shards.names), step)


def _odd_samples(
    page: IndexPage, names: Sequence[str], field_map: Mapping[str, FieldAccess]
) -> Iterator[tuple[str, bool, Numbers]]:
    """(field, whether they have several parts for it, numbers of the samples) of those that lack a part, or have
    several."""
    others = other_names(part for access in field_map.values() for part in access.parts)
    stands_for = [others.get(name, name) for name in names]
    is_uniform = len(page.name_of_part) == len(page) * len(names)  # each sample has all of these parts
    if is_uniform and len(set(stands_for)) == len(names) and all(_has(stands_for, one) for one in field_map.values()):
        return
    name_of_part = np.asarray(page.name_of_part)
    starts = np.concatenate(([0], np.asarray(page.part_ends)[:-1])).astype(np.int64)
    for field, access in field_map.items():
        num_found = np.zeros(len(page), np.int64)
        for part in access.parts:
            own = [number for number, one in enumerate(stands_for) if one == part]
            num_own = np.add.reduceat(np.isin(name_of_part, own).astype(np.int64), starts)
            if (double := np.flatnonzero(num_own > 1)).size:
                yield field, True, double
            num_found += num_own
        if "__key__" not in access.parts and (lacking := np.flatnonzero(num_found == 0)).size:
            yield field, False, lacking


def _has(names: Sequence[str], access: FieldAccess) -> bool:
    return any(part in names or part == "__key__" for part in access.parts)
