"""One run: its config, task encoder, saved states, log and ledger, for all commands that read a run.

Reads the folder of a run (files are searched at most `MAX_DEPTH` folders down, those nearest to the top first), the
YAML of a recipe, of a LightningCLI or of Megatron-Bridge, `package.module:name` of a task encoder, of a DataModule or
of a function that makes one, and saved states, which have the settings that they were made with. Returns `RunSettings`
(which decide the order; no model and no task encoder is built for them), a `NamedRun` (the data as one rank without
workers reads them, in the order of the whole job), a `PlannedRun`, and a `SavedRun`, the output so far: unchanged files
are not read again, of grown logs and ledgers only the new part, and an unfinished or damaged file hides no other.
Raises a ConfigError for several configs at one depth, for settings that are missing or unknown, and for names that do
not exist; each names the file and what to give.
"""

import dataclasses
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, get_args

from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.data.records import split_part_of, stored_records
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import BridgeDataError, ConfigError, StateError, counted, listed
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.options import check_integer, check_number
from bridge_data.order.state import LoaderState
from bridge_data.plan import Source
from bridge_data.plan.declared import WHERE_KEYS, given_clauses
from bridge_data.plan.formats import find_format
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.plugins.planned.costs import known_costs
from bridge_data.run_options import SECTION_OF, RunOptions, option_fields, unknown_option
from bridge_data.samples import CrudeSample
from bridge_data.storage import AnyLocation, location
from bridge_data.task import Cooker, DefaultTaskEncoder, TaskEncoder
from bridge_data.tools.loss_log import EVENTS, LossLog, LossReader
from bridge_data.topology import WorkerConfig

if TYPE_CHECKING:
    from bridge_data.datamodule.module import EnergonMultiModalDataModule


def named_encoder(name: str) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder called `name`, or made by the class or function of this name without arguments.

    Raises:
        ConfigError: if no such name exists, or the encoder cannot be made.
    """
    module, found = find_named(name)
    made = _made(name, found, TaskEncoder, "task encoder")
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"task encoder {name!r}: got {made!r}, which is no TaskEncoder; {_offers(module)}")
    return made


def find_named(name: str, what: str = "task encoder") -> tuple[ModuleType, Any]:
    """The module of `package.module:Name`, which may be in the current folder, and its attribute `Name`; `what` it is.

    Raises:
        ConfigError: if either does not exist.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"{what} {name!r}: expected package.module:Name, such as my_training.encoders:Captions")
    module = _imported(module_name)
    try:
        return module, getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{what} {name!r}: {module.__file__} has no {attribute}; {_offers(module)}") from None


def _made(name: str, found: Any, kind: type, what: str) -> Any:
    """`found`, or what it returns if it is a class or function that makes a `kind`."""
    if isinstance(found, kind) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r}: {name.rpartition(':')[2]}() failed: {type(error).__name__}: {error}. If it needs "
            f"arguments, name a function without any that returns the {what}"
        ) from error


def _look_here() -> str:
    """Let modules be found in the current folder, where the user's code is; return it."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


def _imported(name: str) -> ModuleType:
    folder = _look_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
        raise ConfigError(
            f"no module {error.name!r}: it is neither in {folder} nor installed in {sys.prefix}; run the command where "
            "`import` finds it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _offers(module: ModuleType) -> str:
    """The task encoders in a module, for error messages."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, TaskEncoder)
        or (isinstance(value, type) and issubclass(value, TaskEncoder) and value.__module__ == module.__name__)
    ]
    return f"there is {', '.join(names)}" if names else "there is no task encoder in it"


MAX_DEPTH = 4
"""Folder levels below the run's folder that are searched, such as `lightning_logs/version_0/checkpoints`."""

MAX_FILES = 50_000
"""Maximum files and folders to check."""

MAX_CONFIG_BYTES = 1 << 20

_LOGS = (".jsonl", ".csv", EVENTS, ".log", ".out", ".txt")
"""Suffixes or parts of the names of logs, the likeliest first."""

_STATE = "train_dataloader_"


