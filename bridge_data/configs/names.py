"""Objects that the user names: `package.module:Name`, also of modules in the current folder."""

import os
import sys
from types import ModuleType
from typing import Any

from bridge_data.datamodule.class_paths import imported
from bridge_data.errors import ConfigError


def find_named(name: str, what: str) -> Any:
    """The attribute `Name` of `package.module:Name`, a module that may be in the current folder; `what` it is.

    Raises:
        ConfigError: if either does not exist.
    """
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise ConfigError(f"{what} {name!r}: expected package.module:Name, such as my_training.encoders:Captions")
    module = import_here(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = ", ".join(sorted(one for one in vars(module) if not one.startswith("_")))
        raise ConfigError(f"{what} {name!r}: {module.__file__} has no {attribute}; it has {names}") from None


def look_here() -> str:
    """Let modules be found in the current folder, where the user's code is, as a command does; return it."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


def import_here(name: str) -> ModuleType:
    """The module of this name, which may be in the current folder, where the user's code is.

    Raises:
        ConfigError: if it cannot be imported.
    """
    look_here()
    return imported(name)
