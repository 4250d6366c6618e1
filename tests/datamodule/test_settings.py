import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from bridge_data import (
    DefaultTaskEncoder,
    EnergonDatasetConfig,
    EnergonMultiModalDataModule,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from bridge_data.datamodule.dataset_builder import DatasetBuildContext, EnergonDatasetBuilder
from bridge_data.datamodule.settings import (
    DataModuleOptions,
    DataModuleSettings,
    EnergonLoaderOptions,
    OwnOptions,
    TrainingOptions,
    WorkerOptions,
    sort_settings,
)
from bridge_data.errors import ConfigError, log_exception, reraise_exception
from bridge_data.loader.loader_config import Ends, LoaderConfig, StartMethod
from tests.datamodule.parts import make_module

DECIDED_BY_THE_MODULE = {"path", "worker_config", "batch_size", "packing_buffer_size", "shuffle_buffer_size"}
DECIDED_BY_THE_MODULE |= {"dataset", "max_samples_per_sequence", "task_encoder", "pin_memory", "gathers_states"}


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


DECIDED_BY_THE_JOB = {"rank", "world_size", "num_workers", "data_parallel_group"}


def own_value(field: "dataclasses.Field[Any]") -> Any:
    """A value of a field that is allowed, and not its default."""
    value = field.default
    if callable(value):
        return log_exception if value is reraise_exception else reraise_exception
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return not value if isinstance(value, bool) else next(one for one in CHOICES[field.name] if one != value)
    return (f"{field.name}/file" if field.name.endswith("path") else 7.5) if value is None else value + 1


CHOICES = {"start_method": get_args(StartMethod), "ends": get_args(Ends)}
WORKERS = {
    f.name: own_value(f) for f in dataclasses.fields(WorkerConfig) if f.init and f.name not in DECIDED_BY_THE_JOB
}
LOADER = {field.name: own_value(field) for field in dataclasses.fields(LoaderConfig) if field.name != "pin_memory"}
GIVEN = {"seed" if name == "seed_offset" else name: value for name, value in (WORKERS | LOADER).items()}


def of_the_module(tmp_path: Path) -> EnergonMultiModalDataModule:
    return make_module(str(tmp_path), **GIVEN)


def of_bridges_config(tmp_path: Path) -> EnergonMultiModalDataModule:
    config = EnergonDatasetConfig(path=str(tmp_path), seq_length=8, micro_batch_size=1, dataset_kwargs=GIVEN)
    config.task_encoder = DefaultTaskEncoder()
    config.finalize()
    return EnergonDatasetBuilder(config).datamodule(DatasetBuildContext(train_samples=1, valid_samples=1))


def of_a_recipe(tmp_path: Path) -> EnergonMultiModalDataModule:
    from recipes.run_config import DataConfig as RecipeData
    from recipes.run_config import LoaderConfig as RecipeLoader
    from recipes.run_config import data_module

    parts = {
        config: {name: value for name, value in GIVEN.items() if name in {f.name for f in dataclasses.fields(config)}}
        for config in (RecipeData, RecipeLoader)
    }
    rest = {name: value for name, value in GIVEN.items() if not any(name in given for given in parts.values())}
    data = RecipeData(path=str(tmp_path), **parts[RecipeData])
    loader = RecipeLoader(**parts[RecipeLoader], options=rest)
    return data_module(data, loader, None, None, None, DefaultTaskEncoder())


def of_lightning_cli(tmp_path: Path) -> EnergonMultiModalDataModule:
    from tests.datamodule.test_lightning_cli import run

    data = {
        "path": str(tmp_path),
        "task_encoder": {"class_path": "bridge_data.DefaultTaskEncoder"},
        **{name: f"{value.__module__}.{value.__name__}" if callable(value) else value for name, value in GIVEN.items()},
    }
    module: EnergonMultiModalDataModule = run(tmp_path / "run.yaml", data).datamodule
    return module


@pytest.mark.parametrize("front", [of_the_module, of_bridges_config, of_a_recipe, of_lightning_cli])
def test_every_front_takes_every_option_of_workers_and_loader(
    front: Callable[[Path], EnergonMultiModalDataModule], tmp_path: Path
) -> None:
    settings = front(tmp_path).settings
    assert settings.workers == WORKERS
    assert settings.loader == LOADER
    WorkerConfig(rank=0, world_size=1, num_workers=0, **settings.workers)
    LoaderConfig(**settings.loader)


def test_an_option_is_given_to_a_recipe_in_one_place() -> None:
    from recipes.run_config import LoaderConfig as RecipeLoader

    with pytest.raises(ConfigError, match=r"loader\.options\.seed: .*data\.seed"):
        RecipeLoader(options={"seed": 3})


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
