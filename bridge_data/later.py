"""Torch, NumPy and Pillow, imported when something of them is first used.

Enters: nothing. Leaves: stand-ins for the modules. What prepares data, or only names the classes of samples, needs none
of them, and torch alone takes longer to import than most commands to run; Pillow is for those who have images.
Annotations such as `torch.Tensor` still mean the real classes, also to `typing.get_type_hints`. An attribute costs what
it costs of the module, but for the first time; a function, half a microsecond more.
"""

import importlib
import sys
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
    import numpy
    import torch
    from PIL import Image
else:
    numpy = _Later("numpy")
    torch = _Later("torch")
    Image = _Later("PIL.Image")


def is_tensor(value: Any) -> "TypeGuard[torch.Tensor]":
    """Whether `value` is a tensor; to know that it is none, torch is not imported."""
    return "torch" in sys.modules and isinstance(value, torch.Tensor)


__all__ = ["Image", "is_tensor", "numpy", "torch"]
