"""The DataModule of Megatron-Bridge and Lightning: one object that makes this rank's loaders from plain arguments.

Source: the names and their order are those of Megatron-Bridge's `EnergonMultiModalDataModule`.
"""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from lightning.pytorch import LightningDataModule

from bridge_data.datamodule.ranks import build_worker_config
from bridge_data.datamodule.settings import sort_settings
from bridge_data.datamodule.training import EnergonDataloader
from bridge_data.datamodule.validation import ValidationDataloader
from bridge_data.dataset import LaneDataset, get_train_dataset, get_val_dataset
from bridge_data.errors import ConfigError, StateError
from bridge_data.loader import get_savable_loader
from bridge_data.multimodal import MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.plan import EmptySplitError
from bridge_data.state import LoaderState
from bridge_data.task import TaskEncoder
from bridge_data.worker import WorkerConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

logger = logging.getLogger("bridge_data")

_STATE = "train_dataloader"


class EnergonMultiModalDataModule(LightningDataModule):
    """Training and validation data at `path`, a prepared folder or a metadataset YAML.

    Megatron takes the loaders from `build()`, or one by one; Lightning asks for them. Data-parallel ranks come from
    `pg_collection.dp`, else from Megatron's parallel state, else from `torch.distributed`.

    Args:
        tokenizer, image_processor, seq_length, multimodal_sample_config, decoder_seq_length: for the
            `MultiModalTaskEncoder` that is made where `task_encoder` is None. (Megatron's schedules also ask for
            `seq_length`.)
        micro_batch_size: samples (with packing: packs) of a batch.
        global_batch_size: samples of a step, over all ranks: a multiple of `micro_batch_size` times their number.
        num_val_workers: workers for validation; as many as `num_workers` if None.
        pin_memory: put batches into page-locked memory, where there is a GPU.
        shuffle_buffer_size, max_samples_per_sequence, packing_buffer_size: as in `get_train_dataset`.
        validation_task_encoder: for validation; the one of training if None.
        **kwargs: `seed`, `num_lanes` and `global_error_handler` of `WorkerConfig`; `eval_batches`, the draws after
            which Megatron's validation begins anew by itself; `ends`, for validation "even" among several ranks if not
            given; and whatever else `get_train_dataset` (for training alone) and `get_savable_loader` take.

    Raises:
        ConfigError: for a setting that is unknown, out of range, or contradicts another.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any,
        image_processor: Any = None,
        seq_length: int = 2048,
        micro_batch_size: int = 1,
        global_batch_size: int = 1,
        num_workers: int = 1,
        num_val_workers: int | None = None,
        pin_memory: bool = True,
        shuffle_buffer_size: int | None = 100,
        max_samples_per_sequence: int | None = None,
        multimodal_sample_config: MultiModalSampleConfig | None = None,
        task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
        decoder_seq_length: int | None = None,
        packing_buffer_size: int | None = None,
        validation_task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
        pg_collection: "ProcessGroupCollection | None" = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.path = path
        self.tokenizer, self.image_processor = tokenizer, image_processor
        self.seq_length, self.decoder_seq_length = seq_length, decoder_seq_length
        self.micro_batch_size, self.global_batch_size = micro_batch_size, global_batch_size
        self.num_workers = num_workers
        self.num_val_workers = num_workers if num_val_workers is None else num_val_workers
        self.pin_memory = pin_memory
        self.shuffle_buffer_size, self.max_samples_per_sequence = shuffle_buffer_size, max_samples_per_sequence
        self.multimodal_sample_config = multimodal_sample_config
        self.packing_buffer_size = packing_buffer_size
        self.pg_collection = pg_collection
        self.settings = sort_settings(kwargs)
        self.train_dataloader_object: EnergonDataloader | None = None
        self.val_dataloader_object: ValidationDataloader | None = None
        self._loaded_state: dict[str, Any] | None = None
        self._loaded_from: Any = None
        self._check_batch_sizes()
        self.task_encoder = self._default_encoder() if task_encoder is None else task_encoder
        self.validation_task_encoder = validation_task_encoder or self.task_encoder
        if task_encoder is not None:
            self._warn_without_effect()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, task_encoder={type(self.task_encoder).__name__})"

    def __str__(self) -> str:
        return repr(self)  # Lightning's own would start all loaders

    @property
    def init_global_step(self) -> int:
        """The step at which this run began: 0, or the steps done when its state was saved."""
        if self.train_dataloader_object is not None:
            first = self.train_dataloader_object.first_micro_batch
        else:
            first = 0 if self._loaded_state is None else self._loaded_state["next_slot"]
        return first * self.micro_batch_size // self.global_batch_size

    def num_micro_batches(self, worker_config: WorkerConfig) -> int:
        """Micro-batches that a rank of `worker_config` takes for one step.

        Raises:
            ConfigError: if the ranks cannot share the global batch equally.
        """
        per_round = self.micro_batch_size * worker_config.world_size
        if self.global_batch_size % per_round:
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} is not a multiple of micro_batch_size="
                f"{self.micro_batch_size} x {worker_config.world_size} data-parallel ranks = {per_round}"
            )
        return self.global_batch_size // per_round

    def datasets_provider(self, worker_config: WorkerConfig, split: Literal["train", "val"] = "val") -> LaneDataset:
        """The data of one split: endless and shuffled for training, in order and once for validation.

        Raises:
            ConfigError: for another split, or if the data is not what the settings say.
        """
        if split == "train":
            return get_train_dataset(
                self.path,
                worker_config=worker_config,
                batch_size=self.micro_batch_size,
                shuffle_buffer_size=self.shuffle_buffer_size,
                max_samples_per_sequence=self.max_samples_per_sequence,
                packing_buffer_size=self.packing_buffer_size,
                task_encoder=self.task_encoder,
                **self.settings.dataset,
            )
        if split == "val":
            return get_val_dataset(
                self.path,
                worker_config=worker_config,
                batch_size=self.micro_batch_size,
                packing_buffer_size=self.packing_buffer_size,
                task_encoder=self.validation_task_encoder,
            )
        raise ConfigError(f"datasets_provider(split={split!r}): expected 'train' or 'val'")

    def build(self) -> tuple[EnergonDataloader, ValidationDataloader | list[Any] | None]:
        """The loaders for training and validation."""
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self) -> EnergonDataloader:
        """The training loader; the same object on every call.

        Raises:
            ConfigError: if ranks or trainer do not go with the batch sizes.
            StateError: if the trainer resumes from a checkpoint without a state of the data.
        """
        config = self._worker_config(self.num_workers)
        num_micro_batches = self.num_micro_batches(config)
        if self.trainer is not None:
            self._check_trainer(num_micro_batches)
        if self.train_dataloader_object is None:
            loader = get_savable_loader(
                self.datasets_provider(config, "train"), pin_memory=self.pin_memory, **self.settings.loader
            )
            self.train_dataloader_object = EnergonDataloader(loader)
            if self._loaded_state is not None:
                self.train_dataloader_object.restore_state(self._loaded_state)
                self._loaded_state = None
        if self.trainer is not None:
            progress = self.trainer.fit_loop.epoch_loop.batch_progress
            self.train_dataloader_object.follow(lambda: int(progress.total.ready))
        return self.train_dataloader_object

    def val_dataloader(self) -> ValidationDataloader | list[Any] | None:
        """The validation loader. If the split is declared and empty: None, for Lightning (which takes no None) `[]`."""
        cyclic = self.trainer is None
        if self.val_dataloader_object is None:
            try:
                dataset = self.datasets_provider(self._worker_config(self.num_val_workers), "val")
            except EmptySplitError:
                return None if cyclic else []
            settings = {"ends": "even" if dist.is_initialized() else "uneven"} | self.settings.loader
            loader = get_savable_loader(dataset, pin_memory=self.pin_memory, **settings)
            self.val_dataloader_object = ValidationDataloader(
                loader, cyclic=cyclic, eval_batches=self.settings.eval_batches
            )
        self.val_dataloader_object.cyclic = cyclic
        return self.val_dataloader_object

    def test_dataloader(self) -> None:
        """None: there is no test data."""

    def state_dict(self) -> dict[str, Any]:
        """The position of all ranks after the last batch that was delivered; all of them must call it."""
        if self.train_dataloader_object is not None:
            return {_STATE: self.train_dataloader_object.save_state()}
        return {} if self._loaded_state is None else {_STATE: self._loaded_state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the position in `state_dict`; every rank takes the same one.

        Raises:
            StateError: if it is none of ours, or of other data or settings.
        """
        if not state_dict:
            return
        if _STATE not in state_dict:
            raise StateError(f"not a state of {type(self).__name__}: got {sorted(state_dict)}, expected [{_STATE!r}]")
        LoaderState.from_dict(state_dict[_STATE])
        if self.train_dataloader_object is None:
            self._loaded_state = state_dict[_STATE]
        else:
            self.train_dataloader_object.restore_state(state_dict[_STATE])
        self._loaded_from = None if self.trainer is None else self.trainer.ckpt_path

    def _worker_config(self, num_workers: int) -> WorkerConfig:
        return build_worker_config(self.pg_collection, num_workers, **self.settings.workers)

    def _default_encoder(self) -> MultiModalTaskEncoder:
        if self.packing_buffer_size is not None and self.decoder_seq_length is not None:
            raise ConfigError("packing (packing_buffer_size) is for decoders alone; leave out decoder_seq_length")
        return MultiModalTaskEncoder(
            self.tokenizer,
            self.image_processor,
            self.multimodal_sample_config,
            seq_length=self.seq_length,
            decoder_seq_length=self.decoder_seq_length,
        )

    def _warn_without_effect(self) -> None:
        for name in ("multimodal_sample_config", "decoder_seq_length"):
            if getattr(self, name) is not None:
                warnings.warn(
                    f"EnergonMultiModalDataModule: {name} has no effect beside a task_encoder: give it to that",
                    stacklevel=3,
                )

    def _check_batch_sizes(self) -> None:
        for name in ("micro_batch_size", "global_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"EnergonMultiModalDataModule({name}={getattr(self, name)}): expected at least 1")
        if self.global_batch_size % self.micro_batch_size:
            raise ConfigError(
                f"EnergonMultiModalDataModule(global_batch_size={self.global_batch_size}): expected a multiple of "
                f"micro_batch_size={self.micro_batch_size} times the number of data-parallel ranks"
            )

    def _check_trainer(self, num_micro_batches: int) -> None:
        trainer: Any = self.trainer
        if trainer.accumulate_grad_batches != num_micro_batches:
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} means {num_micro_batches} micro-batches of a rank in a "
                f"step, the trainer takes {trainer.accumulate_grad_batches}; set "
                f"Trainer(accumulate_grad_batches={num_micro_batches}), or another global_batch_size"
            )
        is_loaded = self._loaded_state is not None or self._loaded_from == trainer.ckpt_path
        if trainer.ckpt_path is not None and trainer.global_step and not is_loaded:
            raise StateError(
                f"{trainer.ckpt_path} has no state of the data under {type(self).__qualname__!r}, so the data would "
                f"start anew at step {trainer.global_step}. It was saved without this DataModule; to train on from its "
                "weights, load them into the model and fit without ckpt_path"
            )
