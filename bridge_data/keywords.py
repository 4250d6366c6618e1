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


class DatasetKeywords(TypedDict, total=False):
    """Options of `get_val_dataset` besides its own parameters."""

    batch_drop_last: bool
    packing_buffer_size: int | None
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


class TrainingKeywords(TypedDict, total=False):
    """Options of `get_train_dataset` besides its own parameters."""

    batch_drop_last: bool
    packing_buffer_size: int | None
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
    split_part: str
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: EpochsPerShuffle
    repeat: bool
    weight_unit: str | None


class LoaderKeywords(TypedDict, total=False):
    """Options of `get_loader` besides its own parameters."""

    prefetch_factor: int
    workers: str | Mapping[str, Any] | PoolOptions
    cache_pool: CachePool | None
    memo: Memo | Mapping[str, Any] | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    worker_start_timeout_s: float | None
    fail_on_timeout: bool
    workers_help: bool
    pin_memory: bool
    start_method: StartMethod
    sample_timeout_s: float | None
    max_worker_restarts: int
    restart_window_batches: int
    max_shared_bytes: int
    ends: Ends
    ledger_path: str | Path | None


class DataModuleKeywords(TypedDict, total=False):
    """Options of `EnergonMultiModalDataModule` besides its own parameters."""

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
    split_part: str
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: EpochsPerShuffle
    repeat: bool
    weight_unit: str | None
    seed: int
    global_error_handler: ErrorHandler
    restore_error_handler: ErrorHandler
    num_lanes: int
    max_open_bytes: int
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
    eval_batches: int | None
    multiple_validation_sets: bool
    val_batch_drop_last: bool
    rampup_batch_size: Sequence[int] | None
    skip_steps: Sequence[str | int]
    balance: bool | str | Callable[[Any], float]
    strict_restore: bool
    share: Share
