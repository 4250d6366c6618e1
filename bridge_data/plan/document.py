"""YAML files: values that keep their file and line, so that every error can name them; and paths in YAML files.

Reads the text of a YAML file. Returns a tree of `Node`. Only plain scalars, lists and mappings with string keys are
accepted; no tag can construct an object. Scalars are read as Energon reads them: unquoted `true`, `yes`, `false`, `no`,
`null`, `~`, integers and floats (`1e-3` too) are values, everything else is a string, dates too. Raises a `ConfigError`
that names file and line.

Paths are relative to the file, with `~` and environment variables. A relative path in a file at a URL is in the same
store.
"""

import contextlib
import dataclasses
import os
import posixpath
import reprlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

from bridge_data.data.metadata import JSONL_SUFFIX
from bridge_data.data.plain_data import composed
from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.options import path_text
from bridge_data.storage import (
    RemotePath,
    is_remote,
    of_dataset_service,
    store_of,
    with_variables,
    without_scheme,
)

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")
)
TABLE_KEYS = ("sample_type", "field_map", "part_filter")
"""Settings of the samples of tables, which have no dataset.yaml."""
_MAX_KEYS = 20
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 200
_CONSTANTS = {"null": None, "~": None, "": None, "true": True, "yes": True, "false": False, "no": False}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of a YAML file: a scalar, a list of nodes or a mapping of strings to nodes; and its line, 0 if it is not
    from a file (see `as_node`). A value in a mapping has the line of its key, an alias that of its anchor."""

    value: Any
    file: str
    line: int

    def error(self, message: str) -> ConfigError:
        """An error at this file and line."""
        error = ConfigError(f"{self.file}:{self.line}: {message}" if self.line else f"{self.file}: {message}")
        error.has_location = True
        return error

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Give errors of the block that lack file and line those of this node."""
        try:
            yield
        except ConfigError as error:
            if error.has_location:
                raise
            raise self.error(str(error)) from error.__cause__

    def mapping(self, what: str, allowed: Collection[str] | None = None) -> dict[str, "Node"]:
        """The entries of this mapping, which messages call `what`; a key that is not in `allowed` is an error."""
        if not isinstance(self.value, dict):
            raise self.error(f"{what}: expected a mapping, got {self.shown()}")
        for key, entry in self.value.items():
            if allowed is not None and key not in allowed:
                raise entry.error(f"{what}: unknown key {key!r}{nearest(key, allowed)}")
        return self.value

    def sequence(self, what: str) -> list["Node"]:
        """The items of this list."""
        if not isinstance(self.value, list):
            raise self.error(f"{what}: expected a list, got {self.shown()}")
        return self.value

    def text(self, what: str) -> str:
        """This value, a string."""
        if not isinstance(self.value, str):
            raise self.error(f"{what}: expected a string, got {self.shown()}")
        return self.value

    def number(self, what: str) -> float:
        """This value, an integer or a float."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self.error(f"{what}: expected a number, got {self.shown()}")
        return self.value

    def plain(self) -> Any:
        """This value without line numbers: scalars, lists and dicts."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def shown(self) -> str:
        """A short description of this value, for messages."""
        if isinstance(self.value, dict):
            return f"a mapping with {', '.join([*self.value][:_MAX_KEYS]) or 'no keys'}"
        if isinstance(self.value, list):
            return f"a list of {len(self.value)}"
        return "nothing" if self.value is None else _SHOWN.repr(self.value)


def as_node(value: Any, what: str) -> Node:
    """The node of a value given in Python instead of YAML; messages call it `what`."""
    if isinstance(value, Mapping):
        return Node({str(key): as_node(item, what) for key, item in value.items()}, what, 0)
    if isinstance(value, (list, tuple)):
        return Node([as_node(item, what) for item in value], what, 0)
    return Node(os.fspath(value) if isinstance(value, os.PathLike) else value, what, 0)


def given(entries: Mapping[str, Node], key: str) -> Node | None:
    """The entry with this key; None if there is none, or it has no value."""
    node = entries.get(key)
    return None if node is None or node.value is None else node


def nearest(wanted: str, known: Collection[str]) -> str:
    """`; did you mean ...? Known are: ...`, to end a message about an unknown name."""
    return f"{did_you_mean(wanted, known, '.')} Known: {', '.join(sorted(known)) or 'none'}"


def parse_yaml(text: str | bytes, file: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """The document `text` of `file`.

    Raises:
        ConfigError: naming file and line, if it is not YAML, has more than plain data, or exceeds a limit.
    """
    with composed(text, file, limits) as (root, loader):
        return _Reader(file, loader).read(root, 1) if root is not None else Node(None, file, 1)


class _Reader:
    """Converts the nodes of PyYAML, aliased ones once."""

    def __init__(self, file: str, loader: Any) -> None:
        self._file = file
        self._loader = loader
        self._done: dict[int, Any] = {}

    def read(self, node: yaml.Node, line: int) -> Node:
        if node.tag not in _PLAIN_TAGS:
            raise Node(None, self._file, line).error(f"tag {node.tag!r} is not allowed: only plain data is read")
        if isinstance(node, yaml.ScalarNode):
            return Node(_scalar(node), self._file, line)
        if id(node) not in self._done:
            self._done[id(node)] = self._mapping(node) if isinstance(node, yaml.MappingNode) else self._sequence(node)
        return Node(self._done[id(node)], self._file, line)

    def _sequence(self, node: yaml.Node) -> list[Node]:
        return [self.read(item, item.start_mark.line + 1) for item in node.value]

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                raise Node(None, self._file, line).error("a key must be a string, not a list or mapping")
        self._loader.flatten_mapping(node)
        return {key.value: self.read(item, key.start_mark.line + 1) for key, item in node.value}


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style:  # quoted or a block
        return text
    lower = text.lower()
    if lower in _CONSTANTS:
        return _CONSTANTS[lower]
    try:
        return float(text) if "." in text or "e" in lower else int(text)
    except ValueError:
        return text


def absolute(path: str | os.PathLike[str]) -> str:
    """`path` as an absolute path, as workers may start in another folder; a URL unchanged.

    Raises:
        ConfigError: if it is not a path, or a URL of an unknown kind.
    """
    path = of_dataset_service(without_scheme(path_text("path", path)))
    return str(RemotePath(path).absolute()) if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def located(text: str, node: Node, file: str) -> str:
    """The location that `text`, from `node` in the YAML file `file`, names."""
    try:
        path = of_dataset_service(os.path.expanduser(without_scheme(with_variables(text))))
        if is_remote(path):
            return str(RemotePath(path).absolute())
        if is_remote(file) and not os.path.isabs(path):
            base, key = store_of(file).split(file)
            return f"{base}{posixpath.normpath(posixpath.join('/', posixpath.dirname(key), path))}"
    except ConfigError as error:
        raise node.error(str(error)) from None
    return os.path.normpath(os.path.join(os.path.dirname(file), path))


def is_jsonl(path: str) -> bool:
    """Whether `path` is that of a JSONL file."""
    return path.endswith(JSONL_SUFFIX)
