"""`bridge_data` in place of Megatron-Energon, for code that imports `megatron.energon` and cannot be edited.

Enters: nothing. Leaves: a process in which `megatron.energon`, and each of its modules with a counterpart in
`bridge_data.energon`, has the counterpart's names. So the task encoders of an installed Megatron-Bridge work with the
loaders of this package. Where a default differs from Energon's in a way that its users rely on, they get Energon's.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.topology import WorkerConfig

_THEIRS, _OURS = "megatron.energon", "bridge_data.energon"


def replace_energon() -> None:
    """From now on, `import megatron.energon` imports `bridge_data.energon` in this process and those it forks.

    Call it before anything imports Energon; a second call does nothing.

    Raises:
        ConfigError: if Energon itself has been imported.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if _THEIRS in sys.modules:
        raise ConfigError(
            "megatron.energon itself has been imported already, so bridge_data cannot replace it: call "
            "bridge_data.energon.replace_energon() before the imports that need it"
        )
    sys.meta_path.insert(0, _Finder())


class EnergonWorkerConfig(WorkerConfig):
    """A `WorkerConfig` with as many lanes as the job has workers, at least one per rank. So the number of all workers
    decides the order, as in Energon: 1 rank with 4 workers has the global batches of 2 ranks with 2."""

    def _default_lanes_per_rank(self) -> int:
        return max(1, self.num_workers)


_DEFAULTS: dict[str, Any] = {"WorkerConfig": EnergonWorkerConfig}
"""What has other defaults for code that imports it from `megatron.energon`."""


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _THEIRS and not name.startswith(f"{_THEIRS}."):
            return None
        try:
            found = importlib.util.find_spec(name.replace(_THEIRS, _OURS, 1))
        except ModuleNotFoundError:  # its package does not exist either
            found = None
        if found is None:
            raise ModuleNotFoundError(f"bridge_data.energon has no counterpart of {name}", name=name)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Replacement(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


class _Replacement(ModuleType):
    """The names of the module of `bridge_data.energon` with the same path, and those of `bridge_data`, which modules of
    Energon import from one another."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        try:
            return getattr(importlib.import_module(self.__name__.replace(_THEIRS, _OURS, 1)), name)
        except (AttributeError, ImportError):
            everything = importlib.import_module("bridge_data")
            if not hasattr(everything, name):
                raise
            return getattr(everything, name)
