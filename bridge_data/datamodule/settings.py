"""The further settings of the DataModule, by where they go: the training data set, its workers, its loader.

Enters: keyword arguments. Leaves: them, sorted. Guarantee: every name has an effect, or is refused.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bridge_data.dataset import get_train_dataset
from bridge_data.errors import ConfigError
from bridge_data.loader import get_savable_loader
from bridge_data.plan.document import nearest

_OWN = {"dataset", "worker_config", "batch_size", "packing_buffer_size", "shuffle_buffer_size", "task_encoder"}
_OWN |= {"max_samples_per_sequence", "pin_memory"}


def _further(function: Callable[..., Any]) -> frozenset[str]:
    """The keyword arguments of a function that the DataModule has no parameter for."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - _OWN


_DATASET = _further(get_train_dataset)
_LOADER = _further(get_savable_loader)
_WORKERS = {"seed": "seed_offset", "num_lanes": "num_lanes", "global_error_handler": "global_error_handler"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FurtherSettings:
    """Arguments of `get_train_dataset`, of `WorkerConfig` and of `get_savable_loader`; after `eval_batches` draws
    Megatron's validation begins anew (None: after the last batch)."""

    dataset: dict[str, Any]
    workers: dict[str, Any]
    loader: dict[str, Any]
    eval_batches: int | None = None

    def __post_init__(self) -> None:
        if self.eval_batches is not None and self.eval_batches < 1:
            raise ConfigError(f"EnergonMultiModalDataModule(eval_batches={self.eval_batches}): expected at least 1")


def sort_settings(given: Mapping[str, Any]) -> FurtherSettings:
    """The settings by where they go.

    Raises:
        ConfigError: for a name that is none, with the nearest one that is.
    """
    known = {"eval_batches", *_DATASET, *_WORKERS, *_LOADER}
    for name in given:
        if name not in known:
            raise ConfigError(f"EnergonMultiModalDataModule has no setting {name!r}{nearest(name, known)}")
    return FurtherSettings(
        dataset={name: value for name, value in given.items() if name in _DATASET},
        workers={_WORKERS[name]: value for name, value in given.items() if name in _WORKERS},
        loader={name: value for name, value in given.items() if name in _LOADER},
        eval_batches=given.get("eval_batches"),
    )
