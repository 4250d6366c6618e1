"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning.

Enters: plain arguments or Bridge's config, and the process groups of a job. Leaves: endless training loaders and finite
evaluations, with `save_state` and `restore_state`.

    module             `EnergonMultiModalDataModule`, the front; Lightning's hooks
    bridge             the same as Megatron-Bridge's `DatasetProvider`: its config, and the builder of its loaders
    sharing            the data-parallel rank of this process, and which loader that gives it
    trainer_loaders    `EnergonDataloader`: endless, saved and restored for all ranks at once; evaluations
    batch_schedule     the global batch size of each step
    encoder_settings   settings beside a ready task encoder: the encoder's own, or refused
    lightning_trainer  what a Lightning `Trainer` must be set to, and its progress
    metric_sinks       metrics to the log, JSONL, TensorBoard, Prometheus
    parallel           batches sent between ranks: replicas, balance, context parallelism, virtual pipeline

To change: a default or a check of an option, `run_options` (those of `WorkerConfig` in `topology`); a check of batch
sizes against each other, `batch_schedule`, of replicas, `parallel.replica`; the few that Bridge's users expect to be
others, such as `num_workers` and `pin_memory`, stand in `module` and `bridge`. What is done when training starts is in
`module.train_dataloader`; what of that waits for other ranks, in `sharing.rank_loader`, which also says what `balance`
cannot be combined with (steps of Lightning: `lightning_trainer.check_trainer`). Megatron saves what
`EnergonDataloader.save_state` returns on each rank: `loader.rank_states` says which rank has the whole state. Lightning
keeps `module.state_dict`, with the loader's state (`order.state`) under `LIGHTNING_KEY` of
`loader.checkpoint.other_formats`.

Lightning takes seconds to import, and only the DataModule itself needs it: names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.datamodule.batch_schedule import BatchSchedule as BatchSchedule
    from bridge_data.datamodule.bridge import DatasetBuildContext as DatasetBuildContext
    from bridge_data.datamodule.bridge import EnergonDatasetBuilder as EnergonDatasetBuilder
    from bridge_data.datamodule.bridge import EnergonDatasetConfig as EnergonDatasetConfig
    from bridge_data.datamodule.bridge import TaskEncoderConfig as TaskEncoderConfig
    from bridge_data.datamodule.module import EnergonMultiModalDataModule as EnergonMultiModalDataModule
    from bridge_data.datamodule.trainer_loaders import EnergonDataloader as EnergonDataloader
    from bridge_data.datamodule.trainer_loaders import ValidationDataloader as ValidationDataloader
    from bridge_data.datamodule.trainer_loaders import cyclic_iter as cyclic_iter

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
