"""The parts of a recipe that all families share: tokenizer, image processor, data, loader, model.

A part that is `pretrained` is a folder that `save_pretrained` wrote, or an id of the hub at a `revision` (None: the
newest); `tiny` in its place is a small part of the same family, made on the spot. Nothing heavy is imported, and
nothing is loaded, until something is built.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.run_options import TrainingOptions

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data import EnergonMultiModalDataModule
    from bridge_data.datamodule.metric_sinks import MetricsSink

TINY = "tiny"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedConfig:
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
class TokenizerConfig(PretrainedConfig):
    """A tokenizer of transformers."""

    def build(self, family: str) -> Any:
        if self.pretrained == TINY:
            from recipes.tiny_parts import tiny_tokenizer

            return tiny_tokenizer(family)
        return self.load("AutoTokenizer", "tokenizer")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageProcessorConfig(PretrainedConfig):
    """An image processor of transformers; of Whisper the feature extractor."""

    def build(self, family: str) -> Any:
        if self.pretrained == TINY:
            from recipes.tiny_parts import tiny_image_processor

            return tiny_image_processor(family)
        return self.load("AutoFeatureExtractor" if family == "whisper" else "AutoImageProcessor", "image_processor")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(PretrainedConfig):
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

    def build(self, family: str, tokenizer: Any) -> Any:
        import torch

        dtype = getattr(torch, self.dtype)
        if self.pretrained == TINY:
            from recipes.tiny_parts import tiny_model

            return tiny_model(family, tokenizer, self.seed).to(dtype)
        return self.load(self.auto_class, "model", dtype=dtype)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What is trained on, in which order; sequences are in tokens, batches in sequences (with packing: packs).

    `skip_steps` is a list such as ["1200-1260", "1300"], of steps of the original run.
    """

    path: str
    seq_length: int = 256
    micro_batch_size: int = 1
    global_batch_size: int = 4
    rampup_batch_size: list[int] | None = None
    skip_steps: list[str] = dataclasses.field(default_factory=list)
    multiple_validation_sets: bool = False
    packing_buffer_size: int | None = 24
    shuffle_buffer_size: int | None = TrainingOptions.shuffle_buffer_size
    max_samples_per_sequence: int | None = 100
    seed: int = 0

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The global batch size of each step."""
        return BatchSchedule(self.global_batch_size, self.micro_batch_size, self.rampup_batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """Who makes the batches; `num_lanes` is fixed when a run starts and limits how far it can be scaled.

    Until workers are ready, batches come from the trainer itself; with `wait_for_workers` (under Megatron) it waits.
    `ledger_path` is a folder for the ledger of all micro-batches. With `strict_restore=false` a checkpoint of other
    weights, or of fewer data sets, is accepted. `options` are any others of the DataModule (`DataModuleOptions`), by
    their names.

    Raises:
        ConfigError: for one of `options` that is a setting of a recipe.
    """

    num_workers: int = 2
    num_val_workers: int = 0
    num_lanes: int = 4
    prefetch_factor: int = 2
    pin_memory: bool = True
    wait_for_workers: bool = False
    ledger_path: str | None = None
    strict_restore: bool = True
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for part, config in (("loader", LoaderConfig), ("data", DataConfig)):
            for field in dataclasses.fields(config):
                if field.name in self.options:
                    raise ConfigError(f"loader.options.{field.name}: a recipe has it as {part}.{field.name}; set that")


LOGGERS = ("tensorboard", "wandb", "csv")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MetricsConfig:
    """Where the metrics of the data go, every `every_steps` steps (None: never): to the log, to `data.jsonl` in the
    `log_dir` of the run, if there is one, and to `loggers`: tensorboard, wandb or csv, which also get the loss.

    Raises:
        ConfigError: for another logger, or a number of steps below 1.
    """

    every_steps: int | None = 10
    loggers: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"metrics.every_steps={self.every_steps}: expected at least 1, or null for never")
        for name in self.loggers:
            if name not in LOGGERS:
                raise ConfigError(f"metrics.loggers: there is no {name!r}; there are {', '.join(LOGGERS)}")

    def sinks(self, log_dir: str | None) -> "list[MetricsSink]":
        """The log, and `data.jsonl`."""
        from bridge_data import JsonlSink, LogSink

        return [LogSink(), *([] if log_dir is None else [JsonlSink(Path(log_dir, "data.jsonl"))])]


def data_module(
    data: DataConfig,
    loader: LoaderConfig,
    groups: "ProcessGroupCollection | None",
    tokenizer: Any,
    image_processor: Any,
    task_encoder: Any,
) -> "EnergonMultiModalDataModule":
    """The DataModule of this rank; without `groups`, ranks are those of `torch.distributed`."""
    from bridge_data import EnergonMultiModalDataModule

    return EnergonMultiModalDataModule(
        data.path,
        tokenizer,
        image_processor,
        seq_length=data.seq_length,
        micro_batch_size=data.micro_batch_size,
        global_batch_size=data.global_batch_size,
        num_workers=loader.num_workers,
        num_val_workers=loader.num_val_workers,
        pin_memory=loader.pin_memory,
        shuffle_buffer_size=data.shuffle_buffer_size,
        max_samples_per_sequence=data.max_samples_per_sequence,
        task_encoder=task_encoder,
        packing_buffer_size=data.packing_buffer_size,
        pg_collection=groups,
        seed=data.seed,
        rampup_batch_size=data.rampup_batch_size,
        skip_steps=data.skip_steps,
        multiple_validation_sets=data.multiple_validation_sets,
        num_lanes=loader.num_lanes,
        prefetch_factor=loader.prefetch_factor,
        ledger_path=loader.ledger_path,
        strict_restore=loader.strict_restore,
        **loader.options,
    )
