"""The data of a run as settings: read from what a run is started with, without loading a tokenizer or weights.

Reads a YAML as LightningCLI takes it (its section `data`), with `key=value` that override it; or `package.module:name`
of a Python function; or the folder of a run, which has its YAML; or the path of data alone, for which the defaults of
the DataModule hold. Returns a frozen `DataConfig`. Raises `ConfigError` for a setting that does not exist, with the
nearest one that does, and for a value of another type; each names the file and the setting.

What is expensive is named, not made: a tokenizer by its folder or hub id, a task encoder by `class_path` and
`init_args`. `DataConfig.build` makes them.
"""

import dataclasses
import itertools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from bridge_data.configs.names import find_named, look_here
from bridge_data.configs.run_folder import CONFIG_FILE, RunFile
from bridge_data.configs.values import (
    DATA_MODULE,
    FIELDS,
    MADE_LATE,
    PROVIDED,
    argument_types,
    check_made_late,
    from_anywhere,
    in_yaml,
    parsed,
    with_paths,
)
from bridge_data.datamodule.class_paths import ClassPath, check_class_path, is_class_path, made_of, named_class, plain
from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.options import path_text
from bridge_data.run_options import MODULE_DEFAULTS, SECTION_OF, RunOptions
from bridge_data.storage.atomic import write_file
from bridge_data.topology import rank_in

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data.datamodule.bridge import EnergonDatasetConfig
    from bridge_data.datamodule.module import EnergonMultiModalDataModule
    from bridge_data.task import TaskEncoder

logger = logging.getLogger("bridge_data")

