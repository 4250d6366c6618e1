"""Every front takes every option of a run, by the fields of `RunOptions` alone, and passes it on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from bridge_data import DefaultTaskEncoder, EnergonDatasetConfig, EnergonMultiModalDataModule
from bridge_data.configs import DataConfig
from bridge_data.datamodule import DatasetBuildContext, EnergonDatasetBuilder
from bridge_data.errors import log_exception, reraise_exception
from bridge_data.run_options import Ends, StartMethod, option_fields
from tests.datamodule.parts import make_module

FIXED = {"num_workers", "pin_memory", "packing", "planning_window"}
"""Options with a default of Bridge's own in the DataModule, or that depend on others."""
OBJECTS = {"cache_pool", "memo", "limits", "sample_type", "field_map", "workers"}
"""Options whose values are objects, which YAML has in other forms (see `test_lightning_cli`)."""


def own_value(field: "dataclasses.Field[Any]") -> Any:
    """A value of a field that is allowed, and not its default."""
    value = field.default
    if field.name in CHOICES:
        return next(one for one in CHOICES[field.name] if one != value)
    if callable(value):
        return log_exception if value is reraise_exception else reraise_exception
    if isinstance(value, bool):
        return not value
    if value is not None:
        return value + 1
    examples = {str: f"{field.name}/file", bool: True, int: 7, float: 7.5}
    return next(example for kind, example in examples.items() if kind in get_args(field.type))


CHOICES = {"start_method": get_args(StartMethod), "ends": get_args(Ends), "trusted_modules": [["mine"]]}
CHOICES |= {"split_part": ["train", "half"]}
GIVEN = {
    name: own_value(field)
    for part, fields in option_fields().items()
    for name, field in fields.items()
    if part != "trainer" and name not in FIXED | OBJECTS
}


def of_the_module(tmp_path: Path) -> EnergonMultiModalDataModule:
    return make_module(str(tmp_path), **GIVEN)


def of_bridges_config(tmp_path: Path) -> EnergonMultiModalDataModule:
    own = {field.name for field in dataclasses.fields(EnergonDatasetConfig)}
    config = EnergonDatasetConfig(
        path=str(tmp_path),
        seq_length=8,
        task_encoder=DefaultTaskEncoder(),
        **{name: value for name, value in GIVEN.items() if name in own},
        dataset_kwargs={name: value for name, value in GIVEN.items() if name not in own},
    )
    config.finalize()
    return EnergonDatasetBuilder(config).datamodule(DatasetBuildContext(train_samples=1, valid_samples=1))


def of_a_config(tmp_path: Path) -> EnergonMultiModalDataModule:
    config = DataConfig(path=str(tmp_path), task_encoder=DefaultTaskEncoder(), options=GIVEN)
    return config.build()


def of_lightning_cli(tmp_path: Path) -> EnergonMultiModalDataModule:
    from tests.datamodule.test_lightning_cli import run

    data = {
        "path": str(tmp_path),
        "task_encoder": {"class_path": "bridge_data.DefaultTaskEncoder"},
        **{name: f"{value.__module__}.{value.__name__}" if callable(value) else value for name, value in GIVEN.items()},
    }
    module: EnergonMultiModalDataModule = run(tmp_path / "run.yaml", data).datamodule
    return module


@pytest.mark.parametrize("front", [of_the_module, of_bridges_config, of_a_config, of_lightning_cli])
def test_every_front_takes_every_option_of_data_workers_and_loader(
    front: Callable[[Path], EnergonMultiModalDataModule], tmp_path: Path
) -> None:
    options = front(tmp_path).options
    assert {name: options.get(name) for name in GIVEN} == GIVEN
