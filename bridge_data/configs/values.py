"""The values of settings: arguments of the DataModule as a YAML has them, with `key=value` that override these.

Reads plain data. Returns arguments of the types that the DataModule has for them; classes that are named are imported
and their arguments checked, but those that are `MADE_LATE` are not made. Writes arguments as plain data again, with
paths that hold from anywhere. Raises `ConfigError` with the file and the setting.
"""

import dataclasses
import enum
import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeAlias

from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.datamodule.class_paths import (
    arguments_of,
    check_class_path,
    is_class_path,
    named_class,
    plain,
    reason,
)
from bridge_data.errors import BridgeDataError, ConfigError, did_you_mean
from bridge_data.run_options import option_fields
from bridge_data.storage import is_remote
from bridge_data.storage.locations import absolute, with_variables

DATA_MODULE = "bridge_data.EnergonMultiModalDataModule"

FIELDS = ("path", "tokenizer", "image_processor", "task_encoder")
"""Arguments of the DataModule that are fields of a `DataConfig`; all others are its options."""

PROVIDED = ("tokenizer", "image_processor", "seq_length")
"""What the DataModule passes to the task encoder that it makes of a `ClassPath`."""

MADE_LATE = ("tokenizer", "image_processor", "task_encoder", "validation_task_encoder", "cache_pool")
"""Arguments that may be a `ClassPath` until `build`."""

_PATH_TYPE = re.compile(r"\bPath(Like)?\b")
_PATH_NAME = re.compile(r"(.*_|dir|file)?(path|folder|dir|file|root|tokenizer|processor)s?")
_WRITTEN_TO = ("ledger_path", "memo", "cache_pool")
"""Settings that are paths to write to, or have such: variables are replaced there (see `storage.output`)."""
_VARIABLE = re.compile(r"\$(\{[^{}]*\}|[A-Za-z_]\w*)")
_TEXTS = ("where", "path")
"""Settings whose value in `key=value` is the text itself."""

_ChangePath: TypeAlias = Callable[[str, str, bool], str]
"""From the name of a setting, a path that it has, and whether its type says that it is one, to the path instead."""


def parsed(given: Mapping[str, Any], overrides: Sequence[str], where: str, *, takes_any: bool) -> dict[str, Any]:
    """The settings, overridden, of the types that the DataModule has for them. Classes that are named are imported, and
    their arguments checked, but none of those that are made late."""
    types = _types()
    given = {name: _by_class(name, value) for name, value in given.items()}
    given = functools.reduce(functools.partial(_with_override, known=[*types], takes_any=takes_any), overrides, given)
    for name in given:
        if name not in types and not takes_any:
            raise ConfigError(f"{where}: data has no setting {name!r}{did_you_mean(str(name), types)}")
    named = {name: value for name, value in given.items() if name in MADE_LATE and is_class_path(value)}
    for name in MADE_LATE[:-1]:
        check_made_late(name, given.get(name), f"{where}: data.{name}")
    for name, value in named.items():
        check_class_path(value, f"{where}: data.{name}", PROVIDED if name.endswith("task_encoder") else ())
    with_paths(given, argument_types(DATA_MODULE), functools.partial(_check_variables, where))
    known = {name: given[name] for name in given if name in types and name not in named}
    return {**given, **_typed(known, f"{where}: data")}


