"""Settings beside a ready task encoder, in each front: they are the encoder's, or refused, and never just stored."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    AugmentTaskEncoder,
    ConfigError,
    DatasetBuildContext,
    DefaultTaskEncoder,
    EnergonDatasetBuilder,
    EnergonDatasetConfig,
    EnergonMultiModalDataModule,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.encoders import FamilyConfig, FamilyTaskEncoder, Llava, MultiModalSampleConfig, MultiModalTaskEncoder
from bridge_data.encoders.encoder_config import PLAIN_CHAT_TEMPLATE
from tests.encoders.multimodal_parts import image_processor, make_tokenizer
from tests.later import hf

LENGTH = 64


def tokenizer() -> Any:
    return make_tokenizer(PLAIN_CHAT_TEMPLATE)


def ready(kind: str = "family", **settings: Any) -> Any:
    if kind == "default":
        return MultiModalTaskEncoder(tokenizer(), None, MultiModalSampleConfig(), seq_length=LENGTH, **settings)
    return FamilyTaskEncoder(tokenizer(), None, FamilyConfig(**settings), seq_length=LENGTH)


def with_images() -> Any:
    return FamilyTaskEncoder(tokenizer(), Llava(image_processor(), patch_size=8), seq_length=LENGTH)


def of_module(path: Path, encoder: Any, **settings: Any) -> EnergonMultiModalDataModule:
    return EnergonMultiModalDataModule(path, task_encoder=encoder, num_workers=0, **settings)


def other_tokenizer() -> Any:
    changed = tokenizer()
    changed.add_tokens(["zebra"])
    return changed


def other_processor() -> Any:
    return hf.CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "seq_length": (ready, lambda: 128),
    "tokenizer": (ready, other_tokenizer),
    "chat template": (ready, lambda: make_tokenizer("{{ messages }}")),
    "image_processor": (with_images, other_processor),
    "image_processor of an encoder without": (ready, image_processor),
    "decoder_seq_length": (lambda: ready("default"), lambda: 8),
    "decoder_seq_length of an encoder without": (DefaultTaskEncoder, lambda: 8),
    "multimodal_sample_config": (lambda: ready("default"), lambda: MultiModalSampleConfig(pad_to_multiple_of=2)),
    "multimodal_sample_config of another encoder": (DefaultTaskEncoder, MultiModalSampleConfig),
    "seq_length within": (lambda: AugmentTaskEncoder(ready()), lambda: 128),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_setting_that_is_not_the_encoder_s_is_refused(path: Path, what: str) -> None:
    encoder, value = DIFFERENT[what]
    name = {"chat template": "tokenizer"}.get(what, what.partition(" ")[0])
    with pytest.raises(ConfigError, match=name):
        of_module(path, encoder(), **{name: value()})


SAME: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing given": (ready, {}),
    "length": (ready, {"seq_length": LENGTH}),
    "parts made twice": (with_images, {"tokenizer": tokenizer, "image_processor": image_processor}),
    "a tokenizer without a template": (ready, {"tokenizer": make_tokenizer}),
    "settings of the default encoder": (
        lambda: ready("default", decoder_seq_length=8),
        {"multimodal_sample_config": MultiModalSampleConfig, "decoder_seq_length": 8},
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_what_the_encoder_has_is_accepted_in_silence_and_its_length_is_the_module_s(path: Path, what: str) -> None:
    encoder, given = SAME[what]
    made = {name: value() if callable(value) else value for name, value in given.items()}
    if what == "a tokenizer without a template":
        made["tokenizer"].chat_template = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert of_module(path, encoder(), **made).seq_length == LENGTH


def test_what_an_encoder_does_not_name_is_told_and_the_default_length_is_not_asked_for(path: Path) -> None:
    for given in ({"seq_length": 128}, {"tokenizer": tokenizer()}, {"image_processor": image_processor()}):
        with pytest.warns(UserWarning, match=f"{next(iter(given))}.*changes no batch"):
            of_module(path, DefaultTaskEncoder(), **given)
    with pytest.warns(UserWarning, match="seq_length=64 of the task encoder holds"):
        assert of_module(path, ready(), seq_length=int("2048")).seq_length == LENGTH


def test_nothing_that_an_encoder_or_a_loader_was_made_of_is_changed_afterwards(path: Path) -> None:
    module = of_module(path, ready())
    for name, value in (("seq_length", 128), ("tokenizer", tokenizer()), ("image_processor", image_processor())):
        with pytest.raises(ConfigError, match=name):
            setattr(module, name, value)
    module.micro_batch_size = 2
    module.train_dataloader()
    module.micro_batch_size = 2
    with pytest.raises(ConfigError, match=r"micro_batch_size=4.*with 2"):
        module.micro_batch_size = 4


@dataclasses.dataclass(kw_only=True)
class Careless:
    """Settings of an encoder that does not follow those of the data set."""

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> Any:
        return ready()


def make_config(path: Path, **settings: Any) -> EnergonDatasetConfig:
    chosen = {"seq_length": LENGTH, "micro_batch_size": 1, "num_workers": 0, **settings}
    return EnergonDatasetConfig(path=str(path), **chosen)


def build(config: EnergonDatasetConfig, given: Any = None) -> Any:
    return EnergonDatasetBuilder(config).build(DatasetBuildContext(train_samples=8, valid_samples=0, tokenizer=given))


@pytest.mark.parametrize("length", [128, 2048])
def test_bridge_s_config_refuses_another_length_also_if_it_is_set_later(path: Path, length: int) -> None:
    config = make_config(path, task_encoder=ready())
    config.finalize()
    config.seq_length = length
    with pytest.raises(ConfigError, match=f"seq_length={length}.*64"):
        config.finalize()
    with pytest.raises(ConfigError, match=f"seq_length={length}.*64"):
        build(make_config(path, task_encoder=Careless(), seq_length=length))
    build(make_config(path, task_encoder=Careless()))


def test_bridge_s_config_makes_the_default_encoder_with_the_length_that_is_set_last(path: Path) -> None:
    config = make_config(path, seq_length=512, task_encoder=None)
    config.finalize()
    config.seq_length = 128
    config.finalize()
    module = EnergonDatasetBuilder(config).datamodule(
        DatasetBuildContext(train_samples=8, valid_samples=0, tokenizer=tokenizer())
    )
    assert (module.seq_length, module.task_encoder.seq_length) == (128, 128)  # type: ignore[attr-defined]


def test_bridge_s_tokenizer_is_compared_with_that_of_a_ready_encoder(path: Path) -> None:
    config = make_config(path, task_encoder=ready())
    build(config, tokenizer())
    build(config, object())  # nothing of transformers
    with pytest.raises(ConfigError, match="tokenizer"):
        build(config, other_tokenizer())


# ----- packs in Bridge's layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("get", [get_train_dataset, get_val_dataset])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_packs_in_bridge_s_layout_are_one_a_micro_batch(path: Path, size: int, get: Any) -> None:
    options: dict[str, Any] = {"worker_config": WorkerConfig(0, 1, 0), "batch_size": size, "packing_buffer_size": 20}
    if get is get_train_dataset:
        options |= {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    bridge = ready(layout="bridge")
    get(path, task_encoder=ready(), **options)
    get(path, task_encoder=bridge, **{**options, "packing_buffer_size": None})
    for encoder in (bridge, AugmentTaskEncoder(bridge)):
        if size == 1:
            get(path, task_encoder=encoder, **options)
            continue
        with pytest.raises(ConfigError, match=f"micro_batch_size={size}.*longer than its seq_length"):
            get(path, task_encoder=encoder, **options)


# ----- objects in the YAML of a run -----------------------------------------------------------------------------------


def read_again(settings: Any) -> Any:
    """What Bridge makes of the YAML: each mapping with a `_target_`, made by that."""
    from pydoc import locate

    if isinstance(settings, list):
        return [read_again(one) for one in settings]
    if not isinstance(settings, dict):
        return settings
    made = {name: read_again(value) for name, value in settings.items()}
    target, _ = made.pop("_target_", None), made.pop("_call_", None)
    found: Any = None if target is None else locate(target)
    return made if found is None else found(**made)


def test_an_image_processor_comes_back_from_yaml_as_it_was(path: Path) -> None:
    given = other_processor()
    config = make_config(path, image_processor=given, multimodal_sample_config=MultiModalSampleConfig(patch_size=8))
    told = json.loads(json.dumps(config.to_cfg_dict()))
    again = read_again(told)
    assert again.image_processor.to_dict() == given.to_dict()
    assert again.multimodal_sample_config == config.multimodal_sample_config
    again.finalize()
    by_folder = make_config(path, image_processor="some/folder", dataset_kwargs={"seed": 3})
    assert read_again(by_folder.to_cfg_dict()) == by_folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_encoder", ready()),
        ("task_encoder", DefaultTaskEncoder()),
        ("image_processor", type("Own", (), {"crop": 32})()),
        ("dataset_kwargs", {"cache_pool": object()}),
    ],
)
def test_an_object_that_yaml_cannot_hold_is_told_and_refused_when_it_is_read(path: Path, name: str, value: Any) -> None:
    config = make_config(path, **{name: value})
    with pytest.warns(UserWarning, match=name):
        told = json.loads(json.dumps(config.to_cfg_dict()))
    again = read_again(told)
    with pytest.raises(ConfigError, match=r"(task_encoder|image_processor|cache_pool)=.*set it in your code"):
        again.finalize()
