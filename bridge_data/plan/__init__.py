"""What to read: sources with their weights, from YAML files whose every mistake is found here.

Mistakes of the user are `ConfigError`s that name file and line; data that differ from their metadata, `DatasetError`s.

Names are imported on first use: a command that checks a field map needs no blend.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.plan.blending import Branch, EmptySplitError, Plan
    from bridge_data.plan.in_memory import InMemoryDataset
    from bridge_data.plan.opening import load_plan
    from bridge_data.plan.source import FieldAccess, Source, parse_access

_NAMES_BY_MODULE = {
    "bridge_data.plan.blending": "Branch EmptySplitError Plan",
    "bridge_data.plan.in_memory": "InMemoryDataset",
    "bridge_data.plan.opening": "load_plan",
    "bridge_data.plan.source": "FieldAccess Source parse_access",
}
"""The module of each public name, for Python; the imports above are for readers and type checkers."""

__all__ = ["Branch", "EmptySplitError", "FieldAccess", "InMemoryDataset", "Plan", "Source", "load_plan", "parse_access"]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
