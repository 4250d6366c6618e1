import copy
import dataclasses
import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, EnergonDatasetConfig


@dataclasses.dataclass(kw_only=True)
class EncoderSettings:
    """Of a task encoder that is made when there is a tokenizer."""

    hf_processor_path: str = "some/model"

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> DefaultTaskEncoder[Any, Any, Any, Any]:
        return DefaultTaskEncoder()


class Padding(DefaultTaskEncoder[Any, Any, Any, Any]):
    """It pads by itself, and says so."""

    pad_to_max_length = True


def make_config(**settings: Any) -> EnergonDatasetConfig:
    return EnergonDatasetConfig(**{"path": "data", "seq_length": 8, "micro_batch_size": 2, **settings})


def test_it_is_copied_and_pickled() -> None:
    config = make_config(task_encoder=EncoderSettings(), dataset_kwargs={"seed": 3})
    for again in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), dataclasses.replace(config)):
        assert again == config and type(again) is type(config)


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
        ({"num_workers": -1}, "num_workers=-1: expected an integer of at least 0"),
        ({"num_val_workers": -1}, "num_val_workers=-1"),
        ({"dataloader_save": 3}, "dataloader_save=3: expected a path"),
        ({"dataloader_load": True}, "dataloader_load=True.: expected a folder"),
        ({"dataloader_type": "cyclic"}, "a loader of its own, which Bridge passes through; set 'external'"),
        ({"data_sharding": False}, "data-parallel ranks always read different samples"),
        ({"do_test": True}, "there is no loader for a test split"),
        ({"persistent_workers": False}, "workers live as long as the loader"),
        ({"task_encoder": "qwen"}, "expected a TaskEncoder, settings with build"),
        ({"task_encoder": EncoderSettings(), "image_processor": object()}, "no effect with a task_encoder"),
        ({"enable_in_batch_packing": True}, "or packing_buffer_size, which packs before batching"),
        ({"trust_remote_code": True}, "nothing is loaded from a hub here"),
        (
            {"task_encoder": DefaultTaskEncoder(), "pad_to_multiple_of": 4},
            r"pad_to_multiple_of=4\): DefaultTaskEncoder .* in the encoder's own",
        ),
        ({"pad_to_multiple_of": 3, "pad_to_max_length": True}, "must be a multiple of it"),
        ({"in_batch_packing_pad_to_multiple_of": 4}, "needs a task_encoder"),
        ({"task_encoder": DefaultTaskEncoder(), "pad_to_max_length": True}, "DefaultTaskEncoder does not pad to it"),
        ({"task_encoder": DefaultTaskEncoder(), "pad_to_multiple_of": 2}, "pads to a multiple of 1"),
        ({"dataset_kwargs": {"seeds": 1}}, "no setting 'seeds'; did you mean 'seed'"),
        ({"dataset_kwargs": {"num_workers": 1}}, "num_workers is a setting of EnergonDatasetConfig itself"),
        ({"dataset_kwargs": {"multiple_validation_sets": True}}, "a list of loaders for the loaders of model chunks"),
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
        {"task_encoder": Padding(), "pad_to_max_length": True},
        {"num_workers": 0},
        {"pad_to_multiple_of": 4, "pad_to_max_length": True},
        {"pad_to_multiple_of": 4},
        {"enable_in_batch_packing": True, "defer_in_batch_packing_to_step": True},
        {"task_encoder": EncoderSettings(), "trust_remote_code": True, "pad_to_multiple_of": 128},
        {"task_encoder": EncoderSettings(), "enable_in_batch_packing": True},
        {
            "task_encoder": EncoderSettings(),
            "pad_to_max_length": True,
            "in_batch_packing_pad_to_multiple_of": 4,
        },
        {"global_batch_size": 8, "dataset_kwargs": {"balance": True, "rampup_batch_size": [2, 2, 8]}},
        {"dataloader_save": "", "dataloader_load": "checkpoints/energon"},
    ],
)
def test_settings_that_someone_goes_by_are_taken(settings: dict[str, Any]) -> None:
    config = make_config(**settings)
    config.finalize()
    assert config.persistent_workers == bool(config.num_workers)


@pytest.mark.skipif(importlib.util.find_spec("megatron.bridge") is not None, reason="Bridge is installed")
def test_a_bridge_that_cannot_be_used_is_told_once_where_the_settings_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import megatron

    class Settings(EnergonDatasetConfig):
        """A class of its own, as what is made of one is kept."""

    (tmp_path / "bridge").mkdir()
    (tmp_path / "bridge" / "__init__.py").write_text("")
    monkeypatch.setattr(megatron, "__path__", [*megatron.__path__, str(tmp_path)])
    try:
        with pytest.warns(UserWarning, match="cannot be used") as warned:
            made = [Settings(path="data", seq_length=8, micro_batch_size=2) for _ in range(2)]
    finally:
        sys.modules.pop("megatron.bridge", None)
        vars(megatron).pop("bridge", None)
    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    assert [type(one) for one in made] == [Settings, Settings]
