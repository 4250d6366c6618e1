"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning.

Reads plain arguments or Bridge's config, and the process groups of a job. Returns endless training loaders and finite
evaluations, with `save_state` and `restore_state`.

    module             `EnergonMultiModalDataModule`, the front; Lightning's hooks
    bridge             the same as Megatron-Bridge's `DatasetProvider`: its config, and the builder of its loaders
    overrides          overrides of Bridge's `ConfigContainer`, each with an effect
    settable           frozen dataclasses whose fields overrides can set
    trainer_loaders    the loader of this rank; `EnergonDataloader`: endless, saved and restored for all ranks at once;
                       evaluations
    shared_states      the states of all ranks: gathered to save, distributed to restore
    sharded_state      the state in a checkpoint of `megatron.core.dist_checkpointing`
    training_order     the training data of a run, with the steps it skips and the ranks of packs
    batch_schedule     the global batch size of each step
    encoder_settings   settings beside a ready task encoder: the encoder's own, or refused
    lightning_trainer  what a Lightning `Trainer` must be set to, and its progress
    class_paths        encoders and packings that a YAML names by their class
    parallel           the groups of a rank; context parallelism, virtual pipeline

Megatron saves what `EnergonDataloader.save_state` returns on each rank; Lightning keeps `module.state_dict`.

Lightning takes seconds to import, and only the DataModule itself imports it: names are imported when they are first
used. Without it, the DataModule is for Megatron alone.
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