_LEDGER = "ledger_dprank"
_CHECKPOINT = ".ckpt"
_CONFIGS = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """The files in the folder of a run: its config, candidates for saved states and logs (by kind, the likeliest
    first), and the folder of its ledger; None or empty for anything missing."""

    config: Path | None = None
    states: tuple[Path, ...] = ()
    logs: Mapping[str, Sequence[Path]] = dataclasses.field(default_factory=dict)
    ledger: Path | None = None


def is_run(path: Path) -> bool:
    """Whether `path` is a folder without data. One with tars that nobody has prepared is also that of a run if there
    are saved states or a ledger."""
    if not path.is_dir():
        return False
    data = find_format(str(path))
    if data is None or data.name != "tars":
        return data is None
    found = find_run(path, has_config=True)
    return bool(found.states or found.ledger)


def read_states(paths: Sequence[str | os.PathLike[str]]) -> list[Checkpoint]:
    """The states at `paths`, which `read_checkpoint` can read, or in the folders there.

    Raises:
        StateError: if there is none, or one is damaged.
    """
    return [read_checkpoint(found) for path in paths for found in state_paths(location(path))]


def found_states(paths: Sequence[Path], left_out: list[str]) -> list[Checkpoint]:
    """The states among files that were found, not named; why another one is none is appended to `left_out`."""
    return _without_reasons(map(_checkpoint, paths), left_out)


def _without_reasons(found: Iterable[Checkpoint | str], left_out: list[str]) -> list[Checkpoint]:
    states = []
    for one in found:
        if isinstance(one, str):
            left_out.append(one)
        else:
            states.append(one)
    return states


def is_state(path: Path) -> bool:
    """Whether `path` is a saved state: a file, or a folder of a checkpoint."""
    return path.suffix in (".pt", _CHECKPOINT) or any(path.glob(f"{_STATE}*"))


def state_paths(path: AnyLocation) -> Sequence[AnyLocation]:
    """`path` itself, or the states in it, if it is a folder with several, on a disk.

    Raises:
        StateError: if it is a folder without one.
    """
    if not isinstance(path, Path) or not path.is_dir() or is_state(path):
        return [path]
    found = find_run(path, has_config=True).states
    if not found:
        raise StateError(f"{path}: holds no data state, and no folders that do")
    return found


def micro_batches_per_step(states: Sequence[Checkpoint]) -> int | None:
    """The micro-batches of the job in each step, by the steps and positions of its states; None if they lack the
    number, or it changes."""
    found = {divmod(one.state.num_handed_out, one.step) for one in states if one.step and not one.state.is_finite}
    (number, rest), *others = found or {(0, 0)}
    return number if number and not rest and not others else None


def find_run(folder: Path, *, has_config: bool = False) -> RunFiles:
    """The files of the run in a folder; `has_config`: the config is known, do not search for it.

    Raises:
        ConfigError: if there are several configs, or too many files.
    """
    configs: list[Path] = []
    states: list[Path] = []
    ledgers: list[Path] = []
    logs: dict[str, list[Path]] = {kind: [] for kind in _LOGS}
    for kind, path in _files(folder):
        if kind in (_CHECKPOINT, _STATE):
            states.append(path if kind == _CHECKPOINT else path.parent)
        elif kind == _LEDGER:
            ledgers.append(path.parent)
        elif kind in _CONFIGS:
            configs += () if has_config else (path,)
        else:
            logs[kind].append(path.parent if kind in (".jsonl", EVENTS) else path)
    return RunFiles(
        config=_config(folder, configs),
        states=tuple(dict.fromkeys(states)),
        logs={kind: sorted(set(found), key=_by_depth) for kind, found in logs.items()},
        ledger=min(ledgers, key=_by_depth, default=None),
    )