def in_yaml(name: str, value: Any) -> Any:
    """A setting as a YAML has it.

    Raises:
        ConfigError: if it has none.
    """
    value = plain(value)
    if isinstance(value, enum.Enum):
        value = value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: in_yaml(f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [in_yaml(name, inner) for inner in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, type | FunctionType) and "<" not in value.__qualname__:
        if value.__module__ == "__main__":
            raise ConfigError(f"{name}: {value.__qualname__} is of the script itself; move it to a module")
        return f"{value.__module__}.{value.__qualname__}"
    raise ConfigError(f"{name}: a YAML cannot hold a {type(value).__name__}; name it, by a path or by its class_path")


def with_paths(given: Mapping[str, Any], types: Mapping[str, str], change: _ChangePath, outer: str = "") -> Any:
    """Settings with the paths in them changed, also in arguments of classes that they name: those whose type, in
    `types`, is a path, and texts named like one."""

    def changed(name: str, value: Any) -> Any:
        value, full_name = plain(value), f"{outer}{name}"
        if is_class_path(value):
            own = argument_types(value["class_path"])
            arguments = with_paths(arguments_of(value), own, change, f"{full_name}.init_args.")
            return {"class_path": value["class_path"]} | ({"init_args": arguments} if arguments else {})
        if isinstance(value, Mapping):
            return with_paths(value, {}, change, f"{full_name}.")
        if isinstance(value, list | tuple):
            return [changed(name, one) for one in value]
        is_declared = bool(_PATH_TYPE.search(types.get(name, "")))
        if isinstance(value, str) and (is_declared or _PATH_NAME.fullmatch(name)):
            return change(full_name, value, is_declared)
        return value

    return {name: changed(str(name), value) for name, value in given.items()}


def argument_types(class_name: str) -> dict[str, str]:
    """The types of the arguments of a class, as text."""
    if class_name == DATA_MODULE:
        return {name: str(kind) for name, kind in _types().items()} | {"path": "Path"}
    kind = named_class(class_name, "data")
    try:
        return {name: str(one.annotation) for name, one in inspect.signature(kind).parameters.items()}
    except (TypeError, ValueError):  # of a class in C
        return {}


def from_anywhere(name: str, path: str, is_declared: bool) -> str:
    """A path that is the same one from any folder; a URL, or a text that may mean something else, unchanged."""
    if is_remote(path):
        return path
    if name.partition(".")[0] in _WRITTEN_TO:
        path = with_variables(path)
    return absolute(path) if is_declared or os.path.exists(os.path.expanduser(path)) else path


def _check_variables(where: str, name: str, path: str, is_declared: bool) -> str:
    """Refuse a path with a variable such as `$DATA` or `${DATA}`, which nobody replaces."""
    is_replaced = name.partition(".")[0] in _WRITTEN_TO
    if _VARIABLE.search(path) and not is_replaced and not os.path.exists(path):
        raise ConfigError(
            f"{where}: data.{name}: {path}: variables are not replaced in a config, as LightningCLI does not do it "
            f'either; write the value, or let the shell replace it: data.{name}="{path}" on the command line'
        )
    return path


def _by_class(name: str, value: Any) -> Any:
    """A task encoder that is named by its class alone, as LightningCLI takes it, by its `class_path`."""
    return {"class_path": value} if name.endswith("task_encoder") and isinstance(value, str) else value


def check_made_late(name: str, value: Any, where: str) -> None:
    """Refuse what no tokenizer, image processor or task encoder can be made of."""
    from bridge_data.task import TaskEncoder

    is_encoder = name.endswith("task_encoder")
    if value is not None and not is_class_path(value) and (is_encoder or not isinstance(value, str)):
        expected = "class_path, and init_args," if is_encoder else "a folder, a hub id, or class_path and init_args,"
        raise ConfigError(f"{where}: expected {expected} got {value!r}")
    if is_encoder and is_class_path(value) and not issubclass(named_class(value["class_path"], where), TaskEncoder):
        raise ConfigError(f"{where}: class_path={value['class_path']}: expected a class derived from TaskEncoder")


def _typed(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arguments of the DataModule, of its types."""
    from jsonargparse import ArgumentParser

    parser, types = ArgumentParser(exit_on_error=False), _types()
    for name in given:
        parser.add_argument(f"--{name}", type=types[name])
    try:
        return dict(vars(parser.instantiate(parser.parse_object(dict(given)))))
    except BridgeDataError:
        raise
    except Exception as error:  # of jsonargparse, or of a class that is made
        found = re.search(r'Parser key "([\w.]+)"', str(error))
        raise ConfigError(
            f"{where}.{found.group(1)}: {reason(error)}" if found else f"{where}: {reason(error)}"
        ) from error


def _with_override(given: Mapping[str, Any], text: str, *, known: Sequence[str], takes_any: bool) -> dict[str, Any]:
    """The settings with `key=value`."""
    key, is_one, value = text.partition("=")
    name, *inner = key.removeprefix("--").removeprefix("data.").removeprefix("init_args.").split(".")
    if not is_one or not name:
        raise ConfigError(f"{text}: expected KEY=VALUE, such as micro_batch_size=4")
    if not value.strip():
        raise ConfigError(f"{text}: has no value (was a variable of the shell empty?); {name}=null is none")
    if name not in known and not takes_any:
        raise ConfigError(f"{text}: the data of a run have no setting {name!r}{did_you_mean(name, known)}")
    parsed = value if name in _TEXTS and value != "null" else parse_yaml_file(value.encode(), text)
    parsed = parsed if inner else _by_class(name, parsed)
    changed, level = dict(given), (name, *inner)
    outer = changed
    for one in level[:-1]:
        held = outer.get(one)
        if held is not None and not isinstance(held, Mapping):
            raise ConfigError(f"{text}: {one} is no mapping, it is {held!r}")
        outer[one] = outer = dict(held or {})
    outer[level[-1]] = parsed
    return changed


def _types() -> dict[str, Any]:
    """The type of each argument of the DataModule, by name, for jsonargparse."""
    from bridge_data.encoders.encoder_config import MultiModalSampleConfig

    own: dict[str, Any] = dict.fromkeys((*FIELDS, "validation_task_encoder"), Any)
    own |= {"seq_length": int, "decoder_seq_length": int | None}
    own |= {"multimodal_sample_config": MultiModalSampleConfig | None}
    options = {name: field.type for fields in option_fields().values() for name, field in fields.items()}
    handlers = dict.fromkeys(("global_error_handler", "restore_error_handler"), Callable)
    return own | options | handlers
