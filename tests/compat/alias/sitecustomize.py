"""`megatron.energon` and its submodules are ours in every Python process that finds this file: tests, workers, servers.

A name that is left out here is a class that cannot be made, so that the other tests of a file that imports it run. What
Energon trusts without being asked is trusted: the tests' own modules, code beside data, and parts that are pickles. A
job has as many lanes as Energon has workers, not eight a rank.
"""

import functools
import importlib
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import megatron
import stand_ins  # noqa: F401 - it is beside this file, and installs itself

from bridge_data.decode import SampleDecoder
from bridge_data.energon import module_paths
from bridge_data.replacement import Replacement, set_replacement
from bridge_data.topology import WorkerConfig

THEIRS = "megatron.energon"
OURS = "bridge_data.energon"


class _Kind(type):
    """Classes that stand for names left out."""

    def __getitem__(cls, item: Any) -> Any:
        return cls


class LeftOut(metaclass=_Kind):
    """A name left out."""

    reason = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(self.reason)


TRUST = {"trusted_modules": ("tests", "megatron.bridge"), "trust_dataset_code": True}
TRUSTING = ("get_train_dataset", "get_val_dataset", "get_val_datasets", "load_dataset", "get_dataset_from_config")


class EnergonWorkers(WorkerConfig):
    """As many lanes as workers."""

    def __post_init__(self, *ignored: Any) -> None:
        is_given = bool(self.num_lanes)
        self.num_lanes = self.num_lanes or self.world_size * max(1, self.num_workers)
        super().__post_init__(*ignored)
        self.num_lanes_given = is_given


class PickleDecoder(SampleDecoder):
    """With pickles."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"handlers": {"pkl": pickle.loads}} | settings)


def adapted(name: str, value: Any) -> Any:
    """`value`, with the settings that the tests expect, and with what the caller would have to trust."""
    if name == "WorkerConfig":
        return EnergonWorkers
    if name in TRUSTING:
        return functools.wraps(value)(functools.partial(value, **TRUST))
    if name == "SampleDecoder":
        return PickleDecoder
    if inspect.isclass(value) and name.endswith("TaskEncoder") and type(value.decoder).__name__ == "SampleDecoder":
        value.decoder._user_handlers.setdefault("pkl", pickle.loads)
    return value


class Alias(ModuleType):
    """One module of Energon."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.ours = importlib.import_module(name.replace(THEIRS, OURS))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        try:
            return adapted(name, getattr(self.ours, name))
        except (AttributeError, ImportError) as error:
            value = type(name, (LeftOut,), {"reason": str(error)})
            setattr(self, name, value)
            return value


set_replacement(Replacement(replaces_imports=True, as_energon=True))
megatron.energon = sys.modules[THEIRS] = Alias(THEIRS)
for path in sorted(module_paths.PATHS):  # a package before its modules
    name = f"{THEIRS}.{path}"
    sys.modules[name] = Alias(name)
    parent, _, last = name.rpartition(".")
    if last not in ("edataclass",):  # the decorator has the name of its module
        setattr(sys.modules[parent], last, sys.modules[name])
