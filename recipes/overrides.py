"""Typed configs changed by YAML files and dotted `key=value` arguments; an unknown key is an error naming a near one.

Enters: a tree of frozen dataclasses, a YAML mapping of the same shape or part of it, and arguments like
`data.seq_length=512`. Leaves: a new tree; every dataclass has checked its values again.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.order.step_skips import NO_REPEATS

T = TypeVar("T")


def override(config: T, changes: Mapping[str, Any], where: str) -> T:
    """`config` with `changes`, a nested mapping; `where` says in errors what they come from.

    Raises:
        ConfigError: for a key that does not exist, or a value of the wrong type or out of range.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = dict(_leaves(config))
    for key, value in _items(changes):
        if key == "data.repeat_steps":
            raise ConfigError(f"{where}: {key}={value!r}: {NO_REPEATS}")
        inner = [name for name in known if name.startswith(f"{key}.")]
        if inner and value is not None:
            shown = f"{key}.path" if f"{key}.path" in inner else inner[0]
            raise ConfigError(f"{where}: {key}: got {value!r}, expected a mapping of settings, such as {shown}")
        if key not in known and not any(_is_part(key, name, value) for name, value in known.items()):
            raise ConfigError(f"{where}: there is no setting {key!r}{_nearest(key, list(known))}")
    try:
        merged = OmegaConf.merge(_writable(OmegaConf.structured(config)), OmegaConf.create(dict(changes)))
        changed: T = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]} (setting {error.full_key})") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return changed


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: if the file is missing, is not YAML, or holds something else.
    """
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give the path of a YAML file with settings") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: got a {type(content).__name__}, expected settings as `key: value`")
    return content


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` arguments as a nested mapping; values are read as YAML.

    Raises:
        ConfigError: for an argument without `=`.
    """
    from omegaconf import OmegaConf

    for argument in arguments:
        if "=" not in argument or argument.startswith("="):
            raise ConfigError(f"argument {argument!r}: expected key=value, such as data.seq_length=512")
    nested: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(list(arguments)))
    return nested


def to_yaml(config: Any) -> str:
    """All settings as YAML, in the order of their definition."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all settings with their values."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _writable(node: Any) -> Any:
    """The tree of OmegaConf with frozen dataclasses writable: OmegaConf 2.3 merges nothing into read-only ones."""
    from omegaconf import DictConfig, OmegaConf

    OmegaConf.set_readonly(node, False)
    for name in node:
        if isinstance(child := node._get_node(name), DictConfig) and not child._is_none():
            _writable(child)
    return node


def _is_part(key: str, name: str, value: Any) -> bool:
    """Whether `key` is a section that holds the setting `name`, or an entry of it, if that is a mapping."""
    return name.startswith(f"{key}.") or (isinstance(value, Mapping) and key.startswith(f"{name}."))


def _items(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def near(key: str, known: Sequence[str]) -> str:
    """What the user may have meant, as a question; empty if nothing is spelled alike."""
    found = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def _nearest(key: str, known: list[str]) -> str:
    """What the user may have meant: the same name elsewhere, or one that is spelled alike."""
    last = key.rpartition(".")[2]
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    near = elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        by_last = {name.rpartition(".")[2]: name for name in known}
        near = [by_last[name] for name in difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.5)]
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else f"; there are {', '.join(known)}"
