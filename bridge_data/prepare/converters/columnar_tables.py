"""Records in Parquet and Arrow files, and in data sets that Hugging Face's `datasets` saved.

Enters: files with one schema. Leaves: a record for each row. pyarrow reads Parquet in batches of some megabytes of a
row group, and maps Arrow files into memory. Guarantee: columns that a sample cannot hold (times, decimals, extension
types) are an error that names all of them, before the first row is read.
"""

import importlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.table_files import saved_files as saved_tables
from bridge_data.prepare.converters.source_records import BrokenRecord, LastOpened, SourceRecord, digest_of_files

BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 64
MAX_ARROW_BYTES = 1 << 30
"""Maximum memory for the record batches of one compressed Arrow file."""


def arrow(module: str = "pyarrow") -> Any:
    """pyarrow, or a module in it.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            'Parquet, Arrow and Hugging Face data need pyarrow: pip install "bridge-data[parquet]"'
        ) from None


class _ColumnFile(Protocol):
    """An open file: its schema, and blocks of rows."""

    schema: Any
    block_rows: list[int]

    def rows(self, block: int) -> list[dict[str, Any]]:
        """The rows of a block."""
        ...


class _ParquetFile:
    """Blocks are the batches of row groups. Reading them in order is fastest; for a block before the last one read,
    its row group is read again from the start."""

    def __init__(self, path: Path, columns: list[str] | None = None) -> None:
        self._file = arrow("pyarrow.parquet").ParquetFile(path, pre_buffer=False)
        self.schema = self._file.schema_arrow
        self._columns = columns
        self._groups: list[tuple[int, int, int]] = []
        """(row group, number of its block, rows of a block) of each block."""
        self.block_rows: list[int] = []
        for group in range(self._file.metadata.num_row_groups):
            about = self._file.metadata.row_group(group)
            size = max(1, min(BLOCK_ROWS, BLOCK_BYTES * about.num_rows // max(about.total_byte_size, 1)))
            for number, start in enumerate(range(0, about.num_rows, size)):
                self._groups.append((group, number, size))
                self.block_rows.append(min(size, about.num_rows - start))
        self._next: tuple[int, int] | None = None
        self._batches: Iterator[Any] = iter(())

    def rows(self, block: int) -> list[dict[str, Any]]:
        group, number, size = self._groups[block]
        if self._next is None or self._next[0] != group or self._next[1] > number:
            self._batches = self._cut(group, size)
            self._next = group, 0
        for _ in range(number - self._next[1]):
            next(self._batches, None)
        rows: list[dict[str, Any]] = next(self._batches, [])
        self._next = group, number + 1
        if len(rows) != self.block_rows[block]:
            raise DatasetError(f"row group {group} has fewer rows than its header says")
        return rows

    def _cut(self, group: int, size: int) -> Iterator[list[dict[str, Any]]]:
        """The rows of a row group, `size` at a time, however pyarrow cuts them."""
        waiting: list[dict[str, Any]] = []
        for batch in self._file.iter_batches(size, row_groups=[group], columns=self._columns, use_threads=False):
            waiting += batch.to_pylist()
            while len(waiting) >= size:
                yield waiting[:size]
                waiting = waiting[size:]
        if waiting:
            yield waiting


class _ArrowFile:
    """Record batches in the stream format, which `datasets` writes, or in the file format (Feather)."""

    def __init__(self, path: Path, columns: list[str] | None = None) -> None:
        pyarrow = arrow()
        source = pyarrow.memory_map(str(path))
        before = pyarrow.total_allocated_bytes()
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source)
        self.schema = reader.schema
        self._batches = []
        self._columns = columns
        for number in range(reader.num_record_batches) if is_file else iter(int, 1):
            try:
                self._batches.append(reader.get_batch(number) if is_file else reader.read_next_batch())
            except StopIteration:
                break
            if pyarrow.total_allocated_bytes() - before > MAX_ARROW_BYTES:
                raise ConfigError(
                    f"{path}: is compressed, and takes more than {MAX_ARROW_BYTES} bytes of memory; write it "
                    "uncompressed, or as Parquet"
                )
        cuts = [
            (batch, start, min(BLOCK_ROWS, len(batch) - start))
            for batch in self._batches
            for start in range(0, len(batch), BLOCK_ROWS)
        ]
        self._cuts = cuts
        self.block_rows = [count for _, _, count in cuts]

    def rows(self, block: int) -> list[dict[str, Any]]:
        batch, start, count = self._cuts[block]
        part = batch.slice(start, count)
        part.validate(full=True)  # damaged offsets would crash the process
        rows: list[dict[str, Any]] = (part if self._columns is None else part.select(self._columns)).to_pylist()
        return rows


class ColumnarTables:
    """The rows of Parquet or Arrow files with the same schema, without the columns in `dropped`."""

    has_parts = False
    definition = None
    notes = ()
    is_scattered = False

    def __init__(self, title: str, files: Sequence[Path], *, dropped: Collection[str] = ()) -> None:
        self.title = title
        self.files = list(files)
        self._block_firsts: list[int] = [0]
        self._blocks: list[tuple[int, int]] = []
        """(file, block in it) of each block; and the number of the first row of each."""
        schema = None
        self._columns: list[str] | None = None
        for number, path in enumerate(self.files):
            file = self._open(number)
            if schema is None:
                schema = file.schema
                try:
                    _check_columns(path, schema, dropped)
                except UnicodeDecodeError as error:
                    raise DatasetError(f"{path}: the name of a column is damaged: {error}") from None
                self._columns = [name for name in schema.names if name not in dropped]
                self._class_names = class_names(schema)
            elif not schema.equals(file.schema):
                raise ConfigError(
                    f"{path}: has other columns than {self.files[0]}: {_shown(file.schema)}; there "
                    f"{_shown(schema)}. Convert them one by one, or leave columns out with --drop"
                )
            for block, count in enumerate(file.block_rows):
                self._blocks.append((number, block))
                self._block_firsts.append(self._block_firsts[-1] + count)
        self._last: LastOpened[_ColumnFile] = LastOpened()

    def _open(self, number: int) -> _ColumnFile:
        path = self.files[number]
        pyarrow = arrow()
        with open(path, "rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        try:
            opened = _ParquetFile(path, self._columns) if is_parquet else _ArrowFile(path, self._columns)
            opened.schema.names  # noqa: B018  which need not be UTF-8
            return opened
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{path}: cannot be read as Parquet or Arrow: {error}") from None

    def __len__(self) -> int:
        return self._block_firsts[-1]

    def blocks(self) -> Iterator[range]:
        for first, end in zip(self._block_firsts, self._block_firsts[1:], strict=False):
            yield range(first, end)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        place = bisect_right(self._block_firsts, numbers[0]) - 1
        which, block = self._blocks[place]
        path, first = self.files[which], self._block_firsts[place]
        reason, rows = "", []
        try:
            rows = self._last.get(which, self._open).rows(block)
        except (arrow().ArrowException, OSError, ValueError, DatasetError) as error:
            self._last.forget()
            reason = f"cannot be read: {error}"
        file_first = self._block_firsts[place - block]
        for number in numbers:
            where = f"{path.name}, row {number - file_first}"
            if reason:
                yield BrokenRecord(number, where, reason)
            else:
                yield SourceRecord(number, where, self._named(rows[number - first]))

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the names of its classes added to their numbers."""
        for name, names in self._class_names.items():
            number = row.get(name)
            if isinstance(number, int) and 0 <= number < len(names) and f"{name}_name" not in row:
                row[f"{name}_name"] = names[number]
        return row

    def fingerprint(self) -> str:
        return digest_of_files(self.files)


