"""Untrusted JSON and YAML: text to plain data, within limits.

Reads a JSON text, or the content of a YAML or JSON file. Returns dicts, lists and scalars, or the nodes of PyYAML; no
object is constructed and no code runs. Raises an error for a text that is too large, nested too deeply, or has aliases
that repeat too much, in time and memory at most linear in its size; and for a file with a mapping that has the same key
twice, as one value would be lost, but for lists that the caller wants as one.
"""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import yaml

from bridge_data.errors import ConfigError
from bridge_data.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("bridge_data")

_CONTAINERS = (dict, list)

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
    with composed(data, file, limits, repeatable) as (root, loader):
        return None if root is None else loader.construct_document(root)


@contextlib.contextmanager
def composed(
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
        loader = _BoundedLoader(data, file, limits)
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


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedLoader(_Loader):  # type: ignore[misc]
    """Counts nodes and levels while it composes them: PyYAML calls `descend_resolver` before each node, and
    `ascend_resolver` after it. Its own recursion has no bound: a hundred thousand levels crash the process."""

    def __init__(self, data: str | bytes, file: str, limits: Limits) -> None:
        super().__init__(data)
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
            *(_at(file, key), name, before[0].start_mark.line + 1),
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
