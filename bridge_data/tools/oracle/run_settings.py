"""The settings of a run that decide its order, from a config or from options; and the states that it saved.

Input: the YAML of a recipe (all of it, as `--print-config` writes it) or of a LightningCLI, or the path of a data set
or metadataset with options; and the states that the run saved, which have the settings that they were made with.
Output: a `RunOrder`. No model is built, and a task encoder only if it is named: the order itself needs none, also of
crude samples.
"""

import dataclasses
import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.order.state import LoaderState
from bridge_data.run_options import DELETED, PART_OF, RunOptions, unknown_option
from bridge_data.shards.plain_data import parse_yaml_file
from bridge_data.task import TaskEncoder
from bridge_data.tools.oracle.run_order import MicroBatchRecords, RunOrder
from bridge_data.tools.oracle.run_sections import ListsOfRun, OrderTaskEncoder
from bridge_data.tools.run_folder import micro_batches_per_step

_OF_RECIPE = ("path", "micro_batch_size", "global_batch_size", "packing_buffer_size", "shuffle_buffer_size")
_ONLY_OF_RECIPES = ("path", "seq_length", "wait_for_workers", "options")
_OF_RECIPE_TOO = ("max_samples_per_sequence", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What decides which samples a step sees. A global batch size of None is `num_accumulated` micro-batches for each
    rank."""

    path: str
    options: RunOptions = dataclasses.field(default_factory=RunOptions)
    num_accumulated: int = 1
    world_size: int = 1
    task_encoder: "TaskEncoder[Any, Any, Any, Any] | None" = None

    @classmethod
    def of_states(cls, path: str, states: Sequence[Checkpoint]) -> Self:
        """The settings of the run over the data at `path` that saved `states`, at least one. Those that states lack are
        the defaults: `where`, the part of the split, and steps that are not whole in the states.

        Raises:
            ConfigError: if the states are of several sizes of steps.
        """
        newest = newest_of(states)
        run = newest.state.fingerprint
        if run["order"] != "shuffled":
            raise ConfigError(f"{newest.path}: a state of validation; expected one of training")
        num_per_step, world_size = micro_batches_per_step(states), newest.world_size or 1
        if num_per_step is None and any(one.step for one in states):
            known = ", ".join(f"step {one.step} after {one.state.next_slot}" for one in states if one.step)
            raise ConfigError(
                f"the states do not say how many micro-batches a step has ({known} micro-batches): give the global "
                "batch size (--global-batch-size), or the config of the run"
            )
        global_batch_size = None if num_per_step is None else num_per_step * (run["batch_size"] or 1)
        options = options_of_state(newest.state).with_options(global_batch_size=global_batch_size)
        return cls(path=path, options=options, world_size=world_size)

    def order_dataset(self, *, world_size: int = 0, **options: Any) -> LaneDataset:
        """The data set of the run, of rank 0 of `world_size` (0: as many as the run has); `options` replace those of
        the run. Without the run's task encoder, one that says nothing but the order.

        Raises:
            ConfigError: if the data cannot be opened.
        """
        run = self.options.with_options(**options)
        workers = run.worker.changed(world_size=world_size or self.world_size)
        return training_data(self.path, run.data, workers, self.task_encoder or OrderTaskEncoder())

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The settings in a config, or the defaults for the data at `path` if it is not a config.

        Raises:
            ConfigError: for a config that lacks settings, or has unknown ones.
        """
        file = Path(path)
        content = (
            parse_yaml_file(file.read_bytes(), str(file))
            if file.suffix in (".yaml", ".yml") and file.is_file()
            else None
        )
        data = content.get("data") if isinstance(content, dict) else None
        if not isinstance(data, dict):
            return cls(path=str(path))
        assert isinstance(content, dict)
        if "loader" in content or "recipe" in content:
            return cls._of_recipe(data, content.get("loader") or {}, str(file))
        return cls._of_lightning(data, content.get("trainer") or {}, file)

    @classmethod
    def _of_recipe(cls, data: Mapping[str, Any], loader: Mapping[str, Any], file: str) -> Self:
        missing = [f"data.{name}" for name in (*_OF_RECIPE, *_OF_RECIPE_TOO) if name not in data]
        missing += ["loader.num_lanes"] if "num_lanes" not in loader else []
        if missing:
            raise ConfigError(
                f"{file}: has no {', '.join(missing)}: defaults are those of the recipe. Give all settings of the run, "
                f"as `python -m recipes.train --config {file} --print-config` writes them"
            )
        given = {**(loader.get("options") or {}), **loader, **data}  # `options`: of configs of before
        return cls(path=data["path"], options=RunOptions.of(**_of_order(given, _ONLY_OF_RECIPES)))

    @classmethod
    def _of_lightning(cls, data: Mapping[str, Any], trainer: Mapping[str, Any], file: Path) -> Self:
        # Imported here: trainer imports are slow, and other configs do not need them.
        from bridge_data.datamodule.module import EnergonMultiModalDataModule

        given = dict(data.get("init_args", {}) if "class_path" in data else data)
        if "path" not in given:
            raise ConfigError(f"{file}: data has no path: expected the arguments of EnergonMultiModalDataModule")
        named = inspect.signature(EnergonMultiModalDataModule.__init__).parameters
        given = {name: one.default for name, one in named.items() if name in PART_OF} | given
        accumulated = trainer.get("accumulate_grad_batches", 1)
        return cls(
            path=given["path"],
            options=RunOptions.of(**_of_order(given, named)),
            num_accumulated=accumulated if isinstance(accumulated, int) else 1,
        )


def options_of_state(state: LoaderState) -> RunOptions:
    """The options of the run that saved a state of training, as far as the state has them."""
    run = state.fingerprint
    return RunOptions.of(
        micro_batch_size=run["batch_size"],
        packing_buffer_size=run["packing_buffer_size"],
        shuffle_buffer_size=run["shuffle_buffer_size"],
        max_samples_per_sequence=run["max_samples_per_sequence"],
        seed=run["seed"],
        batch_drop_last=run["drop_last"],
        shuffle_over_epochs_multiplier=run["epochs_per_shuffle"],
        repeat=run["repeat"],
    )


def _of_order(given: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    """Those of `given` that may matter to the order: options of a loader do not, and YAML has some of them as text.

    Raises:
        ConfigError: for a name that is neither an option nor one of `others`.
    """
    for name in given:
        if name not in {*PART_OF, *DELETED, *others}:
            raise unknown_option("a run", name, PART_OF)
    return {name: value for name, value in given.items() if name in DELETED or PART_OF.get(name, "loader") != "loader"}


def newest_of(states: Sequence[Checkpoint]) -> Checkpoint:
    """The newest of at least one state: the furthest on, and of those the one that was dealt again last."""
    return max(states, key=lambda one: (one.state.next_slot, len(one.state.generations)))


def open_run(
    settings: RunSettings,
    *,
    states: Sequence[Checkpoint] = (),
    replay: bool = False,
    records: MicroBatchRecords | None = None,
    lists: ListsOfRun | None = None,
) -> RunOrder:
    """The order of the run with these settings that saved `states` and kept `records` of its micro-batches. Without
    states, `lists` "now" says that it uses the lists of forgotten samples as they are.

    Raises:
        ConfigError: if the data cannot be opened, or the settings contradict each other. StateError: for states of
            other data.
    """
    data, steps = settings.options.data, settings.options.trainer
    size = data.batch_size or 1
    if data.packing_buffer_size is not None and settings.task_encoder is None:
        raise ConfigError(
            f"packing_buffer_size={data.packing_buffer_size}: packs are chosen by the task encoder of the run; "
            "name it (--task-encoder package.module:Name)"
        )
    if replay and settings.task_encoder is None:
        raise ConfigError("replay: the task encoder of the run is run again; name it (--task-encoder)")
    dataset = settings.order_dataset()
    if dataset.forgotten is not None and not states and lists is None:
        raise ConfigError(
            f"{settings.path}: has a list of forgotten samples, and without a state it is not known whether the run "
            'had it: give a state of the run, or say that it has the list as it is now (lists="now"; --lists now)'
        )
    per_step = settings.world_size * settings.num_accumulated
    schedule = BatchSchedule.for_ranks(steps.global_batch_size, size, steps.rampup_batch_size, per_step)
    dataset.skips = schedule.skips(steps.skip_steps)
    return RunOrder(
        dataset,
        schedule=schedule,
        states=[saved.state for saved in states],
        replay=replay,
        records=records,
        lists=lists,
    )
