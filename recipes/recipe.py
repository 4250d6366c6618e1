"""The typed config of a run, from tokenizer to trainer: what a recipe function returns and `recipes/train.py` changes.

Each part is a frozen dataclass; `build(...)` takes what exists only at run time and makes the part. Nothing heavy is
imported until something is built.
"""

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from recipes.trainer.config import MegatronTrainerConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data import EnergonMultiModalDataModule, MultiModalTaskEncoder
    from recipes.demo_model import DemoModel

TRAINERS = ("megatron", "lightning")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """A tokenizer of transformers in a local folder."""

    path: str

    def build(self) -> Any:
        """The tokenizer."""
        from transformers import AutoTokenizer

        if not os.path.isdir(self.path):
            raise ConfigError(
                f"tokenizer.path={self.path}: no such folder; `make demo` trains one in demo_run/tokenizer"
            )
        return AutoTokenizer.from_pretrained(self.path, local_files_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageProcessorConfig:
    """CLIP's image processor for images of `image_size` pixels a side."""

    image_size: int = 32

    def build(self) -> Any:
        """The image processor."""
        from transformers import CLIPImageProcessor

        size = {"height": self.image_size, "width": self.image_size}
        return CLIPImageProcessor(size=size, crop_size=size)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """How samples become sequences; an image takes (image size / patch size)² tokens."""

    image_token: str = "<image>"
    caption_prompt: str = "Describe the image."
    pad_to_max_length: bool = False

    def build(
        self, tokenizer: Any, image_processor: Any, *, patch_size: int, seq_length: int
    ) -> "MultiModalTaskEncoder":
        """The task encoder."""
        from bridge_data.encoders import ImageToken, MultiModalSampleConfig
        from recipes.demo_encoder import make_encoder

        config = MultiModalSampleConfig(
            image_token=ImageToken(token_str=self.image_token),
            caption_prompt=self.caption_prompt,
            patch_size=patch_size,
            pad_to_max_length=self.pad_to_max_length,
        )
        return make_encoder(tokenizer, image_processor, config, seq_length=seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What is trained on, in which order; sequences are in tokens, batches in sequences (with packing: packs)."""

    path: str
    seq_length: int = 256
    micro_batch_size: int = 1
    global_batch_size: int = 4
    rampup_batch_size: list[int] | None = None
    multiple_validation_sets: bool = False
    packing_buffer_size: int | None = 24
    shuffle_buffer_size: int = 100
    max_samples_per_sequence: int | None = 100
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """Who makes the batches; `num_lanes` is fixed when a run begins and bounds what it can be scaled to.

    Until workers are ready, batches come from the trainer itself; with `wait_for_workers` (under Megatron) none does.
    """

    num_workers: int = 2
    num_val_workers: int = 0
    num_lanes: int = 4
    prefetch_factor: int = 2
    pin_memory: bool = True
    wait_for_workers: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the demo model: a CLIP vision tower, a linear projection, a GPT; `bf16` is for Megatron only."""

    vocab_size: int = 384
    patch_size: int = 8
    vision_hidden_size: int = 32
    vision_layers: int = 2
    hidden_size: int = 48
    num_layers: int = 2
    num_heads: int = 4
    ffn_hidden_size: int = 128
    bf16: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LightningTrainerConfig:
    """Length, optimizer and checkpoints of a run under `lightning.Trainer`; None means never."""

    train_steps: int
    checkpoint_dir: str | None = None
    save_interval: int | None = None
    eval_interval: int | None = None
    eval_batches: int = 1
    learning_rate: float = 1e-3
    seed: int = 1234

    def __post_init__(self) -> None:
        if self.save_interval is not None and self.checkpoint_dir is None:
            raise ConfigError(
                f"LightningTrainerConfig(save_interval={self.save_interval}): saving needs a folder; set checkpoint_dir"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole run. `trainer` says which of the two trains; each rank logs its steps to `log_dir`, if there is one."""

    trainer: str = "megatron"
    log_dir: str | None = None
    tokenizer: TokenizerConfig
    image_processor: ImageProcessorConfig = ImageProcessorConfig()
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig
    loader: LoaderConfig = LoaderConfig()
    model: ModelConfig = ModelConfig()
    megatron: MegatronTrainerConfig
    lightning: LightningTrainerConfig

    def __post_init__(self) -> None:
        if self.trainer not in TRAINERS:
            raise ConfigError(f"trainer={self.trainer!r}: expected {' or '.join(TRAINERS)}")
        if self.model.bf16 and self.trainer != "megatron":
            raise ConfigError(f"model.bf16=True: only trainer=megatron keeps weights in bfloat16, not {self.trainer}")

    def build_data(self, groups: "ProcessGroupCollection | None", tokenizer: Any) -> "EnergonMultiModalDataModule":
        """The DataModule of this rank; without `groups`, ranks are those of `torch.distributed`."""
        image_processor = self.image_processor.build()
        task_encoder = self.encoder.build(
            tokenizer, image_processor, patch_size=self.model.patch_size, seq_length=self.data.seq_length
        )
        return data_module(self.data, self.loader, groups, tokenizer, image_processor, task_encoder)

    def build_model(self, groups: "ProcessGroupCollection", tokenizer: Any) -> "DemoModel":
        """This rank's stage of the model."""
        from recipes.demo_model import DemoModel

        if len(tokenizer) > self.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size={self.model.vocab_size}, but the tokenizer has {len(tokenizer)} tokens; raise it"
            )
        return DemoModel(
            self.model,
            groups,
            seq_length=self.data.seq_length,
            image_size=self.image_processor.image_size,
            image_token_id=tokenizer.convert_tokens_to_ids(self.encoder.image_token),
        )


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
        multiple_validation_sets=data.multiple_validation_sets,
        num_lanes=loader.num_lanes,
        prefetch_factor=loader.prefetch_factor,
    )
