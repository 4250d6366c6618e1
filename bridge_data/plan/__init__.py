"""What to read: sources with their weights, from YAML files whose every mistake is found here.

    opening, formats    a path, or all that a metadataset names, opened; data sets as objects; the one table of what can
                        be at a path
    declared            what a metadataset declares, with the settings of the levels above
    blending            the blend as a tree and as a flat list of sources; data that several branches read
    source              a split part of a data set, how its samples are built, how its epochs are shuffled
    missing_parts       how many samples lack a part that a field map names
    folder_contents     the kinds of data files in a folder, and why several are refused
    dataset_yaml        how samples are built: classes, field maps, `factories` of user code
    in_memory           samples that are passed as objects
    auxiliary           `aux:`, the data that cookers may read besides the sample

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
