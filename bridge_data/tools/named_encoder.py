"""Finds the user's task encoder by its name, `package.module:Name`, as given to commands."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.task import TaskEncoder


def named_encoder(name: str) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder called `name`, or made by the class or function of this name without arguments.

    Raises:
        ConfigError: if no such name exists, or the encoder cannot be made.
    """
    module, made = find_named(name)
    if not isinstance(made, TaskEncoder) and callable(made):
        try:
            made = made()
        except Exception as error:
            raise ConfigError(
                f"task encoder {name!r}: {name.rpartition(':')[2]}() failed: {type(error).__name__}: {error}. If it "
                "needs arguments, name a function without any that returns the task encoder"
            ) from error
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"task encoder {name!r}: got {made!r}, which is no TaskEncoder; {_offers(module)}")
    return made


def find_named(name: str) -> tuple[ModuleType, Any]:
    """The module of `package.module:Name`, which may be in the current folder, and its attribute `Name`.

    Raises:
        ConfigError: if either does not exist.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"task encoder {name!r}: expected package.module:Name, such as my_training.encoders:Captions")
    module = _imported(module_name)
    try:
        return module, getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"task encoder {name!r}: {module.__file__} has no {attribute}; {_offers(module)}") from None


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
        raise ConfigError(
            f"no module {error.name!r}: it is neither in {folder} nor installed in {sys.prefix}; run the command where "
            "`import` finds it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _offers(module: ModuleType) -> str:
    """The task encoders in a module, for error messages."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, TaskEncoder)
        or (isinstance(value, type) and issubclass(value, TaskEncoder) and value.__module__ == module.__name__)
    ]
    return f"there is {', '.join(names)}" if names else "there is no task encoder in it"
