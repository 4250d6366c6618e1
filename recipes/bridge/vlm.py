"""Megatron-Bridge's own recipes of vision-language models, with our data; named and overridden as Bridge's are.

    torchrun --nproc-per-node 2 -m recipes.bridge.vlm qwen25_vl_7b_sft_config \
        dataset.path=/data/blend.yaml train.train_iters=1000 checkpoint.save=checkpoints

A recipe is a function without arguments that returns a `ConfigContainer`: Bridge's own, whose `dataset` is ours, of
`configs/qwen2_5_vl.yaml`. Pass it to `pretrain` or `finetune` with Bridge's `vlm_step`.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from megatron.bridge.recipes.qwen_vl import qwen25_vl
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.tokenizers.config import TokenizerConfig
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.bridge.training.vlm_step import forward_step

from bridge_data import EnergonDatasetConfig
from bridge_data.configs import DataConfig, NamedTaskEncoder

QWEN25_VL = Path(__file__).parents[2] / "configs" / "qwen2_5_vl.yaml"


def qwen25_vl_3b_sft_config() -> ConfigContainer:
    """Qwen2.5-VL, 3B, all weights; as Bridge's, on 1 GPU."""
    return with_data(qwen25_vl.qwen25_vl_3b_sft_config())


def qwen25_vl_7b_sft_config() -> ConfigContainer:
    """Qwen2.5-VL, 7B, all weights; as Bridge's, on 2 GPUs."""
    return with_data(qwen25_vl.qwen25_vl_7b_sft_config())


def qwen25_vl_7b_peft_config() -> ConfigContainer:
    """Qwen2.5-VL, 7B, by LoRA; as Bridge's, on 1 GPU."""
    return with_data(qwen25_vl.qwen25_vl_7b_peft_config())


RECIPES: dict[str, Callable[[], ConfigContainer]] = {
    recipe.__name__: recipe for recipe in (qwen25_vl_3b_sft_config, qwen25_vl_7b_sft_config, qwen25_vl_7b_peft_config)
}


def with_data(config: ConfigContainer, recipe: Path = QWEN25_VL) -> ConfigContainer:
    """`config` of Bridge with the data of `recipe`, its tokenizer, and its sizes of batches and sequences. Packs have
    the layout of Bridge's `vlm_step`."""
    data = DataConfig.read(recipe, ["task_encoder.init_args.config.layout=bridge"])
    options, encoder = {"micro_batch_size": 1, **data.options}, cast("dict[str, Any]", data.task_encoder)
    config.train.micro_batch_size = options["micro_batch_size"]
    config.train.global_batch_size = options.pop("global_batch_size")
    config.model.seq_length = options["seq_length"]
    config.tokenizer = TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=data.tokenizer)
    own = {field.name for field in dataclasses.fields(EnergonDatasetConfig)}
    config.dataset = EnergonDatasetConfig(
        path=data.path,
        task_encoder=NamedTaskEncoder(**encoder, image_processor=data.image_processor),
        **{name: value for name, value in options.items() if name in own},
        dataset_kwargs={name: value for name, value in options.items() if name not in own},
    )
    return config


if __name__ == "__main__":
    name, *overrides = sys.argv[1:]
    finetune(process_config_with_overrides(RECIPES[name](), cli_overrides=overrides), forward_step)
