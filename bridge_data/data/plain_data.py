"""Untrusted JSON and YAML: text to plain data, within limits; or to values that keep their file and line.

Reads a JSON text, or the content of a YAML or JSON file. Returns dicts, lists and scalars; or a tree of `Node`, so that
every error can name file and line. No object is constructed and no code runs. Raises an error for a text that is too
large, nested too deeply, or has aliases that repeat too much, in time and memory at most linear in its size; and for a
file with a mapping that has the same key twice, as one value would be lost, but for lists that the caller wants as one.

A `Node` has only plain scalars, lists and mappings with string keys. Its scalars are read as Energon reads them:
unquoted `true`, `yes`, `false`, `no`, `null`, `~`, integers and floats (`1e-3` too) are values, everything else is a
string, dates too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from bridge_data.errors import ConfigError, did_you_mean
from bridge_data.later import yaml
from bridge_data.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("bridge_data")

_CONTAINERS = (dict, list)
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")
)
_MAX_KEYS = 20
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 200
_CONSTANTS = {"null": None, "~": None, "": None, "true": True, "yes": True, "false": False, "no": False}

Pairs: TypeAlias = list[tuple[str, Any]]
"""Keys and values of a JSON object."""


def parse_json(text: bytes | str, limits: Limits = DEFAULT_LIMITS, *, unique: bool = False) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is not JSON, or exceeds a limit; with `unique`, if an object has the same key twice.
    """
    if len(text) > limits.max_json_bytes:
        raise ValueError(
            f"{len(text)} bytes of JSON are more than the {limits.max_json_bytes} allowed (Limits(max_json_bytes))"
        )
    return _loaded(text, limits.max_json_depth, "max_json_depth", _unique if unique else None)


def _loaded(text: bytes | str, max_depth: int, name: str, hook: Callable[[Pairs], Any] | None = None) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=hook)
    except RecursionError:
        is_deep = True
    else:
        is_deep = _num_opened(text) > max_depth and _is_deeper(value, max_depth)
    if is_deep:
        raise ValueError(f"it is nested more than the {max_depth} levels allowed (Limits({name}))")
    return value


