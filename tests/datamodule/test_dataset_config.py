import dataclasses
import json
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, EnergonDatasetConfig, MultiModalSampleConfig
from tests.datamodule import bridge


@dataclasses.dataclass(kw_only=True)
class EncoderSettings:
    """Of a task encoder that is made when there is a tokenizer."""

    hf_processor_path: str = "some/model"

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> DefaultTaskEncoder[Any, Any, Any, Any]:
        return DefaultTaskEncoder()


def make_config(**settings: Any) -> EnergonDatasetConfig:
    return EnergonDatasetConfig(**{"path": "data", "seq_length": 8, "micro_batch_size": 2, **settings})


@pytest.mark.parametrize("release", bridge.FIELDS)
def test_it_has_every_field_that_bridge_gives_a_run(release: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(EnergonDatasetConfig)}
    assert bridge.FIELDS[release].keys() <= fields.keys()
    differs = {"pad_to_multiple_of", "task_encoder", "persistent_workers"}
    for name, default in bridge.FIELDS[release].items():
        if default is not ... and name not in differs:
            field = fields[name]
            made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            assert made == default, name


@pytest.mark.parametrize("module", ["megatron.bridge.data.base", "megatron.bridge.training.config"])
def test_bridge_sees_a_provider_of_its_own_in_it(module: str) -> None:
    early = make_config()
    with bridge.in_use(module) as provider:
        assert not isinstance(early, provider)
        early.finalize()
        assert isinstance(early, provider)
        assert isinstance(make_config(), provider)


def test_a_run_s_yaml_can_hold_it_and_bring_it_back() -> None:
    config = make_config(
        task_encoder=EncoderSettings(), multimodal_sample_config=None, dataset_kwargs={"seed": 3, "share": "broadcast"}
    )
    config.finalize()
    told = json.loads(json.dumps(bridge.to_dict(config)))
    assert told.pop("_target_") == "bridge_data.datamodule.dataset_config.EnergonDatasetConfig"
    encoder = told.pop("task_encoder")
    assert encoder.pop("_target_").endswith("EncoderSettings")
    again = EnergonDatasetConfig(**told, task_encoder=EncoderSettings(**encoder))
    assert again == config
    assert (
        bridge.to_dict(make_config(multimodal_sample_config=MultiModalSampleConfig(patch_size=4)))[
            "multimodal_sample_config"
        ]["image_token"]["token_str"]
        == "<image>"
    )


def test_what_bridge_sets_on_the_way_is_taken() -> None:
    config = make_config(task_encoder=EncoderSettings())
    config.pad_to_max_length, config.in_batch_packing_pad_to_multiple_of = True, 4
    vars(config)["tokenizer"] = object()  # 0.3
    config.finalize()
    config = make_config(num_workers=0)
    config.finalize()
    assert not config.persistent_workers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": None}, r"path=None\): expected a prepared folder, or a metadataset YAML: dataset.path="),
        ({"path": ""}, "path=''"),
        ({"seq_length": 0}, "seq_length=0.: expected at least 1"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"packing_buffer_size": 0}, "packing_buffer_size=0"),
        ({"shuffle_buffer_size": 0}, "shuffle_buffer_size=0"),
        ({"max_samples_per_sequence": 0}, "max_samples_per_sequence=0"),
        ({"num_workers": -1}, "num_workers=-1.: expected at least 0"),
        ({"num_val_workers": -1}, "num_val_workers=-1"),
        ({"dataloader_save": 3}, "dataloader_save=3.: expected a folder"),
        ({"dataloader_load": True}, "dataloader_load=True.: expected a folder"),
        ({"dataloader_type": "cyclic"}, "a loader of its own, which Bridge passes through; set 'external'"),
        ({"data_sharding": False}, "data-parallel ranks always read different samples"),
        ({"do_test": True}, "there is no loader for a test split"),
        ({"persistent_workers": False}, "workers live as long as the loader"),
        ({"task_encoder": "qwen"}, "expected a TaskEncoder, settings with build"),
        ({"task_encoder": EncoderSettings(), "image_processor": object()}, "no effect beside a task_encoder"),
        ({"enable_in_batch_packing": True}, "or packing_buffer_size, which packs beforehand"),
        ({"trust_remote_code": True}, "nothing is loaded from a hub here"),
        (
            {"task_encoder": DefaultTaskEncoder(), "pad_to_multiple_of": 4},
            "needs a task_encoder .* in the encoder's own",
        ),
        ({"pad_to_multiple_of": 3, "pad_to_max_length": True}, "is no multiple of it"),
        ({"in_batch_packing_pad_to_multiple_of": 4}, "needs a task_encoder"),
        ({"task_encoder": DefaultTaskEncoder(), "pad_to_max_length": True}, "DefaultTaskEncoder does not pad to it"),
        ({"dataset_kwargs": {"seeds": 1}}, "no setting 'seeds'; did you mean 'seed'"),
        ({"dataset_kwargs": {"num_workers": 1}}, "num_workers is a setting of EnergonDatasetConfig itself"),
        ({"dataset_kwargs": {"multiple_validation_sets": True}}, "a list of loaders for those of the chunks"),
        ({"dataset_kwargs": {"rampup_batch_size": [1, 1, 1]}}, "train.rampup_batch_size"),
        (
            {"dataset_kwargs": {"balance": True}},
            "global_batch_size=None.: balance shares out the micro-batches of a step",
        ),
    ],
)
def test_a_setting_without_effect_or_out_of_range_is_refused_with_the_reason(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**settings).finalize()


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_to_multiple_of": 4, "pad_to_max_length": True},
        {"pad_to_multiple_of": 4},
        {"enable_in_batch_packing": True, "defer_in_batch_packing_to_step": True},
        {"task_encoder": EncoderSettings(), "trust_remote_code": True, "pad_to_multiple_of": 128},
        {"task_encoder": EncoderSettings(), "enable_in_batch_packing": True},
        {"global_batch_size": 8, "dataset_kwargs": {"balance": True, "rampup_batch_size": [2, 2, 8]}},
        {"dataloader_save": "", "dataloader_load": "checkpoints/energon"},
    ],
)
def test_settings_that_someone_goes_by_are_taken(settings: dict[str, Any]) -> None:
    make_config(**settings).finalize()


def test_an_encoder_that_pads_by_itself_says_so() -> None:
    encoder: Any = DefaultTaskEncoder()
    encoder.pad_to_max_length = True
    make_config(task_encoder=encoder, pad_to_max_length=True).finalize()
