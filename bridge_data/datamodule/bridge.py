"""The data of a Megatron-Bridge run: its settings (the `dataset` of a `ConfigContainer`), and the loaders made of them.

Reads plain settings, from a recipe, a YAML file or the command line; then Bridge's context for building data sets.
Returns the same settings, checked, and the loaders for training and validation, which Bridge wraps into its
`RerunDataIterator`; they save and restore with Bridge's checkpoints. Each setting has an effect, or is refused with the
reason. If Bridge is installed, the settings are also of its own class, so that it checks and derives the same for them.
Importing this module imports nothing of Bridge; only making a config does.

Source: the names and defaults are those of Megatron-Bridge: `EnergonProvider` (0.3), `EnergonDatasetConfig` and
`DataloaderConfig` (0.6).
"""

import dataclasses
import enum
import functools
import importlib
import importlib.util
import json
import types
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

from bridge_data.datamodule.batch_schedule import megatron_has_ramps
from bridge_data.datamodule.class_paths import made_of, typed
from bridge_data.datamodule.encoder_settings import check_beside
from bridge_data.datamodule.settable import assign, settable, settled
from bridge_data.errors import ConfigError
from bridge_data.run_options import SECTION_OF, RunOptions, TrainingOptions, option_fields
from bridge_data.storage.locations import COPY_IT, output_on_disk
from bridge_data.task import TaskEncoder

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data.datamodule.module import EnergonMultiModalDataModule
    from bridge_data.encoders import MultiModalSampleConfig
    from bridge_data.loader.metrics import LoaderMetrics

C = TypeVar("C")

_PLAIN_CLASS = "_plain_class"
"""The attribute of a class made by `_bridge_class` that holds the class it was made for."""

_BUILDERS = "megatron.bridge.data.builders.energon"
_PROVIDERS = "megatron.bridge.data.utils"
_TARGETS = "megatron.bridge.utils.instantiate_utils"


@functools.cache
def _bridge_class(config: type[C]) -> type[C]:
    """`config`, or if Bridge is installed, a subclass that is also Bridge's `EnergonDatasetConfig`, and whose data
    Bridge builds with `_build_for_bridge`. It is made only once.

    Bridge's `ConfigContainer` knows by its own class which batch sizes to compare, and what to pad and pack.
    """
    if not _is_installed():
        return config
    try:
        theirs = importlib.import_module(_BUILDERS).EnergonDatasetConfig
        builders = importlib.import_module(_PROVIDERS)._REGISTRY
        allow = importlib.import_module(_TARGETS).register_allowed_target_prefix
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"megatron.bridge is installed, but cannot be used ({error}), so its checks of the configuration do not "
            f"know {config.__name__}: batch sizes are not compared, padding and packing not derived",
            stacklevel=3,
        )
        return config
    if issubclass(config, theirs):
        return config
    names = {"__module__": config.__module__, "__qualname__": config.__qualname__, "__doc__": config.__doc__}
    both: type[C] = type(config.__name__, (config, theirs), names | {_PLAIN_CLASS: config})
    others = dict(builders)  # Bridge takes the first match, and its own would match
    builders.clear()
    builders[both] = _build_for_bridge
    builders.update(others)
    allow("bridge_data")  # so that the YAML of a run may name it, and what it holds
    return both


class BridgeEncoderConfig(Protocol):
    """A task-encoder config of Bridge."""

    def validate(self) -> None:
        """Raises a ValueError for a setting that is wrong."""


def _is_bridge_encoder(value: Any) -> TypeGuard[BridgeEncoderConfig]:
    """Whether `value` is a task-encoder config of Bridge."""
    return type(value).__module__ == _BUILDERS


