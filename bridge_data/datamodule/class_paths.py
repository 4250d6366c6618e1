"""Objects by the name of their class: `class_path`, and the arguments `init_args`, as LightningCLI has them in YAML.

Reads such a mapping, and what its surroundings provide (tokenizer, sequence length). Returns the object. Arguments have
the types that the class says, read by jsonargparse; an argument that is such a mapping itself is made first. What is
provided is passed to parameters of its name that `init_args` leave out, also of the objects in there. Raises a
ConfigError that names the argument.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any, TypeAlias, TypeGuard

from bridge_data.errors import BridgeDataError, ConfigError, did_you_mean

ClassPath: TypeAlias = Mapping[str, Any]
"""An object that is not made yet: the `class_path` of its class, and the arguments for it, `init_args`."""


def is_class_path(value: Any) -> TypeGuard[ClassPath]:
    """Whether a value names its class."""
    return isinstance(value, Mapping) and isinstance(value.get("class_path"), str)


def check_class_path(spec: ClassPath, where: str, provided: Collection[str] = ()) -> None:
    """Import the class, and check the arguments; nothing is made. `provided` are names that may be left out.

    Raises:
        ConfigError: if there is no such class, or an argument is missing, unknown, or of another type.
    """
    _, given, parser, inner = _opened(spec, where, dict.fromkeys(provided, ""))
    for name, value in inner.items():
        check_class_path(value, f"{where}.init_args.{name}", provided)
    _parsed(parser, given, where)


def made_of(spec: ClassPath, where: str, provided: Mapping[str, Any] | None = None) -> Any:
    """The object, with what is `provided` (values that are None are not).

    Raises:
        ConfigError: as of `check_class_path`, or if it cannot be made.
    """
    provided = {name: value for name, value in (provided or {}).items() if value is not None}
    kind, given, parser, inner = _opened(spec, where, provided)
    made = {name: made_of(value, f"{where}.init_args.{name}", provided) for name, value in inner.items()}
    parameters = inspect.signature(kind).parameters
    filled = {name: value for name, value in provided.items() if name in parameters and name not in {**given, **inner}}
    try:
        arguments = vars(parser.instantiate(_parsed(parser, given, where)))["it"] if given else {}
        plain = {name: value for name, value in vars(arguments).items() if name in given} if given else {}
        return kind(**plain, **made, **filled)
    except BridgeDataError:
        raise
    except Exception as error:
        raise ConfigError(f"{where}: {spec['class_path']}: {type(error).__name__}: {error}") from error


def typed(value: Any, kind: Any, where: str) -> Any:
    """A plain value, of the type `kind`, read as an argument of a class is; unchanged if jsonargparse has no such type.

    Raises:
        ConfigError: if it is of another type.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--it", type=kind)
    except ValueError:
        return value
    try:
        return parser.instantiate(parser.parse_object({"it": value})).it
    except Exception as error:
        raise ConfigError(f"{where}: {reason(error)}") from error


def named_class(name: str, where: str) -> type:
    """The class `package.module.Name`.

    Raises:
        ConfigError: if there is none.
    """
    module_name, _, attribute = name.rpartition(".")
    try:
        if not (attribute and all(module_name.split("."))):
            raise ConfigError("expected package.module.Name")
        module = imported(module_name)
        try:
            found = getattr(module, attribute, None)
        except Exception as error:  # of what a module imports when it is asked for
            raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, type):
            classes = [one for one, value in vars(module).items() if isinstance(value, type)]
            raise ConfigError(f"{module_name} has no class {attribute!r}{did_you_mean(attribute, classes)}")
    except ConfigError as error:
        raise ConfigError(f"{where}: class_path={name}: {error}") from error
    return found


def imported(name: str) -> ModuleType:
    """The module of this name.

    Raises:
        ConfigError: if it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
        here = f"in {os.getcwd()} nor " if {"", os.getcwd()} & {*sys.path} else ""
        raise ConfigError(
            f"no module {error.name!r}: it is {'neither' if here else 'not'} {here}installed in {sys.prefix}; run it "
            "where `import` finds it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def reason(error: BaseException) -> str:
    """What is wrong, of a chain of errors of jsonargparse that repeat it level by level: the innermost, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(re.sub(r"\bit\.", "", str(error)).split())
    return re.sub(r"Expected a <class '([\w.]+)'>\. Got value: (.*)", r"expected \1, got \2", text)


def _opened(
    spec: ClassPath, where: str, provided: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], Any, dict[str, Any]]:
    """The class, its arguments, a parser for them, and those that are mappings of classes."""
    from jsonargparse import ArgumentParser

    if not isinstance(plain(spec.get("init_args") or {}), Mapping):
        raise ConfigError(f"{where}.init_args: expected arguments by name, got {spec['init_args']!r}")
    kind, given = named_class(spec["class_path"], where), arguments_of(spec)
    given = {name: value for name, value in given.items() if value is not None or name not in provided}
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError) as error:  # of a class in C
        raise ConfigError(f"{where}: {spec['class_path']}: its arguments are not known: {error}") from error
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            raise ConfigError(
                f"{where}: {spec['class_path']} has no argument {name!r}{did_you_mean(str(name), parameters)}"
            )
    inner = {name: given.pop(name) for name in [*given] if is_class_path(given[name])}
    parser = ArgumentParser(exit_on_error=False)
    skip = {*inner, *(name for name in provided if name not in given)} & {*parameters}
    try:
        parser.add_class_arguments(kind, "it", skip=skip, instantiate=False)
    except Exception as error:  # of a class whose signature jsonargparse cannot read
        raise ConfigError(f"{where}: {spec['class_path']}: {reason(error)}") from error
    return kind, given, parser, inner


def arguments_of(spec: ClassPath) -> dict[str, Any]:
    """The arguments in `init_args`, and those beside it, where jsonargparse puts what the command line overrides."""
    found = {name: plain(value) for name, value in plain(spec.get("init_args") or {}).items()}
    for name, value in spec.items():
        if name in ("class_path", "init_args"):
            continue
        outer, (*levels, last) = found, name.replace("init_args.", "").split(".")
        for level in levels:
            outer[level] = outer = dict(outer.get(level) or {})
        held = outer.get(last)
        outer[last] = {**held, **value} if is_class_path(held) and isinstance(value, Mapping) else value
    return found


def plain(value: Any) -> Any:
    """A value, or for a Namespace of jsonargparse the mapping that it is."""
    return value.as_dict() if hasattr(value, "as_dict") else value


def _parsed(parser: Any, given: Mapping[str, Any], where: str) -> Any:
    try:
        return parser.parse_object({"it": dict(given)})
    except Exception as error:
        raise ConfigError(f"{where}: {reason(error)}") from error
