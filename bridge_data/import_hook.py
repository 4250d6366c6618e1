"""Imports of `megatron.energon`, answered by `bridge_data.energon`, in a process whose `Replacement` says so.

Each module of `megatron.energon` that has a counterpart of the same path in `bridge_data.energon` gets the names of
that, which is imported when the first of them is asked for. Raises `ConfigError` if Energon itself has been imported.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.replacement import ENERGON_VERSION, Replacement, replacement, set_replacement

_THEIRS, _OURS = "megatron.energon", "bridge_data.energon"


def replace_imports() -> None:
    """Replace only the imports of Energon, for a part of a program that was written for this package.

    Raises:
        ConfigError: if Energon itself has been imported.
    """
    if not replacement().replaces_imports:
        install(Replacement(replaces_imports=True))


def install(settings: Replacement) -> None:
    """Let these be the settings of this process, also one of those that the trainer starts.

    Raises:
        ConfigError: if Energon itself has been imported.
    """
    if settings.replaces_imports and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        if _THEIRS in sys.modules:
            raise ConfigError(
                "megatron.energon itself has been imported already, so bridge_data cannot replace it: call "
                "bridge_data.energon.replace_energon() before the imports that need it"
            )
        sys.meta_path.insert(0, _Finder())
    set_replacement(settings)


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

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Tell `importlib.metadata` of the release of Energon whose names are here: programs ask for its version."""
        if (context.name or "").lower().replace("_", "-") == "megatron-energon":
            yield _Energon()

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandIn(spec.name)
        if spec.name == _THEIRS:
            vars(module)["__version__"] = ENERGON_VERSION
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


class _Energon(Distribution):
    """What `importlib.metadata` finds as `megatron-energon`."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: megatron-energon\nVersion: {ENERGON_VERSION}\n"

    def locate_file(self, path: Any) -> Path:
        return Path(path)


class _StandIn(ModuleType):
    """The names of the module of `bridge_data.energon` with the same path, and those of `bridge_data`, which modules of
    Energon import from one another."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        defaults = importlib.import_module(f"{_OURS}.replacing").DEFAULTS
        if name in defaults:
            return defaults[name]
        try:
            return getattr(importlib.import_module(self.__name__.replace(_THEIRS, _OURS, 1)), name)
        except (AttributeError, ImportError):
            everything = importlib.import_module("bridge_data")
            if not hasattr(everything, name):
                raise
            return getattr(everything, name)