def _shown(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _check_columns(path: Path, schema: Any, dropped: Collection[str]) -> None:
    unknown = sorted(set(dropped) - {*schema.names})
    if unknown:
        raise ConfigError(f"--drop {', '.join(unknown)}: {path} has the columns {', '.join(schema.names)}")
    odd = [field for field in schema if field.name not in dropped and not _is_plain(field.type, at_top=True)]
    if odd:
        shown = ", ".join(f"{field.name} ({field.type})" for field in odd)
        raise ConfigError(
            f"{path}: columns that a sample cannot hold: {shown}. Leave them out with --drop "
            f"{','.join(field.name for field in odd)}, or cast them to text or numbers first"
        )


def _is_plain(kind: Any, *, at_top: bool = False) -> bool:
    """Whether values of a column are JSON values, or media: bytes, or dicts of bytes and a path."""
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        if {field.name for field in kind} == {"bytes", "path"}:
            return at_top
        return all(_is_plain(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type, at_top=at_top)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return at_top
    return any(
        test(kind)
        for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    ) or types.is_null(kind)


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names of classes by column, as `datasets` stores them in the schema."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        found = {name: feature.get("names") for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: names
        for name, names in found.items()
        if isinstance(names, list) and all(isinstance(one, str) for one in names)
    }


def saved_files(folder: Path) -> list[Path] | None:
    """The files of a data set that `datasets` saved in a folder (`save_to_disk`), in order; None if it did not.

    Raises:
        ConfigError: if the folder holds several of them, one for each split, or rows are chosen by a file of indices.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        raise ConfigError(
            f"{folder}: holds the splits {', '.join(splits)}; convert each by itself, such as {folder / splits[0]}"
            if splits
            else f"{folder}: is a DatasetDict of `datasets` without splits"
        )
    if not (folder / "state.json").is_file():
        return None
    return [Path(path) for _, path in saved_tables(str(folder))]
