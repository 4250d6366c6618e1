"""Megatron-Bridge's own recipes of vision-language models, with our data; named and overridden as Bridge's are.

    torchrun --nproc-per-node 2 -m recipes.bridge.vlm qwen25_vl_7b_sft_config --data my.yaml \
        dataset.path=/data/blend.yaml train.train_iters=1000 checkpoint.save=checkpoints

A recipe is a function that returns a `ConfigContainer`: Bridge's own, whose `dataset` is ours, of `my.yaml` (by default
that of its family in `configs`). Pass it to `pretrain` or `finetune` with Bridge's `vlm_step`. The script takes the
names of Bridge's other recipes, too, if `--data` says what they train on.
"""

import argparse
import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from megatron.bridge import recipes
from megatron.bridge.models.gemma_vl.gemma3_vl_provider import Gemma3VLModelProvider
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.tokenizers.config import TokenizerConfig
from megatron.bridge.training.vlm_step import forward_step
from megatron.bridge.utils.common_utils import get_rank_safe

from bridge_data import ConfigError, EnergonDatasetConfig
from bridge_data.configs import DATA_MODULE, DataConfig, NamedTaskEncoder
from bridge_data.datamodule.batch_schedule import megatron_has_ramps
from bridge_data.datamodule.class_paths import arguments_of, named_class
from bridge_data.datamodule.overrides import with_overrides
from bridge_data.errors import did_you_mean

logger = logging.getLogger(__name__)

CONFIGS = Path(__file__).parents[2] / "configs"
QWEN25_VL = CONFIGS / "qwen2_5_vl.yaml"

FAMILIES = {
    "qwen25_vl_": QWEN25_VL,
    "qwen3_vl_": CONFIGS / "qwen3_vl.yaml",
    "qwen35_vl_": CONFIGS / "qwen3_5_vl.yaml",
    "gemma3_vl_": CONFIGS / "gemma3.yaml",
    "gemma4_vl_": CONFIGS / "gemma4.yaml",
    "ministral3_": CONFIGS / "ministral3.yaml",
}
"""What the names of a family's recipes begin with, and the YAML of their data."""


def _with_our_data(name: str, default: Path) -> Callable[..., ConfigContainer]:
    """The recipe of Bridge of that name, with our data."""
    theirs = getattr(recipes, name)

    def recipe(data: Path = default, **settings: Any) -> ConfigContainer:
        return with_data(theirs(**settings), data)

    recipe.__name__ = recipe.__qualname__ = name
    recipe.__doc__ = f"{inspect.getdoc(theirs)}\n\nWith the data of `data`, a YAML; `settings` are those of Bridge's."
    return recipe


RECIPES = {
    name: _with_our_data(name, data)
    for name in dir(recipes)
    for prefix, data in FAMILIES.items()
    if name.startswith(prefix) and name.endswith("_config") and "_mock_" not in name
}
globals().update(RECIPES)  # each by its name, as Bridge's are


def with_data(config: ConfigContainer, recipe: Path = QWEN25_VL) -> ConfigContainer:
    """`config` of Bridge with the data of `recipe`, a YAML: its tokenizer, task encoder and options. The YAML's
    `seq_length` and batch sizes hold, for model, training and data, which a warning tells where Bridge's are others;
    the length and the global batch size are Bridge's if the YAML leaves them out. Batches have the layout of Bridge's
    `vlm_step`.

    Raises:
        ConfigError: for a setting that has no effect under Bridge, or that the model does not take.
    """
    data = DataConfig.read(recipe)
    named = cast("dict[str, Any] | None", data.task_encoder)
    if named is None:
        data = DataConfig.read(recipe, ["multimodal_sample_config.layout=bridge"])
    elif "config" in inspect.signature(named_class(named["class_path"], str(recipe))).parameters:
        data = DataConfig.read(recipe, ["task_encoder.init_args.config.layout=bridge"])
    own = {field.name for field in dataclasses.fields(EnergonDatasetConfig)}
    length = None if named is None else arguments_of(named).get("seq_length")
    options = {"seq_length": length, "micro_batch_size": 1, **data.options}
    if length not in (None, options["seq_length"]):
        raise ConfigError(f"{recipe}: seq_length is {options['seq_length']}, and {length} in init_args: leave one out")
    for name in ("decoder_seq_length", "validation_task_encoder"):
        if options.pop(name, None) is not None:
            raise ConfigError(f"{recipe}: data.{name}: no effect under Megatron-Bridge; leave it out")
    if data.data_module != DATA_MODULE:
        raise ConfigError(f"{recipe}: data: class_path={data.data_module}: Megatron-Bridge has a builder of its own")
    sizes = {"seq_length": config.model, "micro_batch_size": config.train, "global_batch_size": config.train}
    _set_sizes(sizes, {name: options.pop(name, None) for name in sizes}, recipe)
    if data.tokenizer is not None:
        config.tokenizer = TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=data.tokenizer)
    config.dataset = EnergonDatasetConfig(
        path=data.path,
        seq_length=config.model.seq_length,
        micro_batch_size=config.train.micro_batch_size,
        **_encoder_of(data),
        **{name: value for name, value in options.items() if name in own},
        dataset_kwargs={name: value for name, value in options.items() if name not in own},
    )
    _fit_lengths(config)
    return config