def build_bridge_encoder(config: Any) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder that Bridge makes for `config`, a dataset config of ours with a task-encoder config of Bridge.

    Bridge's encoders import Energon, which this package replaces first.

    Raises:
        ConfigError: if they have already been imported with Energon itself.
    """
    from bridge_data.import_hook import replace_imports  # here: few jobs need it

    replace_imports()
    encoder = importlib.import_module(_BUILDERS).build_energon_task_encoder(config)
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(
            f"{type(encoder).__name__} of Megatron-Bridge is not a task encoder of bridge_data: call "
            "bridge_data.energon.replace_energon() before Bridge's encoders are imported"
        )
    return encoder


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


@runtime_checkable
class TaskEncoderConfig(Protocol):
    """Settings from which a task encoder is made once there is a tokenizer: a dataclass, so that YAML can hold it and
    overrides reach its fields. A method `validate()`, if it has one, is called before."""

    def build(self, dataset: "EnergonDatasetConfig", tokenizer: Any) -> TaskEncoder[Any, Any, Any, Any]:
        """The task encoder. It follows the settings of `dataset`: `seq_length`, padding, in-batch packing."""


@dataclasses.dataclass(kw_only=True)
class EnergonDatasetConfig:
    """Training and validation data at `path`. The fields are mutable, as Bridge sets some while it prepares a run; and
    so are those of the dataclasses in `task_encoder`, `multimodal_sample_config` and `dataset_kwargs`, for overrides.
    Classes that are frozen check them in `validate`.

    If Megatron-Bridge is installed, an instance is also one of Bridge's class of this name.

    Args:
        task_encoder: the encoder, a `TaskEncoderConfig`, or one of Bridge's task-encoder configs; None for the
            `MultiModalTaskEncoder` of the run's tokenizer, `image_processor` (the object, or its folder or hub id) and
            `multimodal_sample_config` (or a mapping of its settings).
        global_batch_size: samples of a step, over all ranks; None for a micro-batch of each. (Bridge has its own.)
        drop_last: drop the last micro-batch of validation if it is not full. (Training has no end.)
        dataloader_save, dataloader_load: where Bridge saves and loads the position of the data; None for a folder
            next to its checkpoints, "" to save and load none.
        do_validation: whether there is validation.
        enable_in_batch_packing, defer_in_batch_packing_to_step: one sequence of all samples of a micro-batch, made by
            the `TaskEncoderConfig`, or deferred to Bridge's forward step.
        pad_to_max_length, pad_to_multiple_of, in_batch_packing_pad_to_multiple_of: lengths of the sequences.
            `pad_to_multiple_of` None becomes 128 for Bridge's task-encoder configs, as there, else 1.
        trust_remote_code: for the `TaskEncoderConfig`.
        dataset_kwargs: other `RunOptions`, such as `seed`, `num_lanes`, `share`.
        The others are `RunOptions` too, or those of `EnergonMultiModalDataModule`.
    """

    path: str | None = None
    seq_length: int
    micro_batch_size: int
    global_batch_size: int | None = None
    task_encoder: TaskEncoder[Any, Any, Any, Any] | TaskEncoderConfig | BridgeEncoderConfig | None = None
    image_processor: Any = None
    multimodal_sample_config: "MultiModalSampleConfig | Mapping[str, Any] | None" = None
    dataloader_type: str | None = "external"
    num_workers: int = 2
    num_val_workers: int | None = None
    data_sharding: bool = True
    pin_memory: bool = True
    drop_last: bool = True
    persistent_workers: bool = True
    trust_remote_code: bool | None = None
    dataloader_save: str | None = None
    dataloader_load: str | None = None
    do_validation: bool = True
    do_test: bool = False
    shuffle_buffer_size: int | None = TrainingOptions.shuffle_buffer_size
    max_samples_per_sequence: int | None = None
    packing_buffer_size: int | None = None
    enable_in_batch_packing: bool = False
    defer_in_batch_packing_to_step: bool = False
    pad_to_max_length: bool = False
    pad_to_multiple_of: int | None = None
    in_batch_packing_pad_to_multiple_of: int = 1
    dataset_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __new__(cls, **settings: Any) -> Self:
        found: type[Self] = _bridge_class(cls)  # type: ignore[arg-type]  # a class is hashable, if not its instances
        return super().__new__(found)

    def __reduce__(self) -> tuple[Any, ...]:
        # The subclass made for Bridge cannot be found by its name.
        settings = {name: value for name, value in vars(self).items() if name != _TRAIN_LOADER}
        return _restored, (getattr(type(self), _PLAIN_CLASS, type(self)), settings)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("task_encoder", "multimodal_sample_config") and not isinstance(value, TaskEncoder):
            value = settable(value)
        elif name == "dataset_kwargs" and isinstance(value, Mapping):
            value = _DatasetKwargs.of(value, vars(self).get(name, {}))
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of is None:
            self.pad_to_multiple_of = 128 if _is_bridge_encoder(self.task_encoder) else 1

    def finalize(self) -> None:
        """Check the settings, once all are set; Bridge calls it.

        Raises:
            ConfigError: naming the first that is wrong.
        """
        if self.num_workers == 0:
            self.persistent_workers = False
        self.validate()

    def validate(self) -> None:
        """Check that every setting is in range and has an effect.

        Raises:
            ConfigError: naming the first that is not.
        """
        self._check_saved()
        if not self.path:
            raise self._error("path", "expected a prepared folder, or a metadataset YAML: dataset.path=...")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise self._error(name, "expected at least 1")
        if not isinstance(self.dataloader_load, str | Path | None):
            raise self._error("dataloader_load", "expected a folder")
        if self.dataloader_save:
            folder = output_on_disk(f"{type(self).__name__}: dataloader_save", self.dataloader_save, COPY_IT)
            self.dataloader_save = str(folder)
        for name, (value, reason) in _REFUSED.items():
            if getattr(self, name) != value:
                raise self._error(name, f"{reason}; set {value!r}")
        if not self.persistent_workers and self.num_workers:
            raise self._error("persistent_workers", "workers live as long as the loader; set True")
        self._check_kwargs(self.dataset_kwargs)
        self._check_encoder()

    def build_datasets(self, context: Any) -> tuple[Any, Any, None]:
        """The loaders for training and validation, as a `DatasetProvider` of Bridge gives them."""
        loaders = EnergonDatasetBuilder(self).build(context)
        if loaders[0] is not None:
            vars(self)[_TRAIN_LOADER] = weakref.ref(loaders[0])
        return loaders

    def options(self) -> dict[str, Any]:
        """The options of the run, by their names."""
        own = {name: getattr(self, name) for name in vars(self) if name in SECTION_OF}
        fields = {name: field for section in option_fields().values() for name, field in section.items()}
        kwargs = {}
        for name, value in self.dataset_kwargs.items():
            where = f"dataset.dataset_kwargs.{name}"
            is_open = isinstance(value, Mapping) and name in fields
            kwargs[name] = typed(value, fields[name].type, where) if is_open else settled(value, where)
        return own | {"val_batch_drop_last": self.drop_last} | kwargs

    def to_cfg_dict(self) -> dict[str, Any]:
        """The settings as Bridge's `ConfigContainer` writes them to YAML, with a `_target_` to make each again.

        Image processors of transformers come with all their settings. Of other objects, such as a ready task encoder,
        YAML would keep the class alone; in their place stands a text, which a config that is read from it refuses.
        """
        found = {"_target_": _target(type(self))}
        for field in dataclasses.fields(self):
            found[field.name] = _as_settings(getattr(self, field.name), f"dataset.{field.name}")
        return found

    def metrics(self, *, of_job: bool = False) -> "LoaderMetrics":
        """The metrics of the training loader that Bridge has built from these settings. So a `MetricsReporter` accepts
        the settings in place of the loader, which `pretrain` makes itself.

        Raises:
            ConfigError: if none has been built yet, or it is gone.
        """
        reference = vars(self).get(_TRAIN_LOADER)
        loader = None if reference is None else reference()
        if loader is None:
            raise ConfigError(f"{type(self).__name__}.metrics(): no training loader has been built from these settings")
        metrics: LoaderMetrics = loader.metrics(of_job=of_job)
        return metrics

    def _check_saved(self) -> None:
        """Check that no text stands for an object which was not saved."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in [*own.items(), *self.dataset_kwargs.items()]:
            if isinstance(value, str) and value.startswith(_NOT_SAVED):
                raise ConfigError(
                    f"{type(self).__name__}({name}={value!r}): it is not in the YAML; set it in your code"
                )

    def _check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        own = {field.name for field in dataclasses.fields(self)}
        for name in kwargs:
            if name in own:
                raise self._error("dataset_kwargs", f"{name} is a setting of {type(self).__name__} itself: set that")
        try:
            RunOptions.of("dataset_kwargs", **self.options())
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from error
        if kwargs.get("multiple_validation_sets", False):
            raise self._error(
                "dataset_kwargs",
                "multiple_validation_sets: Bridge takes a list of loaders for the loaders of model chunks; "
                "use EnergonMultiModalDataModule, which has this setting",
            )
        is_balanced = kwargs.get("balance", False) is not False
        counts_steps = is_balanced or kwargs.get("skip_steps")
        if is_balanced and self.global_batch_size is None:
            raise self._error("global_batch_size", "balance shares out the micro-batches of a step; set it as in train")
        if not counts_steps and kwargs.get("rampup_batch_size") is not None:
            raise self._error(
                "dataset_kwargs",
                "rampup_batch_size: Bridge has it as train.rampup_batch_size; the loader needs it for balance "
                "and skip_steps only",
            )
        if kwargs.get("rampup_batch_size") is not None and _is_installed() and not megatron_has_ramps():
            raise self._error(
                "dataset_kwargs",
                "rampup_batch_size: this megatron-core ignores it, so that all steps have the global batch size; "
                "leave it out, here and in train",
            )

    def _check_encoder(self) -> None:
        """Check that the encoder can do what the settings ask for."""
        if isinstance(self.multimodal_sample_config, Mapping):
            kind = "bridge_data.encoders.MultiModalSampleConfig"
            named = {"class_path": kind, "init_args": self.multimodal_sample_config}
            self.multimodal_sample_config = made_of(named, "dataset.multimodal_sample_config")
        settled(self.multimodal_sample_config, "dataset.multimodal_sample_config")
        for name in ("image_processor", "multimodal_sample_config"):
            if self.task_encoder is not None and getattr(self, name) is not None:
                raise self._error(name, "no effect with a task_encoder: set it there")
        if not isinstance(self.task_encoder, TaskEncoder):
            validate = getattr(settled(self.task_encoder, "dataset.task_encoder"), "validate", None)
            if validate is not None:
                validate()
        if _is_bridge_encoder(self.task_encoder):
            return
        if not isinstance(self.task_encoder, TaskEncoder | TaskEncoderConfig | None):
            raise self._error(
                "task_encoder", "expected a TaskEncoder, settings with build(dataset, tokenizer), or None"
            )
        if not isinstance(self.task_encoder, TaskEncoder | None):
            return
        if self.task_encoder is not None:
            given = {"seq_length": self.seq_length}
            check_beside(type(self).__name__, self.task_encoder, given, tells=False)
        needs = "needs a task_encoder with build(dataset, tokenizer) that does it"
        if self.enable_in_batch_packing and not self.defer_in_batch_packing_to_step:
            raise self._error(
                "enable_in_batch_packing", f"{needs}; or packing_buffer_size, which packs before batching"
            )
        if self.trust_remote_code is not None:
            raise self._error("trust_remote_code", "nothing is loaded from a hub here: set None")
        if self.seq_length % (self.pad_to_multiple_of or 1):
            raise self._error("pad_to_multiple_of", f"seq_length={self.seq_length} must be a multiple of it")
        self.check_lengths(self.task_encoder)
        if self.in_batch_packing_pad_to_multiple_of > 1 and not self.defer_in_batch_packing_to_step:
            raise self._error("in_batch_packing_pad_to_multiple_of", needs)
        if self.task_encoder is None:
            return
        own = getattr(self.task_encoder, "config", self.task_encoder)
        if self.pad_to_max_length and not getattr(own, "pad_to_max_length", False):
            raise self._error(
                "pad_to_max_length",
                f"{type(self.task_encoder).__name__} does not pad to it (Bridge asks for it with pipeline or expert "
                "parallelism): set pad_to_max_length=True in the encoder's own config, or as an attribute of the "
                "encoder if its batches are all of seq_length",
            )

    def check_lengths(self, encoder: Any) -> None:
        """Check that `encoder` pads to the multiple that Bridge asks for: context and sequence parallel ranks share no
        other lengths evenly. Rows of `seq_length` are such a multiple, but not the samples of a pack.

        Raises:
            ConfigError: if it does not.
        """
        multiple, own = self.pad_to_multiple_of or 1, getattr(encoder, "config", encoder)
        of_encoder = getattr(own, "pad_to_multiple_of", 1)
        fills_rows = self.pad_to_max_length and self.packing_buffer_size is None
        if encoder is not None and of_encoder % multiple and not fills_rows:
            raise self._error(
                "pad_to_multiple_of",
                f"{type(encoder).__name__} pads to a multiple of {of_encoder}: set pad_to_multiple_of={multiple} in "
                "the encoder's own config (Bridge asks for it with context or sequence parallelism)",
            )

    def _error(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__}({name}={getattr(self, name)!r}): {what}")


