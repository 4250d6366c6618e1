"""The keyword arguments of public functions as types. Written by `python -m tests.write_keywords` out of
`bridge_data.run_options`, which explains them: type checkers cannot read them there. Do not edit it."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from bridge_data.errors import ErrorHandler
from bridge_data.limits import Limits
from bridge_data.plan.source import EpochsPerShuffle
from bridge_data.run_options import Ends, Memo, PoolOptions, Share, StartMethod
from bridge_data.task.stores import CachePool


class _OfData(TypedDict, total=False):
    """Options that DatasetKeywords and TrainingKeywords and DataModuleKeywords share."""

    batch_drop_last: bool
    packing: str
    planning_window: int
    dataset_config: str | None
    split_config: str | None
    trusted_modules: Collection[str]
    trust_dataset_code: bool
    fingerprint: str | None
    verify_digests: bool
    limits: Limits | None
    auto_decode: bool | None
    image_decode: str | None
    av_decode: str | None
    video_decode_audio: bool | None
    sample_type: type[Any] | None
    field_map: Mapping[str, str] | None
    where: str | None
    columns: str | os.PathLike[str] | None


class _OfDatasets(TypedDict, total=False):
    """Options that DatasetKeywords and TrainingKeywords share."""

    packing_buffer_size: int | None


class _OfTraining(TypedDict, total=False):
    """Options that TrainingKeywords and DataModuleKeywords share."""

    split_part: str
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: EpochsPerShuffle
    repeat: bool
    weight_unit: str | None


class _OfLoaders(TypedDict, total=False):
    """Options that LoaderKeywords and DataModuleKeywords share."""

    prefetch_factor: int
    workers: str | Mapping[str, Any] | PoolOptions
    cache_pool: CachePool | None
    memo: Memo | Mapping[str, Any] | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    worker_start_timeout_s: float | None
    fail_on_timeout: bool
    workers_help: bool
    start_method: StartMethod
    sample_timeout_s: float | None
    max_worker_restarts: int
    restart_window_batches: int
    max_shared_bytes: int
    ends: Ends
    ledger_path: str | Path | None


class DatasetKeywords(_OfData, _OfDatasets, total=False):
    """Options of `get_val_dataset` besides its own parameters."""


class TrainingKeywords(_OfData, _OfDatasets, _OfTraining, total=False):
    """Options of `get_train_dataset` besides its own parameters."""


class LoaderKeywords(_OfLoaders, total=False):
    """Options of `get_loader` besides its own parameters."""

    pin_memory: bool


class DataModuleKeywords(_OfData, _OfTraining, _OfLoaders, total=False):
    """Options of `EnergonMultiModalDataModule` besides its own parameters."""

    seed: int
    global_error_handler: ErrorHandler
    restore_error_handler: ErrorHandler
    num_lanes: int
    max_open_bytes: int
    eval_batches: int | None
    multiple_validation_sets: bool
    val_batch_drop_last: bool
    rampup_batch_size: Sequence[int] | None
    skip_steps: Sequence[str | int]
    balance: bool | str | Callable[[Any], float]
    strict_restore: bool
    share: Share
