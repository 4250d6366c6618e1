"""A recipe: all settings of a run, from the model to the trainer, out of YAML files and `key=value` arguments.

Reads the name of a recipe, which is a file `families/NAME.yaml` (model, data, tokenizer, image processor, task encoder,
training); a YAML of the user, of the same shape or part of it; and arguments like `data.seq_length=512`. Each changes
the one before. Returns a checked `Recipe`, whose `build_...` methods make its parts. Nothing heavy is imported, and
nothing loaded, until something is built. Raises an error that names the nearest known key for an unknown one.

A part that is `pretrained` is a folder that `save_pretrained` wrote, or an id of the hub at a `revision` (None: the
newest); `tiny` instead is a small part of the same family, made on the spot.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.options import check_integer, path_text
from bridge_data.run_options import PART_OF, RunOptions
from bridge_data.storage.locations import COPY_IT, output_on_disk
from recipes import task_encoders
from recipes.option_values import OWN_KINDS, option_value
from recipes.trainer.config import ParallelConfig, TrainingConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data import EnergonMultiModalDataModule
    from bridge_data.loader.metric_sinks import MetricsSink
    from bridge_data.task import TaskEncoder
    from recipes.megatron_model import MegatronModel

RECIPES = (
    *("text_sft", "text_pretraining", "llava", "llava_next", "idefics3", "smolvlm", "internvl"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "clip", "siglip", "whisper"),
)
"""The files in `families`."""

TINY = "tiny"
TRAINERS = ("megatron", "lightning")
LOGGERS = ("tensorboard", "wandb", "csv")

_DEEPSTACK = (
    "image features enter several layers of its language model (deepstack), and mRoPE's channels are interleaved; "
    "megatron-core's GPT has neither; use trainer=lightning, or Megatron-Bridge's Qwen3-VL model with the same data "
    "and encoder"
)
_PAIRS = (
    "it is two encoders with a contrastive loss over a micro-batch, no decoder that megatron-core has; use "
    "trainer=lightning"
)
FAMILIES: dict[str, str | None] = {
    "text": None,
    "llava": None,
    "llava_next": None,
    "idefics3": None,
    "smolvlm": None,
    "internvl": None,
    "qwen2_vl": None,
    "qwen2_5_vl": None,
    "qwen3_vl": _DEEPSTACK,
    "clip": _PAIRS,
    "siglip": _PAIRS,
    "whisper": "it is an encoder and a decoder, and megatron-core's GPT is a decoder alone; use trainer=lightning",
}
"""The families, and why they cannot be trained under Megatron (None: they can)."""

_OURS = "recipes.task_encoders:"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A part of a checkpoint of transformers: a folder, an id of the hub at a `revision`, or `tiny`."""

    pretrained: str
    revision: str | None = None

    def load(self, auto_class: str, what: str, **options: Any) -> Any:
        """The part, by a class of transformers with `from_pretrained`; `what` is its name in the recipe. Code in its
        folder is not run.

        Raises:
            ConfigError: if there is no such class, or the part cannot be found.
        """
        import transformers

        from bridge_data.encoders.pretrained import load_pretrained

        kind = getattr(transformers, auto_class, None)
        if kind is None:
            raise ConfigError(f"{what}.auto_class={auto_class!r}: transformers has no such class")
        try:
            return load_pretrained(kind, self.pretrained, f"{what}.pretrained", revision=self.revision, **options)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; give an id of the hub, a folder that save_pretrained wrote (`make demo` makes "
                f"demo_run/tokenizer), or {TINY!r}"
            ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model(Pretrained):
    """A model of transformers, by the name of its automatic class; `dtype` is that of its weights. `seed` is that of
    the weights of a tiny one.

    Raises:
        ConfigError: for another dtype.
    """

    auto_class: str = "AutoModelForImageTextToText"
    dtype: str = "bfloat16"
    seed: int = 1234

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"model.dtype={self.dtype!r}: expected float32, bfloat16 or float16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Where the metrics of the data go, every `every_steps` steps (None: never): to the log, to `data.jsonl` in the
    `log_dir` of the run, if there is one, and to `loggers`: tensorboard, wandb or csv, which also get the loss.

    Raises:
        ConfigError: for another logger, or a number of steps below 1.
    """

    every_steps: int | None = 10
    loggers: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        check_integer("metrics.every_steps", self.every_steps, 1, or_none=True)
        for name in self.loggers:
            if name not in LOGGERS:
                raise ConfigError(f"metrics.loggers: there is no {name!r}; there are {', '.join(LOGGERS)}")

    def sinks(self, log_dir: str | None) -> "list[MetricsSink]":
        """The log, and `data.jsonl`."""
        from bridge_data import JsonlSink, LogSink

        return [LogSink(), *([] if log_dir is None else [JsonlSink(Path(log_dir, "data.jsonl"))])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run of a model of `family`; each rank logs its steps to `log_dir`, if set, next to the settings of the
    run. `metrics` are those of the data.

    `data` has `path`, `seq_length` (in tokens) and options of a run, `loader` has more of these (`RunOptions` explains
    them). For whisper, `image_processor` is the feature extractor; for text there is none. `task_encoder` is a class or
    function, as "package.module:Name", and `encoder` its arguments (see `task_encoders`). `trainer` is
    `lightning.Trainer`, or our loop on megatron-core, the only one that uses `parallel`.

    Raises:
        ConfigError: if settings contradict each other.
    """

    family: str
    trainer: str = "lightning"
    log_dir: str | None = None
    model: Model
    data: dict[str, Any]
    loader: dict[str, Any]
    tokenizer: Pretrained
    image_processor: Pretrained | None
    task_encoder: str
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)
    training: TrainingConfig
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        for name in ("tokenizer", "image_processor"):  # parts of the model's own checkpoint, at its revision
            part = getattr(self, name)
            if part is not None and part.revision is None and part.pretrained == self.model.pretrained:
                object.__setattr__(self, name, dataclasses.replace(part, revision=self.model.revision))
        if self.family not in FAMILIES:
            raise ConfigError(f"family={self.family!r}: expected one of {', '.join(FAMILIES)}")
        if self.trainer not in TRAINERS:
            raise ConfigError(f"trainer={self.trainer!r}: expected {' or '.join(TRAINERS)}")
        for twice in self.data.keys() & self.loader.keys():
            raise ConfigError(f"loader.{twice}: a recipe has it as data.{twice}; set that")
        path_text("data.path", self.data["path"])
        check_integer("data.seq_length", self.data["seq_length"], 1, or_none=True)
        _ = self.options  # checks them
        if self.task_encoder.startswith(_OURS):
            make = _our_encoder(self.task_encoder)
            task_encoders.fitted(make, self.task_encoder, self.encoder)
            task_encoders.check_provided(make, self.task_encoder, self._is_given)
        if self.log_dir is not None:
            object.__setattr__(self, "log_dir", str(output_on_disk("log_dir", self.log_dir, COPY_IT)))
        if self.metrics.loggers and self.log_dir is None:
            raise ConfigError(f"metrics.loggers={self.metrics.loggers}: they write to log_dir, which is null: set it")
        if self.trainer == "megatron":
            self._check_megatron()
        else:
            self._check_lightning()

    @property
    def _is_given(self) -> dict[str, bool]:
        """Whether the recipe has each of what it provides to its encoder."""
        given = (True, self.image_processor is not None, self.data["seq_length"] is not None)
        return dict(zip(task_encoders.PROVIDED, given, strict=True))

    def _check_megatron(self) -> None:
        reason = FAMILIES[self.family]
        if reason is not None:
            raise ConfigError(f"trainer=megatron: {self.family} cannot be trained by it: {reason}")
        if self.model.dtype == "float16":
            raise ConfigError("model.dtype=float16: trainer=megatron has float32 and bfloat16")
        others = [name for name in self.metrics.loggers if name != "tensorboard"]
        if others:
            raise ConfigError(f"metrics.loggers: trainer=megatron has tensorboard alone, and not {', '.join(others)}")

    def _check_lightning(self) -> None:
        for field in dataclasses.fields(self.parallel):
            if getattr(self.parallel, field.name) != 1:
                raise ConfigError(f"parallel.{field.name}: trainer=lightning has data parallelism only")
        if self.training.exit_signal is not None:
            raise ConfigError("training.exit_signal: only trainer=megatron saves on a signal")

    @cached_property
    def options(self) -> RunOptions:
        """The options of the run, of `data` and of `loader`."""
        return RunOptions.of("a recipe", **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        given = self.data | self.loader
        return {name: value for name, value in given.items() if name not in OWN_KINDS}

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The global batch size of each step.

        Raises:
            ConfigError: for sizes that do not fit each other.
        """
        steps, size = self.options.trainer, self.options.data.batch_size or 1
        return BatchSchedule.for_ranks(steps.global_batch_size, size, steps.rampup_batch_size, 1)

    def build_tokenizer(self) -> Any:
        if self.tokenizer.pretrained == TINY:
            from recipes.tiny_parts import tiny_tokenizer

            return tiny_tokenizer(self.family)
        return self.tokenizer.load("AutoTokenizer", "tokenizer")

    def build_image_processor(self) -> Any:
        """The image processor, or the feature extractor; None if there is none."""
        if self.image_processor is None:
            return None
        if self.image_processor.pretrained == TINY:
            from recipes.tiny_parts import tiny_image_processor

            return tiny_image_processor(self.family)
        auto_class = "AutoFeatureExtractor" if self.family == "whisper" else "AutoImageProcessor"
        return self.image_processor.load(auto_class, "image_processor")

    def build_encoder(self, tokenizer: Any, image_processor: Any) -> "TaskEncoder":
        """The task encoder.

        Raises:
            ConfigError: if there is none of this name, or an argument does not fit.
        """
        parts = (tokenizer, image_processor, self.data["seq_length"])
        provided = dict(zip(task_encoders.PROVIDED, parts, strict=True))
        return task_encoders.named_encoder(self.task_encoder, self.encoder, provided)

    def build_data(self, groups: "ProcessGroupCollection | None", tokenizer: Any) -> "EnergonMultiModalDataModule":
        """The DataModule of this rank; without `groups`, ranks are those of `torch.distributed`."""
        from bridge_data import EnergonMultiModalDataModule
        from bridge_data.datamodule.encoder_settings import own_seq_length

        image_processor = self.build_image_processor()
        encoder = self.build_encoder(tokenizer, image_processor)
        length = own_seq_length(encoder)
        if self.data["seq_length"] is not None and length is not None and length != self.data["seq_length"]:
            raise ConfigError(
                f"data.seq_length={self.data['seq_length']}: {self.task_encoder} makes an encoder of {length}; set "
                "both to the same, or leave encoder.seq_length out"
            )
        return EnergonMultiModalDataModule(
            self.data["path"], task_encoder=encoder, pg_collection=groups, **self._options
        )

    def training_in_steps(self, data: "EnergonMultiModalDataModule", num_ranks: int) -> TrainingConfig:
        """`training` with the number of steps, on the `data` of the run as `num_ranks` data-parallel ranks see them.

        Raises:
            ConfigError: if the length cannot be counted in steps.
        """
        steps, size = self.options.trainer, self.options.data.batch_size or 1
        schedule = BatchSchedule.for_ranks(steps.global_batch_size, size, steps.rampup_batch_size, num_ranks)
        workers = self.options.worker.changed(world_size=num_ranks)
        return self.training.in_steps(schedule, lambda: data.datasets_provider(workers, "train"))

    def build_model(self, tokenizer: Any) -> Any:
        """The model of transformers."""
        import torch

        dtype = getattr(torch, self.model.dtype)
        if self.model.pretrained == TINY:
            from recipes.tiny_parts import tiny_model

            return tiny_model(self.family, tokenizer, self.model.seed).to(dtype)
        return self.model.load(self.model.auto_class, "model", dtype=dtype)

    def build_megatron_model(self, groups: "ProcessGroupCollection", tokenizer: Any) -> "MegatronModel":
        """This rank's stage of the model, with the weights of the model of transformers.

        Raises:
            ConfigError: if megatron-core's GPT is another model, or the parallel sizes do not divide it.
        """
        import torch

        from recipes.megatron_model import MegatronModel

        dtype = getattr(torch, self.model.dtype)
        return MegatronModel(self.build_model(tokenizer), groups, seq_length=self.data["seq_length"], dtype=dtype)


def load_recipe(
    config: Path | None, arguments: Sequence[str] = (), *, recipe: str | None = None, tiny: bool = False
) -> Recipe:
    """The recipe of that name, or that `config` names, with the changes of `config` and those of `arguments`; with
    `tiny`, or `tiny: true` in `config`, in small.

    Raises:
        ConfigError: for an unknown recipe or setting, or a value that does not fit.
    """
    name, changes = read_config(config, recipe)
    settings = _settings_of(name, is_tiny=changes.pop("tiny", False) is True or tiny)
    for changed, where in ((changes, str(config)), (_parsed(arguments), "command line")):
        settings = _changed(settings, changed, where)
        made = _made(settings, where)
    return made


def read_config(config: Path | None, recipe: str | None) -> tuple[str, dict[str, Any]]:
    """The name of the recipe, and the changes of `config`.

    Raises:
        ConfigError: if there is no recipe of that name, or the file cannot be read.
    """
    changes = {} if config is None else _read_yaml(config)
    named = changes.pop("recipe", None)
    name = named if recipe is None else recipe
    if name is None:
        raise ConfigError(f"no recipe is named: give --recipe, or `recipe:` in a YAML; there are: {', '.join(RECIPES)}")
    if name not in RECIPES:
        where, near = config if recipe is None else "--recipe", did_you_mean(str(name), RECIPES)
        raise ConfigError(f"{where}: there is no recipe {name!r}{near}; there are: {', '.join(RECIPES)}")
    return name, changes


def to_yaml(recipe: Recipe) -> str:
    """All settings as YAML, in the order of their definition."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(recipe))


def _settings_of(name: str, *, is_tiny: bool) -> dict[str, Any]:
    """All settings of a recipe. In small: tiny parts, five steps of two sequences, no workers, data out of
    `recipes.tiny_data`."""
    folder = Path(__file__).with_name("families")
    settings, own = _read_yaml(folder / "all.yaml"), _read_yaml(folder / f"{name}.yaml")
    of_tiny = own.pop("tiny", {})
    settings = _merged(settings, own)
    settings["encoder"] = _merged(task_encoders.defaults_of(_our_encoder(own["task_encoder"])), own.get("encoder", {}))
    if not is_tiny:
        return settings
    data, parts = settings["data"], ("model", "tokenizer", "image_processor")
    is_packed = data["packing_buffer_size"] is not None
    sizes = (1, 2, 8) if is_packed else (4, 8, None)
    sizes_by_name = zip(("micro_batch_size", "global_batch_size", "packing_buffer_size"), sizes, strict=True)
    small = {
        **{part: {"pretrained": TINY} for part in parts if settings[part] is not None},
        "data": {"path": f"tiny_{data['path']}", "seq_length": data["seq_length"] and 512, **dict(sizes_by_name)},
        "loader": {"num_workers": 0, "num_lanes": 2, "pin_memory": False},
        "training": {"train_steps": 5, "learning_rate": 1e-2},
    }
    return _merged(_merged(_merged(settings, small), {"model": {"dtype": "float32"}}), of_tiny)


def _our_encoder(name: str) -> Any:
    """The function of ours that `task_encoder` names."""
    try:
        return getattr(task_encoders, name.removeprefix(_OURS))
    except AttributeError:
        raise ConfigError(f"task_encoder={name}: there is none of this name in recipes.task_encoders") from None


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with `changes`, both nested; a list replaces a list."""
    merged = dict(settings)
    for key, value in changes.items():
        is_section = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if is_section else value
    return merged


def _changed(settings: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`settings` with `changes`; `where` says in errors what they come from.

    Raises:
        ConfigError: for a key that does not exist.
    """
    settings = dict(settings)
    if changes.get("task_encoder", settings["task_encoder"]) != settings["task_encoder"]:
        settings["encoder"] = {}  # those are arguments of another one
    has_ours = str(changes.get("task_encoder", settings["task_encoder"])).startswith(_OURS)
    sections = {**{field.name: None for field in dataclasses.fields(Recipe)}, **_all_sections(settings)}
    known = [*_leaves(sections)]
    options = (f"{'data' if part == 'data' else 'loader'}.{option}" for option, part in PART_OF.items())
    names = [*dict.fromkeys([*(one for one, _ in known), *options])]
    for key, value in _leaves(changes):
        section, _, name = key.partition(".")
        inner = [one for one, _ in known if one.startswith(f"{key}.")]
        if inner and value is not None and not isinstance(value, Mapping):
            shown = f"{key}.path" if f"{key}.path" in inner else inner[0]
            raise ConfigError(f"{where}: {key}: got {value!r}, expected a mapping of settings, such as {shown}")
        is_option = section in ("data", "loader") and name.partition(".")[0] in PART_OF
        is_argument = section == "encoder" and not has_ours
        if not (inner or is_option or is_argument or any(key == one or key.startswith(f"{one}.") for one, _ in known)):
            raise ConfigError(f"{where}: there is no setting {key!r}{_nearest(key, names)}")
    return _merged(settings, changes)


def _all_sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with all fields of the sections that are dataclasses."""
    kinds = {"model": Model, "tokenizer": Pretrained, "image_processor": Pretrained, "training": TrainingConfig}
    kinds |= {"metrics": Metrics, "parallel": ParallelConfig}
    fields = {name: {field.name: None for field in dataclasses.fields(kind)} for name, kind in kinds.items()}
    return {**settings, **fields}


def _made(settings: Mapping[str, Any], where: str) -> Recipe:
    """The recipe of `settings`, with the types of its fields.

    Raises:
        ConfigError: for a value of another type, or out of range.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        typed = _writable(OmegaConf.structured(Recipe))
        merged = OmegaConf.merge(typed, OmegaConf.create(dict(settings)))
        for section in ("data", "loader"):
            given = OmegaConf.to_container(merged[section], resolve=True, throw_on_missing=True)
            merged[section] = {name: option_value(section, name, value) for name, value in given.items()}
        made: Recipe = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]} (setting {error.full_key})") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return made


