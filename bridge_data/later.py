"""Lazy imports: torch, NumPy, Pillow, nanoarrow, PyYAML and the public names of our packages are imported on first use.

Most commands that prepare data need none of them, and importing torch takes longer than most commands run. Annotations
such as `torch.Tensor` still resolve to the real classes, also in `typing.get_type_hints`. Classes, submodules and
dtypes are cached on first use; calling a function takes half a microsecond more than with a normal import.
"""

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard


class LaterModule(ModuleType):
    """A stand-in for the module of its name, which is imported when something of it is first used."""

    _module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        module = self._module
        if module is None:
            module = self._module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        is_constant = isinstance(value, (type, ModuleType)) or type(value).__module__ == "torch"  # such as a dtype
        if is_constant:  # functions may be monkeypatched, so they are not cached
            setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import nanoarrow
    import numpy
    import torch
    import yaml
    from PIL import Image
else:
    nanoarrow = LaterModule("nanoarrow")
    numpy = LaterModule("numpy")
    torch = LaterModule("torch")
    yaml = LaterModule("yaml")
    Image = LaterModule("PIL.Image")


def is_tensor(value: Any) -> "TypeGuard[torch.Tensor]":
    """Whether `value` is a tensor, without importing torch."""
    return "torch" in sys.modules and isinstance(value, torch.Tensor)


@functools.lru_cache(maxsize=256)
def is_tensor_class(kind: type) -> bool:
    """Whether a class is that of a tensor, without importing torch. It is looked up once for each class, so it costs
    nothing in every batch."""
    return "torch" in sys.modules and issubclass(kind, torch.Tensor)


@functools.cache
def torch_itself() -> ModuleType:
    """Torch, imported: for functions that are called in every batch."""
    return importlib.import_module("torch")


def profiler() -> Callable[[], bool] | None:
    """What tells whether torch's profiler records this thread, to be asked in every batch; None while torch is not
    imported: nothing is recorded then."""
    if "torch" not in sys.modules:
        return None
    is_recording: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
    return is_recording


def names_of(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the `__all__` of a package, for lazy imports of its public names, and of its modules.

    The names are those that its source imports for type checkers, each as `from module import name as name`: one list
    for them and for Python.

    Raises:
        ImportError: where the package was installed without its source.
    """
    spec = sys.modules[package].__spec__
    source = None if spec is None else spec.loader.get_source(package)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(
            f"{package}: its source is missing, which says what it exports: install it with its .py files"
        )
    module_of = {name: module for module, name in _IMPORT_AS_ITSELF.findall(source)}

    def find(name: str) -> Any:
        if name in module_of:
            value = getattr(_imported(module_of[name], f"{package}.{name}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, sorted(module_of)


def _imported(module: str, needed_by: str) -> ModuleType:
    """A module of ours. One that needs a plug-in which is not installed is an error that says so."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        with importlib.import_module("bridge_data.extensions").importing(needed_by, module):  # it imports this one
            raise


_IMPORT_AS_ITSELF = re.compile(r"^    from (\S+) import (?:\(\s*)?(\w+) as \2\b", re.MULTILINE)

__all__ = [
    "Image",
    "LaterModule",
    "is_tensor",
    "is_tensor_class",
    "names_of",
    "nanoarrow",
    "numpy",
    "profiler",
    "torch",
    "torch_itself",
    "yaml",
]
