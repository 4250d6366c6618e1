"""The DataModule of Megatron-Bridge and Lightning: one object that makes this rank's loaders from plain arguments.

Source: the names, their order and their defaults are those of Megatron-Bridge's `EnergonMultiModalDataModule`.
"""

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias, Unpack

from bridge_data.datamodule import lightning_trainer
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.class_paths import is_class_path, made_of
from bridge_data.datamodule.encoder_settings import check_beside, own_seq_length
from bridge_data.datamodule.lightning_trainer import LIGHTNING, DataEpoch
from bridge_data.datamodule.parallel.groups import on_this_rank
from bridge_data.datamodule.trainer_loaders import (
    EnergonDataloader,
    RankLoader,
    ValidationDataloader,
    distinct_names,
    rank_loader,
)
from bridge_data.datamodule.training_order import training_order
from bridge_data.encoders import MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.encoders.encoder_config import SEQ_LENGTH
from bridge_data.encoders.pretrained import open_image_processor, open_tokenizer
from bridge_data.errors import ConfigError, StateError
from bridge_data.extensions import Feature
from bridge_data.keywords import DataModuleKeywords
from bridge_data.lanes.datasets import validation_data, validation_sources
from bridge_data.lanes.lane_dataset import OF_SAMPLES, LaneDataset
from bridge_data.loader.checkpoint.lightning_file import LIGHTNING_KEY
from bridge_data.loader.workers.launch import EarlyServer
from bridge_data.options import ShownOptions
from bridge_data.order.state import LoaderState, as_one_value
from bridge_data.order.step_skips import StepSkips
from bridge_data.plan import EmptySplitError, Source
from bridge_data.run_options import (
    MODULE_DEFAULTS,
    LoaderConfig,
    RunOptions,
    StartMethod,
    TrainingOptions,
    option_parameters,
)
from bridge_data.task import DefaultTaskEncoder, TaskEncoder
from bridge_data.topology import WorkerConfig, is_distributed

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

logger = logging.getLogger("bridge_data")

_IN_EPOCH = "micro_batches_in_epoch"  # of all ranks, in the whole steps of Lightning's epoch

_SEQ_LENGTH = int(str(SEQ_LENGTH))
"""The default of `seq_length`: an object of its own, to tell it from the same number given."""

Balancing: TypeAlias = Callable[[BatchSchedule, int, WorkerConfig], Any]
"""Says how ranks share the so many micro-batches that each has of a step; None if they do not."""

_BALANCE = Feature[Callable[[Any, TaskEncoder[Any, Any, Any, Any]], Balancing]]("balance")
"""By the value of the option `balance`."""

_Base: Any = object if LIGHTNING is None else LIGHTNING.LightningDataModule


class _Option:
    """An option of the run as an attribute of the DataModule; fixed once loaders are made, if they are made with it."""

    def __init__(self, *, is_of_loaders: bool = True) -> None:
        self._is_of_loaders = is_of_loaders

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: "EnergonMultiModalDataModule | None", owner: type) -> Any:
        return self if module is None else module.options.get(self._name)

    def __set__(self, module: "EnergonMultiModalDataModule", value: Any) -> None:
        is_made = module.train_dataloader_object is not None or module.val_dataloader_object is not None
        if is_made and self._is_of_loaders and (now := module.options.get(self._name)) != value:
            raise ConfigError(
                f"{type(module).__name__}: {self._name}={value!r}: its loaders are made, with {now!r}; make another "
                "DataModule"
            )
        module.options = module.options.with_options(**{self._name: value})