def _by_depth(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(kind, path) of the files of a run, except unfinished checkpoints and hidden folders."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        ended = depth >= MAX_DEPTH or any(name.startswith(_STATE) for name in names)
        kept = () if ended else sorted(name for name in folders if name[0] != "." and not name.endswith(".partial"))
        folders[:] = kept
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                raise ConfigError(f"{folder}: has over {MAX_FILES:,} files; give --config, --state and --log instead")
            kind = _kind(name)
            if kind is not None and (path := Path(parent, name)).is_file():  # opening a pipe would block
                yield kind, path


def _kind(name: str) -> str | None:
    """The likely kind of a file, by the beginning or end of its name; None: not of a run."""
    if name.endswith(_CHECKPOINT):
        return _CHECKPOINT
    if name.startswith((_STATE, _LEDGER)):
        return _STATE if name.startswith(_STATE) else _LEDGER
    kind = EVENTS if EVENTS in name else os.path.splitext(name)[1]
    return kind if kind in (*_CONFIGS, *_LOGS) else None


def _nearest(folder: Path, files: list[Path], wanted: Callable[[Path], bool]) -> list[Path]:
    """The wanted files at the least depth that has any."""
    by_depth: dict[int, list[Path]] = {}
    for file in files:
        by_depth.setdefault(len(file.relative_to(folder).parts), []).append(file)
    for depth in sorted(by_depth):
        found = [file for file in by_depth[depth] if wanted(file)]
        if found:
            return found
    return []


def _config(folder: Path, files: list[Path]) -> Path | None:
    found = _nearest(folder, files, is_config)
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: has several configs, {', '.join(str(file.relative_to(folder)) for file in found)}: give one of "
            "them as --config, or the folder of one run"
        )
    return found[0] if found else None


def is_config(file: Path) -> bool:
    """Whether a YAML is of a recipe or of a LightningCLI."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            return False
        content = _content(file)
    except (OSError, BridgeDataError):
        return False
    return isinstance(content, dict) and ("recipe" in content or "path" in _data_of(content))


def _content(file: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ConfigError: if it cannot be read, or is no YAML.
    """
    try:
        return parse_yaml_file(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _data_of(content: Any) -> dict[str, Any]:
    """The settings of the data in the YAML of a recipe, or the arguments of the DataModule in that of a LightningCLI;
    none in other files."""
    data = content.get("data") if isinstance(content, dict) else None
    given = data.get("init_args", data) if isinstance(data, dict) else None
    return given if isinstance(given, dict) else {}


def data_path(config: Path, module: "EnergonMultiModalDataModule | None" = None) -> str:
    """The data set that a run reads, by the YAML of a recipe, which makes `module`, or of a LightningCLI.

    Raises:
        ConfigError: if the file does not say it.
    """
    path = _data_of(_content(config)).get("path") if module is None else module.path
    if path is None:
        raise ConfigError(f"{config}: has no data.path: give the data set, DATASET")
    return str(path)


_OF_RECIPE = ("path", "micro_batch_size", "global_batch_size", "packing_buffer_size", "shuffle_buffer_size")
_ONLY_OF_RECIPES = ("path", "seq_length", "options")
_OF_RECIPE_TOO = ("max_samples_per_sequence", "seed")


def _kept_as_it_is(sample: CrudeSample, **_: Any) -> CrudeSample:
    return sample


class OrderTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Stands for the task encoder of a run that nobody named. The order does not run it, so crude samples need no
    cooker here; what only the run's own hooks tell is `unknown`."""

    cookers = (Cooker(_kept_as_it_is),)

    def costs_key(self, source: Source | None = None) -> str:
        """The key of the only costs that the data have, of whatever encoder; a state tells whether they are the run's.

        Raises:
            ConfigError: if there are those of several encoders.
        """
        base = None if source is None else stored_records(source.records)
        part = None if base is None else split_part_of(base)
        known = [] if base is None else [facts for _, facts in known_costs(base) if facts.split_part == part]
        keys = {facts.key: facts.encoder for facts in known}
        if source is not None and len(keys) > 1:
            raise ConfigError(
                f"{source.name}: was measured with several encoders ({listed(sorted(keys.values()))}): name the "
                "run's (--task-encoder package.module:Name)"
            )
        return next(iter(keys), "")


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
            known = ", ".join(f"step {one.step} after {one.state.num_handed_out}" for one in states if one.step)
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
        content = _content(file) if file.suffix in _CONFIGS and file.is_file() else None
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
        given = {name: one.default for name, one in named.items() if name in SECTION_OF} | given
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
        weight_unit=run.get("weight_unit"),
    )


