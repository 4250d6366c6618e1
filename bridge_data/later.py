"""Torch, NumPy, Pillow and nanoarrow, and the names of our packages, imported when something of them is first used.

Enters: nothing. Leaves: stand-ins for the modules. What prepares data, or only names the classes of samples, needs none
of them, and torch alone takes longer to import than most commands to run; the last two are for those who have images.
Annotations such as `torch.Tensor` still mean the real classes, also to `typing.get_type_hints`. An attribute costs what
it costs of the module, but for the first time; a function, half a microsecond more.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard


class _Later(ModuleType):
    """Stands for the module of its name."""

    _module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        module = self._module
        if module is None:
            module = self._module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        if isinstance(value, (type, ModuleType)):  # functions may be patched, and are looked up anew
            setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import nanoarrow
    import numpy
    import torch
    from PIL import Image
else:
    nanoarrow = _Later("nanoarrow")
    numpy = _Later("numpy")
    torch = _Later("torch")
    Image = _Later("PIL.Image")


def is_tensor(value: Any) -> "TypeGuard[torch.Tensor]":
    """Whether `value` is a tensor; to know that it is none, torch is not imported."""
    return "torch" in sys.modules and isinstance(value, torch.Tensor)


def names_of(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `places` has its public names, as words, by the module that has them. Its modules
    are attributes, too."""
    module_of = {name: module for module, names in places.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in module_of:
            value = getattr(importlib.import_module(module_of[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


__all__ = ["Image", "is_tensor", "names_of", "nanoarrow", "numpy", "torch"]
