"""Overrides of a `ConfigContainer` of Megatron-Bridge, `dataset.seq_length=4096`, each of which has an effect.

Reads `key=value` and a YAML file as Bridge does, with its own function (Hydra's syntax). Returns the container. What
Bridge cannot set it skips, with a warning at most; here that is a `ConfigError`, which says what there is instead. Of a
setting that a container has twice, such as the sequence length of model and data, the one follows that was not given.
"""

import dataclasses
import enum
import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.datamodule.bridge import EnergonDatasetConfig
from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.run_options import SECTION_OF

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

TWICE = (
    ("model.seq_length", "dataset.seq_length"),
    ("train.micro_batch_size", "dataset.micro_batch_size"),
    ("train.global_batch_size", "dataset.global_batch_size"),
)
"""What a container has in two places, which have to agree. (Of the data it may be None: there is one place then.)"""

_MISSING = object()


def with_overrides(container: T, overrides: Sequence[str] = (), config_file: str | Path | None = None) -> T:
    """`container`, changed by a YAML file of Bridge, and then by `overrides`: in place of Bridge's
    `process_config_with_overrides`. Either place of what stands in `TWICE` can be given.

    Raises:
        ConfigError: for an override without effect: of a setting that does not exist (with `+`, too), or that only code
            can set; or if both places of one setting are given, and differ.
    """
    sections = {field.name for field in dataclasses.fields(container)}  # type: ignore[arg-type]
    for text in overrides:
        _check_section(container, text, sections)
    before = {path: _at(container, path) for pair in TWICE for path in pair}
    theirs = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    parsed = _parsed(overrides)
    given = {**_of_file(config_file), **{one.key_or_group: one.value() for one in parsed if not one.is_delete()}}
    try:
        theirs.process_config_with_overrides(
            container,
            config_filepath=None if config_file is None else str(config_file),
            cli_overrides=list(overrides) or None,
        )
    except theirs.OverridesError as error:
        raise ConfigError(_what_is_missing(container, overrides) or str(error)) from error
    for path, value in given.items():
        if what := _missing(container, path):
            raise ConfigError(f"{path}={value}: no effect: {what}")
        if path.startswith("dataset.") and (what := _is_of_code(container, path, value)):
            raise ConfigError(f"{path}={value}: no effect: {what}")
    for one in parsed:
        if one.is_delete() and not _missing(container, one.key_or_group):
            raise ConfigError(f"~{one.key_or_group}: no effect: it cannot be left out; set another value, such as null")
    named = {*given, *(path for path, value in before.items() if _at(container, path) != value)}
    for one, other in TWICE:
        _agree(container, one, other, named)
    return container


def _check_section(container: Any, text: str, sections: set[str]) -> None:
    """Refuse a key that is in no section, with the sections that have it."""
    key = text.partition("=")[0].lstrip("+~")
    if "." in key or key in sections:
        return
    found = [f"{name}.{key}" for name in sorted(sections) if hasattr(getattr(container, name), key)]
    hint = f"; write {' or '.join(f'{path}=...' for path in found)}" if found else did_you_mean(key, sections)
    raise ConfigError(f"{text}: {type(container).__name__} has no setting {key!r}{hint}")


def _parsed(overrides: Sequence[str]) -> list[Any]:
    """The overrides as Hydra reads them."""
    parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    try:
        return list(parser.parse_overrides(overrides=list(overrides)))
    except Exception as error:  # of Hydra, or of its grammar
        raise ConfigError(f"{' '.join(overrides)}: {' '.join(str(error).split())}") from error


def _of_file(config_file: str | Path | None) -> dict[str, Any]:
    """What a YAML file of Bridge says of the data, by path. (Bridge's own files name settings that it has no more.)"""
    if config_file is None:
        return {}
    try:
        content = parse_yaml_file(Path(config_file).read_bytes(), str(config_file))
    except OSError as error:
        raise ConfigError(f"{config_file}: cannot be read: {error.strerror}") from error
    dataset = content.get("dataset") if isinstance(content, Mapping) else None
    return dict(_leaves("dataset", dataset)) if isinstance(dataset, Mapping) else {}


def _leaves(path: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        inner = f"{path}.{name}"
        yield from _leaves(inner, value) if isinstance(value, Mapping) and value else [(inner, value)]


def _what_is_missing(container: Any, overrides: Sequence[str]) -> str:
    """The first override of something that does not exist, or that only code can set; "" if there is none."""
    for text in overrides:
        path, _, value = text.partition("=")
        if path[:1] not in "+~" and (what := _missing(container, path) or _is_of_code(container, path, value)):
            return f"{text}: {what}"
    return ""


def _missing(container: Any, path: str) -> str:
    """The level of a path that does not exist, with what there is; "" if all do."""
    held, seen = container, type(container).__name__
    for level in path.split("."):
        inner = _held(held, level)
        if inner is _MISSING and isinstance(held, Mapping):
            return f"{seen} has no {level!r} yet{did_you_mean(level, [*held])}; +{path}=... adds it"
        if inner is _MISSING and held is None:
            return f"{seen} is None; +{path}=... sets it"
        if inner is _MISSING:
            known = [field.name for field in dataclasses.fields(held)] if dataclasses.is_dataclass(held) else []
            of = seen if held is container else f"{seen}, of {type(held).__name__},"
            if isinstance(held, EnergonDatasetConfig) and level in SECTION_OF:
                return f"{of} has {level!r} as +{seen}.dataset_kwargs.{level}=..."
            return f"{of} has no setting {level!r}{did_you_mean(level, known)}"
        held, seen = inner, level if held is container else f"{seen}.{level}"
    return ""


def _agree(container: Any, one: str, other: str, named: set[str]) -> None:
    """Let the setting that was not given follow the other."""
    values = _at(container, one), _at(container, other)
    if None in values or _MISSING in values or values[0] == values[1] or not {one, other} & named:
        return
    if {one, other} <= named:
        raise ConfigError(
            f"{one}={values[0]} and {other}={values[1]} must be the same: give one of them, the other follows"
        )
    given, follows = (one, other) if one in named else (other, one)
    section, _, name = follows.rpartition(".")
    setattr(getattr(container, section), name, _at(container, given))
    logger.info("%s=%s follows %s", follows, _at(container, given), given)


def _at(container: Any, path: str) -> Any:
    held = container
    for level in path.split("."):
        held = _held(held, level)
    return held


def _held(held: Any, name: str) -> Any:
    if isinstance(held, Mapping):
        return held.get(name, _MISSING)
    return getattr(held, name, _MISSING)


def _is_of_code(container: Any, path: str, value: Any) -> str:
    """That a setting is an object which neither text nor a `_target_` can have made; "" if it is none."""
    held = _at(container, path)
    is_plain = held is None or isinstance(held, str | int | float | list | tuple | Path | enum.Enum | Mapping)
    if is_plain or dataclasses.is_dataclass(held) or (isinstance(value, Mapping) and "_target_" in value):
        return ""
    return f"{path} is an object, a {type(held).__name__}, which only code can set"
