"""Arguments of Energon's functions that mean nothing here: accepted, and warned of once.

So a call that is moved over goes on working; `IGNORED` lists all of them, with what is in their place.
"""

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
    """Warn of arguments that were given (are not None), each once in a process; `given` are names of `IGNORED`."""
    for name, value in given.items():
        reason = IGNORED[name]
        if value is not None and name not in _warned:
            _warned.add(name)
            warnings.warn(f"{name} has no effect in bridge_data and may be left out: {reason}", stacklevel=3)