def _num_opened(text: bytes | str) -> int:
    """An upper bound of the levels in a JSON text, found quickly."""
    if isinstance(text, str):
        return text.count("[") + text.count("{")
    return text.count(b"[") + text.count(b"{")


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, _CONTAINERS)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def parse_json_file(data: bytes, file: str, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The value in a JSON file with the content `data`.

    Raises:
        ConfigError: naming the file, and the line if it is not JSON; or if it exceeds a limit.
    """
    _check_size(data, file, limits)
    try:
        return _loaded(data, limits.max_json_depth, "max_json_depth", _unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not readable as JSON: {error.msg}") from None
    except ValueError as error:  # not UTF-8, too deep, a key twice, or a number of thousands of digits
        raise ConfigError(f"{file}: not readable as JSON: {error}") from None


def _unique(pairs: Pairs) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, times),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r} is there {times} times: name it once")
    return found


def parse_yaml_file(
    data: str | bytes, file: str, limits: Limits = DEFAULT_LIMITS, *, repeatable: Collection[str] = ()
) -> Any:
    """The plain data in a YAML file with the content `data`. Of a key of the whole file that is `repeatable`, all lists
    are one, which is logged as a warning.

    Raises:
        ConfigError: naming file and line, if it is not YAML, has more than plain data, or exceeds a limit.
    """
    with _composed(data, file, limits, repeatable) as (root, loader):
        return None if root is None else loader.construct_document(root)


@contextlib.contextmanager
def _composed(
    data: str | bytes, file: str, limits: Limits = DEFAULT_LIMITS, repeatable: Collection[str] = ()
) -> Iterator[tuple[yaml.Node | None, Any]]:
    """The root node of the YAML document `data` (None: it is empty), and the loader that read it; `repeatable` as in
    `parse_yaml_file`.

    Raises:
        ConfigError: naming file and line, if it is not YAML or exceeds a limit; also for errors of YAML in the block.
    """
    _check_size(data, file, limits)
    loader = None
    try:
        loader = _loader(data, file, limits)
        root = loader.get_single_node()
        if root is not None:
            _join_lists(root, file, repeatable)
            _check_keys(root, file)
            if "*" in data if isinstance(data, str) else b"*" in data:
                _Aliases(file, limits).measure(root)
        yield root, loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{file}:{line}: not readable as YAML: {problem}") from None
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not Unicode; an invalid number or date
        raise ConfigError(f"{file}:1: not readable as YAML: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _check_size(data: str | bytes, file: str, limits: Limits) -> None:
    if len(data) > limits.max_document_bytes:
        raise ConfigError(
            f"{file}: {len(data)} bytes are more than the {limits.max_document_bytes} allowed in such a file "
            "(Limits(max_document_bytes))"
        )


def _too_many(what: str, name: str, limits: Limits, where: str) -> ConfigError:
    return ConfigError(f"{where}: {what} than the {getattr(limits, name)} allowed (Limits({name}))")


def _loader(data: str | bytes, file: str, limits: Limits) -> Any:
    """What composes the nodes of a document: it counts them, unless its length and its punctuation say that it is
    within the limits."""
    if 3 * len(data) < limits.max_yaml_nodes:  # the text `?` is a mapping, with an empty key and an empty value
        text = data.decode("latin-1") if isinstance(data, bytes) else data
        if sum(map(text.count, "[{-:?")) < limits.max_yaml_depth:  # one of them opens each level
            return _plain_loader()(data)
    return _bounded_loader()(data, file, limits)


def _plain_loader() -> Any:
    """The class of PyYAML's loaders, in C if it has them."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Bounds:
    """Counts nodes and levels while a loader composes them: PyYAML calls `descend_resolver` before each node, and
    `ascend_resolver` after it. Its own recursion has no bound: a hundred thousand levels crash the process."""

    def __init__(self, data: str | bytes, file: str, limits: Limits) -> None:
        super().__init__(data)  # type: ignore[call-arg]  # of the loader
        self._file, self._limits = file, limits
        self._depth = self._num_nodes = 0

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:
        self._depth += 1
        self._num_nodes += 1
        if parent is not None and self._depth > self._limits.max_yaml_depth + 1:
            raise _too_many("more levels", "max_yaml_depth", self._limits, _at(self._file, parent))
        if parent is not None and self._num_nodes > self._limits.max_yaml_nodes:
            raise _too_many("more values", "max_yaml_nodes", self._limits, _at(self._file, parent))

    def ascend_resolver(self) -> None:
        self._depth -= 1


@functools.cache
def _bounded_loader() -> Any:
    """The class of loaders with `_Bounds`."""
    return type("_BoundedLoader", (_Bounds, _plain_loader()), {})


def _join_lists(root: yaml.Node, file: str, repeatable: Collection[str]) -> None:
    """Let each key of `repeatable` be there once, with the entries of all its lists."""
    if not repeatable or not isinstance(root, yaml.MappingNode):
        return
    joined: dict[str, tuple[yaml.Node, yaml.Node]] = {}  # by key, or by place
    for place, (key, value) in enumerate(root.value):
        name = key.value if isinstance(key, yaml.ScalarNode) and key.value in repeatable else str(place)
        before = joined.get(name)
        if before is None or not (_is_list(before[1]) and _is_list(value)):
            joined[name if before is None else str(place)] = key, value
            continue
        logger.warning(
            "%s: %r is already in line %d: all entries of both lists hold; make them one list, since other readers of "
            "YAML know only the last",
            _at(file, key),
            name,
            before[0].start_mark.line + 1,
        )
        entries = [entry for node in (before[1], value) if isinstance(node, yaml.SequenceNode) for entry in node.value]
        joined[name] = before[0], yaml.SequenceNode(_LIST, entries, before[1].start_mark, value.end_mark)
    root.value = list(joined.values())


def _is_list(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) or node.tag == _NULL


_LIST, _NULL = "tag:yaml.org,2002:seq", "tag:yaml.org,2002:null"


def _check_keys(root: yaml.Node, file: str) -> None:
    """Ensure that no mapping has the same key twice; the merge key `<<` may be repeated."""
    waiting, known = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        inner = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in lines:
                        raise ConfigError(f"{file}:{line}: key {key.value!r} is already in line {lines[key.value]}")
                    lines[key.value] = line
                inner += key, value
        for one in inner:
            if not isinstance(one, yaml.ScalarNode) and id(one) not in known:
                known.add(id(one))
                waiting.append(one)


def _at(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


class _Aliases:
    """Measures a document with what its aliases repeat; each node is visited once. A node that an alias names comes
    before the alias, so the recursion is no deeper than the document is nested."""

    def __init__(self, file: str, limits: Limits) -> None:
        self._file, self._limits = file, limits
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def measure(self, node: yaml.Node) -> tuple[int, int]:
        """(number of nodes, levels) of `node`, aliases followed."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        if id(node) in self._open:
            raise ConfigError(f"{_at(self._file, node)}: this anchor contains itself")
        if id(node) not in self._known:
            self._open.add(id(node))
            inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
            num_nodes, depth = 1, 0
            for part in inner:
                num_inner, depth_inner = self.measure(part)
                num_nodes, depth = num_nodes + num_inner, max(depth, depth_inner)
            self._open.discard(id(node))
            if num_nodes > self._limits.max_yaml_nodes:
                raise _too_many("with aliases, more values", "max_yaml_nodes", self._limits, _at(self._file, node))
            if depth + 1 > self._limits.max_yaml_depth:
                raise _too_many("with aliases, more levels", "max_yaml_depth", self._limits, _at(self._file, node))
            self._known[id(node)] = num_nodes, depth + 1
        return self._known[id(node)]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of a YAML file: a scalar, a list of nodes or a mapping of strings to nodes; and its line, 0 if it is not
    from a file (see `as_node`). A value in a mapping has the line of its key, an alias that of its anchor."""

    value: Any
    file: str
    line: int

    def error(self, message: str) -> ConfigError:
        """An error at this file and line."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        error = ConfigError(f"{place}: {message}" if place else message)
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

    def mapping(self, what: str, allowed: Collection[str] | None = None) -> dict[str, Node]:
        """The entries of this mapping, which messages call `what`; a key that is not in `allowed` is an error."""
        if not isinstance(self.value, dict):
            raise self.error(f"{what}: expected a mapping, got {self.shown()}")
        for key, entry in self.value.items():
            if allowed is not None and key not in allowed:
                raise entry.error(f"{what}: unknown key {key!r}{nearest(key, allowed)}")
        return self.value

    def sequence(self, what: str) -> list[Node]:
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
    with _composed(text, file, limits) as (root, loader):
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
