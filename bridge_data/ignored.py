"""Arguments that calls written for Energon may have, and that have no effect here.

They are taken where Energon has them, by the public functions and classes that have its signature, and by what passes
options on to these, such as the DataModule. Each is warned of once, with what replaces it, and goes no further: no
option of a run is ignored.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

OF_LOADERS = {
    "checkpoint_every_sec": "workers keep no checkpoints of their own: the state comes with each batch, at no cost",
    "checkpoint_every_min_n_samples": "workers keep no checkpoints of their own",
    "n_checkpoints": "workers keep no checkpoints of their own",
    "gc_collect_every_n_steps": "workers free memory as they run, and leave the rest to Python",
}
"""Of `get_savable_loader`."""

OF_WORKERS = {
    "worker_log_level": "ledger_path of a loader keeps the samples of each micro-batch, in less than a log of keys",
    "worker_debug_path": "ledger_path of a loader keeps the samples of each micro-batch",
}
"""Of `WorkerConfig`."""

OF_DATA = {
    "parallel_shard_iters": "how many shards are mixed follows from shuffle_buffer_size and max_samples_per_sequence",
    "ignore_decoder_errors": "decoding errors are skipped, counted, passed to WorkerConfig.global_error_handler",
    "handler": "failures are passed to WorkerConfig.global_error_handler",
}
"""Of `get_train_dataset` and `get_val_dataset`."""

OF_FACTORIES = {
    "max_samples_per_sequence": "the order is made for all data sets together: get_train_dataset takes it, with effect",
    "parallel_shard_iters": OF_DATA["parallel_shard_iters"],
}
"""Of the factories of single data sets."""

IGNORED: Mapping[str, str] = OF_LOADERS | OF_WORKERS | OF_FACTORIES | OF_DATA
"""All of them, and why each has no effect."""

_OF_RUNS = OF_LOADERS | OF_WORKERS | OF_DATA

_warned: set[str] = set()


def warn_ignored(**given: Any) -> None:
    """Warn of arguments that are not None, each once in a process; `given` are names of `IGNORED`."""
    for name, value in given.items():
        reason = IGNORED[name]
        if value is not None and name not in _warned:
            _warned.add(name)
            message = f"{name} has no effect in bridge_data and may be left out: {reason}"
            warnings.warn(message, stacklevel=_levels_to_caller())


def without_ignored(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that are `given`, without those that have no effect, of which it warns."""
    warn_ignored(**{name: value for name, value in given.items() if name in _OF_RUNS})
    return {name: value for name, value in given.items() if name not in _OF_RUNS}


def _levels_to_caller() -> int:
    """The `stacklevel` at which `warn_ignored` shows the first line outside this package, and outside `dataclasses`,
    whose `replace` makes options."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(
        ("bridge_data.", "dataclasses.")
    ):
        level, frame = level + 1, frame.f_back
    return level