class _DatasetKwargs(dict[str, Any]):
    """The `dataset_kwargs` of an `EnergonDatasetConfig`. To apply overrides, Bridge makes plain mappings of the
    dataclasses in there, takes out functions, and sets these as attributes afterwards."""

    @classmethod
    def of(cls, given: Mapping[str, Any], held: Mapping[str, Any]) -> Self:
        """`given`; a mapping in place of a dataclass that was `held` there is that dataclass with these fields."""
        return cls(
            {
                name: assign(held[name], value)
                if isinstance(value, Mapping) and dataclasses.is_dataclass(held.get(name))
                else settable(value)
                for name, value in given.items()
            }
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


_NOT_SAVED = "not saved: "
"""The beginning of the text that stands in YAML for an object."""


_HELD_BY_BRIDGE = (str, int, float, enum.Enum, type, types.FunctionType, functools.partial)
"""What Bridge writes by itself; of classes and functions, the name."""


def _target(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_settings(value: Any, where: str) -> Any:
    """A setting as plain data, in which a mapping with `_target_` makes an object."""
    if isinstance(value, Mapping):
        return {name: _as_settings(inner, f"{where}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_settings(inner, where) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, _HELD_BY_BRIDGE) or type(value).__qualname__ == "dtype":
        return value
    if hasattr(value, "to_cfg_dict"):
        return value.to_cfg_dict()
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"_target_": _target(type(value))} | {
            name: _as_settings(inner, f"{where}.{name}") for name, inner in fields.items() if name[0] != "_"
        }
    return _processor_settings(value) or _told_not_saved(value, where)


def _processor_settings(value: Any) -> dict[str, Any] | None:
    """How an image processor of transformers is made again; None for another object, or one that would come back as
    another."""
    kind = type(value)
    if not (kind.__module__.startswith("transformers.") and hasattr(kind, "from_dict") and hasattr(value, "to_dict")):
        return None
    try:
        settings = json.loads(json.dumps(value.to_dict()))
        if json.loads(json.dumps(kind.from_dict(dict(settings)).to_dict())) != settings:
            return None
    except (TypeError, ValueError):
        return None
    return {"_target_": f"{_target(kind)}.from_dict", "_call_": True, "image_processor_dict": settings}


def _told_not_saved(value: Any, where: str) -> str:
    warnings.warn(
        f"{where}: YAML cannot hold a {type(value).__name__}: a run that is made from it has to set that in code. A "
        "dataclass with build(dataset, tokenizer) can be held in place of a task encoder",
        stacklevel=2,
    )
    return f"{_NOT_SAVED}a {type(value).__name__}"


_TRAIN_LOADER = "_train_loader"
"""The attribute for a weak reference to the training loader; no field, as Bridge writes fields to YAML."""
_POSITIVE = ("seq_length", "shuffle_buffer_size", "pad_to_multiple_of", "in_batch_packing_pad_to_multiple_of")
_REFUSED = {
    "dataloader_type": ("external", "the data comes from a loader of its own, which Bridge passes through"),
    "data_sharding": (True, "data-parallel ranks always read different samples"),
    "do_test": (False, "there is no loader for a test split; name it as the val split of a metadataset"),
}
"""Settings that have only one valid value here, and why."""


def _restored(config_class: type[EnergonDatasetConfig], settings: dict[str, Any]) -> EnergonDatasetConfig:
    config = config_class.__new__(config_class)
    vars(config).update(settings)
    return config


def _build_for_bridge(
    num_samples: Sequence[int], config: EnergonDatasetConfig, tokenizer: Any = None, pg_collection: Any = None
) -> tuple[Any, Any, None]:
    """What Bridge calls for the loaders; `num_samples` are those of training, validation and test."""
    samples = dict(zip(("train_samples", "valid_samples", "test_samples"), num_samples, strict=True))
    return config.build_datasets(DatasetBuildContext(**samples, tokenizer=tokenizer, pg_collection=pg_collection))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DatasetBuildContext:
    """The fields that the builder reads of Bridge's class of this name, which has `pg_collection` from 0.6 on. Of the
    numbers of samples, only whether they are 0 matters."""

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

    def build(self, context: Any) -> tuple[Any, Any, None]:
        """The loaders for training, validation and test; None if not wanted. There is never one for test. `context` is
        a `DatasetBuildContext`, of Bridge or of ours.

        Raises:
            ConfigError: if data or tokenizer do not fit the settings.
        """
        module = self.datamodule(context)
        train = module.train_dataloader() if context.train_samples > 0 else None
        wants_validation = self.config.do_validation and context.valid_samples > 0
        return train, module.val_dataloader() if wants_validation else None, None

    def datamodule(self, context: Any) -> "EnergonMultiModalDataModule":
        """The DataModule that makes the loaders."""
        from bridge_data.datamodule.module import EnergonMultiModalDataModule  # here: it imports Lightning

        config, groups = self.config, getattr(context, "pg_collection", None)
        assert config.path is not None  # validated
        tokenizer = transformers_tokenizer(context.tokenizer)
        encoder = self.task_encoder(tokenizer)
        if encoder is not None and not _is_bridge_encoder(config.task_encoder):
            asked = {"seq_length": config.seq_length}
            if isinstance(config.task_encoder, TaskEncoder):
                asked["tokenizer"] = tokenizer
            check_beside(type(config).__name__, encoder, asked, tells=False)
            config.check_lengths(encoder)
        return EnergonMultiModalDataModule(
            config.path,
            tokenizer if encoder is None else None,
            config.image_processor,
            seq_length=config.seq_length,
            multimodal_sample_config=self.sample_config(),
            task_encoder=encoder,
            pg_collection=groups,
            **config.options(),
        )

    def task_encoder(self, tokenizer: Any) -> TaskEncoder[Any, Any, Any, Any] | None:
        """The task encoder of the settings, with this tokenizer; None for that which the DataModule makes."""
        encoder = self.config.task_encoder
        if encoder is None or isinstance(encoder, TaskEncoder):
            return encoder
        if isinstance(encoder, TaskEncoderConfig):
            own: TaskEncoderConfig = settled(encoder, "dataset.task_encoder")
            return own.build(self.config, tokenizer)
        return build_bridge_encoder(self.config)

    def sample_config(self) -> "MultiModalSampleConfig | None":
        """The sample config of the default encoder."""
        from bridge_data.encoders import MultiModalSampleConfig

        given: MultiModalSampleConfig | None
        given = settled(self.config.multimodal_sample_config, "dataset.multimodal_sample_config")
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