def _fit_lengths(config: ConfigContainer) -> None:
    """Have lengths that the model takes: under pipeline or expert parallelism Bridge wants rows of `seq_length`, unless
    it knows that there are packs. A ConfigError for packs that the model does not take."""
    model, dataset = config.model, config.dataset
    if dataset.packing_buffer_size is not None:
        if isinstance(model, Gemma3VLModelProvider):
            raise ConfigError(
                f"packing_buffer_size={dataset.packing_buffer_size}: the attention of Gemma 3 takes no packs; leave it "
                "out, and set micro_batch_size"
            )
        model._enable_in_batch_packing = True  # as Bridge does for its own packs
    elif max(model.pipeline_model_parallel_size, model.expert_model_parallel_size) > 1:
        encoder = dataset.task_encoder
        if isinstance(encoder, NamedTaskEncoder) and "config" in encoder.init_args:
            encoder.init_args["config"].setdefault("pad_to_max_length", True)


def _check_steps(config: ConfigContainer) -> None:
    """A ConfigError for settings of steps that Bridge takes and does not follow."""
    train = config.train
    if train.rampup_batch_size is not None and not megatron_has_ramps():
        raise ConfigError(
            f"train.rampup_batch_size={list(train.rampup_batch_size)}: this megatron-core ignores it, so that all "
            "steps have train.global_batch_size; leave it out"
        )
    if train.iterations_to_skip and config.model.pipeline_model_parallel_size > 2:
        raise ConfigError(
            f"train.iterations_to_skip={list(train.iterations_to_skip)}: Bridge skips no data on the middle stages of "
            "a pipeline, which would go on with other samples than the first and the last; set "
            "+dataset.dataset_kwargs.skip_steps=[...] in its place"
        )


def _set_sizes(sections: Mapping[str, Any], given: Mapping[str, int | None], recipe: Path) -> None:
    """Set the sizes that are `given` in the sections of Bridge that have them."""
    changed = {
        name: getattr(sections[name], name)
        for name, size in given.items()
        if size is not None and size != getattr(sections[name], name)
    }
    for name in changed:
        setattr(sections[name], name, given[name])
    if changed and get_rank_safe() == 0:
        ours = ", ".join(f"{name}={given[name]}" for name in changed)
        logger.warning("%s: %s instead of %s of Bridge's recipe", recipe, ours, ", ".join(map(str, changed.values())))


def _encoder_of(data: DataConfig) -> dict[str, Any]:
    """The settings of the task encoder."""
    if data.task_encoder is None:
        return {"image_processor": data.image_processor}
    named = cast("dict[str, Any]", data.task_encoder)
    arguments = {name: value for name, value in arguments_of(named).items() if name != "seq_length"}
    return {"task_encoder": NamedTaskEncoder(named["class_path"], arguments, data.image_processor)}


def main(arguments: Sequence[str] | None = None) -> ConfigContainer:
    """The container that the arguments of a command line ask for."""
    parser = argparse.ArgumentParser(prog="recipes.bridge.vlm", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    known = ", ".join(f"{prefix}..." for prefix in FAMILIES)
    parser.add_argument("recipe", help=f"one of Bridge's: {known}; with --data any of megatron.bridge.recipes")
    parser.add_argument("--data", type=Path, help="the YAML of the data (default: that of the family in configs)")
    parser.add_argument("--config-file", type=Path, help="a YAML with sections of the ConfigContainer, as Bridge's")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings of the ConfigContainer, as Bridge's"
    )
    given = parser.parse_intermixed_args(arguments)
    theirs = getattr(recipes, given.recipe, None)
    if given.recipe in RECIPES:
        config = RECIPES[given.recipe](*filter(None, [given.data]))
    elif not callable(theirs):
        parser.error(f"no recipe {given.recipe!r}{did_you_mean(given.recipe, [*RECIPES, *dir(recipes)])}")
    elif given.data is None:
        parser.error(f"{given.recipe} has no data here: --data my.yaml")
    else:
        config = with_data(theirs(), given.data)
    config = with_overrides(config, given.overrides, given.config_file)
    _fit_lengths(config)
    _check_steps(config)
    return config


if __name__ == "__main__":
    finetune(main(), forward_step)
