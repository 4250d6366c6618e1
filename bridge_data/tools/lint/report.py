"""Adding up faults: all are counted, the first of each kind are kept."""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from bridge_data.tools.lint.faults import KINDS, Fault


class FaultTally:
    """Counts by code, and the first `max_kept` faults of each kind."""

    def __init__(self, max_kept: int) -> None:
        self.max_kept = max_kept
        self.counts: collections.Counter[str] = collections.Counter()
        self.kept: dict[str, list[Fault]] = collections.defaultdict(list)

    def add(self, fault: Fault) -> None:
        """Count a fault."""
        self.counts[fault.code] += 1
        if len(self.kept[fault.code]) < self.max_kept:
            self.kept[fault.code].append(fault)

    def add_all(self, faults: Iterable[Fault]) -> None:
        """Count some faults."""
        for fault in faults:
            self.add(fault)

    def merge(self, other: "FaultTally") -> None:
        """Add what another one has counted."""
        self.counts.update(other.counts)
        for code, faults in other.kept.items():
            self.kept[code] += faults[: self.max_kept - len(self.kept[code])]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What was looked at, and what is wrong: exact `counts` by code, and the first faults of each kind."""

    path: str
    num_datasets: int
    num_shards: int
    num_samples: int
    is_complete: bool
    """Whether everything was looked at."""
    counts: dict[str, int]
    kept: dict[str, list[Fault]]

    @property
    def num_faults(self) -> int:
        """Faults of all kinds."""
        return sum(self.counts.values())

    def to_dict(self) -> dict[str, Any]:
        """A plain document, as `--json` shows it."""
        faults = [
            {
                "code": code,
                "what": kind.what,
                "way_out": kind.way_out,
                "count": self.counts[code],
                "shown": [dataclasses.asdict(fault) for fault in self.kept.get(code, ())],
            }
            for code, kind in KINDS.items()
            if self.counts.get(code)
        ]
        return {
            "version": 1,
            "path": self.path,
            "data_sets": self.num_datasets,
            "shards": self.num_shards,
            "samples": self.num_samples,
            "complete": self.is_complete,
            "num_faults": self.num_faults,
            "faults": faults,
        }