def _of_order(given: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    """Those of `given` that may matter to the order: options of a loader do not, and YAML has some of them as text.

    Raises:
        ConfigError: for a name that is neither an option nor one of `others`.
    """
    for name in given:
        if name not in {*SECTION_OF, *others}:
            raise unknown_option("a run", name, SECTION_OF)
    return {name: value for name, value in given.items() if SECTION_OF.get(name, "loader") != "loader"}


def newest_of(states: Sequence[Checkpoint]) -> Checkpoint:
    """The newest of at least one state: the furthest on, and of those the one that was resharded last."""
    return max(states, key=lambda one: (one.state.micro_batch_index, len(one.state.generations)))


DEFAULT_BATCH_SIZE = 4
"""Samples of a batch if there is no config."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NamedRun:
    """The data of a run: `dataset` is what it trains on, at `path`; `schedule` says how many micro-batches a step has,
    None if there is no config, or if it leaves the global batch size to the ranks; `summary` is a sentence about it."""

    path: str
    dataset: LaneDataset
    schedule: BatchSchedule | None
    summary: str


def configured_run(
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
        summary=f"As {config} makes them, for {counted(workers.num_lanes, 'lane')} of the job.",
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
    options = RunOptions.of(micro_batch_size=DEFAULT_BATCH_SIZE, max_samples_per_sequence=100)
    settings, source = RunSettings(path=path, options=options, task_encoder=DefaultTaskEncoder()), ""
    if states:
        settings, source = RunSettings.of_states(path, states), ", as the states say"
    size, per_step = settings.options.data.batch_size or 1, settings.options.trainer.global_batch_size
    return NamedRun(
        path=path,
        dataset=settings.order_dataset(world_size=1, num_lanes=num_lanes or 0, split_part=split_part, **trust),
        schedule=None if per_step is None else BatchSchedule(per_step, size),
        summary=f"Of the default task encoder, {size} samples each{source}; --config shows those of your run.",
    )


def data_module(config: str) -> "EnergonMultiModalDataModule":
    """The DataModule that `config` names, with the task encoder of the run.

    Raises:
        ConfigError: if there is none.
    """
    from bridge_data.datamodule.module import EnergonMultiModalDataModule  # imports Lightning

    _look_here()
    if config.endswith(_CONFIGS):
        made = _of_yaml(Path(config))
    elif ":" in config:
        made = _made(config, find_named(config, "--config")[1], EnergonMultiModalDataModule, "DataModule")
    else:
        raise ConfigError(
            f"--config {config}: expected the YAML of a recipe or of a LightningCLI, or package.module:name of a "
            "DataModule or of a function that returns one"
        )
    if not isinstance(made, EnergonMultiModalDataModule):
        raise ConfigError(f"--config {config}: got {type(made).__name__}, expected an EnergonMultiModalDataModule")
    return made


def _of_yaml(file: Path) -> Any:
    content = _content(file)
    is_recipe = not isinstance(content, dict) or "recipe" in content or not isinstance(content.get("data"), dict)
    return _recipe_data(file) if is_recipe else _cli_data(file, content["data"])


def module_of_recipe(config: Path) -> "EnergonMultiModalDataModule | None":
    """The DataModule of the recipe in this YAML; None for other files.

    Raises:
        ConfigError: if it cannot be made.
    """
    content = _content(config)
    if not isinstance(content, dict) or "recipe" not in content:
        return None
    try:
        return data_module(str(config))
    except ImportError as error:
        raise ConfigError(f"--config {config}: the recipe cannot be made without a package: {error}") from error


def _recipe_data(file: Path) -> Any:
    recipe = _recipe(file)
    return recipe.build_data(None, recipe.build_tokenizer())


def _recipe(file: Path) -> Any:
    try:
        recipes = importlib.import_module("recipes.recipe")
    except ImportError as error:
        raise ConfigError(
            f"--config {file}: a recipe needs the package `recipes` of this project ({error}); or name a DataModule, "
            "my_training.data:make"
        ) from error
    return recipes.load_recipe(file)


def training_settings(file: Path) -> dict[str, Any]:
    """What a YAML says of the length of its run: the settings `training` of a recipe, or of Lightning's trainer its
    `max_steps`, as `train_steps`, and `accumulate_grad_batches`, as far as they are whole numbers."""
    content = _content(file)
    if "recipe" in content:
        return dataclasses.asdict(_recipe(file).training)
    trainer, names = (
        content.get("trainer") or {},
        {"max_steps": "train_steps", "accumulate_grad_batches": "num_accumulated"},
    )
    return {ours: value for name, ours in names.items() if type(value := trainer.get(name)) is int and value > 0}


def _cli_data(file: Path, data: dict[str, Any]) -> Any:
    """The DataModule that a LightningCLI makes from `data`: arguments, or a class with arguments."""
    from lightning.pytorch.cli import LightningArgumentParser

    from bridge_data.datamodule.module import EnergonMultiModalDataModule

    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(EnergonMultiModalDataModule, "data", subclass_mode="class_path" in data)
    try:
        return parser.instantiate_classes(parser.parse_object({"data": data})).data
    except BridgeDataError:
        raise
    except Exception as error:  # from jsonargparse, or from the user's classes
        raise ConfigError(f"--config {file}: data: {error}") from error


BENCH_OPTIONS = RunOptions.of(micro_batch_size=16, max_samples_per_sequence=100, num_workers=2)
"""The options of a run that is measured, or planned, unless they are given."""

_SECTIONS = ("data", "dataset", "loader", "training", "train")
_INNER_SECTIONS = ("dataset_kwargs", "options")
"""Sections of sections, of Megatron-Bridge and of recipes."""
_OTHER_NAMES = {"train_steps": "steps", "train_iters": "steps"}
_OTHER_FORMS = (
    *("cache_pool", "global_error_handler", "restore_error_handler", "limits", "sample_type", "field_map"),
    *("balance", "trusted_modules", "trust_dataset_code"),
)
"""Options that are not read from a file: they need more than plain values, or trust."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A training run with these options. Sizes of batches are in samples; with packing, in packs.

    `num_ranks` are data-parallel ranks; `ranks_per_node` of them share a machine; `later_ranks` are numbers of ranks
    that the run may have later. `steps` is the length of the run, and `step_s` the trainer's seconds per step; None:
    not known.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_ranks: int = 1
    later_ranks: tuple[int, ...] = ()
    ranks_per_node: int = 1
    steps: int | None = None
    step_s: float | None = None
    options: RunOptions = BENCH_OPTIONS

    def __post_init__(self) -> None:
        for name in ("num_ranks", "ranks_per_node"):
            check_integer(name, getattr(self, name), 1)
        check_integer("steps", self.steps, 1, or_none=True)
        for number in self.later_ranks:
            check_integer("ranks", number, 1)
        check_number("step_s", self.step_s, "a positive number of seconds", or_none=True)
        given_clauses(self.options.data.where, self.options.data.columns)

    @classmethod
    def of(
        cls, given: Mapping[str, Any], config: Path | None = None, module: "EnergonMultiModalDataModule | None" = None
    ) -> Self:
        """The run of the options `given`, its own and those of `RunOptions`, which take precedence, and of a config
        file, if any; of a recipe, `module` is what it makes.

        Raises:
            ConfigError: if the file cannot be understood, has no setting of a run, or one that is out of range.
        """
        found = {} if config is None else read_config(config, needs_some=module is None)
        if module is not None:
            found = {name: value for name, value in found.items() if name in _OWN}
        found |= given
        own = {name: found.pop(name) for name in _OWN if name in found}
        found["ledger_path"] = None  # what is planned, or measured, is no part of the run
        try:
            return cls(**own, options=(BENCH_OPTIONS if module is None else module.options).with_options(**found))
        except ConfigError as error:
            raise error if config is None else ConfigError(f"{config}, or an option: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        own = {name: getattr(self, name) for name in _OWN}
        return own | {name: self.options.get(name) for name in _SHOWN} | {"num_lanes": self.num_lanes}

    def worker_config(self) -> WorkerConfig:
        """Lanes and workers of rank 0.

        Raises:
            ConfigError: if the ranks cannot share the lanes equally.
        """
        return self.options.worker.changed(world_size=self.num_ranks)

    @property
    def num_workers(self) -> int:
        """Workers of a rank."""
        return self.options.worker.num_workers

    @property
    def num_lanes(self) -> int | None:
        """Lanes of the job; None: as many as by default."""
        return self.options.worker.num_lanes if self.options.worker.num_lanes_given else None

    @property
    def micro_batch_size(self) -> int:
        """Samples (packs) of a micro-batch."""
        return self.options.data.batch_size or 1

    @property
    def step_size(self) -> int:
        """Samples (packs) of a step, over all ranks."""
        return self.options.trainer.global_batch_size or self.micro_batch_size * self.num_ranks


_OWN = tuple(field.name for field in dataclasses.fields(PlannedRun) if field.name != "options")
_SHOWN = (
    *("num_workers", "num_lanes", "micro_batch_size", "global_batch_size", "packing_buffer_size"),
    *("shuffle_buffer_size", "max_samples_per_sequence", "prefetch_factor", *WHERE_KEYS),
)


def read_config(file: Path, *, needs_some: bool = True) -> dict[str, Any]:
    """The settings of a `PlannedRun` in a YAML file, at its top level or in a section.

    Raises:
        ConfigError: if the file cannot be read, or has none, though it `needs_some`.
    """
    content = _content(file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected a mapping of settings")
    sections = [content, *(content.get(name) for name in _SECTIONS)]
    sections += [one.get(name) for one in sections if isinstance(one, dict) for name in _INNER_SECTIONS]
    fields = {name: field for part in option_fields().values() for name, field in part.items()}
    known = {*_OWN, *fields} - {*_OTHER_FORMS}
    found: dict[str, Any] = {}
    for section in sections:
        for key, value in section.items() if isinstance(section, dict) else ():
            name = _OTHER_NAMES.get(key, key)
            may_be_none = name == "num_lanes" or (name in fields and type(None) in get_args(fields[name].type))
            if name in known and (value is not None or may_be_none):
                found[name] = tuple(value) if isinstance(value, list) else value
    if needs_some and not found:
        raise ConfigError(
            f"{file}: has no setting of a run at its top level or in {', '.join(_SECTIONS)}; expected some of "
            f"{', '.join((*_OWN, *_SHOWN))}"
        )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """The output of a run: its different saved states, sorted by position; its losses and its ledger (None: not
    there). `left_out` has the reasons why similar files are not used. `number` counts the reads that found something
    new."""

    states: Sequence[Checkpoint] = ()
    log: LossLog | None = None
    ledger: RunLedger | None = None
    left_out: tuple[str, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        different: list[Checkpoint] = []
        for one in sorted(self.states, key=lambda one: one.state.micro_batch_index):
            if not any(one.state == other.state for other in different):
                different.append(one)
        object.__setattr__(self, "states", tuple(different))

    @property
    def num_lanes(self) -> int | None:
        """The lanes of the job in the newest state; None without one."""
        return self.states[-1].state.num_lanes if self.states else None

    @property
    def num_per_step(self) -> int | None:
        """The micro-batches of the job in each step, by the states; None if they lack the number, or it changes."""
        return micro_batches_per_step(self.states)


_Stamp: TypeAlias = tuple[tuple[str | int, ...], ...]


class SavedRunReader:
    """Reads the output of the run in `folder`; `states`, a saved state or a folder with several, and `log` replace what
    is found there. Any thread may use it.

    Raises:
        ConfigError: if there are no files of a run, or several configs (`has_config`: the config is known, do not
            search for it).
        StateError: if none of `states` can be read.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        has_config: bool = False,
        states: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._folder, self._states, self._log = folder, states, log
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        self._logs: dict[Path, LossReader] = {}
        self._ledger: RunLedger | None = None
        found = RunFiles() if folder is None else find_run(folder, has_config=has_config)
        self.config = found.config
        """The config that was found."""
        self.saved = saved = self._look(found, SavedRun())
        """The result of the last read."""
        reasons = "; ".join(saved.left_out[:3])
        if states is not None and not saved.states:
            raise StateError(reasons)
        if log is not None and saved.log is None:
            raise ConfigError(reasons)
        if folder is not None and not (self.config or saved.states or saved.log or saved.ledger):
            raise ConfigError(
                f"{folder}: is no data set (it has no .nv-meta, and no tars to read without), and no run: no config, "
                f"saved state, ledger or log with losses is in it{'; ' if reasons else ''}{reasons}"
            )

    def read(self) -> SavedRun:
        """The current output; the same object as before if nothing changed."""
        with self._lock:
            found = RunFiles() if self._folder is None else find_run(self._folder, has_config=True)
            self.saved = self._look(found, self.saved)
            return self.saved

    def _look(self, found: RunFiles, before: SavedRun) -> SavedRun:
        left_out: list[str] = []
        states = self._read_states(found.states, left_out)
        log = self._read_log(found.logs, left_out)
        has_grown = self._read_ledger(found.ledger, left_out)
        now = SavedRun(states=states, log=log, ledger=self._ledger, left_out=tuple(left_out), number=before.number)
        return dataclasses.replace(now, number=now.number + 1) if has_grown or now != before else before

    def _read_states(self, paths: Iterable[Path], left_out: list[str]) -> list[Checkpoint]:
        try:
            paths = paths if self._states is None else state_paths(self._states)
        except StateError as error:
            paths = ()
            left_out.append(str(error))
        kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        for path in paths:
            stamp = _stamp(path)  # taken before reading, so that later changes are read again
            last = self._kept.get(path)
            kept[path] = last if last is not None and last[0] == stamp else (stamp, _checkpoint(path))
        self._kept = kept
        return _without_reasons((one for _, one in kept.values()), left_out)

    def _read_log(self, logs: Mapping[str, Sequence[Path]], left_out: list[str]) -> LossLog | None:
        """The losses of the first log with losses, of the likeliest kind."""
        self._logs = {path: reader for path, reader in self._logs.items() if path.exists()}
        given = None if self._log is None else {"": [self._log]}
        for kind, paths in (given or logs).items():
            found: dict[Path, LossLog] = {}
            for path in paths:
                try:
                    found[path] = self._reader(path).read()
                except ConfigError as error:  # a log of something else, unless the user named it
                    left_out += [str(error)] if kind in ("", EVENTS) and not found else []
            if found:
                (taken, losses), *others = found.items()
                left_out += [f"{one}: another log than {taken}; --log takes it instead" for one, _ in others]
                return losses
        return None

    def _reader(self, log: Path) -> LossReader:
        return self._logs.setdefault(log, LossReader(log))

    def _read_ledger(self, folder: Path | None, left_out: list[str]) -> bool:
        """Read what is new in the ledger; return whether there was anything."""
        try:
            if folder is None:
                self._ledger = None
            elif self._ledger is None or self._ledger.folder != folder:
                self._ledger = RunLedger(folder)
            else:
                return self._ledger.update()
        except (BridgeDataError, OSError) as error:
            self._ledger = None
            left_out.append(str(error))
        return False


def _checkpoint(path: Path) -> Checkpoint | str:
    """A saved state, or why it cannot be read."""
    try:
        return read_checkpoint(path)
    except StateError as error:
        return str(error)


def _stamp(path: Path) -> _Stamp:
    """A value that changes when the files of a saved state change."""
    try:
        files = sorted(path.glob("train_dataloader_*")) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:  # it is being replaced
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
