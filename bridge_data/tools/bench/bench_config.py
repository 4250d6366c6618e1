"""What is measured: data, task encoder (also by its name on a command line), and the settings of the loader."""

import dataclasses
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from bridge_data.energon.dataset_loaders import Data
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import get_train_dataset
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_loader
from bridge_data.task import TaskEncoder
from bridge_data.topology import WorkerConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """A run of training data, as `get_train_dataset` and `get_loader` have it, for `seconds` or, if that is given, for
    `num_batches`. `step_s` is how long the trainer does not ask for a batch after each, as it has a step to do.

    Raises:
        ConfigError: if a number is out of range.
    """

    path: Data
    split_part: str = "train"
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None
    num_workers: int = 2
    batch_size: int | None = 16
    packing_buffer_size: int | None = None
    shuffle_buffer_size: int | None = 100
    max_samples_per_sequence: int | None = 100
    prefetch_factor: int = 2
    pin_memory: bool = False
    trusted_modules: tuple[str, ...] = ()
    trust_dataset_code: bool = False
    seconds: float = 10.0
    num_batches: int | None = None
    step_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds:g}: expected more than 0")
        if self.num_batches is not None and self.num_batches < 1:
            raise ConfigError(f"num_batches={self.num_batches}: expected at least 1")
        if not self.step_s >= 0:
            raise ConfigError(f"step_s={self.step_s:g}: expected 0 or more")

    def dataset(self) -> LaneDataset:
        """The data set, opened.

        Raises:
            ConfigError: for wrong settings. DatasetError: if the data cannot be opened.
        """
        return get_train_dataset(
            self.path,
            split_part=self.split_part,
            worker_config=WorkerConfig(0, 1, self.num_workers),
            batch_size=self.batch_size,
            packing_buffer_size=self.packing_buffer_size,
            shuffle_buffer_size=self.shuffle_buffer_size,
            max_samples_per_sequence=self.max_samples_per_sequence,
            task_encoder=self.task_encoder,
            trusted_modules=self.trusted_modules,
            trust_dataset_code=self.trust_dataset_code,
        )

    def loader(self, dataset: LaneDataset) -> SavableDataLoader:
        """A loader of it."""
        return get_loader(dataset, prefetch_factor=self.prefetch_factor, pin_memory=self.pin_memory)


def named_encoder(name: str) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder called `name`. Its module is looked for in the current folder, too.

    Raises:
        ConfigError: if there is none of this name, or it cannot be made.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"task encoder {name!r}: expected package.module:Name, such as my_training.encoders:Captions")
    module = _imported(module_name)
    try:
        made = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"task encoder {name!r}: {module.__file__} has no {attribute}; {_offers(module)}") from None
    if not isinstance(made, TaskEncoder) and callable(made):
        try:
            made = made()
        except Exception as error:
            raise ConfigError(
                f"task encoder {name!r}: {attribute}() failed: {type(error).__name__}: {error}. If it needs arguments, "
                "name a function without any that returns the task encoder"
            ) from error
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"task encoder {name!r}: got {made!r}, which is no TaskEncoder; {_offers(module)}")
    return made


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
        raise ConfigError(
            f"no module {error.name!r}: it is neither in {folder} nor installed in {sys.prefix}; run the command where "
            "`import` finds it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _offers(module: ModuleType) -> str:
    """What there is in a module."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, TaskEncoder)
        or (isinstance(value, type) and issubclass(value, TaskEncoder) and value.__module__ == module.__name__)
    ]
    return f"there is {', '.join(names)}" if names else "there is no task encoder in it"
