"""Task encoders: the user's part of the pipeline. Their hooks, and how these are called.

Names are imported on first use: a run without packing, groups or crude data needs nothing of them.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.task.augment import AugmentTaskEncoder
    from bridge_data.task.cooking import Cooker, SourceCook, basic_sample_keys, cooker
    from bridge_data.task.crude_examples import class_mismatch, fields_in_words
    from bridge_data.task.generators import seed_generators
    from bridge_data.task.grouping import (
        group_by,
        homogeneous_concat_mix,
        shape_of,
        source_of,
        subflavor,
        type_of,
    )
    from bridge_data.task.hooks import (
        FAILED,
        NO_STAGES,
        STAGES,
        TRUNCATED,
        Hooks,
        check_hook_names,
        does_something,
        hook_of,
        is_overridden,
        rng_key,
    )
    from bridge_data.task.packers import Packing
    from bridge_data.task.task_encoder import DefaultTaskEncoder, TaskEncoder, stateless, with_decoding

_NAMES_BY_MODULE = {
    "bridge_data.task.augment": "AugmentTaskEncoder",
    "bridge_data.task.cooking": "Cooker SourceCook basic_sample_keys cooker",
    "bridge_data.task.crude_examples": "class_mismatch fields_in_words",
    "bridge_data.task.generators": "seed_generators",
    "bridge_data.task.grouping": "group_by homogeneous_concat_mix shape_of source_of subflavor type_of",
    "bridge_data.task.hooks": (
        "FAILED Hooks NO_STAGES STAGES TRUNCATED check_hook_names does_something hook_of is_overridden rng_key"
    ),
    "bridge_data.task.packers": "Packing",
    "bridge_data.task.task_encoder": "DefaultTaskEncoder TaskEncoder stateless with_decoding",
}
"""The module of each public name, for Python; the imports above are for readers and type checkers."""

__all__ = [
    "FAILED",
    "NO_STAGES",
    "STAGES",
    "TRUNCATED",
    "AugmentTaskEncoder",
    "Cooker",
    "DefaultTaskEncoder",
    "Hooks",
    "Packing",
    "SourceCook",
    "TaskEncoder",
    "basic_sample_keys",
    "check_hook_names",
    "class_mismatch",
    "cooker",
    "does_something",
    "fields_in_words",
    "group_by",
    "homogeneous_concat_mix",
    "hook_of",
    "is_overridden",
    "rng_key",
    "seed_generators",
    "shape_of",
    "source_of",
    "stateless",
    "subflavor",
    "type_of",
    "with_decoding",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
