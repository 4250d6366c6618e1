"""Arguments of Energon's functions that have no effect here: accepted, with one warning each.

So calls written for Energon keep working. `IGNORED` lists the arguments, and what replaces each of them.
"""

import sys
import warnings
from typing import Any

IGNORED = {
    "checkpoint_every_sec": "workers keep no checkpoints of themselves: the state comes with each batch, at no cost",
    "checkpoint_every_min_n_samples": "workers keep no checkpoints of themselves",
    "n_checkpoints": "workers keep no checkpoints of themselves",
    "gc_collect_every_n_steps": "workers free memory as they go, and leave the rest to Python",
    "worker_config": "a data set is described without it: give it to get_train_dataset or get_val_dataset",
    "max_samples_per_sequence": "the order is made for all data sets together: give it to get_train_dataset",
    "parallel_shard_iters": "how many shards are mixed follows from shuffle_buffer_size and max_samples_per_sequence",
    "ignore_decoder_errors": "what cannot be decoded is left out, counted, told to WorkerConfig.global_error_handler",
    "handler": "failures are told to WorkerConfig.global_error_handler",
}
"""The arguments, and why they have no effect."""

_warned: set[str] = set()


def warn_ignored(**given: Any) -> None:
    """Warn of arguments that are not None, each once in a process; `given` are names of `IGNORED`."""
    for name, value in given.items():
        reason = IGNORED[name]
        if value is not None and name not in _warned:
            _warned.add(name)
            message = f"{name} has no effect in bridge_data and may be left out: {reason}"
            warnings.warn(message, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The `stacklevel` at which `warn_ignored` shows the first line outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bridge_data."):
        level, frame = level + 1, frame.f_back
    return level
