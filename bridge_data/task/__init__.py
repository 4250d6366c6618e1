"""The user's part of the pipeline: task encoders, their hooks, and how these are called."""

from bridge_data.task.augment import AugmentTaskEncoder, with_decoding
from bridge_data.task.cooking import Cooker, basic_sample_keys, cooker
from bridge_data.task.grouping import (
    group_by,
    homogeneous_concat_mix,
    shape_of,
    source_of,
    subflavor,
    type_of,
)
from bridge_data.task.hooks import (
    STAGES,
    TRUNCATED,
    Hooks,
    does_something,
    hook_of,
    is_overridden,
    rng_key,
    seed_generators,
)
from bridge_data.task.packers import Packing
from bridge_data.task.source_cook import SourceCook
from bridge_data.task.task_encoder import DefaultTaskEncoder, TaskEncoder, stateless

__all__ = [
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
    "cooker",
    "does_something",
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
