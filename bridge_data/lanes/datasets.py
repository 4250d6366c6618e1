"""Data sets: what lies at a path, made ready for training or validation.

Enters: a path and the settings of a run. Leaves: a `LaneDataset`, or one for each source. Guarantee: what is wrong with
settings or metadata is said now, before the first sample is read.
"""

from collections.abc import Collection
from typing import Any

from bridge_data.energon.dataset_loaders import Data, plan_for
from bridge_data.errors import ConfigError, ErrorHandler
from bridge_data.ignored import warn_ignored
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.units import Batching
from bridge_data.order.plan_order import Shuffle
from bridge_data.plan import Plan, Source
from bridge_data.plan.epochs import EpochsPerShuffle
from bridge_data.plan.references import Opening
from bridge_data.task import DefaultTaskEncoder, TaskEncoder, with_decoding
from bridge_data.topology import WorkerConfig


def _batching(batch_size: int | None, drop_last: bool, packing_buffer_size: int | None, limit: int | None) -> Batching:
    for name, value in (("batch_size", batch_size), ("packing_buffer_size", packing_buffer_size), ("limit", limit)):
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name}={value!r}: expected an integer of at least 1, or None")
    return Batching(
        batch_size=batch_size, drop_last=drop_last, packing_buffer_size=packing_buffer_size, max_micro_batches=limit
    )


def _encoder(
    given: Any,
    auto_decode: bool | None,
    image_decode: str | None,
    av_decode: str | None,
    video_decode_audio: bool | None,
) -> TaskEncoder[Any, Any, Any, Any]:
    if given is not None and not isinstance(given, TaskEncoder):
        hint = "; make one of the class, with ()" if isinstance(given, type) else ""
        raise ConfigError(f"task_encoder={given!r}: expected a TaskEncoder{hint}")
    return with_decoding(
        DefaultTaskEncoder() if given is None else given,
        auto_decode,
        image_decode=image_decode,
        av_decode=av_decode,
        video_decode_audio=video_decode_audio,
    )


def get_train_dataset(
    path: Data,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    repeat: bool = True,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    auto_decode: bool | None = None,
    image_decode: str | None = None,
    av_decode: str | None = None,
    video_decode_audio: bool | None = None,
    ignore_decoder_errors: bool | None = None,
    handler: ErrorHandler | None = None,
    parallel_shard_iters: int | None = None,
) -> LaneDataset:
    """The training data at `path`: a prepared folder, a JSONL file or a metadataset YAML; or a plan, a factory or what
    `load_dataset` returned.

    Args:
        split_part: the part of the split, `train` by default.
        batch_size: samples (with packing: packs) of a micro-batch; None for single samples.
        batch_drop_last: leave out a last batch that is not full, where the data ends at all.
        packing_buffer_size: samples among which `select_samples_to_pack` chooses; None for no packing.
        shuffle_buffer_size: how many samples are at least fully mixed, 1,024 or more (fewer only where a lane has fewer
            in an epoch); no buffer exists, the order itself is mixed.
        max_samples_per_sequence: samples of a chunk, neighbours in a shard that go to one lane; None for whole shards.
            If `shuffle_buffer_size` is None, too, nothing is mixed within a shard: chunks come front to back.
        virtual_epoch_length: batches of this rank after which one iteration ends, 0 for never.
        shuffle_over_epochs_multiplier: shuffle so many epochs together, times what metadatasets say of each data set;
            -1 to draw with replacement, None for the order of the data.
        task_encoder: the user's hooks; a `DefaultTaskEncoder` if None.
        repeat: go on for ever; else one epoch.
        dataset_config, split_config: other files than `dataset.yaml` and `split.yaml` in the `.nv-meta` of `path`.
        trusted_modules: modules of yours, from which YAML files may name classes and functions; with those in them.
        trust_dataset_code: run Python files that lie beside the data (`sample_loader.py`), if dataset.yaml names one.
        auto_decode: False for parts as bytes; for encoders without a `decoder` of their own, as the following three.
        image_decode, av_decode, video_decode_audio: settings of `SampleDecoder`; better set in the encoder's `decoder`.
        ignore_decoder_errors, handler, parallel_shard_iters: taken without effect (see `bridge_data.ignored`).

    Raises:
        ConfigError: for wrong settings. DatasetError: if the data cannot be opened.
    """
    encoder = _encoder(task_encoder, auto_decode, image_decode, av_decode, video_decode_audio)
    warn_ignored(
        ignore_decoder_errors=ignore_decoder_errors, handler=handler, parallel_shard_iters=parallel_shard_iters
    )
    return LaneDataset(
        plan_for(
            path,
            split_part=split_part,
            dataset_config=dataset_config,
            split_config=split_config,
            opening=Opening(training=True, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code),
        ),
        shuffle=Shuffle(
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            epochs_per_shuffle=shuffle_over_epochs_multiplier,
            repeat=repeat,
        ),
        batching=_batching(batch_size, batch_drop_last, packing_buffer_size, None),
        task_encoder=encoder,
        worker_config=worker_config,
        virtual_epoch_length=virtual_epoch_length,
    )


def get_val_dataset(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    auto_decode: bool | None = None,
    image_decode: str | None = None,
    av_decode: str | None = None,
    video_decode_audio: bool | None = None,
    ignore_decoder_errors: bool | None = None,
    handler: ErrorHandler | None = None,
    parallel_shard_iters: int | None = None,
) -> LaneDataset:
    """The validation data at `path`: every sample once, in the order of the data, then the end.

    Args:
        limit: micro-batches of the whole job after which it ends; None for all.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    encoder = _encoder(task_encoder, auto_decode, image_decode, av_decode, video_decode_audio)
    warn_ignored(
        ignore_decoder_errors=ignore_decoder_errors, handler=handler, parallel_shard_iters=parallel_shard_iters
    )
    return LaneDataset(
        plan_for(
            path,
            split_part=split_part,
            dataset_config=dataset_config,
            split_config=split_config,
            opening=Opening(training=False, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code),
        ),
        shuffle=None,
        batching=_batching(batch_size, batch_drop_last, packing_buffer_size, limit),
        task_encoder=encoder,
        worker_config=worker_config,
    )


def get_val_datasets(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
    trust_dataset_code: bool = False,
    auto_decode: bool | None = None,
    image_decode: str | None = None,
    av_decode: str | None = None,
    video_decode_audio: bool | None = None,
    ignore_decoder_errors: bool | None = None,
    handler: ErrorHandler | None = None,
    parallel_shard_iters: int | None = None,
) -> list[tuple[LaneDataset, Source]]:
    """The validation data at `path`, each source by itself: `(data set, source)` for all that hold samples, in the
    order of the plan. `source.name`, `source.path` and `source.subflavors` tell them apart.

    Args:
        limit: micro-batches of the whole job after which each of them ends; None for all.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    plan = plan_for(
        path,
        split_part=split_part,
        dataset_config=dataset_config,
        split_config=split_config,
        opening=Opening(training=False, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code),
    )
    batching = _batching(batch_size, batch_drop_last, packing_buffer_size, limit)
    encoder = _encoder(task_encoder, auto_decode, image_decode, av_decode, video_decode_audio)
    warn_ignored(
        ignore_decoder_errors=ignore_decoder_errors, handler=handler, parallel_shard_iters=parallel_shard_iters
    )
    return [
        (
            LaneDataset(
                Plan(source, (source,), None),
                shuffle=None,
                batching=batching,
                task_encoder=encoder,
                worker_config=worker_config,
            ),
            source,
        )
        for source in plan.sources
    ]
