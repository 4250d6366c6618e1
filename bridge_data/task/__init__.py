"""Task encoders: the user's part of the pipeline. Their hooks, and how these are called."""

from bridge_data.task.augment import AugmentTaskEncoder
from bridge_data.task.cooking import Cooker, SourceCook, basic_sample_keys, cooker
from bridge_data.task.crude_examples import class_mismatch, fields_in_words
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
    seed_generators,
)
from bridge_data.task.packers import Packing
from bridge_data.task.task_encoder import DefaultTaskEncoder, TaskEncoder, stateless, with_decoding

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