def _writable(node: Any) -> Any:
    """The tree of OmegaConf with frozen dataclasses writable: OmegaConf 2.3 merges nothing into read-only ones."""
    from omegaconf import DictConfig, OmegaConf

    OmegaConf.set_readonly(node, False)
    for name in node:
        child = node._get_node(name)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            _writable(child)
    return node


def _read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: if the file is missing, is not YAML, or holds something else.
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give the path of a YAML file with settings") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise ConfigError(f"{file}: got a {type(content).__name__}, expected settings as `key: value`")
    return content or {}


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` arguments as a nested mapping; values are read as YAML.

    Raises:
        ConfigError: for an argument without `=`.
    """
    from omegaconf import OmegaConf

    for argument in arguments:
        if "=" not in argument or argument.startswith("="):
            raise ConfigError(f"argument {argument!r}: expected key=value, such as data.seq_length=512")
    nested: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(list(arguments)))
    return nested


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all settings, with their values."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nearest(key: str, known: list[str]) -> str:
    """What the user may have meant: the same name elsewhere, or one that is spelled alike."""
    last = key.rpartition(".")[2]
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    near = elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        by_last = {name.rpartition(".")[2]: name for name in known}
        near = [by_last[name] for name in difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.5)]
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else f"; there are {', '.join(known)}"
