"""Overrides of Bridge, by its function and by ours: each has an effect on the data, or is refused."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training import config as training
from megatron.bridge.training.tokenizers.config import TokenizerConfig
from megatron.bridge.training.utils.omegaconf_utils import OverridesError, process_config_with_overrides
from megatron.bridge.utils.instantiate_utils import InstantiationMode, instantiate

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    EnergonDatasetBuilder,
    EnergonDatasetConfig,
    MultiModalSampleConfig,
)
from bridge_data.configs import DataConfig, NamedTaskEncoder
from bridge_data.datamodule.overrides import with_overrides
from bridge_data.encoders import FamilyConfig, ImageLimits
from bridge_data.limits import Limits
from bridge_data.runs.training_run import TrainingRun

NAMED = {
    "class_path": "bridge_data.encoders.QwenVLTaskEncoder",
    "init_args": {"family": {"class_path": "bridge_data.encoders.Qwen2_5VL", "init_args": {"max_pixels": 802816}}},
    "image_processor": "a/folder",
}


@dataclasses.dataclass(frozen=True)
class FrozenSettings:
    """Of an encoder, as a user writes them."""

    family: FamilyConfig
    most: int = 3

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> DefaultTaskEncoder[Any, Any, Any, Any]:
        encoder = DefaultTaskEncoder[Any, Any, Any, Any]()
        encoder.settings = self  # type: ignore[attr-defined]
        return encoder


def make_container(**settings: Any) -> training.ConfigContainer:
    chosen = {"path": "data", "seq_length": 512, "micro_batch_size": 2, **settings}
    sizes = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4}
    return training.ConfigContainer(
        train=training.TrainingConfig(global_batch_size=16, micro_batch_size=2, train_iters=10),
        model=GPTModelProvider(seq_length=512, **sizes),
        optimizer=training.OptimizerConfig(lr=1e-4),
        scheduler=training.SchedulerConfig(lr_decay_style="linear", lr_warmup_iters=0),
        dataset=EnergonDatasetConfig(**chosen),
        logger=training.LoggerConfig(),
        tokenizer=TokenizerConfig(),
        checkpoint=training.CheckpointConfig(),
    )


def by_bridge(container: training.ConfigContainer, overrides: Sequence[str]) -> training.ConfigContainer:
    return process_config_with_overrides(container, cli_overrides=list(overrides))


@pytest.fixture(params=[by_bridge, with_overrides], ids=["bridge", "ours"])
def override(request: pytest.FixtureRequest) -> Callable[..., training.ConfigContainer]:
    return request.param  # type: ignore[no-any-return]


Override = Callable[[training.ConfigContainer, Sequence[str]], training.ConfigContainer]


def test_the_sample_config_is_overridden(override: Override) -> None:
    container = make_container(multimodal_sample_config=MultiModalSampleConfig(patch_size=16))
    paths = ("patch_size=7", "policies.overlong=skip", "image_token.token_str='<picture>'")
    override(container, [f"dataset.multimodal_sample_config.{path}" for path in paths])
    container.dataset.finalize()
    found = EnergonDatasetBuilder(container.dataset).sample_config()
    assert type(found) is MultiModalSampleConfig
    assert (found.patch_size, found.policies.overlong, found.image_token.token_str) == (7, "skip", "<picture>")
    assert found.conversation_template_config.roles == ("user", "assistant")
    assert container.dataset.multimodal_sample_config.patch_size == 7
    again = instantiate(container.to_dict()["dataset"], mode=InstantiationMode.STRICT)
    again.finalize()
    assert EnergonDatasetBuilder(again).sample_config() == found


@pytest.mark.parametrize(
    "text", ["+dataset.multimodal_sample_config.patch_size=7", "dataset.multimodal_sample_config={patch_size: 7}"]
)
def test_a_sample_config_is_made_by_overrides(text: str, override: Override) -> None:
    container = override(make_container(), [text])
    container.dataset.finalize()
    found = EnergonDatasetBuilder(container.dataset).sample_config()
    assert found == MultiModalSampleConfig(patch_size=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset.multimodal_sample_config.patch_size=many", "patch_size: expected int, got many"),
        ("dataset.multimodal_sample_config.policies.overlong=cut", r"policies.overlong: .*'truncate'"),
        ("dataset.multimodal_sample_config.tokens_per_image=0", "tokens_per_image=0"),
    ],
)
def test_a_wrong_value_is_refused_when_the_config_is_checked(text: str, message: str, override: Override) -> None:
    container = override(make_container(multimodal_sample_config=MultiModalSampleConfig()), [text])
    with pytest.raises(ConfigError, match=message):
        container.dataset.finalize()


def test_frozen_settings_of_an_encoder_are_overridden_at_any_depth(override: Override) -> None:
    container = make_container(task_encoder=FrozenSettings(FamilyConfig(images=ImageLimits(max_pixels=9))))
    override(container, ["dataset.task_encoder.most=5", "dataset.task_encoder.family.images.max_pixels=4"])
    container.dataset.finalize()
    encoder: Any = EnergonDatasetBuilder(container.dataset).task_encoder(None)
    assert encoder.settings == FrozenSettings(FamilyConfig(images=ImageLimits(max_pixels=4)), 5)
    assert type(encoder.settings) is FrozenSettings and type(encoder.settings.family) is FamilyConfig


def test_the_encoder_of_a_yaml_is_overridden(override: Override) -> None:
    container = make_container(task_encoder=NamedTaskEncoder(**NAMED))
    at = "dataset.task_encoder"
    override(
        container,
        [
            f"{at}.image_processor=/another",
            f"{at}.tokenizer=/third",
            f"{at}.init_args.family.init_args.max_pixels=3136",
            f"+{at}.init_args.family.init_args.min_pixels=784",
        ],
    )
    container.dataset.finalize()
    encoder = container.dataset.task_encoder
    assert (encoder.image_processor, encoder.tokenizer) == ("/another", "/third")
    assert encoder.init_args["family"]["init_args"] == {"max_pixels": 3136, "min_pixels": 784}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+dataset.task_encoder.init_args.family.init_args.min_pixel=1", "no argument 'min_pixel'; did you mean"),
        ("dataset.task_encoder.init_args.family.init_args.max_pixels=many", "expected int, got many"),
        ("dataset.task_encoder.class_path=bridge_data.encoders.QwenTaskEncoder", "no class 'QwenTaskEncoder'"),
        ("dataset.task_encoder.image_processor=3", "image_processor: expected a folder, a hub id"),
    ],
)
def test_the_encoder_of_a_yaml_is_checked_before_it_is_made(text: str, message: str, override: Override) -> None:
    container = override(make_container(task_encoder=NamedTaskEncoder(**NAMED)), [text])
    with pytest.raises(ConfigError, match=message):
        container.dataset.finalize()


def test_functions_and_dataclasses_in_dataset_kwargs_outlive_overrides(override: Override) -> None:
    kwargs = {"global_error_handler": print, "limits": Limits(max_json_bytes=1000)}
    container = make_container(dataset_kwargs=kwargs)
    override(container, ["+dataset.dataset_kwargs.seed=7", "dataset.dataset_kwargs.limits.max_json_depth=3"])
    container.dataset.finalize()
    found = container.dataset.options()
    assert (found["seed"], found["global_error_handler"]) == (7, print)
    assert found["limits"] == Limits(max_json_bytes=1000, max_json_depth=3)
    assert kwargs["limits"] == Limits(max_json_bytes=1000)


def test_what_is_in_dataset_kwargs_can_be_left_out(override: Override) -> None:
    container = override(make_container(dataset_kwargs={"seed": 3, "num_lanes": 4}), ["~dataset.dataset_kwargs.seed"])
    assert container.dataset.dataset_kwargs == {"num_lanes": 4}


def test_limits_are_given_as_settings(override: Override) -> None:
    container = override(make_container(), ["+dataset.dataset_kwargs.limits={max_json_depth: 3}"])
    assert container.dataset.options()["limits"] == Limits(max_json_depth=3)


# ----- by ours alone --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seq_length=64"], "no setting 'seq_length'; write dataset.seq_length=... or model.seq_length=..."),
        (["+seq_length=64"], "write dataset.seq_length=..."),
        (["trian.train_iters=3"], "no setting 'trian'; did you mean 'train'"),
        (["+train.train_iter=3"], "no effect: train, of TrainingConfig, has no setting 'train_iter'; did you mean"),
        (["dataset.num_lanes=16"], r"has 'num_lanes' as \+dataset.dataset_kwargs.num_lanes=..."),
        (["dataset.seq_lenth=64"], "EnergonDatasetConfig, has no setting 'seq_lenth'; did you mean 'seq_length'"),
        (["+dataset.task_encoder.seq_length=64"], "no effect: dataset.task_encoder, of NamedTaskEncoder"),
        (["dataset.dataset_kwargs.seed=7"], r"no 'seed' yet; \+dataset.dataset_kwargs.seed=... adds it"),
        (["dataset.multimodal_sample_config.patch_size=7"], "is None; .dataset.multimodal_sample_config.patch_size"),
        (["dataset.image_processor=/a"], "is an object, a Processor, which only code can set"),
        (["+dataset.image_processor=/a"], "no effect: .* is an object, a Processor, which only code can set"),
        (["~train.train_iters"], "~train.train_iters: no effect: it cannot be left out"),
        (["train.train_iters"], "train.train_iters: Error parsing override"),
        (["model.seq_length=64", "dataset.seq_length=128"], "must be the same: give one of them, the other follows"),
    ],
)
def test_an_override_without_effect_is_refused_with_the_way_out(overrides: list[str], message: str) -> None:
    class Processor:
        """An object that YAML cannot hold."""

    container = make_container(task_encoder=NamedTaskEncoder(**NAMED), image_processor=Processor())
    with pytest.raises(ConfigError, match=message):
        with_overrides(container, overrides)


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("dataset.seq_length=256", "model.seq_length"),
        ("model.seq_length=256", "dataset.seq_length"),
        ("train.micro_batch_size=4", "dataset.micro_batch_size"),
        ("dataset.micro_batch_size=4", "train.micro_batch_size"),
        ("train.global_batch_size=32", "dataset.global_batch_size"),
    ],
)
def test_a_size_that_stands_twice_follows_the_one_that_is_given(text: str, follows: str) -> None:
    container = with_overrides(make_container(global_batch_size=16), [text])
    section, _, name = follows.partition(".")
    assert getattr(getattr(container, section), name) == int(text.partition("=")[2])
    both = [text, f"{follows}={text.partition('=')[2]}"]
    with_overrides(make_container(global_batch_size=16), both)


def test_a_file_of_bridge_is_read_first_and_what_it_says_of_the_data_has_an_effect(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("train: {train_iters: 7}\ndataset: {seq_length: 128, dataset_kwargs: {seed: 3}}\n")
    container = with_overrides(make_container(), ["train.train_iters=8"], file)
    assert (container.train.train_iters, container.model.seq_length, container.dataset.seq_length) == (8, 128, 128)
    assert container.dataset.dataset_kwargs == {"seed": 3}
    file.write_text("dataset: {num_worker: 3}\n")
    with pytest.raises(ConfigError, match="no setting 'num_worker'; did you mean 'num_workers'"):
        with_overrides(make_container(), config_file=file)
    with pytest.raises(ConfigError, match="cannot be read"):
        with_overrides(make_container(), config_file=tmp_path / "none.yaml")


def test_bridge_still_refuses_what_does_not_exist() -> None:
    with pytest.raises(OverridesError, match=r"dataset\.seq_lenth"):
        by_bridge(make_container(), ["dataset.seq_lenth=64"])


# ----- the commands of bridge-data, given a function that returns a container -----------------------------------------


@pytest.mark.parametrize(
    "text", ["seq_length=64", "data.seq_length=64", "dataset.seq_length=64", "model.seq_length=64"]
)
@pytest.mark.parametrize("named", [True, False])
def test_a_run_by_its_function_takes_the_length_wherever_it_is_written(
    text: str, named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = NamedTaskEncoder("tests.bridge.test_overrides.Sized") if named else SizedSettings()
    monkeypatch.setitem(globals(), "sized_run", lambda: make_container(path=str(tmp_path), task_encoder=encoder))
    monkeypatch.setattr("bridge_data.encoders.pretrained.open_tokenizer", lambda name: name)
    overrides = [text, "num_lanes=3", "train.train_iters=5", "+dataset.dataset_kwargs.seed=4"]
    run = TrainingRun.read("tests.bridge.test_overrides:sized_run", overrides)
    config, steps = run.data, run.steps
    assert (config.options["seq_length"], config.options["num_lanes"], config.options["seed"], steps) == (64, 3, 4, 5)
    assert DataConfig.read("tests.bridge.test_overrides:sized_run", overrides).options == config.options
    assert config.with_options(num_workers=0).build().task_encoder.seq_length == 64  # type: ignore[attr-defined]


class Sized(DefaultTaskEncoder[Any, Any, Any, Any]):
    """An encoder that has the length of the run."""

    def __init__(self, seq_length: int) -> None:
        super().__init__()
        self.seq_length = seq_length


@dataclasses.dataclass
class SizedSettings:
    """The same, made by code."""

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> Sized:
        return Sized(dataset.seq_length)
