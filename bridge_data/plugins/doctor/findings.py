"""What a check of a run finds: how severe it is, what to change, and what that gains."""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any


class Level(enum.IntEnum):
    """The severity of a finding, the worst first."""

    STOPS = 0
    """The run would stop, or not start."""
    SLOWS = 1
    """The trainer waits for data, or reading costs more than necessary."""
    MIXES = 2
    """Batches are less well mixed, or the order changes when the run is resized."""
    NOTE = 3
    """Good to know."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `code` is stable, for programs. `change` says what to set or run. `gain` is its effect, if computed
    or measured; `factor` is the same as a number: how many times better the figure gets."""

    code: str
    level: Level
    what: str
    change: str
    gain: str = ""
    factor: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data; the level by its name in lower case."""
        return dataclasses.asdict(self) | {"level": self.level.name.lower()}


def in_order_of_gain(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by level; within a level, the largest gain first."""
    return sorted(findings, key=lambda finding: (finding.level, -finding.factor))
