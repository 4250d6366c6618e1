"""Predicates: an SQL expression that says whether a sample is chosen.

Enters: the text, as `jpg.width >= 512 and json.lang in ('de', 'en')`. Leaves: the columns that it names; an engine
(DuckDB) that evaluates it. Guarantee: it is one expression over the columns of a sample, without queries, and always
has the same value for the same sample: anything that depends on time, randomness or the session is refused. The engine
opens no files and loads no extensions.
"""

import contextlib
import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError

MEMORY_GIB = 1
"""Maximum memory of the engine for each of its threads; beyond it, it spills to files."""

MAX_SHOWN_CHARACTERS = 300
"""Maximum characters of a predicate in messages."""

_SETTINGS = {
    "preserve_insertion_order": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "TimeZone": "UTC",
    "enable_external_access": False,
    "lock_configuration": True,
}
_BEFORE, _AFTER = "SELECT (\n", "\n)"
_EXPECTED = "expected one expression, such as `bytes < 100000 and key like 'a%'`"
_QUOTING = 'A column whose name is a keyword, or no plain word, is written in double quotes: "group" = 1'
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_REFUSED = {
    "SUBQUERY": "a query",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its position",
}
_MAX_MACRO_DEPTH = 8
_AGE = "age"
"""With one argument, it counts up to today, although the engine declares it stable."""
_CLOCKS = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})
"""What the engine parses as functions although it is written without brackets."""

_OVERLOAD = "stability, function_type, macro_definition, parameter_types"
_ZONED = frozenset({"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"})


@dataclasses.dataclass(frozen=True, slots=True)
class Predicate:
    """An expression, and the columns it names: the names on the path to each."""

    text: str
    columns: tuple[tuple[str, ...], ...]


@contextlib.contextmanager
def open_engine(spill: Path, num_threads: int = 1) -> Iterator[Any]:
    """A connection to an engine that evaluates queries, and may put files into the folder `spill`.

    Raises:
        ConfigError: if DuckDB is not installed.
    """
    try:
        duckdb = importlib.import_module("duckdb")
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f'needs {error.name}: pip install "bridge-data[where]"') from error
    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        own = {"temp_directory": str(spill), "threads": num_threads, "memory_limit": f"{num_threads * MEMORY_GIB}GiB"}
        for name, value in {**own, **_SETTINGS}.items():
            shown = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).lower()
            connection.execute(f"SET {name} = {shown}")
        yield connection


def parse_predicate(engine: Any, text: str) -> Predicate:
    """The predicate in `text`.

    Raises:
        ConfigError: with the position in `text`, if it is no expression, or not an allowed one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{clipped(text)!r}: has a character that is not in UTF-8, at {error.start + 1}") from None
    if not text.strip():
        raise ConfigError(f"{text!r}: {_EXPECTED}")
    parsed = _parsed(engine, f"{_BEFORE}{text}{_AFTER}")
    if parsed["error"]:
        at = int(parsed.get("position", len(_BEFORE))) - len(_BEFORE)
        raise ConfigError(f"{_shown(text, at)}: {parsed['error_message']}. {_QUOTING}")
    nodes = [statement["node"] for statement in parsed["statements"]]
    is_expression = len(nodes) == 1 and nodes[0]["type"] == "SELECT_NODE" and len(nodes[0]["select_list"]) == 1
    if (
        not is_expression
        or nodes[0]["from_table"]["type"] != "EMPTY"
        or nodes[0]["where_clause"]
        or _has_more(nodes[0])
    ):
        raise ConfigError(f"{clipped(text)!r}: {_EXPECTED}")
    check = _Check(engine, text)
    check.walk(nodes[0]["select_list"][0], frozenset())
    return Predicate(text, tuple(dict.fromkeys(check.columns)))


def as_written(engine: Any) -> Callable[[Sequence[str]], str]:
    """A function from the path of a column to how a predicate writes it."""
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    keywords = {name for (name,) in engine.execute(query).fetchall()}

    def written(names: Sequence[str]) -> str:
        return ".".join(
            name if _PLAIN.fullmatch(name) and name.lower() not in keywords else quoted(name) for name in names
        )

    return written


def quoted(name: str) -> str:
    """A name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _has_more(node: dict[str, Any]) -> bool:
    """Whether a query has more than a list of selected expressions."""
    parts = ("modifiers", "group_expressions", "group_sets", "having", "sample", "qualify")
    return any(node.get(part) for part in parts)


