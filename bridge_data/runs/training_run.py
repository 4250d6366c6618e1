"""A training run as commands read it: the settings of its data, its ranks and steps.

Reads what `DataConfig.read` reads: a YAML of LightningCLI, `package.module:name`, the folder of a run, or the path of
data, each with `key=value`; and saved states. Returns a `TrainingRun`: settings alone, no tokenizer and no task encoder
is made for them; `dataset` opens its data in the order of the DataModule, and `assumed` says what the user did not.
Raises a ConfigError for settings that are missing, unknown or out of range.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from bridge_data.configs import (
    DATA_MODULE,
    DataConfig,
    RunFile,
    look_here,
    named_object,
)
from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.training_order import training_order
from bridge_data.errors import ConfigError, counted, listed
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.options import check_integer
from bridge_data.order.state import LoaderState
from bridge_data.plan import Source
from bridge_data.plan.declared import given_clauses
from bridge_data.run_options import RunOptions
from bridge_data.runs.run_plan import MEASURED_WITH
from bridge_data.runs.saved_files import micro_batches_per_step, newest_of
from bridge_data.samples import CrudeSample
from bridge_data.storage import is_remote
from bridge_data.task import Cooker, DefaultTaskEncoder, TaskEncoder
from bridge_data.topology import WorkerConfig


def _unchanged(sample: CrudeSample, **_: Any) -> CrudeSample:
    return sample


class OrderTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Stands for the task encoder of a run, which is not made for its order: no hook is run, and crude samples need no
    cooker. What only the run's own hooks tell is unknown."""

    cookers = (Cooker(_unchanged),)

    def costs_key(self, source: Source | None = None) -> str:
        """The key of the only costs that the data have, of whatever encoder; a state tells whether they are the run's.

        Raises:
            ConfigError: if there are those of several encoders.
        """
        measured_with = MEASURED_WITH.find()
        keys = {} if source is None or measured_with is None else measured_with(source)
        if source is not None and len(keys) > 1:
            raise ConfigError(
                f"{source.name}: was measured with several encoders ({listed(sorted(keys.values()))}): name the "
                "run's (task_encoder=package.module.Name)"
            )
        return next(iter(keys), "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """A training run: its data, and what only its trainer knows. Sizes of batches are in samples; with packing, in
    packs.

    `num_ranks` are data-parallel ranks. Without a global batch size, a step is `num_accumulated` micro-batches of each
    rank. `steps` is the length of the run; None: not known. `source` is what the settings were read from, and `assumed`
    what it does not say.

    Raises:
        ConfigError: if a number is out of range.
    """

    data: DataConfig
    num_ranks: int = 1
    num_accumulated: int = 1
    steps: int | None = None
    source: str = ""
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_ranks", "num_accumulated"):
            check_integer(name, getattr(self, name), 1)
        check_integer("steps", self.steps, 1, or_none=True)
        given_clauses(self.options.data.where, self.options.data.columns)

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        overrides: Sequence[str] = (),
        *,
        states: Sequence[Checkpoint] = (),
        **own: Any,
    ) -> Self:
        """The run that `source` names (see `DataConfig.read`), with `key=value` that override it, also `trainer.key`
        for LightningCLI's. `own` are fields of this class; None: as the config says, or the newest of `states`. Data
        without a config have the settings of the states.

        Raises:
            ConfigError: if the config cannot be understood, or has a setting that is unknown or out of range.
        """
        look_here()
        name, given = os.fspath(source), {key: value for key, value in own.items() if value is not None}
        of_trainer = [text for text in overrides if text.removeprefix("--").startswith("trainer.")]
        of_data = [text for text in overrides if text not in of_trainer]
        found, file = named_object(name), None
        if found is not None:
            data, trainer = DataConfig.of(found, of_data), _of_object(found)
        else:
            data, file = DataConfig.read(name, of_data), RunFile.find(name)
            trainer = _of_trainer({} if file is None else file.content, of_trainer)
        _check_data_are_here(data.path, name)
        assumed = []
        if found is None and file is None:
            assumed.append("settings are the defaults of the DataModule, if not given as name=value")
            if states:
                assumed = ["settings that the states do not have are the defaults of the DataModule"]
                data = _of_states(data, states)
        elif file is not None and file.num_found > 1:
            assumed.append(f"the settings are those of {file.path}, the newest of {file.num_found} configs")
        newest = newest_of(states) if states else None
        if "num_ranks" not in given:
            trainer["num_ranks"] = (newest and newest.world_size) or 1
            assumed.append(f"{counted(trainer['num_ranks'], 'data-parallel rank')} (--world-size)")
        try:
            return cls(data=data, source=name, assumed=tuple(assumed), **(trainer | given))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    @property
    def options(self) -> RunOptions:
        """The options of the run, with the DataModule's defaults."""
        return self.data.run_options

    @property
    def schedule(self) -> BatchSchedule:
        """The global batch size of each step.

        Raises:
            ConfigError: if sizes do not fit each other.
        """
        steps, per_step = self.options.trainer, self.num_ranks * self.num_accumulated
        return BatchSchedule.for_ranks(
            steps.global_batch_size, self.micro_batch_size, steps.rampup_batch_size, per_step
        )

    def dataset(self, task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None) -> LaneDataset:
        """What rank 0 reads, as the DataModule opens it. Without the run's own task encoder, one that says nothing but
        the order.

        Raises:
            ConfigError: if the data cannot be opened.
        """
        data = self.data
        if task_encoder is None and isinstance(data.task_encoder, TaskEncoder):
            task_encoder = data.task_encoder
        if data.data_module != DATA_MODULE:  # it may open them otherwise
            module = data.with_options(num_workers=0, num_val_workers=0).build()
            return module.datasets_provider(self.worker_config(), "train")
        if task_encoder is None and self.is_packing:
            raise ConfigError(
                "packing: packs are chosen by the task encoder of the run; name it (task_encoder=package.module.Name)"
            )
        encoder = task_encoder or OrderTaskEncoder()
        return training_order(data.path, self.options, self.worker_config(), encoder, self.schedule)

    def one_rank(self, dataset: LaneDataset) -> LaneDataset:
        """`dataset` as one rank without workers reads it, in the order of the whole job."""
        config = dataset.worker_config
        return dataset.on_ranks(config.changed(world_size=1, rank=0, num_workers=0, num_lanes=config.num_lanes))

    def worker_config(self) -> WorkerConfig:
        """Lanes and workers of rank 0.

        Raises:
            ConfigError: if the ranks cannot share the lanes equally.
        """
        return self.options.worker.changed(world_size=self.num_ranks)

    @property
    def is_packing(self) -> bool:
        """Whether samples are packed, so that only the task encoder knows which are together."""
        return self.options.data.packing_buffer_size is not None

    @property
    def names_encoder(self) -> bool:
        """Whether a task encoder is named, or what the default one is made of."""
        return self.data.task_encoder is not None or self.data.tokenizer is not None

    def task_encoder(self) -> TaskEncoder[Any, Any, Any, Any]:
        """The task encoder of the run, made now; the plainest if none is named.

        Raises:
            ConfigError: if it cannot be made.
        """
        return self.data.build_task_encoder() if self.names_encoder else DefaultTaskEncoder()

    @property
    def num_lanes(self) -> int | None:
        """Lanes of the job; None: as many as by default."""
        return self.options.worker.num_lanes if self.options.worker.num_lanes_given else None

    @property
    def micro_batch_size(self) -> int:
        """Samples (packs) of a micro-batch."""
        return self.options.data.batch_size or 1


def _check_data_are_here(path: Any, source: str) -> None:
    """Raise the error for a relative path that settings give, and that is not in this folder."""
    is_path = isinstance(path, str | os.PathLike) and os.fspath(path) != source
    if is_path and not is_remote(path) and not os.path.isabs(os.path.expanduser(path)) and not os.path.exists(path):
        raise ConfigError(
            f"{source}: data.path: {path} is relative to the folder in which the run was started, and is not in "
            f"{os.getcwd()}: go there, or add path=FOLDER/{path}"
        )


_OF_TRAINER = {"max_steps": "steps", "accumulate_grad_batches": "num_accumulated"}
"""Settings of Lightning's trainer that matter here, by what they are called there."""


def _of_trainer(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What the YAML of a run says of the length of its steps and of the run, as far as they are whole numbers."""
    found = dict(config.get("trainer") or {})
    for text in overrides:
        name, _, value = text.removeprefix("--").removeprefix("trainer.").partition("=")
        if name not in _OF_TRAINER:
            raise ConfigError(f"{text}: of the trainer, {' and '.join(_OF_TRAINER)} matter to the data")
        found[name] = parse_yaml_file(value.encode(), text)
    return {ours: found[name] for name, ours in _OF_TRAINER.items() if type(found.get(name)) is int and found[name] > 0}


def _of_object(found: Any) -> dict[str, Any]:
    """The length of the run of a `ConfigContainer` of Megatron-Bridge."""
    steps = getattr(getattr(found, "train", None), "train_iters", None)
    return {} if steps is None else {"steps": steps}


def _of_states(data: DataConfig, states: Sequence[Checkpoint]) -> DataConfig:
    """`data` with the settings of the run that saved `states`; the steps are those in which they were saved.

    Raises:
        ConfigError: if the states are of several sizes of steps, or not of training.
    """
    newest = newest_of(states)
    run = newest.state.fingerprint
    if run["order"] != "shuffled":
        raise ConfigError(f"{newest.path}: a state of validation; expected one of training")
    num_per_step = micro_batches_per_step(states)
    if num_per_step is None and "global_batch_size" not in data.options and any(one.step for one in states):
        known = dict.fromkeys(f"step {one.step} after {one.state.num_handed_out}" for one in states if one.step)
        raise ConfigError(
            f"the states do not say for sure how many micro-batches a step has ({', '.join(known)} micro-batches): "
            "give the config of the run, or global_batch_size=..., the samples of a step (of "
            f"{run['batch_size'] or 1} a micro-batch)"
        )
    found = settings_of_state(newest.state)
    if num_per_step is not None:
        found["global_batch_size"] = num_per_step * (run["batch_size"] or 1)
    for name, value in data.options.items():
        if name in found and (value or None) != (found[name] or None):
            raise ConfigError(
                f"{name}={value}: the run had {found[name]} when it saved {newest.path}; leave it out. What a resume "
                "with other settings would do, a config says that has them"
            )
    return data.with_options(**{**found, **data.options})


def settings_of_state(state: LoaderState) -> dict[str, Any]:
    """The options of the run that saved a state of training, as far as the state has them."""
    run = state.fingerprint
    names = {"micro_batch_size": "batch_size", "batch_drop_last": "drop_last", "seed": "seed", "repeat": "repeat"}
    names |= {"shuffle_over_epochs_multiplier": "epochs_per_shuffle"}
    names |= {name: name for name in ("packing_buffer_size", "shuffle_buffer_size", "max_samples_per_sequence")}
    found = {name: run[theirs] for name, theirs in names.items()}
    return found | ({"weight_unit": run["weight_unit"]} if run.get("weight_unit") is not None else {})
