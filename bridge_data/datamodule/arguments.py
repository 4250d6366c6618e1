"""The further keyword arguments of the DataModule, with their types: for editors, type checkers and `LightningCLI`.

What each means is said where it goes: in `get_train_dataset`, `WorkerConfig`, `get_savable_loader`, or, of those that
are the DataModule's own, in `FurtherSettings`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypedDict

from bridge_data.datamodule.sharing import Share
from bridge_data.errors import ErrorHandler
from bridge_data.loader.loader_config import Ends, StartMethod
from bridge_data.plan.epochs import EpochsPerShuffle
from bridge_data.task.stores import CachePool


class FurtherArguments(TypedDict, total=False):
    """All of them may be left out; there are no others."""

    eval_batches: int | None
    balance: bool | str | Callable[[Any], float]
    multiple_validation_sets: bool
    rampup_batch_size: Sequence[int] | None
    share: Share
    val_batch_drop_last: bool

    seed: int
    num_lanes: int
    global_error_handler: ErrorHandler

    split_part: str
    batch_drop_last: bool
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: EpochsPerShuffle
    repeat: bool
    dataset_config: str | None
    split_config: str | None
    trusted_modules: Collection[str]
    trust_dataset_code: bool
    auto_decode: bool | None
    image_decode: str | None
    av_decode: str | None
    video_decode_audio: bool | None
    ignore_decoder_errors: bool | None
    handler: ErrorHandler | None
    parallel_shard_iters: int | None

    prefetch_factor: int
    cache_pool: CachePool | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool
    start_method: StartMethod
    sample_timeout_s: float | None
    max_worker_restarts: int
    max_shared_bytes: int
    ends: Ends
    checkpoint_every_sec: float | None
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int | None
