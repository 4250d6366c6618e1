"""The further settings of the DataModule, by where they go: the training data set, its workers, its loader.

Enters: keyword arguments. Leaves: them, sorted. Guarantee: every name has an effect, or is refused.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bridge_data.datamodule.sharing import Share, check_share
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import get_train_dataset
from bridge_data.loader import get_savable_loader
from bridge_data.plan.document import nearest

_OWN = {"dataset", "worker_config", "batch_size", "packing_buffer_size", "shuffle_buffer_size", "task_encoder"}
_OWN |= {"max_samples_per_sequence", "pin_memory"}


def _further(function: Callable[..., Any]) -> frozenset[str]:
    """The keyword arguments of a function that the DataModule has no parameter for."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - _OWN


_DATASET = _further(get_train_dataset)
_ALSO_FOR_VALIDATION = {"dataset_config", "split_config", "trusted_modules", "trust_dataset_code"}
_ALSO_FOR_VALIDATION |= {"auto_decode", "image_decode", "av_decode", "video_decode_audio"}
_LOADER = _further(get_savable_loader)
_MODULE = {"balance", "eval_batches", "multiple_validation_sets", "rampup_batch_size", "share", "val_batch_drop_last"}
_WORKERS = {"seed": "seed_offset", "num_lanes": "num_lanes", "global_error_handler": "global_error_handler"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FurtherSettings:
    """Arguments of `get_train_dataset`, of `WorkerConfig` and of `get_savable_loader`; after `eval_batches` draws
    Megatron's validation begins anew (None: after the last batch); `multiple_validation_sets` makes a validation loader
    of each source; `balance` is what `find_cost` takes, or False; `rampup_batch_size` is that of `BatchSchedule`;
    `share` says who of a replica reads; `val_batch_drop_last` leaves out the last micro-batch of validation if it is
    not full."""

    dataset: dict[str, Any]
    workers: dict[str, Any]
    loader: dict[str, Any]
    balance: bool | str | Callable[[Any], float] = False
    eval_batches: int | None = None
    multiple_validation_sets: bool = False
    rampup_batch_size: Sequence[int] | None = None
    share: Share = "replicate"
    val_batch_drop_last: bool = False

    @property
    def validation(self) -> dict[str, Any]:
        """For validation: those of `dataset` that say what the data are and how they are decoded, and its own."""
        also = {name: value for name, value in self.dataset.items() if name in _ALSO_FOR_VALIDATION}
        return also | {"batch_drop_last": self.val_batch_drop_last}

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.eval_batches is not None and self.eval_batches < 1:
            raise ConfigError(f"EnergonMultiModalDataModule(eval_batches={self.eval_batches}): expected at least 1")


def sort_settings(given: Mapping[str, Any]) -> FurtherSettings:
    """The settings by where they go.

    Raises:
        ConfigError: for a name that is none, with the nearest one that is.
    """
    known = {*_MODULE, *_DATASET, *_WORKERS, *_LOADER}
    for name in given:
        if name not in known:
            raise ConfigError(f"EnergonMultiModalDataModule has no setting {name!r}{nearest(name, known)}")
    return FurtherSettings(
        dataset={name: value for name, value in given.items() if name in _DATASET},
        workers={_WORKERS[name]: value for name, value in given.items() if name in _WORKERS},
        loader={name: value for name, value in given.items() if name in _LOADER},
        **{name: value for name, value in given.items() if name in _MODULE},
    )
