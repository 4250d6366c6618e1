"""Empty stand-ins for packages that are not installed, most of them only there with CUDA, so that files of tests and
Megatron-Bridge's modules import without them."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PACKAGES = (
    "transformer_engine",
    "transformer_engine_torch",
    "apex",
    "flash_attn",
    "mamba_ssm",
    "causal_conv1d",
    "modelopt",
    "nvidia_resiliency_ext",
    "nemo_run",
    "torchvision",
    "triton",
    "flashoptim",
    "hyper_connections",
)


class Nothing(type):
    """Classes that can be subclassed, called and asked for anything."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (Decorator,), {})

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        is_decorator = len(arguments) == 1 and not settings and callable(arguments[0])
        return arguments[0] if is_decorator else super().__call__()


class Decorator:
    """What a stand-in that was called with settings makes: it leaves a function as it is."""

    def __call__(self, decorated: Any) -> Any:
        return decorated


class Empty(ModuleType):
    """A module that has every name."""

    __version__ = "2.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (Decorator,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else has found, of these packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(Finder())
