"""The data of a run by its config: the YAML of a recipe or of a LightningCLI, or the name of a DataModule in Python.

Enters: `run.yaml` of `recipes.train`, `config.yaml` of a LightningCLI, or `package.module:name` of a DataModule or a
function that returns one. Leaves: the training data set as read by one rank without workers, in the order of the whole
job.
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.run_options import RunOptions
from bridge_data.shards.plain_data import parse_yaml_file
from bridge_data.task import DefaultTaskEncoder
from bridge_data.tools.oracle.run_settings import RunSettings

if TYPE_CHECKING:
    from bridge_data.datamodule.module import EnergonMultiModalDataModule

DEFAULT_BATCH_SIZE = 4
"""Samples of a batch if there is no config."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NamedRun:
    """The data of a run: `dataset` is what it trains on, at `path`; `schedule` says how many micro-batches a step has,
    None if there is no config, or if it leaves the global batch size to the ranks; `told` is a sentence about it."""

    path: str
    dataset: LaneDataset
    schedule: BatchSchedule | None
    told: str


def open_run(
    config: str, num_lanes: int | None = None, saved_lanes: int | None = None, num_per_step: int | None = None
) -> NamedRun:
    """The run that `config` names, with `num_lanes` lanes (None: those of the config, or else the `saved_lanes` of its
    newest state). If the config leaves the global batch size to the ranks, a step has `num_per_step` micro-batches.

    Raises:
        ConfigError: if there is none, or its data cannot be opened.
    """
    module = data_module(config)
    own = module.options.worker
    lanes = num_lanes or (own.num_lanes if own.num_lanes_given else None) or saved_lanes
    workers = own.changed(num_workers=0, num_lanes=lanes or 0)
    if module.global_batch_size is None and num_per_step is not None:
        module.options = module.options.with_options(global_batch_size=num_per_step * module.micro_batch_size)
    size, ramp = module.global_batch_size, module.options.trainer.rampup_batch_size
    return NamedRun(
        path=str(module.path),
        dataset=module.datasets_provider(workers, "train"),
        schedule=None if size is None else BatchSchedule(size, module.micro_batch_size, ramp),
        told=f"As {config} makes them, for {workers.num_lanes} lanes of the job.",
    )


def default_run(
    path: str,
    split_part: str,
    num_lanes: int | None,
    trust: dict[str, Any],
    states: Sequence[Checkpoint] = (),
) -> NamedRun:
    """The data at `path` in batches of the default task encoder, with the settings of the run that saved `states`.

    Raises:
        ConfigError: if they cannot be opened.
    """
    if states:
        return _of_states(path, split_part, num_lanes, trust, states)
    options = RunOptions.of(
        split_part=split_part,
        num_lanes=num_lanes or 0,
        micro_batch_size=DEFAULT_BATCH_SIZE,
        max_samples_per_sequence=100,
        **trust,
    )
    dataset = training_data(path, options.data, options.worker, DefaultTaskEncoder())
    told = f"Of the default task encoder, {DEFAULT_BATCH_SIZE} samples each; --config shows those of your run."
    return NamedRun(path=path, dataset=dataset, schedule=None, told=told)


def _of_states(
    path: str, split_part: str, num_lanes: int | None, trust: dict[str, Any], states: Sequence[Checkpoint]
) -> NamedRun:
    settings = RunSettings.of_states(path, states)
    dataset = settings.order_dataset(world_size=1, num_lanes=num_lanes or 0, split_part=split_part, **trust)
    run = settings.options
    size, per_step = run.data.batch_size or 1, run.trainer.global_batch_size
    told = f"Of the default task encoder, {size} samples each, as the states say; --config shows those of your run."
    schedule = None if per_step is None else BatchSchedule(per_step, size)
    return NamedRun(path=path, dataset=dataset, schedule=schedule, told=told)


def data_module(config: str) -> "EnergonMultiModalDataModule":
    """The DataModule that `config` names, with the task encoder of the run.

    Raises:
        ConfigError: if there is none.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # user code is in the folder where the run was started
    made = _of_yaml(Path(config)) if config.endswith((".yaml", ".yml")) else _named(config)
    from bridge_data.datamodule.module import EnergonMultiModalDataModule  # imports Lightning

    if not isinstance(made, EnergonMultiModalDataModule):
        raise ConfigError(f"--config {config}: got {type(made).__name__}, expected an EnergonMultiModalDataModule")
    return made


def _of_yaml(file: Path) -> Any:
    try:
        content = parse_yaml_file(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"--config {file}: cannot be read: {error.strerror}") from error
    is_recipe = not isinstance(content, dict) or "recipe" in content or not isinstance(content.get("data"), dict)
    return _recipe_data(file) if is_recipe else _cli_data(file, content["data"])


def _recipe_data(file: Path) -> Any:
    try:
        recipes = importlib.import_module("recipes.recipe")
    except ImportError as error:
        raise ConfigError(
            f"--config {file}: a recipe needs the package `recipes` of this project ({error}); or name a DataModule, "
            "my_training.data:make"
        ) from error
    recipe = recipes.load_recipe(file)
    return recipe.build_data(None, recipe.build_tokenizer())


def _cli_data(file: Path, data: dict[str, Any]) -> Any:
    """The DataModule that a LightningCLI makes from `data`: arguments, or a class with arguments."""
    from bridge_data.datamodule.module import EnergonMultiModalDataModule

    try:
        from lightning.pytorch.cli import LightningArgumentParser

        parser = LightningArgumentParser(exit_on_error=False)
    except ImportError as error:
        raise ConfigError(
            f"--config {file}: the YAML of a LightningCLI needs a package ({error}): pip install "
            '"bridge-data[lightning-cli]"'
        ) from error
    parser.add_lightning_class_args(EnergonMultiModalDataModule, "data", subclass_mode="class_path" in data)
    try:
        return parser.instantiate_classes(parser.parse_object({"data": data})).data
    except BridgeDataError:
        raise
    except Exception as error:  # from jsonargparse, or from the user's classes
        raise ConfigError(f"--config {file}: data: {error}") from error


def _named(name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(
            f"--config {name}: expected the YAML of a recipe or of a LightningCLI, or package.module:name of a "
            "DataModule or of a function that returns one"
        )
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--config {name}: {error}; start in the folder that holds {module_name}") from error
    return found() if callable(found) else found
