"""What a hasty user passes instead of what was meant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    LaneDataset,
    SampleDecoder,
    TextWebdataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    group_by,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from bridge_data.energon import LimitDataset, RepeatDataset
from bridge_data.errors import ConfigError
from tests.prepared import CRUDE, write_dataset, write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "texts", 12)
    write_dataset(folder / "crude", ({"__key__": f"{n}", "txt": f"{n}"} for n in range(4)), definition=CRUDE)
    return folder


def config(**settings: Any) -> WorkerConfig:
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0} | settings)


def train(path: Any, **settings: Any) -> LaneDataset:
    settings = {"worker_config": config(), "batch_size": 2, "shuffle_buffer_size": 10} | settings
    return get_train_dataset(path, **{"max_samples_per_sequence": 5} | settings)


def val(path: Any, **settings: Any) -> LaneDataset:
    return get_val_dataset(path, **{"worker_config": config(), "batch_size": 2, "split_part": "train"} | settings)


def encoder(**attributes: Any) -> Any:
    return type("Mine", (DefaultTaskEncoder,), attributes)()


def cook(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_workers": "2"}, "num_workers='2': expected an integer of at least 0"),
        ({"num_workers": 2.0}, "num_workers=2.0: expected an integer"),
        ({"num_workers": None}, "num_workers=None"),
        ({"num_workers": True}, "num_workers=True"),
        ({"rank": "0"}, "rank='0'"),
        ({"world_size": "1"}, "world_size='1': expected an integer of at least 1"),
        ({"num_lanes": "8"}, "num_lanes='8'"),
        ({"seed_offset": 1.5}, "seed_offset=1.5"),
        ({"max_open_bytes": "1 GB"}, "max_open_bytes='1 GB'"),
    ],
)
def test_ranks_and_workers(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert f"WorkerConfig: {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"worker_config": 2}, "worker_config=2: expected a WorkerConfig, such as"),
        ({"worker_config": None}, "worker_config=None"),
        ({"worker_config": WorkerConfig}, "worker_config=<class"),
        ({"worker_config": {"num_workers": 2}}, "worker_config={"),
        ({"batch_size": "2"}, "batch_size='2': expected an integer of at least 1, or None"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_drop_last": "no"}, "batch_drop_last='no': expected True or False"),
        ({"repeat": "false"}, "repeat='false': expected True or False"),
        ({"shuffle_buffer_size": "10"}, "shuffle_buffer_size='10'"),
        ({"shuffle_buffer_size": 10.0}, "shuffle_buffer_size=10.0"),
        ({"max_samples_per_sequence": "5"}, "max_samples_per_sequence='5'"),
        ({"virtual_epoch_length": None}, "virtual_epoch_length=None: expected an integer of at least 0"),
        ({"virtual_epoch_length": 2.5}, "virtual_epoch_length=2.5"),
        ({"split_part": None}, "split_part=None: expected the name of a part"),
        ({"split_part": ["train"]}, "split_part=['train']"),
        ({"sample_type": "TextSample"}, "sample_type='TextSample': expected a class"),
        ({"trusted_modules": "mine"}, "trusted_modules='mine': expected ['mine']"),
        ({"task_encoder": DefaultTaskEncoder}, "pass an instance of the class, with ()"),
        ({"task_encoder": encoder(decoder="pil")}, "Mine: decoder='pil': expected a SampleDecoder"),
        ({"task_encoder": encoder(decoder=SampleDecoder)}, "Mine: decoder=<class"),
        ({"task_encoder": encoder(cookers=[cook])}, "is not a Cooker: write Cooker(cook)"),
        ({"task_encoder": encoder(cookers=Cooker(cook))}, "expected a list of Cooker"),
        ({"task_encoder": encoder(cookers="cook")}, "cookers='cook': expected a list of Cooker"),
    ],
)
def test_data_sets(folder: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(folder / "crude", **settings)
    assert says in str(caught.value)


NO_PATHS = [None, 3, "", b"texts", ["texts"], ("texts",)]


@pytest.mark.parametrize("path", NO_PATHS)
@pytest.mark.parametrize(
    "take",
    [
        train,
        val,
        load_dataset,
        prepare_metadataset,
        lambda path: traverse_metadataset(path, split_part="train"),
        lambda path: TextWebdataset(path, field_map={"text": "txt"}),
    ],
)
def test_paths(path: Any, take: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match="expected a path or a URL") as caught:
        take(path)
    assert ("several data sets are a metadataset" in str(caught.value)) == isinstance(path, (list, tuple))


@pytest.mark.parametrize("make", [get_loader, get_savable_loader])
def test_loaders_of_something_else(folder: Path, make: Any) -> None:
    dataset = train(folder / "texts")
    for other in (str(folder / "texts"), None, [dataset], (dataset, None), get_loader(dataset)):
        with pytest.raises(ConfigError, match=r"expected a data set; for a path, write get_loader"):
            make(other)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"worker_config": 2}, "worker_config=2: expected a WorkerConfig; or leave it out"),
        ({"prefetch_factor": "2"}, "prefetch_factor='2': expected an integer of at least 1"),
        (
            {"watchdog_timeout_seconds": "60"},
            "watchdog_timeout_seconds='60': expected a positive number of s",
        ),
        ({"pin_memory": "yes"}, "pin_memory='yes': expected True or False"),
        ({"cache_pool": "/tmp/cache"}, "expected a CachePool"),
    ],
)
def test_settings_of_loaders(folder: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_loader(train(folder / "texts"), **settings)
    assert says in str(caught.value)


def test_neither_data_sets_nor_loaders_are_for_torch_s_loader(folder: Path) -> None:
    dataset = val(folder / "texts")
    says = r"need no torch.utils.data.DataLoader: `for batch in get_loader\(dataset\)`"
    for take in (
        lambda: next(iter(torch.utils.data.DataLoader(dataset))),
        lambda: next(iter(torch.utils.data.DataLoader(get_loader(dataset), batch_size=None))),
        lambda: dataset[0],
        lambda: next(iter(dataset)),
    ):
        with pytest.raises(ConfigError, match=says):
            take()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda data: Cooker("cook"), "Cooker(cook='cook'): expected a function"),
        (lambda data: Cooker(cook, has_subflavors=["a"]), "has_subflavors=['a']): expected a dict, or None"),
        (lambda data: group_by("text"), "group_by('text'): expected functions of a sample"),
        (lambda data: RepeatDataset("texts"), "RepeatDataset('texts'): expected a data set"),
        (lambda data: RepeatDataset(data, repeats="2"), "repeats='2': expected a positive number"),
        (lambda data: LimitDataset(None, 3), "LimitDataset(None): expected a data set"),
        (lambda data: LimitDataset(data, "3"), "length='3': expected an integer"),
    ],
)
def test_parts_of_encoders_and_wrappers(folder: Path, make: Callable[[LaneDataset], Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(val(folder / "texts"))
    assert says in str(caught.value)
