"""The loaders of a Megatron-Bridge run, from its data settings.

Enters: an `EnergonDatasetConfig`, and Bridge's context for building data sets. Leaves: the loaders for training and
validation, which Bridge wraps into its `RerunDataIterator`. Guarantee: they save and restore with Bridge's checkpoints.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from bridge_data.datamodule.dataset_config import EnergonDatasetConfig, TaskEncoderConfig, build_bridge_encoder
from bridge_data.datamodule.module import EnergonMultiModalDataModule
from bridge_data.encoders import MultiModalSampleConfig
from bridge_data.task import TaskEncoder

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


class BuildContext(Protocol):
    """The fields of Bridge's `DatasetBuildContext` that the builder reads, and from 0.6 on `pg_collection`."""

    @property
    def train_samples(self) -> int: ...
    @property
    def valid_samples(self) -> int: ...
    @property
    def tokenizer(self) -> Any: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DatasetBuildContext:
    """A `BuildContext` without Bridge. Of the numbers of samples, only whether they are 0 matters."""

    train_samples: int
    valid_samples: int
    test_samples: int = 0
    tokenizer: Any = None
    pg_collection: "ProcessGroupCollection | None" = None


class EnergonDatasetBuilder:
    """Builds the loaders of `config`.

    Raises:
        ConfigError: if a setting is wrong.
    """

    def __init__(self, config: EnergonDatasetConfig) -> None:
        config.validate()
        self.config = config

    def build(self, context: BuildContext) -> tuple[Any, Any, None]:
        """The loaders for training, validation and test; None if not wanted. There is never one for test.

        Raises:
            ConfigError: if data or tokenizer do not fit the settings.
        """
        module = self.datamodule(context)
        train = module.train_dataloader() if context.train_samples > 0 else None
        wants_validation = self.config.do_validation and context.valid_samples > 0
        return train, module.val_dataloader() if wants_validation else None, None

    def datamodule(self, context: BuildContext) -> EnergonMultiModalDataModule:
        """The DataModule that makes the loaders."""
        config, groups = self.config, getattr(context, "pg_collection", None)
        assert config.path is not None  # validated
        tokenizer = transformers_tokenizer(context.tokenizer)
        return EnergonMultiModalDataModule(
            config.path,
            tokenizer,
            config.image_processor,
            seq_length=config.seq_length,
            micro_batch_size=config.micro_batch_size,
            global_batch_size=config.global_batch_size,
            num_workers=config.num_workers,
            num_val_workers=config.num_val_workers,
            pin_memory=config.pin_memory,
            shuffle_buffer_size=config.shuffle_buffer_size,
            max_samples_per_sequence=config.max_samples_per_sequence,
            multimodal_sample_config=self._sample_config(),
            task_encoder=self._task_encoder(tokenizer),
            packing_buffer_size=config.packing_buffer_size,
            pg_collection=groups,
            val_batch_drop_last=config.drop_last,
            **config.dataset_kwargs,
        )

    def _task_encoder(self, tokenizer: Any) -> TaskEncoder[Any, Any, Any, Any] | None:
        encoder = self.config.task_encoder
        if encoder is None or isinstance(encoder, TaskEncoder):
            return encoder
        if isinstance(encoder, TaskEncoderConfig):
            return encoder.build(self.config, tokenizer)
        return build_bridge_encoder(self.config)

    def _sample_config(self) -> MultiModalSampleConfig | None:
        """The sample config of the default encoder."""
        given = self.config.multimodal_sample_config
        asked: dict[str, Any] = {}
        if self.config.pad_to_max_length:
            asked["pad_to_max_length"] = True
        if (self.config.pad_to_multiple_of or 1) > 1:
            asked["pad_to_multiple_of"] = self.config.pad_to_multiple_of
        if self.config.task_encoder is not None or not asked:
            return given
        return dataclasses.replace(given or MultiModalSampleConfig(), **asked)


def transformers_tokenizer(tokenizer: Any) -> Any:
    """The transformers tokenizer inside a tokenizer of megatron-core or Bridge; any other is returned unchanged."""
    from transformers import PreTrainedTokenizerBase

    inner = tokenizer
    while inner is not None and not isinstance(inner, PreTrainedTokenizerBase):
        inner = vars(inner).get("_tokenizer", vars(inner).get("tokenizer")) if hasattr(inner, "__dict__") else None
    return tokenizer if inner is None else inner
