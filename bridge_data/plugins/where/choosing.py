"""Choosing samples by predicates: SQL expressions over the columns of a data set, evaluated once and kept.

Reads `Records` and clauses, such as `jpg.width >= 512 and json.lang in ('de', 'en')`, all of which must hold. Returns a
`Choice`, in a file in the cache of the user. Its name identifies the predicates, the data, their columns and the
clauses' files, so other processes of the machine, and later runs, open it directly; one process makes it, while others
wait. A file appears whole or not at all; memory is bounded except for one bit per sample.

A predicate is one expression over the columns of a sample, without queries, and always has the same value for the same
sample: anything that depends on time, randomness or the session is refused. An engine (DuckDB) evaluates it, which
opens no files and loads no extensions. Columns that it does not name are not read. If it is NULL, because a value is
missing, the sample is not chosen.

Raises a `ConfigError` that names the clause before anything is read, if a predicate is not allowed, is not boolean, or
names an unknown column; and a `DatasetError` for columns that cannot be read.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bridge_data import storage
from bridge_data.data.records import Records, count_samples, counts_of, label_of
from bridge_data.errors import ConfigError, DatasetError, listed
from bridge_data.plugins.where import shard_columns  # noqa: F401 - registers itself
from bridge_data.plugins.where.choices import Choice, write_choice
from bridge_data.plugins.where.own_columns import OwnColumns, own_copy
from bridge_data.prepare.sample_columns import (
    FULL_KEY,
    KEY,
    ROWS_AT_ONCE,
    SHARD,
    ColumnPath,
    SampleColumns,
    arrow_package,
    columns_of,
)
from bridge_data.storage.atomic import locked
from bridge_data.storage.copies import CACHE_VARIABLE, cache_folder

_VERSION = 2
"""Of what a file in the cache means."""

MAX_SHOWN = 40
"""Maximum columns that an error lists."""

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
_MORE = ("where_clause", "modifiers", "group_expressions", "group_sets", "having", "sample", "qualify")
"""What a query may have beside its selected expressions and tables."""

_MAX_MACRO_DEPTH = 8
_AGE = "age"
"""With one argument, it counts up to today, although the engine declares it stable."""
_CLOCKS = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})
"""What the engine parses as functions although it is written without brackets."""

_OVERLOAD = "stability, function_type, macro_definition, parameter_types"
_ZONED = frozenset({"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"})

logger = logging.getLogger("bridge_data")


class Where(Protocol):
    """A clause: a predicate, and the path of a Parquet file with more columns."""

    @property
    def text(self) -> str: ...

    @property
    def columns(self) -> str | None: ...

    def error(self, message: str) -> ConfigError:
        """The error `message`, which names the clause."""


def choose(records: Records, clauses: Sequence[Where]) -> Choice:
    """The samples of `records` for which all `clauses` hold.

    Raises:
        ConfigError: if a clause is wrong, or nothing is chosen.
        DatasetError: if columns cannot be read.
    """
    choice = evaluate(records, clauses)
    if not choice.num_chosen and count_samples(records):
        note = "" if choice.note is None else f" ({choice.note})"
        raise clauses[-1].error(
            f"where: {shown(clauses)} chooses none of the {count_samples(records):,} samples of "
            f"{label_of(records)}{note}; change the condition, or leave these data out of this part"
        )
    return choice


def evaluate(records: Records, clauses: Sequence[Where]) -> Choice:
    """The same as `choose`, but the result may be empty."""
    with _naming(clauses[0]):
        columns = columns_of(records)
    path = cache_folder() / "where" / f"{_name(records, columns, clauses)}.choice"
    choice = Choice.open(path)
    try:
        if choice is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(str(path.with_suffix(".lock"))):
                choice = Choice.open(path) or _made(records, columns, clauses, path)
    except OSError as error:
        raise ConfigError(
            f"{path.parent}: cannot store the chosen samples: {error.strerror or error}; set {CACHE_VARIABLE} to "
            "a folder that can be written"
        ) from error
    return choice


def shown(clauses: Sequence[Where]) -> str:
    """The predicates, for messages."""
    texts = [clipped(clause.text) for clause in clauses]
    return " and ".join(f"({text})" for text in texts) if len(texts) > 1 else repr(texts[0])


def _name(records: Records, columns: SampleColumns, clauses: Sequence[Where]) -> str:
    """A digest of everything that the choice depends on."""
    import hashlib  # here: most data sets have no predicates

    try:
        engine = metadata.version("duckdb")
    except metadata.PackageNotFoundError:
        engine = ""
    of = [_VERSION, engine, records.identity(), columns.identity()]
    for clause in clauses:
        with _naming(clause):
            own = clause.columns and [clause.columns, *storage.version(own_copy(clause.columns))]
        of += [clause.text, own]
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()


def _made(records: Records, columns: SampleColumns, clauses: Sequence[Where], path: Path) -> Choice:
    """Evaluate the clauses, and write what they choose to `path`."""
    import numpy as np

    started, place = time.monotonic(), label_of(records)
    bits: Any = None
    num_samples = count_samples(records)
    notes = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".spill-") as spill:
        for clause in clauses:
            with _naming(clause, "where: ", f" ({place})"), open_engine(Path(spill)) as engine:
                own = None if clause.columns is None else OwnColumns(clause.columns)
                evaluated = SampleQuery(engine, columns, own, clause.text).run(num_samples)
            bits = evaluated.bits if bits is None else np.bitwise_and(bits, evaluated.bits)
            if evaluated.num_null and not evaluated.bits.any():
                notes.append(
                    f"NULL for {evaluated.num_null:,} samples, as values are missing: "
                    "`coalesce(column, 0)` stands in for these"
                )
            if evaluated.num_without_row:
                notes.append(
                    f"{evaluated.num_without_row:,} of {num_samples:,} samples have no row in "
                    f"{clause.columns}; its columns are NULL for them"
                )
    if _name(records, columns, clauses) != path.stem:
        raise DatasetError(f"{place}: columns were replaced while samples were chosen by them; start again")
    note = "; ".join(notes) or None
    write_choice(path, bits.tobytes(), counts_of(records), note)
    choice = Choice.open(path)
    assert choice is not None
    logger.info(
        "%s: where %s chooses %s of %s samples, found in %.1f s",
        place,
        shown(clauses),
        f"{choice.num_chosen:,}",
        f"{num_samples:,}",
        time.monotonic() - started,
    )
    if note is not None and choice.num_chosen:
        logger.warning("%s: %s", place, note)
    return choice


@contextlib.contextmanager
def _naming(clause: Where, before: str = "", after: str = "") -> Iterator[None]:
    """Name the clause in errors, with more text around them."""
    try:
        yield
    except ConfigError as error:
        hint = ": column::double reads a text as a number" if "explicit cast" in str(error) else ""
        raise clause.error(f"{before}{error}{hint}{after}") from None


class Evaluated(NamedTuple):
    """The chosen samples, as bits; the number for which the predicate is NULL, and that without a row in the user's
    file."""

    bits: Any
    num_null: int
    num_without_row: int


class _Table(NamedTuple):
    """A table of a query: its columns, and its rows in batches of arrays."""

    schema: Any
    rows: Callable[[], Iterator[Sequence[Any]]]


class SampleQuery:
    """The predicate `text` over `columns`, and those in the file `own`.

    Raises:
        ConfigError: if it is wrong, or names an unknown column.
    """

    def __init__(self, engine: Any, columns: SampleColumns, own: OwnColumns | None, text: str) -> None:
        self._engine, self._columns, self._own, self._text = engine, columns, own, text
        self._failure: Exception | None = None
        named, full_key = parse_predicate(engine, text), {FULL_KEY: arrow_package().string()}
        self._types = full_key | columns.types() | full_key  # of a table, `__key__` is not the column of this name
        self._own_types = {} if own is None else own.types
        self._keys = {name: self._own_types[name] for name in (*KEY, *SHARD) if name in self._own_types}
        """The columns of the user's file that it is joined by."""
        self._own_paths = [(name,) for name in self._own_types if name not in self._keys]
        wanted = self._resolved(named)
        for path, kind in wanted.items():
            self._check_type(path, kind)
        self._tables, self._query = self._planned(wanted)
        self._check()

    def _resolved(self, named: Iterable[ColumnPath]) -> dict[ColumnPath, Any]:
        """The columns of the predicate, with their types; columns of the user's file have a path of one name."""
        wanted: dict[ColumnPath, Any] = {}
        for names in named:
            found, own = _matching(names, self._types), _matching(names, self._own_paths)
            if found and own:
                raise ConfigError(
                    f"column {names[0]!r} is one of the data and one of {self._own.path if self._own else ''}, too: "
                    "rename the latter"
                )
            if not found and not own:
                raise ConfigError(self._unknown(names))
            wanted |= {path: self._types[path] for path in found}
            wanted |= {path: self._own_types[path[0]] for path in own}
        lower = [".".join(path).lower() for path in wanted]
        same = next((path for path in wanted if lower.count(".".join(path).lower()) > 1), None)
        if same is not None:
            raise ConfigError(
                f"column {'.'.join(same)!r} and another differ in case only, which SQL does not tell apart"
            )
        return wanted

    def _unknown(self, names: Sequence[str]) -> str:
        written = as_written(self._engine)
        known = {".".join(path): written(path) for path in (*self._types, *self._own_paths)}
        near = difflib.get_close_matches(".".join(names), known, n=1, cutoff=0.5)
        guess = f"; did you mean {known[near[0]]!r}?" if near else "."
        shown = listed([*known.values()], MAX_SHOWN)
        return f"unknown column {'.'.join(names)!r}{guess} There is: {shown}. More: {self._columns.fix_text()}"

    def _check_type(self, path: ColumnPath, kind: Any) -> None:
        """Ensure that the engine knows the type of a column."""
        if not _are_told_apart(kind):
            raise ConfigError(
                f"column {'.'.join(path)!r} has the type {kind}, with fields that differ in case only, which SQL does "
                "not tell apart: give the field in a file of your own (`columns:`)"
            )
        try:
            with self._registered({"one": arrow_package().schema([("one", kind)]).empty_table()}):
                pass
        except Exception as error:  # the engine raises many kinds
            raise ConfigError(
                f"column {'.'.join(path)!r} has the type {kind}, which DuckDB cannot compare: give it as float32, "
                "float64, a decimal of up to 38 digits or text, such as in a file of your own (`columns:`)"
            ) from error

    def _planned(self, wanted: Mapping[ColumnPath, Any]) -> tuple[dict[str, _Table], str]:
        """(tables by name, query of number, predicate and whether the user's file has a row of each sample)."""
        arrow, of, own = arrow_package(), self._columns, self._own
        keyed = of.keyed(wanted).items()
        joined = [(f".{part}", {KEY[0]: arrow.string()}, table.paths, table.batches) for part, table in keyed]
        if own is not None:
            of_own = [path for path in wanted if path not in self._types]
            columns = [*self._keys, *(path[0] for path in of_own)]
            joined.append(("", self._keys, of_own, lambda: own.batches(columns)))
        elsewhere = {path for _, _, paths, _ in joined for path in paths}
        by = [of.key, of.shard][: max((len(keys) for _, keys, _, _ in joined), default=0)]
        read = [path for path in dict.fromkeys([*wanted, *by]) if path not in elsewhere]
        names = {path: f"c{number}" for number, path in enumerate(dict.fromkeys([*read, *wanted]))}

        def schema(keys: Mapping[str, Any], paths: Iterable[ColumnPath]) -> Any:
            return arrow.schema([*keys.items(), *((names[path], wanted.get(path, arrow.string())) for path in paths)])

        def of_samples() -> Iterator[Sequence[Any]]:
            for numbers, values in of.batches(read):
                yield [arrow.array(numbers), *(values[path] for path in read)]

        tables = {"samples": _Table(schema({"number": arrow.int64()}, read), of_samples)}
        rows, is_there = "samples", "true"
        for number, (part, keys, paths, batches) in enumerate(joined):
            table = f"table{number}"
            tables[table] = _Table(schema(keys, paths), functools.partial(_columns_of, batches))
            same = (f"CAST({table}.{name} AS VARCHAR) = {names[path]}" for name, path in zip(keys, by, strict=False))
            rows += f" LEFT JOIN {table} ON {' AND '.join(same)}" + (f" || {_text(part)}" if part else "")
            is_there = "true" if part else f"{table}.key IS NOT NULL"
        longest = max((len(name) for path in wanted for name in path), default=0)
        index, there, of_all = ("_" * (longest + more) for more in (1, 2, 3))  # no column is called so
        selected = [f"samples.number AS {index}", f"{is_there} AS {there}"]
        shown = _nested({path: names[path] for path in wanted})
        selected += [f"{value} AS {quoted(name)}" for name, value in shown.items()]
        return tables, (
            f"SELECT {index}, (\n{self._text}\n), {there} FROM (SELECT {', '.join(selected)} FROM {rows}) {of_all}"
        )

    def _check(self) -> None:
        """Ensure that the predicate is boolean, by a query over no rows."""
        empty = {name: table.schema.empty_table() for name, table in self._tables.items()}
        with self._registered(empty), self._reporting():
            kind = self._engine.sql(f"DESCRIBE {self._query}").fetchall()[1][1]
        if kind != "BOOLEAN":
            raise ConfigError(
                f"{clipped(self._text)!r} has the type {kind}, expected BOOLEAN: compare it, such as `... > 0`"
            )

    def run(self, num_samples: int) -> Evaluated:
        """Evaluate it for all samples.

        Raises:
            ConfigError: if that fails, or the user's file does not fit.
            DatasetError: if columns cannot be read.
        """
        import numpy as np

        bits = np.zeros(-(-num_samples // 8), np.uint8)
        num_rows = num_null = num_with_row = 0
        with self._registered({name: self._reader(*table) for name, table in self._tables.items()}), self._reporting():
            for batch in self._engine.sql(self._query).to_arrow_reader(ROWS_AT_ONCE):
                numbers, chosen, is_there = batch.columns
                num_rows += len(numbers)
                num_null += chosen.null_count
                num_with_row += is_there.true_count
                found = numbers.filter(chosen).to_numpy()
                np.bitwise_or.at(bits, found >> 3, (1 << (found & 7)).astype(np.uint8))
        if self._own is not None:
            self._check_own(self._own, num_rows - num_samples, num_with_row)
        return Evaluated(bits, num_null, num_samples - num_with_row)

    def _reader(self, schema: Any, rows: Callable[[], Iterator[Sequence[Any]]]) -> Any:
        """A reader of a table; an exception is noted, as the engine hides it."""

        def batches() -> Iterator[Any]:
            try:
                for arrays in rows():
                    yield arrow_package().record_batch(arrays, schema=schema)
            except Exception as error:
                self._failure = error
                raise

        return arrow_package().RecordBatchReader.from_batches(schema, batches())

    @contextlib.contextmanager
    def _registered(self, tables: Mapping[str, Any]) -> Iterator[None]:
        """Let queries use these tables; after a failure, the engine is not used again."""
        for name, found in tables.items():
            self._engine.register(name, found)
        yield
        for name in tables:
            self._engine.unregister(name)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the engine raises many kinds
            if self._failure is not None:
                raise self._failure from None
            raise ConfigError(f"{clipped(self._text)!r}: {str(error).splitlines()[0]}") from None

    def _check_own(self, own: OwnColumns, num_more: int, num_with_row: int) -> None:
        """Ensure that the user's file has rows for samples, one for each."""
        if num_more:
            of, schema = ", ".join(self._keys), arrow_package().schema(list(self._keys.items()))
            rows = functools.partial(_columns_of, lambda: own.batches(self._keys))
            with self._registered({"own": self._reader(schema, rows)}), self._reporting():
                query = f"SELECT {of}, count(*) FROM own GROUP BY {of} HAVING count(*) > 1 ORDER BY {of} LIMIT 1"
                ((*key, times),) = self._engine.execute(query).fetchall()
            raise ConfigError(
                f"columns: {own.path}: has {times} rows of {' and '.join(self._keys)} {', '.join(map(repr, key))}: "
                "expected one for each sample" + ("" if len(key) > 1 else "; a column `shard` tells shards apart")
            )
        if not num_with_row:
            first = next(iter(own.batches(KEY)), None)
            such = "" if first is None or not len(first) else f", such as {first.column(0)[0].as_py()!r},"
            raise ConfigError(f"columns: {own.path}: its keys{such} are those of no sample")


def _columns_of(batches: Callable[[], Iterator[Any]]) -> Iterator[Sequence[Any]]:
    """The arrays of each batch."""
    return (batch.columns for batch in batches())


def _matching(names: Sequence[str], paths: Iterable[ColumnPath]) -> list[ColumnPath]:
    """The columns that these names stand for: one, or all of a struct. Exact case takes precedence."""
    lower = tuple(name.lower() for name in names)
    found = []
    for path in paths:
        length = min(len(path), len(names))
        if tuple(name.lower() for name in path[:length]) == lower[:length]:
            found.append(path)
    same = [path for path in found if path[0] == names[0]]
    return same or found


def _are_told_apart(kind: Any) -> bool:
    """Whether all fields in an Arrow type have names that SQL tells apart."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = {field.name.lower() for field in fields}
    return len(names) == len(fields) and all(_are_told_apart(field.type) for field in fields)


def _nested(expressions: Mapping[ColumnPath, str]) -> dict[str, str]:
    """The expression of each column by its first name: those with longer paths are fields of a struct."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(path[0] for path in expressions):
        inner = {path[1:]: expression for path, expression in expressions.items() if path[0] == name}
        fields = () if () in inner else (f"{quoted(one)} := {value}" for one, value in _nested(inner).items())
        found[name] = inner.get((), f"struct_pack({', '.join(fields)})")
    return found


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextlib.contextmanager
def open_engine(spill: Path, num_threads: int = 1) -> Iterator[Any]:
    """A connection to an engine that evaluates queries, and may put files into the folder `spill`.

    Raises:
        ConfigError: if DuckDB is not installed.
    """
    duckdb, _ = arrow_package("duckdb"), arrow_package()
    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        own = {"temp_directory": str(spill), "threads": num_threads, "memory_limit": f"{num_threads * MEMORY_GIB}GiB"}
        for name, value in {**own, **_SETTINGS}.items():
            connection.execute(f"SET {name} = {_text(value) if isinstance(value, str) else str(value).lower()}")
        yield connection


def parse_predicate(engine: Any, text: str) -> list[ColumnPath]:
    """The columns that the predicate in `text` names.

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
    if not is_expression or nodes[0]["from_table"]["type"] != "EMPTY" or any(map(nodes[0].get, _MORE)):
        raise ConfigError(f"{clipped(text)!r}: {_EXPECTED}")
    check = _Check(engine, text)
    check.walk(nodes[0]["select_list"][0], frozenset())
    return [*dict.fromkeys(check.columns)]


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