_OF_ENCODER = ("seq_length", "multimodal_sample_config", "decoder_seq_length", "validation_task_encoder")
"""Arguments of the DataModule besides the fields of a `DataConfig` that are no `RunOptions`."""

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The data of a run: everything that `EnergonMultiModalDataModule` is made of.

    >>> config = DataConfig(path="photos", options={"micro_batch_size": 4, "seed": 3})
    >>> config.run_options.get("micro_batch_size"), config.run_options.get("num_workers")
    (4, 1)

    Nothing is opened or loaded before `build`:

    >>> encoder = {"class_path": "bridge_data.encoders.FamilyTaskEncoder"}
    >>> chats = DataConfig(path="chats.jsonl", tokenizer="Qwen/Qwen3-8B", task_encoder=encoder)
    >>> chats.task_encoder["class_path"]
    'bridge_data.encoders.FamilyTaskEncoder'

    Raises:
        ConfigError: for an option that does not exist, or is out of range.
    """

    path: Any
    """A prepared folder, a metadataset YAML, another file of data, or samples in memory."""
    tokenizer: Any = None
    """The folder or hub id of a tokenizer, its `class_path`, or the object."""
    image_processor: Any = None
    """The same of an image processor."""
    task_encoder: "TaskEncoder[Any, Any, Any, Any] | ClassPath | Callable[[], Any] | None" = None
    """The task encoder, its `class_path` and `init_args`, or a function without arguments that makes it; None for the
    `MultiModalTaskEncoder`. Arguments named `tokenizer`, `image_processor` and `seq_length` that are left out are those
    of the run, also in what `init_args` name."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The other arguments of the DataModule, by name: `RunOptions`, and `seq_length` and the like. Those that are left
    out have its defaults."""
    data_module: str = DATA_MODULE
    """The class that is built: the DataModule, or a subclass of yours, which may have arguments of its own."""

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in SECTION_OF and name not in _OF_ENCODER and self.data_module == DATA_MODULE:
                known = [*SECTION_OF, *_OF_ENCODER, *FIELDS]
                raise ConfigError(f"the data of a run have no setting {name!r}{did_you_mean(str(name), known)}")
        _ = self.run_options  # checks them

    @property
    def run_options(self) -> RunOptions:
        """The options of the run, with the DataModule's defaults; without a cache pool that is not made yet."""
        own = {name: value for name, value in self.options.items() if name in SECTION_OF}
        if isinstance(own.get("cache_pool"), Mapping):
            del own["cache_pool"]
        return MODULE_DEFAULTS.with_options("the data of a run", **own)

    def with_options(self, **settings: Any) -> Self:
        """The same with these settings (options, `path` and other fields) instead of its own.

        >>> DataConfig(path="photos", options={"seed": 3}).with_options(path="chats", num_lanes=16).options
        {'seed': 3, 'num_lanes': 16}
        """
        settings = {name: plain(value) for name, value in settings.items()}
        own = {name: settings.pop(name) for name in FIELDS if name in settings}
        return dataclasses.replace(self, **own, options={**self.options, **settings})

    def overridden(self, overrides: Sequence[str]) -> Self:
        """The same with `key=value`, as in `read`."""
        return type(self)(**_overridden(self, overrides)) if overrides else self

    def saved_in(self, folder: str | os.PathLike[str], *, max_steps: int | None = None) -> Self:
        """The same, and written to `config.yaml` in the folder of a run by the first process of the job, so that
        commands need only the folder: see `read`. `max_steps` is the length of the run, if it is known. Another
        `config.yaml` that is there is kept as `config.yaml.1` (or the next free number), which the log tells.

        Paths are written as absolute ones, so that the folder can be read from anywhere: settings and arguments in
        `init_args` whose type is a path; and texts named like one (`vocab_file`, `tokenizer`), if there is such a file.
        Other texts stay as they are, and so do classes: Python must find their modules.

        >>> config = DataConfig(path="/data/photos", options={"seed": 3}).saved_in("run", max_steps=1000)
        >>> DataConfig.read("run") == config
        True

        Raises:
            ConfigError: for what a YAML can only name, such as a tokenizer that was made already, or a class of the
                script itself; for settings that could not be read again; for a folder that cannot be written.
        """
        if rank_in(None)[0] != 0:
            return self
        arguments = {
            name: value for name, value in self._arguments.items() if name in self.options or value is not None
        }
        if arguments.get("memo") is not None:
            arguments["memo"] = self.run_options.get("memo")  # whose folders are absolute
        given = {name: in_yaml(name, value) for name, value in arguments.items()}
        types = argument_types(self.data_module) | argument_types(DATA_MODULE)
        given = with_paths(given, types, from_anywhere)
        data = given if self.data_module == DATA_MODULE else {"class_path": self.data_module, "init_args": given}
        content = {"data": data} | ({} if max_steps is None else {"trainer": {"max_steps": max_steps}})
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        try:
            with tempfile.TemporaryDirectory() as tried:
                write_file(Path(tried, CONFIG_FILE), text)
                type(self).read(Path(tried, CONFIG_FILE))
        except ConfigError as error:
            raise ConfigError(f"{folder}: these settings could not be read again from a YAML: {error}") from error
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            _keep_other(Path(folder, CONFIG_FILE), text)
            write_file(Path(folder, CONFIG_FILE), text)
        except OSError as error:
            raise ConfigError(f"{folder}: {CONFIG_FILE} cannot be written: {error.strerror}") from error
        return self

    def build(self, process_groups: "ProcessGroupCollection | None" = None) -> "EnergonMultiModalDataModule":
        """The DataModule; tokenizer, image processor and task encoder are made now. `process_groups` are Megatron's;
        None: those of its parallel state, or of `torch.distributed`.

        >>> from bridge_data import DefaultTaskEncoder
        >>> samples = [{"__key__": str(number), "txt": "a boat"} for number in range(10)]
        >>> module = DataConfig(path=samples, task_encoder=DefaultTaskEncoder(), options={"num_workers": 0}).build()
        >>> module.micro_batch_size
        1

        Raises:
            ConfigError: if one of them cannot be made, or settings contradict each other.
        """
        given = self._arguments
        if isinstance(encoder := self.task_encoder, _EncoderOfBridge):
            given["task_encoder"] = encoder.made(self.options["seq_length"])
        made = {name: _instance(name, value) for name, value in given.items()}
        kind = _data_module_class(self.data_module, "data")
        module: EnergonMultiModalDataModule = kind(**made, pg_collection=process_groups)
        return module

    def build_task_encoder(self) -> "TaskEncoder[Any, Any, Any, Any]":
        """The task encoder of training alone.

        Raises:
            ConfigError: if it cannot be made.
        """
        from bridge_data.task import TaskEncoder

        if isinstance(self.task_encoder, TaskEncoder):
            return self.task_encoder
        return self.with_options(num_workers=0, num_val_workers=0, workers="local").build().task_encoder

    @property
    def _arguments(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: own[name] for name in FIELDS} | {**self.options}

    @classmethod
    def read(cls, source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Self:
        """The data of the run at `source`: a YAML that LightningCLI takes; `package.module:name` of one of the objects
        that `of` takes, or of a function that returns one; the folder of a run; or the path of data.

        >>> DataConfig.read("photos", ["micro_batch_size=4", "data.shuffle_buffer_size=null"]).options
        {'micro_batch_size': 4, 'shuffle_buffer_size': None}

        Args:
            overrides: `key=value`, such as `micro_batch_size=4`, or `task_encoder.init_args.seq_length=512`; `data.`
                before the key is optional. Values are YAML. Those of a `ConfigContainer` can also be Bridge's, such as
                `dataset.seq_length=512` (see `with_overrides`).

        Raises:
            ConfigError: if there is no config, or one that is wrong.
        """
        if (found := named_object(path_text("the run", source))) is not None:
            return cls.of(found, overrides)
        where, fields = _read(os.fspath(source), overrides)
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(f"{where}: data: {error}") from error

    @classmethod
    def of(cls, run: Any, overrides: Sequence[str] = ()) -> Self:
        """The settings of an object: a `DataConfig`, a DataModule, an `EnergonDatasetConfig`, or with one a
        `ConfigContainer` of Megatron-Bridge, whose batch sizes and tokenizer hold; `overrides` as in `read`, of which
        Bridge's change the container.

        >>> from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule
        >>> module = EnergonMultiModalDataModule("photos", task_encoder=DefaultTaskEncoder(), num_workers=0, seed=3)
        >>> DataConfig.of(module).options["seed"]
        3

        Raises:
            ConfigError: for anything else.
        """
        if overrides:
            ours = _with_theirs(run, overrides)
            return cls.of(run).overridden(ours)
        if isinstance(run, cls):
            return run
        from bridge_data.datamodule.bridge import EnergonDatasetConfig

        dataset = getattr(run, "dataset", run)
        if isinstance(dataset, EnergonDatasetConfig):
            return cls(**_of_bridge(dataset, run))
        from bridge_data.datamodule.module import EnergonMultiModalDataModule

        if isinstance(run, EnergonMultiModalDataModule):
            return cls(**_of_module(run, EnergonMultiModalDataModule))
        raise ConfigError(
            f"got a {type(run).__name__}, expected a DataConfig, a DataModule, or a ConfigContainer of Megatron-Bridge "
            "whose dataset is an EnergonDatasetConfig of bridge_data"
        )


@dataclasses.dataclass
class NamedTaskEncoder:
    """The task encoder of a `DataConfig` for Megatron-Bridge, which makes it with the tokenizer of the run: a
    `TaskEncoderConfig` that the YAML of a run can hold, and whose settings overrides reach
    (`dataset.task_encoder.init_args...`)."""

    class_path: str
    init_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    image_processor: Any = None
    """The folder or hub id of an image processor, or its `class_path`."""
    tokenizer: Any = None
    """The same of a tokenizer; None for that of the run (`tokenizer.tokenizer_model`)."""

    def validate(self) -> None:
        """Import the class, and check the names and types of its arguments.

        Raises:
            ConfigError: if there is none such, or one of them is wrong.
        """
        where = "dataset.task_encoder"
        check_class_path(self.named, where, PROVIDED)
        check_made_late("image_processor", self.image_processor, f"{where}.image_processor")
        check_made_late("tokenizer", self.tokenizer, f"{where}.tokenizer")

    @property
    def named(self) -> ClassPath:
        """The encoder by its `class_path`."""
        return {"class_path": self.class_path, "init_args": self.init_args}

    def build(self, dataset: "EnergonDatasetConfig", tokenizer: Any) -> "TaskEncoder[Any, Any, Any, Any]":
        """The task encoder, of the sequence length of `dataset`."""
        data = DataConfig(
            path=dataset.path,
            tokenizer=tokenizer if self.tokenizer is None else self.tokenizer,
            image_processor=self.image_processor,
            task_encoder=self.named,
            options={"seq_length": dataset.seq_length},
        )
        return data.build_task_encoder()


def _read(name: str, overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The file (or whatever else) that says the settings, and the fields of its `DataConfig`."""
    file = RunFile.find(name)
    if file is None:
        return name, _overridden(DataConfig(path=name), overrides)
    path, data = file.path, file.content["data"]
    if file.num_found > 1:
        logger.info("%s: the settings are those of %s, the newest of %d configs", name, path, file.num_found)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: data: expected the settings of the data, with path, got {data!r}")
    return str(path), _of_section(data, overrides, str(path))


def _of_section(data: Mapping[str, Any], overrides: Sequence[str], where: str) -> dict[str, Any]:
    """The fields in the section `data` of a YAML: arguments of the DataModule, or of a class with `init_args`."""
    given, class_name = dict(data), DATA_MODULE
    if "class_path" in data:
        class_name = str(data["class_path"])
        unknown = [name for name in data if name not in ("class_path", "init_args")]
        if unknown or not isinstance(data.get("init_args", {}), dict):
            raise ConfigError(f"{where}: data: expected class_path and init_args, got {', '.join(map(str, data))}")
        given = dict(data.get("init_args", {}))
        if class_name.startswith("bridge_data.") and class_name.endswith(".EnergonMultiModalDataModule"):
            class_name = DATA_MODULE
        elif class_name != DATA_MODULE:
            _data_module_class(class_name, f"{where}: data")
    if given.get("pg_collection", 0) is None:  # LightningCLI writes it, though YAML cannot hold any
        del given["pg_collection"]
    given = parsed(given, overrides, where, takes_any=class_name != DATA_MODULE)
    if given.get("path") is None:
        raise ConfigError(f"{where}: data has no path: expected the arguments of EnergonMultiModalDataModule")
    return _fields(given, class_name)


def _fields(arguments: Mapping[str, Any], class_name: str) -> dict[str, Any]:
    own = {name: value for name, value in arguments.items() if name in FIELDS}
    return own | {
        "options": {name: arguments[name] for name in arguments if name not in FIELDS},
        "data_module": class_name,
    }


def _overridden(config: DataConfig, overrides: Sequence[str]) -> dict[str, Any]:
    given = {name: value for name, value in config._arguments.items() if value is not None or name in config.options}
    changed = {text.partition("=")[0].removeprefix("--").removeprefix("data.").partition(".")[0] for text in overrides}
    own = {
        name: value if is_class_path(value) else in_yaml(name, value)
        for name, value in given.items()
        if name in changed and (is_class_path(value) or dataclasses.is_dataclass(value))
    }
    where, takes_any = " ".join(overrides), config.data_module != DATA_MODULE
    new = parsed(own, overrides, where, takes_any=takes_any) if overrides else {}
    return _fields({**given, **new}, config.data_module)


def _keep_other(file: Path, text: str) -> None:
    """Rename a file with another text, such as the settings of another run in its folder."""
    if not file.exists() or file.read_text(errors="replace") == text:
        return
    free = next(one for number in itertools.count(1) if not (one := file.with_name(f"{file.name}.{number}")).exists())
    file.rename(free)
    logger.warning("%s: has other settings than this run; they are kept as %s", file, free.name)


def _instance(name: str, value: Any) -> Any:
    """`value`, made if it is named by its class, but for the task encoders, which the DataModule makes."""
    if name.endswith("task_encoder"):
        from bridge_data.task import TaskEncoder

        return value() if callable(value) and not isinstance(value, TaskEncoder) else value
    return made_of(value, name) if name in MADE_LATE and is_class_path(value) else value


def _data_module_class(name: str, where: str) -> Any:
    look_here()
    found = named_class(name, where)
    from bridge_data.datamodule.module import EnergonMultiModalDataModule

    if not issubclass(found, EnergonMultiModalDataModule):
        raise ConfigError(f"{where}: class_path={name}: expected {DATA_MODULE}, or a class derived from it")
    return found


def named_object(name: str) -> Any:
    """What `package.module:name` is, or returns if it is a function or a class; None if `name` is a path.

    Raises:
        ConfigError: if there is no such name, or the function fails.
    """
    if not _NAMED.fullmatch(name) or os.path.exists(name):
        return None
    found = find_named(name, "config")
    try:
        made = found() if callable(found) and not isinstance(found, DataConfig) else found
    except Exception as error:
        raise ConfigError(
            f"config {name!r}: {name.rpartition(':')[2]}() failed: {type(error).__name__}: {error}. If it needs "
            "arguments, name a function without any that returns the DataConfig"
        ) from error
    if made is None:
        raise ConfigError(
            f"config {name!r}: {name.rpartition(':')[2]} gives None; expected it to return the DataConfig"
        )
    return made


def _of_module(module: "EnergonMultiModalDataModule", default: type) -> dict[str, Any]:
    options = {name: module.options.get(name) for name in SECTION_OF}
    if not module.options.worker.num_lanes_given:
        del options["num_lanes"]
    if module.validation_task_encoder is not module.task_encoder:
        options["validation_task_encoder"] = module.validation_task_encoder
    kind = type(module)
    name = DATA_MODULE if kind is default else f"{kind.__module__}.{kind.__qualname__}"
    return {"path": module.path, "task_encoder": module.task_encoder, "options": options, "data_module": name}


def _with_theirs(run: Any, overrides: Sequence[str]) -> list[str]:
    """Apply those of the overrides that are Bridge's to a `ConfigContainer`; return the others."""
    if not type(run).__module__.startswith("megatron.bridge."):
        return list(overrides)
    from bridge_data.datamodule.overrides import with_overrides

    sections = {field.name for field in dataclasses.fields(run)}
    is_theirs = {text: text.lstrip("+~").partition("=")[0].partition(".")[::2] for text in overrides}
    theirs = [text for text, (section, name) in is_theirs.items() if section in sections and name]
    with_overrides(run, theirs)
    return [text for text in overrides if text not in theirs]


@dataclasses.dataclass(frozen=True)
class _EncoderOfBridge:
    """Makes the task encoder of a config of Bridge."""

    dataset: "EnergonDatasetConfig"
    tokenizer: Any

    def __call__(self) -> Any:
        return self.made(self.dataset.seq_length)

    def made(self, seq_length: int) -> Any:
        """The encoder, of this sequence length."""
        from bridge_data.datamodule.bridge import EnergonDatasetBuilder
        from bridge_data.encoders.pretrained import open_tokenizer

        dataset = dataclasses.replace(self.dataset, seq_length=seq_length)
        return EnergonDatasetBuilder(dataset).task_encoder(open_tokenizer(self.tokenizer))


def _of_bridge(dataset: "EnergonDatasetConfig", container: Any) -> dict[str, Any]:
    from bridge_data.datamodule.bridge import EnergonDatasetBuilder

    train, named = getattr(container, "train", None), getattr(container, "tokenizer", None)
    tokenizer = getattr(named, "tokenizer_model", None)
    options = {"seq_length": dataset.seq_length} | dataset.options()
    for option in ("global_batch_size", "rampup_batch_size"):
        if options.get(option) is None and (value := getattr(train, option, None)) is not None:
            options[option] = value
    builder, encoder = EnergonDatasetBuilder(dataset), dataset.task_encoder
    if isinstance(encoder, NamedTaskEncoder):
        parts = {"tokenizer": encoder.tokenizer or tokenizer, "image_processor": encoder.image_processor}
        parts["task_encoder"] = encoder.named
        return {"path": dataset.path, "options": options, **parts}
    if encoder is not None:
        return {"path": dataset.path, "task_encoder": _EncoderOfBridge(dataset, tokenizer), "options": options}
    options["multimodal_sample_config"] = builder.sample_config()
    parts = {"tokenizer": tokenizer, "image_processor": dataset.image_processor}
    return {"path": dataset.path, "options": options, **parts}
