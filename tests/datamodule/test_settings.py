import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.datamodule.settings import (
    DataModuleOptions,
    DataModuleSettings,
    EnergonLoaderOptions,
    OwnOptions,
    TrainingOptions,
    WorkerOptions,
    sort_settings,
)
from bridge_data.errors import ConfigError

DECIDED_BY_THE_MODULE = {"path", "worker_config", "batch_size", "packing_buffer_size", "shuffle_buffer_size"}
DECIDED_BY_THE_MODULE |= {"dataset", "max_samples_per_sequence", "task_encoder", "pin_memory"}


def test_the_options_are_all_that_data_set_and_loader_take() -> None:
    taken = inspect.signature(get_train_dataset).parameters | inspect.signature(get_savable_loader).parameters
    own = {*OwnOptions.__annotations__, *WorkerOptions.__annotations__}
    assert DataModuleOptions.__annotations__.keys() - own == taken.keys() - DECIDED_BY_THE_MODULE
    assert DataModuleOptions.__required_keys__ == set()


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (OwnOptions, DataModuleSettings),
        (TrainingOptions, get_train_dataset),
        (EnergonLoaderOptions, get_savable_loader),
        (WorkerOptions, WorkerConfig),
    ],
)
def test_types_are_those_of_the_parameters(options: type, function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    for name, hint in get_type_hints(options).items():
        assert parameters["seed_offset" if name == "seed" else name].annotation == hint, name


def test_every_setting_goes_where_it_belongs() -> None:
    sorted_settings = sort_settings(
        {"seed": 3, "num_lanes": 4, "prefetch_factor": 7, "virtual_epoch_length": 5, "eval_batches": 2}
    )
    assert sorted_settings.workers == {"seed_offset": 3, "num_lanes": 4}
    assert sorted_settings.loader == {"prefetch_factor": 7}
    assert sorted_settings.dataset == {"virtual_epoch_length": 5}
    assert sorted_settings.eval_batches == 2


def test_what_the_data_are_holds_for_validation_too() -> None:
    given = {"trusted_modules": ("mine",), "auto_decode": False}
    assert sort_settings({**given, "repeat": False}).validation == {**given, "batch_drop_last": False}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("prefech_factor", "prefetch_factor"), ("seeds", "seed"), ("virtual_epoch", "virtual_epoch_length")],
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{name}'; did you mean '{meant}'"):
        sort_settings({name: 1})


@pytest.mark.parametrize("name", ["batch_size", "worker_config", "dataset"])
def test_what_the_module_decides_itself_is_no_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{name}'"):
        sort_settings({name: 1})


def test_an_evaluation_has_at_least_one_batch() -> None:
    with pytest.raises(ConfigError, match="eval_batches=0"):
        sort_settings({"eval_batches": 0})
