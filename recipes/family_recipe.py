"""The typed config of a run on a model of transformers: what the recipe functions of families return.

`pretrained` is an id of the hub, or a local folder with what `save_pretrained` writes; `tiny` in its place is a small
part of the same family, made on the spot. Nothing heavy is imported, and nothing is loaded, until something is built.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from bridge_data.errors import ConfigError
from recipes.encoders import EncoderSettings
from recipes.recipe import DataConfig, LightningTrainerConfig, LoaderConfig, data_module

if TYPE_CHECKING:
    from bridge_data import EnergonMultiModalDataModule

TINY = "tiny"

FAMILIES = (
    *("text", "llava", "llava_next", "idefics3", "smolvlm", "internvl"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "clip", "siglip", "whisper"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedConfig:
    """A part of a checkpoint, at a `revision` of the hub (None: the newest)."""

    pretrained: str
    revision: str | None = None

    def load(self, kind: Any, what: str, **options: Any) -> Any:
        """The part, by a class of transformers with `from_pretrained`.

        Raises:
            ConfigError: if it cannot be found.
        """
        try:
            return kind.from_pretrained(self.pretrained, revision=self.revision, **options)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{what}.pretrained={self.pretrained!r}: {str(error).splitlines()[0]}; give an id of the hub, a folder "
                f"that save_pretrained wrote, or {TINY!r}"
            ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """A model of transformers, by the name of its automatic class; `dtype` is that of its weights."""

    pretrained: str
    revision: str | None = None
    auto_class: str = "AutoModelForImageTextToText"
    dtype: str = "bfloat16"
    seed: int = 1234

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"model.dtype={self.dtype!r}: expected float32, bfloat16 or float16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FamilyRecipe:
    """A whole run of a model of `family` under `lightning.Trainer`; each rank logs its steps to `log_dir`, if there is
    one. Of whisper, `image_processor` is the feature extractor; of text there is none.
    """

    family: str
    log_dir: str | None = None
    tokenizer: PretrainedConfig
    image_processor: PretrainedConfig | None
    encoder: EncoderSettings
    data: DataConfig
    loader: LoaderConfig = dataclasses.field(default_factory=LoaderConfig)
    model: ModelSettings
    lightning: LightningTrainerConfig

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"family={self.family!r}: expected one of {', '.join(FAMILIES)}")

    def build_tokenizer(self) -> Any:
        """The tokenizer."""
        if self.tokenizer.pretrained == TINY:
            from recipes.tiny_parts import tiny_tokenizer

            return tiny_tokenizer(self.family)
        from transformers import AutoTokenizer

        return self.tokenizer.load(AutoTokenizer, "tokenizer")

    def build_image_processor(self) -> Any:
        """The image processor, or the feature extractor; None if there is none."""
        if self.image_processor is None:
            return None
        if self.image_processor.pretrained == TINY:
            from recipes.tiny_parts import tiny_image_processor

            return tiny_image_processor(self.family)
        from transformers import AutoFeatureExtractor, AutoImageProcessor

        kind = AutoFeatureExtractor if self.family == "whisper" else AutoImageProcessor
        return self.image_processor.load(kind, "image_processor")

    def build_data(self, tokenizer: Any) -> "EnergonMultiModalDataModule":
        """The DataModule of this rank."""
        image_processor = self.build_image_processor()
        encoder = self.encoder.build(tokenizer, image_processor, seq_length=self.data.seq_length)
        return data_module(self.data, self.loader, None, tokenizer, image_processor, encoder)

    def build_model(self, tokenizer: Any) -> Any:
        """The model."""
        if self.model.pretrained == TINY:
            from recipes.tiny_models import tiny_model

            return tiny_model(self.family, tokenizer, self.model.seed)
        import torch
        import transformers

        kind = getattr(transformers, self.model.auto_class, None)
        if kind is None:
            raise ConfigError(f"model.auto_class={self.model.auto_class!r}: transformers has no such class")
        part = PretrainedConfig(pretrained=self.model.pretrained, revision=self.model.revision)
        return part.load(kind, "model", dtype=getattr(torch, self.model.dtype))


def family_recipe(
    family: str, hub_id: str, encoder: EncoderSettings, data: DataConfig, *, auto_class: str, learning_rate: float
) -> FamilyRecipe:
    """The recipe of a family with all parts of one checkpoint of the hub."""
    part = PretrainedConfig(pretrained=hub_id)
    return FamilyRecipe(
        family=family,
        tokenizer=part,
        image_processor=None if family == "text" else part,
        encoder=encoder,
        data=data,
        model=ModelSettings(pretrained=hub_id, auto_class=auto_class),
        lightning=LightningTrainerConfig(train_steps=1000, learning_rate=learning_rate),
    )


def tiny_recipe(recipe: FamilyRecipe, encoder: EncoderSettings) -> FamilyRecipe:
    """The recipe in small: `tiny` parts, five steps of two sequences, no workers, data out of `recipes.tiny_data`."""
    part = PretrainedConfig(pretrained=TINY)
    is_packed = recipe.data.packing_buffer_size is not None
    return dataclasses.replace(
        recipe,
        tokenizer=part,
        image_processor=recipe.image_processor and part,
        encoder=encoder,
        data=dataclasses.replace(
            recipe.data,
            path=f"tiny_{recipe.data.path}",
            seq_length=512,
            micro_batch_size=1 if is_packed else 4,
            global_batch_size=2 if is_packed else 8,
            packing_buffer_size=8 if is_packed else None,
        ),
        loader=LoaderConfig(num_workers=0, num_lanes=2, pin_memory=False),
        model=dataclasses.replace(recipe.model, pretrained=TINY, dtype="float32"),
        lightning=LightningTrainerConfig(train_steps=5, learning_rate=1e-2),
    )
