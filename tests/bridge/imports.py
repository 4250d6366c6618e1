"""Lets the code of Megatron-Bridge be imported on a CPU, with `bridge_data` in place of Megatron-Energon.

Bridge imports packages that only machines with CUDA have. Stand-ins take their place, of which nothing can be called.
megatron-core has ways around them of its own, and keeps to those.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Never

from bridge_data.energon.replacing import replace_energon

ABSENT = ("transformer_engine", "modelopt", "nvidia_resiliency_ext")
"""The packages that Bridge imports whether or not they are there, and that need CUDA."""


def change_imports() -> None:
    """From now on this process imports `bridge_data` for Energon, and stand-ins for what needs CUDA."""
    replace_energon()
    stand_in_for_cuda()


def stand_in_for_cuda() -> None:
    """From now on this process imports stand-ins for what needs CUDA."""
    if not any(isinstance(finder, _AbsentPackages) for finder in sys.meta_path):
        sys.meta_path.append(_AbsentPackages())


class _AbsentPackages(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ABSENT or not _importer().startswith("megatron.bridge"):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: what it has is made when it is asked for."""


def _importer() -> str:
    """The module whose import statement is being carried out."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _absent_class(name, self.__name__)


class _AbsentClass(type):
    """A class that can be named and derived from, not called."""

    def __getattr__(cls, name: str) -> Any:
        return _absent_class(f"{cls.__qualname__}.{name}", cls.__module__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Never:
        raise RuntimeError(f"{cls.__module__}.{cls.__qualname__} needs CUDA")


def _absent_class(name: str, module: str) -> type:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(name)
    return _AbsentClass(name, (), {"__module__": module})
