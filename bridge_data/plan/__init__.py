"""What to read: sources with their weights, from YAML files whose every mistake is found here.

Mistakes of the user are `ConfigError`s that name file and line; data that differ from their metadata, `DatasetError`s.

Names are imported on first use: a command that checks a field map needs no blend.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.plan.blending import Branch as Branch
    from bridge_data.plan.blending import EmptySplitError as EmptySplitError
    from bridge_data.plan.blending import Plan as Plan
    from bridge_data.plan.in_memory import InMemoryDataset as InMemoryDataset
    from bridge_data.plan.opening import load_plan as load_plan
    from bridge_data.plan.source import FieldAccess as FieldAccess
    from bridge_data.plan.source import Source as Source
    from bridge_data.plan.source import parse_access as parse_access

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