def _parsed(engine: Any, query: str) -> dict[str, Any]:
    ((text,),) = engine.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    found: dict[str, Any] = json.loads(text)
    return found


class _Check:
    """Walks through an expression, collects its columns, and refuses what is not allowed."""

    def __init__(self, engine: Any, text: str) -> None:
        self._engine, self._text = engine, text
        self.columns: list[tuple[str, ...]] = []
        self._checked: set[str] = set()

    def walk(self, node: Any, bound: frozenset[str]) -> None:
        """Check a node and those below it; the names `bound` are parameters of a lambda."""
        if isinstance(node, list):
            for one in node:
                self.walk(one, bound)
        if not isinstance(node, dict):
            return
        kind = node.get("class")
        if kind in _REFUSED:
            raise self._refused(node, f"{_REFUSED[kind]} is not allowed, only an expression over columns")
        if kind == "COLUMN_REF":
            names = tuple(node["column_names"])
            if names[0] not in bound:
                self.columns.append(names)
            return
        if kind == "LAMBDA":
            self.walk(node["expr"], bound | _names_in(node["lhs"]))
            return
        if kind == "FUNCTION":
            arguments = node.get("arguments") or node.get("children") or ()  # by the version of the engine
            if node["function_name"].lower() == _AGE and len(arguments) == 1:
                raise self._refused(
                    node, f"{_AGE}() of one time counts up to today: give the end as the first of two times"
                )
            self._check_function(node["function_name"], node, _MAX_MACRO_DEPTH)
        for value in node.values():
            self.walk(value, bound)

    def _check_function(self, name: str, node: dict[str, Any], depth: int) -> None:
        """Ensure that a function, and each one that it consists of, depends only on its arguments."""
        if name in self._checked:
            return
        self._checked.add(name)
        if name.lower() in _CLOCKS:
            raise self._refused(node, f"{name} depends on more than the sample, so ranks and resumes would differ")
        query = f"SELECT {_OVERLOAD} FROM duckdb_functions() WHERE function_name = ?"
        for stability, kind, definition, types in self._engine.execute(query, [name.lower()]).fetchall():
            if kind == "macro" and depth:
                for inner in _functions_in(_parsed(self._engine, f"SELECT {definition}")):
                    self._check_function(inner, node, depth - 1)
            elif kind == "scalar" and stability == "CONSISTENT_WITHIN_QUERY" and not _ZONED.isdisjoint(types):
                continue  # depends on the time zone, which `_SETTINGS` fixes
            elif kind != "scalar" or stability != "CONSISTENT":
                why = "is no function of one sample" if kind != "scalar" else "depends on more than the sample"
                raise self._refused(node, f"{name}() {why}, so ranks and resumes would not choose the same")

    def _refused(self, node: dict[str, Any], why: str) -> ConfigError:
        at = node.get("query_location", len(_BEFORE)) - len(_BEFORE)
        return ConfigError(f"{_shown(self._text, at)}: {why}")


def _functions_in(node: Any) -> Iterator[str]:
    """The names of functions in a parsed query, including columns that may be functions without brackets."""
    if isinstance(node, list):
        for one in node:
            yield from _functions_in(one)
    if isinstance(node, dict):
        if node.get("class") == "FUNCTION":
            yield node["function_name"]
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"][0]
        for value in node.values():
            yield from _functions_in(value)


def _names_in(node: Any) -> frozenset[str]:
    """The parameters of a lambda: one, or several."""
    if isinstance(node, list):
        return frozenset().union(*map(_names_in, node))
    if not isinstance(node, dict):
        return frozenset()
    return frozenset(node.get("column_names", ())).union(*map(_names_in, node.values()))


def clipped(text: str) -> str:
    """`text`, or its beginning, for messages."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + " …"


def _shown(text: str, at: int) -> str:
    """`text` and a position in it, for messages."""
    at = min(max(at, 0), len(text))
    return f"{clipped(text)!r}, at character {at + 1} ({text[at : at + 20] or 'the end'!r})"
