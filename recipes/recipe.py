"""The typed config of a run, from tokenizer to trainer: what a recipe function returns and `recipes/train.py` changes.

Each part is a frozen dataclass; `build(...)` takes what exists only at run time and makes the part. Nothing heavy is
imported until something is built.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from recipes.encoders import EncoderSettings
from recipes.named_encoder import named_encoder
from recipes.run_config import (
    DataConfig,
    ImageProcessorConfig,
    LoaderConfig,
    MetricsConfig,
    ModelConfig,
    TokenizerConfig,
    data_module,
)
from recipes.trainer.config import ParallelConfig, TrainingConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data import EnergonMultiModalDataModule
    from bridge_data.task import TaskEncoder
    from recipes.megatron_model import MegatronModel

TRAINERS = ("megatron", "lightning")

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole run of a model of `family`; each rank logs its steps to `log_dir`, if set, next to the
    settings of the run. `metrics` are those of the data.

    `trainer` is `lightning.Trainer`, or our loop on megatron-core, the only one that uses `parallel`. For
    whisper, `image_processor` is the feature extractor; for text there is none. `task_encoder`, as
    "package.module:Class", replaces `encoder`; see `named_encoder` for its arguments.

    Raises:
        ConfigError: if settings contradict each other.
    """

    family: str
    trainer: str = "lightning"
    log_dir: str | None = None
    tokenizer: TokenizerConfig
    image_processor: ImageProcessorConfig | None
    encoder: EncoderSettings
    task_encoder: str | None = None
    task_encoder_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: DataConfig
    loader: LoaderConfig = dataclasses.field(default_factory=LoaderConfig)
    model: ModelConfig
    training: TrainingConfig
    metrics: MetricsConfig = dataclasses.field(default_factory=MetricsConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"family={self.family!r}: expected one of {', '.join(FAMILIES)}")
        if self.trainer not in TRAINERS:
            raise ConfigError(f"trainer={self.trainer!r}: expected {' or '.join(TRAINERS)}")
        if self.task_encoder_arguments and self.task_encoder is None:
            raise ConfigError("task_encoder_arguments: there is no task_encoder to pass them to; name one")
        if self.metrics.loggers and self.log_dir is None:
            raise ConfigError(f"metrics.loggers={self.metrics.loggers}: they write to log_dir, which is null: set it")
        if self.trainer == "megatron":
            self._check_megatron()
        else:
            self._check_lightning()

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

    def build_tokenizer(self) -> Any:
        return self.tokenizer.build(self.family)

    def build_image_processor(self) -> Any:
        """The image processor, or the feature extractor; None if there is none."""
        return self.image_processor and self.image_processor.build(self.family)

    def build_data(self, groups: "ProcessGroupCollection | None", tokenizer: Any) -> "EnergonMultiModalDataModule":
        """The DataModule of this rank; without `groups`, ranks are those of `torch.distributed`."""
        image_processor = self.build_image_processor()
        encoder = self.build_encoder(tokenizer, image_processor)
        return data_module(self.data, self.loader, groups, tokenizer, image_processor, encoder)

    def build_encoder(self, tokenizer: Any, image_processor: Any) -> "TaskEncoder":
        if self.task_encoder is None:
            return self.encoder.build(tokenizer, image_processor, seq_length=self.data.seq_length)
        provided = {
            "tokenizer": tokenizer,
            "image_processor": image_processor,
            "seq_length": self.data.seq_length,
        }
        return named_encoder(self.task_encoder, self.task_encoder_arguments, provided)

    def build_model(self, tokenizer: Any) -> Any:
        return self.model.build(self.family, tokenizer)

    def build_megatron_model(self, groups: "ProcessGroupCollection", tokenizer: Any) -> "MegatronModel":
        """This rank's stage of the model, with the weights of the model of transformers.

        Raises:
            ConfigError: if megatron-core's GPT is another model, or the parallel sizes do not divide it.
        """
        import torch

        from recipes.megatron_model import MegatronModel

        dtype = getattr(torch, self.model.dtype)
        return MegatronModel(self.build_model(tokenizer), groups, seq_length=self.data.seq_length, dtype=dtype)