class _OfEncoder:
    """A setting that the task encoder was made of, or has itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: "EnergonMultiModalDataModule | None", owner: type) -> Any:
        return self if module is None else vars(module)[self._name]

    def __set__(self, module: "EnergonMultiModalDataModule", value: Any) -> None:
        if hasattr(module, "task_encoder") and vars(module)[self._name] is not value:
            raise ConfigError(
                f"{type(module).__name__}: {self._name} was given to the task encoder when this was made: make another "
                "with it, or set task_encoder"
            )
        module.__dict__[self._name] = value


def _modules_for(encoder: TaskEncoder[Any, Any, Any, Any]) -> list[str]:
    """The modules that workers will need for it: of its class, of what it has, such as a tokenizer, and of samples.
    Those that each process has of its own are none."""
    if type(encoder) is DefaultTaskEncoder:
        return []  # texts may need none
    has = getattr(encoder, "__dict__", {}).values()
    names = dict.fromkeys([*(type(one).__module__ for one in (encoder, *has)), *OF_SAMPLES])
    return [name for name in names if name not in ("builtins", "__main__", "__mp_main__")]


class EnergonMultiModalDataModule(_Base):  # type: ignore[misc]  # lightning is not followed
    """Training and validation data at `path`, a prepared folder, a metadataset YAML, or samples in memory.

    Megatron takes the loaders from `build()`, or one by one; Lightning asks for them, as this is a
    `LightningDataModule` where Lightning is installed. Data-parallel ranks come from
    `pg_collection.dp`, else from Megatron's parallel state, else from `torch.distributed`.

    Args:
        tokenizer, image_processor, seq_length, multimodal_sample_config, decoder_seq_length: for the
            `MultiModalTaskEncoder` that is made if `task_encoder` is None. Tokenizer and image processor may be
            given as the folder (or hub id) that they were saved to. Beside a `task_encoder`, they must be those that it
            has. (Megatron's schedules also read `seq_length`, which is the encoder's.)
        global_batch_size: samples per step of all ranks: a multiple of `micro_batch_size` times the number of ranks. If
            None, one micro-batch of each rank; with Lightning, `accumulate_grad_batches` of each.
        task_encoder: a `TaskEncoder`; or `class_path` and `init_args` of one, which gets the tokenizer, image processor
            and sequence length given here where `init_args` leave out arguments of these names.
        validation_task_encoder: for validation; the one of training if None.
        the others and **kwargs: `RunOptions`. (`ends` is "even" by default for validation in a distributed run.)

    Raises:
        ConfigError: for a setting that is unknown, out of range, or contradicts another.
    """

    __signature__ = ShownOptions(option_parameters())

    options: RunOptions
    """All options. Those that are attributes, too, may be changed there until the loaders are made."""

    _trainer: Any = None

    @property
    def trainer(self) -> Any:
        """The Lightning trainer that it is attached to, if any."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        lightning_trainer.check_package(trainer)
        self._trainer = trainer

    @property
    def num_val_workers(self) -> int:
        """Workers for validation."""
        given = self.options.trainer.num_val_workers
        return self.options.worker.num_workers if given is None else given

    @num_val_workers.setter
    def num_val_workers(self, value: int | None) -> None:
        self.options = self.options.with_options(num_val_workers=value)

    tokenizer = _OfEncoder()
    image_processor = _OfEncoder()
    seq_length = _OfEncoder()
    decoder_seq_length = _OfEncoder()
    multimodal_sample_config = _OfEncoder()

    micro_batch_size = _Option()
    global_batch_size = _Option(is_of_loaders=False)
    num_workers = _Option()
    pin_memory = _Option()
    shuffle_buffer_size = _Option()
    max_samples_per_sequence = _Option()
    packing_buffer_size = _Option()

    def __init__(
        self,
        path: str | Path | list[Any] | dict[str, Any],
        tokenizer: Any = None,
        image_processor: Any = None,
        seq_length: int = _SEQ_LENGTH,
        micro_batch_size: int = 1,
        global_batch_size: int | None = None,
        num_workers: int = MODULE_DEFAULTS.worker.num_workers,
        num_val_workers: int | None = None,
        pin_memory: bool = MODULE_DEFAULTS.loader.pin_memory,
        shuffle_buffer_size: int | None = TrainingOptions.shuffle_buffer_size,
        max_samples_per_sequence: int | None = None,
        multimodal_sample_config: MultiModalSampleConfig | None = None,
        # jsonargparse takes the first type that fits, and leaves it to the DataModule to make the encoder.
        task_encoder: dict[str, Any] | TaskEncoder | None = None,  # type: ignore[type-arg]
        decoder_seq_length: int | None = None,
        packing_buffer_size: int | None = None,
        validation_task_encoder: dict[str, Any] | TaskEncoder | None = None,  # type: ignore[type-arg]
        pg_collection: "ProcessGroupCollection | None" = None,
        **kwargs: Unpack[DataModuleKeywords],
    ) -> None:
        super().__init__()
        self.path = path
        self.tokenizer, self.image_processor = open_tokenizer(tokenizer), open_image_processor(image_processor)
        self.seq_length, self.decoder_seq_length = seq_length, decoder_seq_length
        self.multimodal_sample_config, self.pg_collection = multimodal_sample_config, pg_collection
        self.options = RunOptions.of(
            "EnergonMultiModalDataModule",
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            num_workers=num_workers,
            num_val_workers=num_val_workers,
            pin_memory=pin_memory,
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            packing_buffer_size=packing_buffer_size,
            **kwargs,
        )
        self._val_ends = kwargs.get("ends")
        self.train_dataloader_object: EnergonDataloader | None = None
        self.val_dataloader_object: ValidationDataloader | list[ValidationDataloader] | None = None
        self._val_names: list[str] = []
        self._loaded_state: LoaderState | None = None
        self._loaded_in_epoch: int | None = None
        self._loaded_from: Any = None
        self._num_overfitted: int | None = None
        self._epoch: DataEpoch | None = None
        self._test_dataloader: ValidationDataloader | None = None
        self._checked_skips(1)
        self._early_server = EarlyServer(self._start_method)
        is_given = task_encoder is not None
        self.task_encoder = self._made("task_encoder", task_encoder) if is_given else self._default_encoder()
        self.validation_task_encoder = (
            self._made("validation_task_encoder", validation_task_encoder)
            if validation_task_encoder
            else self.task_encoder
        )
        balance = self.options.trainer.balance
        self._balancing: Balancing | None = None
        """What says how ranks balance a step; None if they do not."""
        if balance is not False and not self.options.assigns_packs:
            balanced_by = _BALANCE.get(needed_by=f"balance={balance!r}")
            self._balancing = balanced_by(balance, self.task_encoder)
        if is_given:
            self._check_beside(self.task_encoder)
        self._early_server.prepare(_modules_for(self.task_encoder))

    def __repr__(self) -> str:
        path = repr(str(self.path)) if isinstance(self.path, (str, Path)) else "data in memory"
        return f"{type(self).__name__}({path}, task_encoder={type(self.task_encoder).__name__})"

    def __str__(self) -> str:
        return repr(self)  # Lightning's own would start all loaders

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The global batch size of each step."""
        return self._batch_schedule(self._worker_config(0).world_size)

    @property
    def init_global_step(self) -> int:
        """The step at which this run began: 0, or the number of steps done when its state was saved."""
        return self.batch_schedule.step_after(self.init_consumed_samples)

    @property
    def init_consumed_samples(self) -> int:
        """The samples (with packing: packs) of the whole job that were consumed before this run."""
        if self.train_dataloader_object is not None:
            return int(self.train_dataloader_object.num_handed_out_before * self.micro_batch_size)
        return 0 if self._loaded_state is None else self._loaded_state.num_handed_out * self.micro_batch_size

    def num_micro_batches(self, worker_config: WorkerConfig) -> int:
        """Micro-batches of a rank of `worker_config` per step; with `rampup_batch_size`, after the ramp.

        Raises:
            ConfigError: if the ranks cannot share the global batch equally.
        """
        size = self._batch_schedule(worker_config.world_size).global_batch_size
        return BatchSchedule(size, self.micro_batch_size).num_micro_batches(0, worker_config.world_size)

    def datasets_provider(
        self, worker_config: WorkerConfig, split: Literal["train", "val", "test"] = "val"
    ) -> LaneDataset:
        """The data of one split: endless and shuffled for training, in order and once for validation and test.

        Raises:
            ConfigError: for another split, or if the data do not fit the settings.
        """
        if split == "train":
            self._checked_skips(worker_config.world_size)
            schedule = self._batch_schedule(worker_config.world_size)
            return training_order(self.path, self.options, worker_config, self.task_encoder, schedule)
        if split in ("val", "test"):
            encoder = self.validation_task_encoder
            return validation_data(self.path, self._validation_options, worker_config, encoder, split_part=split)
        raise ConfigError(f"datasets_provider(split={split!r}): expected 'train', 'val' or 'test'")

    def validation_datasets(self, worker_config: WorkerConfig) -> list[tuple[LaneDataset, Source]]:
        """The data of the validation split, one data set per source, with the source."""
        return validation_sources(self.path, self._validation_options, worker_config, self.validation_task_encoder)

    def build(self) -> tuple[EnergonDataloader, ValidationDataloader | list[Any] | None]:
        """The loaders for training and validation."""
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self) -> EnergonDataloader:
        """The training loader; the same object on every call.

        Raises:
            ConfigError: if ranks or trainer do not fit the batch sizes.
            StateError: if the trainer resumes from a checkpoint without a state of the data.
        """
        config = self._worker_config(self.num_workers)
        schedule, num_micro_batches = self._batch_schedule(config.world_size), self.num_micro_batches(config)
        if self.train_dataloader_object is None:
            dataset = self.datasets_provider(config, "train")
            self._epoch = self._epoch_of(dataset)
        num_overfitted, by_pass = self._fitted_to_trainer(schedule, num_micro_batches, config.world_size)
        if self.train_dataloader_object is None:
            if num_overfitted is not None:
                dataset = dataset.first(num_overfitted * config.world_size)
            balancing = None if self._balancing is None else self._balancing(schedule, num_micro_batches, config)
            strict = self.options.trainer.strict_restore
            loader = self._rank_loader(dataset, self.options.loader, balancing)
            self.train_dataloader_object = EnergonDataloader(
                loader, strict=strict, before_first=self._check_validation_workers
            )
            self._num_overfitted = num_overfitted
            if self._loaded_state is not None:
                self.train_dataloader_object.restore_state(self._loaded_state)
                self._loaded_state = None
        else:
            lightning_trainer.check_overfitted(num_overfitted, self._num_overfitted)
        self.train_dataloader_object.by_pass = by_pass
        if self.trainer is not None:
            steps = (config.world_size, num_micro_batches)
            lightning_trainer.follow(self.trainer, self.train_dataloader_object, self._loaded_in_epoch, *steps)
            self._loaded_in_epoch = None
        return self.train_dataloader_object

    def _fitted_to_trainer(
        self, schedule: BatchSchedule, num_micro_batches: int, world_size: int
    ) -> tuple[int | None, bool]:
        """The batches of a rank that the trainer repeats in every epoch (None: none), and whether its epochs are passes
        through data that end. Checks the settings of the trainer first."""
        epoch = self._epoch
        if self.trainer is None or epoch is None:
            return None, False
        balanced = self._balancing is not None and world_size > 1
        lightning_trainer.check_trainer(self.trainer, schedule, num_micro_batches, epoch, balanced=balanced)
        if self._loaded_state is None and self._loaded_from != self.trainer.ckpt_path:
            lightning_trainer.check_new(self.trainer, type(self).__qualname__)
        num_overfitted = lightning_trainer.num_overfitted(self.trainer, epoch.length)
        by_pass = epoch.is_pass and num_overfitted is None
        if by_pass:
            lightning_trainer.check_ends(self.options.loader.ends, world_size)
        if self.train_dataloader_object is None:
            lightning_trainer.tell_of_no_validation(self.trainer, epoch)
        return num_overfitted, by_pass

    def val_dataloader(self) -> ValidationDataloader | list[Any] | None:
        """The validation loader; with `multiple_validation_sets`, those of the sources, in the order of
        `validation_datasets`. For a split without samples: None, or `[]` for Lightning, which does not accept None."""
        cyclic = self.trainer is None
        if self.val_dataloader_object is None:
            config = self._worker_config(self.num_val_workers)
            try:
                if self.options.trainer.multiple_validation_sets:
                    named = self.validation_datasets(config)
                    datasets = [dataset for dataset, _ in named]
                    self._val_names = distinct_names([source for _, source in named])
                else:
                    datasets, self._val_names = [self.datasets_provider(config, "val")], ["validation"]
            except EmptySplitError:
                return None if cyclic else []
            loaders = [self._validation_loader(dataset) for dataset in datasets]
            self.val_dataloader_object = loaders if self.options.trainer.multiple_validation_sets else loaders[0]
        made = self.val_dataloader_object
        for loader in made if isinstance(made, list) else [made]:
            loader.cyclic = cyclic
            if self.trainer is not None:
                lightning_trainer.check_evaluation(self.trainer, "val", loader)
        return made

    @property
    def val_names(self) -> list[str]:
        """The names of the validation sets, in the order of `val_dataloader`: those of their sources (`photos/val`),
        see `distinct_names`; or "validation" for a single set."""
        self.val_dataloader()
        return list(self._val_names)

    def _validation_loader(self, dataset: LaneDataset) -> ValidationDataloader:
        eval_batches = self.options.trainer.eval_batches
        if self.trainer is not None and eval_batches is not None:
            raise ConfigError(
                f"eval_batches={eval_batches}: is for Megatron, whose evaluations end after so many batches without "
                f"telling; set Trainer(limit_val_batches={eval_batches}) instead"
            )
        ends = self._val_ends or ("even" if is_distributed() else "uneven")
        config: LoaderConfig = dataclasses.replace(self.options.loader, ends=ends)
        return ValidationDataloader(
            self._rank_loader(dataset, config),
            cyclic=False,
            eval_batches=eval_batches,
            num_trained=self._num_trained,
        )

    def _rank_loader(self, dataset: LaneDataset, config: LoaderConfig, balancing: Any = None) -> RankLoader:
        loader = rank_loader(dataset, config, self.options.trainer.share, self.pg_collection, balancing)
        if dataset.worker_config.num_workers:
            self._early_server.release()  # the loader has it now
        return loader

    @property
    def _start_method(self) -> StartMethod | None:
        """How the workers of this process will start; None if it is known that it has none."""
        options = self.options
        is_local = options.loader.workers == "local" and options.trainer.share == "replicate"
        return options.loader.start_method if is_local and (self.num_workers or self.num_val_workers) else None

    def _check_validation_workers(self) -> None:
        """Wait for the workers of validation loaders that were made: what they cannot import should not end a run at
        its first evaluation."""
        made = self.val_dataloader_object
        for loader in made if isinstance(made, list) else [made] if made is not None else []:
            loader.dataloader.wait_for_workers(math.inf)

    def _num_trained(self) -> int:
        return 0 if self.train_dataloader_object is None else self.train_dataloader_object.num_draws

    def test_dataloader(self) -> ValidationDataloader | None:
        """The loader for `Trainer.test`: the split part `test`, in order and once; None without a trainer.

        Raises:
            EmptySplitError: if that part is empty.
        """
        if self.trainer is None:
            return None
        if self._test_dataloader is None:
            config = self._worker_config(self.num_val_workers)
            self._test_dataloader = self._validation_loader(self.datasets_provider(config, "test"))
        lightning_trainer.check_evaluation(self.trainer, "test", self._test_dataloader)
        return self._test_dataloader

    def predict_dataloader(self) -> Never:
        """An error: the data to predict on are not known."""
        raise ConfigError(
            "EnergonMultiModalDataModule has no data for Trainer.predict: pass a loader, "
            "as in trainer.predict(model, dataloaders=get_loader(get_val_dataset(path, split_part=...)))"
        )

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch delivered, or before the first of an incomplete step: on data-parallel
        rank 0, whose state Lightning saves, that of the whole job. All ranks must call it."""
        if self.train_dataloader_object is None and self._loaded_state is not None:
            loaded: dict[str, Any] = {LIGHTNING_KEY: self._saved(self._loaded_state.to_dict())}
            return loaded if self._loaded_in_epoch is None else loaded | {_IN_EPOCH: self._loaded_in_epoch}
        if (
            self.train_dataloader_object is None
            and self.trainer is not None
            and lightning_trainer.is_fitting(self.trainer)
        ):
            self.train_dataloader()  # the position before the first batch, to which Lightning's Tuner goes back
        if self.train_dataloader_object is None:
            return {}
        state: dict[str, Any] = {LIGHTNING_KEY: self._saved(self.train_dataloader_object.save_state())}
        if self.trainer is not None:
            config = self._worker_config(self.num_workers)
            in_epoch = lightning_trainer.num_in_epoch(self.trainer, self.num_micro_batches(config))
            state[_IN_EPOCH] = in_epoch * config.world_size
        return state

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state as Lightning's checkpoints have it, or one value for those of others."""
        return as_one_value(state) if self.trainer is None else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position in `state_dict`: that of rank 0, or on each rank its own. A checkpoint that Lightning
        loads to validate or test does not change the position.

        Raises:
            StateError: if it is not a state of this class, or of other data or settings.
        """
        if not state_dict and self.trainer is None:
            logger.warning(
                "no position of the data was restored, as the state is empty: it is of a DataModule that had no "
                "training loader. torch.distributed.checkpoint loads only what the new state has, too: call "
                "train_dataloader() before it loads"
            )
        if not state_dict or (self.trainer is not None and not lightning_trainer.is_fitting(self.trainer)):
            return
        if LIGHTNING_KEY not in state_dict:
            raise StateError(
                f"not a state of {type(self).__name__}: got {sorted(state_dict)}, expected [{LIGHTNING_KEY!r}]"
            )
        state = LoaderState.from_dict(state_dict[LIGHTNING_KEY])
        if self.train_dataloader_object is None:
            self._loaded_state = state
        else:
            self.train_dataloader_object.restore_state(state)
        self._loaded_in_epoch = state_dict.get(_IN_EPOCH)
        self._loaded_from = None if self.trainer is None else self.trainer.ckpt_path

    def _epoch_of(self, dataset: LaneDataset) -> DataEpoch:
        """What an iteration of training on `dataset` is for Lightning."""
        is_even, length = self.options.loader.ends == "even", dataset.virtual_epoch_length or None
        is_pass = dataset.finite and length is None
        if is_pass and dataset.passes.has_length:
            length = dataset.passes.num_batches(even=is_even)
        return DataEpoch(
            length=length, is_pass=is_pass, num_batches=max(1, length or dataset.passes.num_batches(even=True))
        )

    @property
    def _validation_options(self) -> TrainingOptions:
        return dataclasses.replace(self.options.data, batch_drop_last=self.options.trainer.val_batch_drop_last)

    def _checked_skips(self, num_ranks: int) -> StepSkips | None:
        """The micro-batches that are skipped, None if none are; the sizes of steps are checked, too.

        Raises:
            ConfigError: if sizes do not fit each other, or the steps are invalid, overlap, or depend on the number of
                ranks.
        """
        steps = self.options.trainer
        found = self._batch_schedule(num_ranks).skips(steps.skip_steps)
        if found is not None and steps.global_batch_size is None:
            raise ConfigError(
                f"{found}: without global_batch_size, the size of a step depends on the number of ranks; set it"
            )
        return found

    def _batch_schedule(self, num_ranks: int) -> BatchSchedule:
        num_accumulated = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        ramp = self.options.trainer.rampup_batch_size
        return BatchSchedule.for_ranks(self.global_batch_size, self.micro_batch_size, ramp, num_ranks * num_accumulated)

    def _worker_config(self, num_workers: int) -> WorkerConfig:
        return on_this_rank(self.options.worker.changed(num_workers=num_workers), self.pg_collection)

    def _made(self, name: str, given: Any) -> TaskEncoder[Any, Any, Any, Any]:
        """A task encoder; if its class is named, made with tokenizer, image processor and sequence length of this."""
        if is_class_path(given):
            length = None if self.seq_length is _SEQ_LENGTH else self.seq_length
            parts = {"tokenizer": self.tokenizer, "image_processor": self.image_processor, "seq_length": length}
            given = made_of(given, f"{type(self).__name__}({name})", parts)
        if not isinstance(given, TaskEncoder):
            raise ConfigError(f"{type(self).__name__}({name}={given!r}): expected a TaskEncoder, or its class_path")
        return given

    def _check_beside(self, encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        """Check the settings that are the encoder's; `seq_length` is its own from then on, if it says."""
        names = ("tokenizer", "image_processor", "decoder_seq_length", "multimodal_sample_config")
        given = {name: getattr(self, name) for name in names}
        own, asked = own_seq_length(encoder), self.seq_length
        if asked != SEQ_LENGTH:
            given["seq_length"] = asked
        check_beside(type(self).__name__, encoder, given)
        if own is not None and own != asked:
            self.__dict__["seq_length"] = own
            if asked is not _SEQ_LENGTH:  # which is the default, and may have come back from a saved YAML
                message = f"{type(self).__name__}: seq_length={own} of the task encoder holds, not the default {asked}"
                warnings.warn(message, stacklevel=3)

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
