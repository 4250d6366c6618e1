"""`bridge_data` in place of Megatron-Energon, for code that imports `megatron.energon` and cannot be edited.

Enters: what such code may trust. Leaves: a process, and workers of its loaders, in which `megatron.energon`, and each
of its modules with a counterpart in `bridge_data.energon`, has the counterpart's names; and the `Replacement` of it. So
the task encoders of an installed Megatron-Bridge, and the examples of Megatron-LM, work with our loaders. Where
a default differs from Energon's in a way that its users rely on, they get Energon's.
"""

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.options import check_flag, checked_names
from bridge_data.replacement import Replacement, replacement, set_replacement
from bridge_data.topology import WorkerConfig

TRUST_CODE_VARIABLE = "BRIDGE_DATA_TRUST_DATASET_CODE"
TRUSTED_MODULES_VARIABLE = "BRIDGE_DATA_TRUSTED_MODULES"

ENERGON_VERSION = "7.4.1"
"""The release whose names and behaviour this package has."""

_THEIRS, _OURS = "megatron.energon", "bridge_data.energon"
_TRUTHS = {"1": True, "true": True, "0": False, "false": False, "": False}


def replace_energon(
    *,
    trust_dataset_code: bool | None = None,
    trusted_modules: Collection[str] | None = None,
    gathers_states: bool | None = None,
) -> None:
    """From now on, `import megatron.energon` imports `bridge_data.energon` in this process, those it forks, and the
    workers of its loaders; and what the program opens may be trusted without a word in its code.

    Call it before anything imports Energon. A second call may leave the settings out, or repeat them.

    Args:
        trust_dataset_code: whether to run Python files next to the data (`sample_loader.py`), as Energon does. None: as
            the environment variable `BRIDGE_DATA_TRUST_DATASET_CODE` says, 1 or 0; 0 if it is not set.
        trusted_modules: modules (and their submodules) from which YAML files may name classes and functions. None:
            those in the environment variable `BRIDGE_DATA_TRUSTED_MODULES`, separated by commas.
        gathers_states: see `get_savable_loader`. True by default: training code of Megatron calls `save_state_rank` on
            all data-parallel ranks together.

    Raises:
        ConfigError: if Energon itself has been imported, if an earlier call had other settings, or if a setting or
            variable is wrong.
    """
    before = replacement()
    settings = before if before.as_energon else _of_environment()
    if trusted_modules is not None:
        given = checked_names("replace_energon: trusted_modules", trusted_modules)
        settings = dataclasses.replace(settings, trusted_modules=given)
    if trust_dataset_code is not None:
        check_flag("replace_energon: trust_dataset_code", trust_dataset_code)
        settings = dataclasses.replace(settings, trust_dataset_code=bool(trust_dataset_code))
    if gathers_states is not None:
        check_flag("replace_energon: gathers_states", gathers_states)
        settings = dataclasses.replace(settings, gathers_states=bool(gathers_states))
    if before.as_energon and settings != before:
        raise ConfigError(
            f"replace_energon: got {_shown(settings)}, but it has been called with {_shown(before)}, and data may have "
            "been opened since: call it once, where the program starts"
        )
    install(settings)


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


def _shown(settings: Replacement) -> str:
    shown = ("trust_dataset_code", "trusted_modules", "gathers_states")
    return ", ".join(f"{name}={getattr(settings, name)}" for name in shown)


def _of_environment() -> Replacement:
    """The settings of a call without arguments."""
    text = os.environ.get(TRUST_CODE_VARIABLE, "").lower()
    if text not in _TRUTHS:
        raise ConfigError(f"the environment variable {TRUST_CODE_VARIABLE}={text!r}: expected 1 or 0")
    listed = [name.strip() for name in os.environ.get(TRUSTED_MODULES_VARIABLE, "").split(",")]
    found = tuple(name for name in listed if name)
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"the environment variable {TRUSTED_MODULES_VARIABLE}: {name!r} is not the name of a module; expected "
                "names separated by commas, such as my_samples,my_package.data"
            )
    return Replacement(
        replaces_imports=True,
        as_energon=True,
        trust_dataset_code=_TRUTHS[text],
        trusted_modules=found,
        gathers_states=True,
    )


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
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        try:
            return getattr(importlib.import_module(self.__name__.replace(_THEIRS, _OURS, 1)), name)
        except (AttributeError, ImportError):
            everything = importlib.import_module("bridge_data")
            if not hasattr(everything, name):
                raise
            return getattr(everything, name)
