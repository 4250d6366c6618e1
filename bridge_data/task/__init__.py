"""The user's part of the pipeline: task encoders, their hooks, and how these are called."""

from bridge_data.task.cooking import Cooker, basic_sample_keys
from bridge_data.task.encoder import DefaultTaskEncoder, TaskEncoder, is_overridden
from bridge_data.task.hooks import Hooks, preserved_generators, rng_key, seed_generators
from bridge_data.task.stateless import stateless

__all__ = [
    "Cooker",
    "DefaultTaskEncoder",
    "Hooks",
    "TaskEncoder",
    "basic_sample_keys",
    "is_overridden",
    "preserved_generators",
    "rng_key",
    "seed_generators",
    "stateless",
]
