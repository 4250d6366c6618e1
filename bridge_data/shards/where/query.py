"""Evaluating a predicate over the columns of a data set.

Enters: an engine, the columns, a file of the user's, a predicate. Leaves: a bit for each sample. Guarantee: columns
that the predicate does not name are not read; an unknown column, or a predicate that is not boolean, is an error before
anything is read. If the predicate is NULL, because a value is missing, the sample is not chosen.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bridge_data.errors import ConfigError, listed
from bridge_data.shards.where.own_columns import KEY_COLUMN, SHARD_COLUMN, OwnColumns
from bridge_data.shards.where.predicates import as_written, clipped, parse_predicate, quoted
from bridge_data.shards.where.sample_columns import (
    FULL_KEY,
    KEY,
    ROWS_AT_ONCE,
    SHARD,
    ColumnPath,
    KeyedTable,
    SampleColumns,
    arrow_package,
)

MAX_SHOWN = 40
"""Maximum columns that an error lists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluated:
    """The chosen samples, as bits; the number for which the predicate is NULL, and that without a row in the user's
    file."""

    bits: Any
    num_null: int
    num_without_row: int


class SampleQuery:
    """The predicate `text` over `columns`, and those in the file `own`."""

    def __init__(self, engine: Any, columns: SampleColumns, own: OwnColumns | None, text: str) -> None:
        self._engine, self._columns, self._own = engine, columns, own
        self._text = text
        self._failure: Exception | None = None
        self._predicate = parse_predicate(engine, text)
        self._types = self._of_samples(of_all=False)
        self._own_types = {} if own is None else own.types()
        self._keyed: dict[ColumnPath, KeyedTable] = {}
        if any(self._is_unknown(names) for names in self._predicate.columns):
            self._types = self._of_samples(of_all=True)
            for part in sorted({path[0] for path in self._types if len(path) == 2}):
                table = columns.keyed(part)
                if table is not None:
                    new: dict[ColumnPath, Any] = {
                        (part, name): kind for name, kind in table.types.items() if (part, name) not in self._types
                    }
                    self._types |= new
                    self._keyed |= dict.fromkeys(new, table)
        self._wanted = self._resolved()
        for path, kind in self._wanted.items():
            self._check_type(path, kind)
        self._check()

    def _of_samples(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        """The types of the columns of the samples. `__key__` is the key as batches have it, also where a table has such
        a column, whose keys are without shards."""
        full_key = {FULL_KEY: arrow_package().string()}
        return full_key | self._columns.types(of_all=of_all) | full_key

    def _is_unknown(self, names: Sequence[str]) -> bool:
        return not (_matching(names, self._types) or _matching(names, self._own_paths()))

    def _own_paths(self) -> list[ColumnPath]:
        return [(name,) for name in self._own_types if name not in (KEY_COLUMN, SHARD_COLUMN)]

    def _resolved(self) -> dict[ColumnPath, Any]:
        """The columns of the predicate, with their types; columns of the user's file have a path of one name."""
        wanted: dict[ColumnPath, Any] = {}
        for names in self._predicate.columns:
            found, own = _matching(names, self._types), _matching(names, self._own_paths())
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
        known = {".".join(path): written(path) for path in (*self._types, *self._own_paths())}
        near = difflib.get_close_matches(".".join(names), known, n=1, cutoff=0.5)
        guess = f"; did you mean {known[near[0]]!r}?" if near else "."
        shown = listed([*known.values()], MAX_SHOWN)
        return f"unknown column {'.'.join(names)!r}{guess} There is: {shown}. More: {self._columns.way_out()}"

    def _check_type(self, path: ColumnPath, kind: Any) -> None:
        """Ensure that the engine knows the type of a column."""
        try:
            with self._registered({"one": arrow_package().schema([("one", kind)]).empty_table()}):
                pass
        except Exception as error:  # the engine raises many kinds
            raise ConfigError(
                f"column {'.'.join(path)!r} has the type {kind}, which DuckDB cannot compare: give it as float32, "
                "float64, a decimal of up to 38 digits or text, such as in a file of your own (`columns:`)"
            ) from error

    def _check(self) -> None:
        """Ensure that the predicate is boolean, by a query over no rows."""
        tables = {name: schema.empty_table() for name, schema in self._schemas().items()}
        with self._registered(tables):
            kind = self._executed("DESCRIBE SELECT {predicate} FROM {samples}").fetchall()[0][1]
        if kind != "BOOLEAN":
            raise ConfigError(
                f"{clipped(self._text)!r} has the type {kind}, expected BOOLEAN: compare it, such as `... > 0`"
            )

    def run(self, num_samples: int) -> Evaluated:
        """Evaluate it for all samples.

        Raises:
            ConfigError: if that fails, or the user's file does not fit. DatasetError: if columns cannot be read.
        """
        import numpy as np

        bits = np.zeros(-(-num_samples // 8), np.uint8)
        num_rows = num_null = num_with_row = 0
        with self._registered(self._readers()):
            query = "SELECT __number, {predicate}, __is_there FROM {samples}"
            for batch in self._batches_of(self._executed(query)):
                numbers, chosen, is_there = batch.columns
                num_rows += len(numbers)
                num_null += chosen.null_count
                num_with_row += len(is_there) - is_there.null_count
                found = numbers.filter(chosen).to_numpy()
                np.bitwise_or.at(bits, found >> 3, (1 << (found & 7)).astype(np.uint8))
        if self._own is not None:
            self._check_own(self._own, num_rows - num_samples, num_with_row)
        return Evaluated(bits, num_null, num_samples - num_with_row)

    def _joins_shard(self) -> bool:
        return SHARD_COLUMN in self._own_types

    def _of_full_key(self) -> list[ColumnPath]:
        """The columns that `__key__` is made of, with `/` between them."""
        of = self._columns
        return [of.shard, of.key] if of.has_shard_in_full_key else [of.key]

    def _of_batches(self) -> list[ColumnPath]:
        """The columns of the batches, with those that tables are joined by."""
        own = {FULL_KEY, *((name,) for name in self._own_types)}
        of = self._columns
        full_key = self._of_full_key() if FULL_KEY in self._wanted else []
        by_key = self._own is not None or not self._keyed.keys().isdisjoint(self._wanted)
        joined = [*full_key, *([of.key] if by_key else []), *([of.shard] if self._joins_shard() else [])]
        first = [path for path in self._wanted if path in self._types and path not in self._keyed and path not in own]
        return list(dict.fromkeys([*first, *(path for path in self._wanted if path in (KEY, SHARD)), *joined]))

    def _of_parts(self) -> dict[str, list[ColumnPath]]:
        """The columns joined by the keys of parts, by part."""
        found: dict[str, list[ColumnPath]] = {}
        for path in self._wanted:
            if path in self._keyed:
                found.setdefault(path[0], []).append(path)
        return found

    def _of_own(self) -> list[str]:
        """The columns to read from the user's file."""
        if self._own is None:
            return []
        keys = [KEY_COLUMN, *([SHARD_COLUMN] if self._joins_shard() else [])]
        return keys + [path[0] for path in self._wanted if path not in self._types]

    def _schemas(self) -> dict[str, Any]:
        """The Arrow schemas of the tables of the query, by name."""
        arrow = arrow_package()
        kinds = [self._types.get(path, arrow.string()) for path in self._of_batches()]
        columns = [(f"c{number}", kind) for number, kind in enumerate(kinds)]
        found = {"batches": arrow.schema([("__number", arrow.int64()), *columns])}
        for number, paths in enumerate(self._of_parts().values()):
            fields = [(path[1], self._types[path]) for path in paths]
            found[f"part{number}"] = arrow.schema([("key", arrow.string()), *fields])
        if self._own is not None:
            found["own"] = arrow.schema([(name, self._own_types[name]) for name in self._of_own()])
        return found

    def _readers(self) -> dict[str, Any]:
        """Readers of these tables."""
        schemas, wanted = self._schemas(), self._of_batches()
        arrow = arrow_package()

        def rows() -> Iterator[Any]:
            for numbers, values in self._columns.batches(wanted):
                arrays = [arrow.array(numbers), *(values[path] for path in wanted)]
                yield arrow.record_batch(arrays, schema=schemas["batches"])

        batches = {"batches": rows()}
        for number, paths in enumerate(self._of_parts().values()):
            batches[f"part{number}"] = self._keyed[paths[0]].batches([path[1] for path in paths])
        if self._own is not None:
            batches["own"] = self._own.batches(self._of_own())
        reader = arrow.RecordBatchReader.from_batches
        return {name: reader(schemas[name], self._noting(found)) for name, found in batches.items()}

    def _noting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """`batches`; an exception is noted, as the engine hides it."""
        try:
            yield from batches
        except Exception as error:
            self._failure = error
            raise

    @contextlib.contextmanager
    def _registered(self, tables: Mapping[str, Any]) -> Iterator[None]:
        """Let queries use these tables; after a failure, the engine is not used again."""
        for name, found in tables.items():
            self._engine.register(name, found)
        yield
        for name in tables:
            self._engine.unregister(name)

    def _executed(self, query: str) -> Any:
        """The result of a query with `{predicate}` and `{samples}`."""
        with self._reporting():
            head, tail = query.replace("{samples}", self._samples()).split("{predicate}")
            return self._engine.sql(f"{head}(\n{self._text}\n){tail}")

    def _batches_of(self, result: Any) -> Iterator[Any]:
        with self._reporting():
            yield from result.to_arrow_reader(ROWS_AT_ONCE)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the engine raises many kinds
            if self._failure is not None:
                raise self._failure from None
            raise ConfigError(f"{clipped(self._text)!r}: {str(error).splitlines()[0]}") from None

    def _samples(self) -> str:
        """The query of all columns, under the names that a predicate has for them."""
        expressions: dict[ColumnPath, str] = {}
        for number, path in enumerate(self._of_batches()):
            if path in self._wanted:
                expressions[path] = f"batches.c{number}"
        keys = {path: f"batches.c{number}" for number, path in enumerate(self._of_batches())}
        if FULL_KEY in self._wanted:
            expressions[FULL_KEY] = " || '/' || ".join(keys[path] for path in self._of_full_key())
        joins = []
        for number, (part, paths) in enumerate(self._of_parts().items()):
            key = keys[self._columns.key]
            joins.append(f"LEFT JOIN part{number} ON part{number}.key = {key} || {_text('.' + part)}")
            expressions |= {path: f"part{number}.{quoted(path[1])}" for path in paths}
        there = "true"
        if self._own is not None:
            conditions = [f"CAST(own.key AS VARCHAR) = {keys[self._columns.key]}"]
            conditions += [f"CAST(own.shard AS VARCHAR) = {keys[self._columns.shard]}"] if self._joins_shard() else []
            joins.append(f"LEFT JOIN (SELECT *, true AS __is_there FROM own) own ON {' AND '.join(conditions)}")
            there = "own.__is_there"
            expressions |= {path: f"own.{quoted(path[0])}" for path in self._wanted if path not in self._types}
        columns = ", ".join(f"{value} AS {quoted(name)}" for name, value in _nested(expressions).items())
        listed = f"batches.__number, {there} AS __is_there" + (f", {columns}" if columns else "")
        return f"(SELECT {listed} FROM batches {' '.join(joins)})"

    def _check_own(self, own: OwnColumns, num_more: int, num_with_row: int) -> None:
        """Ensure that the user's file has rows for samples, one for each."""
        names = ["key", *(["shard"] if self._joins_shard() else [])]
        if num_more:
            reader = arrow_package().RecordBatchReader.from_batches
            schema = arrow_package().schema([(name, self._own_types[name]) for name in names])
            with self._registered({"own": reader(schema, own.batches(names))}), self._reporting():
                of = ", ".join(names)
                query = f"SELECT {of}, count(*) FROM own GROUP BY {of} HAVING count(*) > 1 ORDER BY {of} LIMIT 1"
                ((*key, times),) = self._engine.execute(query).fetchall()
            raise ConfigError(
                f"columns: {own.path}: has {times} rows of {' and '.join(names)} {', '.join(map(repr, key))}: expected "
                "one for each sample" + ("" if len(names) > 1 else "; a column `shard` tells shards apart")
            )
        if not num_with_row:
            first = next(iter(own.batches(["key"])), None)
            such = "" if first is None or not len(first) else f", such as {first.column(0)[0].as_py()!r},"
            raise ConfigError(f"columns: {own.path}: its keys{such} are those of no sample")


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


def _nested(expressions: Mapping[ColumnPath, str]) -> dict[str, str]:
    """The expression of each column by its first name: those with longer paths are fields of a struct."""
    groups: dict[str, dict[ColumnPath, str]] = {}
    found: dict[str, str] = {}
    for path, expression in expressions.items():
        if len(path) == 1:
            found[path[0]] = expression
        else:
            groups.setdefault(path[0], {})[path[1:]] = expression
    for name, inner in groups.items():
        fields = (f"{quoted(field)} := {value}" for field, value in _nested(inner).items())
        found[name] = f"struct_pack({', '.join(fields)})"
    return found


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
