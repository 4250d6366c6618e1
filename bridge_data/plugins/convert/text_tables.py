"""Records in text files: JSON lines, arrays of JSON objects (ShareGPT, LLaVA), COCO captions, CSV and TSV.

Reads files. Returns a source with a record for each object or row, its columns as in the file. Opening reads each file
once, to find where its records start and end; this takes 20 bytes of memory a record, plus the largest record and a few
megabytes. Raises an error that names the line or byte for a record larger than `Limits.max_json_bytes`.
"""

import array
import codecs
import csv
import io
import itertools
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from bridge_data import storage
from bridge_data.data.jsonl_file import JsonlLines, open_jsonl
from bridge_data.data.plain_data import parse_json
from bridge_data.data.records import count_samples, stored_number, stored_records
from bridge_data.data.sample_offsets import encode_offsets, offsets_digest
from bridge_data.data.withheld import files_of, withheld_in
from bridge_data.decode.media_kinds import names_media
from bridge_data.errors import DatasetError, counted, listed
from bridge_data.later import numpy
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import Clause
from bridge_data.plan.folder_contents import KINDS, why_no_text
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.record_source import (
    BrokenRecord,
    RecordSource,
    SourceConfig,
    SourceRecord,
    chosen_of,
    digest_of_files,
    files_of_source,
)

READ_BYTES = 1 << 15
"""Bytes of a JSON file that are read at once, and decoded for each value in them; more for longer values."""

Spans: TypeAlias = Iterator[tuple[int, int]]
"""The first byte of each record, and the byte after its last."""

Parse: TypeAlias = Callable[[bytes], dict[str, Any]]
"""From the bytes of a record to its columns. A ValueError says what is wrong with them."""


class TextTable(RecordSource):
    """Records at the bytes `starts` of text `files`; `firsts` has the number of the first of each, and that of all."""

    def __init__(
        self, title: str, files: Sequence[Path], opened: Callable[[Path, Limits], tuple[Spans, Parse]], limits: Limits
    ) -> None:
        self.title, self.files, self._limits = title, files, limits
        self._parsers: list[Parse] = []
        self.starts, self._ends = array.array("Q"), array.array("Q")
        self.firsts = [0]
        for path in files:
            try:
                storage.close_file(path)  # the file may have been replaced
                if (complaint := why_no_text(str(path))) is not None:
                    raise ValueError(complaint)
                spans, parse = opened(path, limits)
                for start, end in spans:
                    self.starts.append(start)
                    self._ends.append(end)
            except ValueError as error:
                raise DatasetError(f"{path}: {error}") from None
            except OSError as error:
                raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
            self._parsers.append(parse)
            self.firsts.append(len(self.starts))

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            which = bisect_right(self.firsts, number) - 1
            path, start = self.files[which], self.starts[number]
            where = f"{path.name}, record {number - self.firsts[which] + 1} at byte {start}"
            try:
                values = self._parsers[which](storage.read(str(path), start, self._ends[number] - start))
                yield SourceRecord(number, where, values)
            except (ValueError, DatasetError) as error:
                yield BrokenRecord(number, where, str(error))

    def fingerprint(self) -> str:
        return digest_of_files(self.files)


class JsonLines(TextTable):
    """A record for each line that is not blank; they are numbered as they are in place."""

    def __init__(self, files: Sequence[Path], limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__("JSON lines", files, lambda *of: (_line_spans(*of), _object_parser(limits)), limits)

    def chosen_numbers(self, clauses: Sequence[Clause]) -> Collection[int]:
        """Those of prepared files."""
        found: set[int] = set()
        for path, (first, end) in zip(self.files, itertools.pairwise(self.firsts), strict=True):
            for part in split_parts(path.absolute(), self._limits):
                lines = open_jsonl(path.absolute(), part, limits=self._limits)
                check_count(path, end - first, count_samples(stored_records(lines)))
                found.update(first + stored_number(lines, index) for index in chosen_of(lines, clauses))
        return found

    def forgotten_numbers(self) -> Container[int]:
        """By what is in the files now, prepared or not."""
        found: set[int] = set()
        for path, (first, end) in zip(self.files, itertools.pairwise(self.firsts), strict=True):
            file, num_bytes = path.absolute(), path.stat().st_size
            starts = self.starts[first:end]
            starts[:1] = array.array("Q", [0] * len(starts[:1]))  # blank lines before belong to the first, as in place
            digest = offsets_digest(encode_offsets(starts + array.array("Q", [num_bytes])))
            lines = JsonlLines(root=file, split_part="", num_samples=len(starts), num_bytes=num_bytes, digest=digest)
            if (files := files_of(lines)) is not None:
                found.update(first + position for _, position, _ in withheld_in(files))
        return found


def check_count(file: Path, num_samples: int, num_prepared: int) -> None:
    """Check the number of samples in a file.

    Raises:
        DatasetError: if it had another when it was prepared.
    """
    if num_samples != num_prepared:
        raise DatasetError(
            f"{file}: has {num_samples:,} samples, but had {num_prepared:,} when it was prepared: prepare it again"
        )


def _line_spans(path: Path, limits: Limits) -> Spans:
    """The lines that are not blank."""
    with open(path, "rb") as file:
        start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0  # the mark that some editors write
        file.seek(start)
        for number in itertools.count(1):
            line = file.readline(limits.max_json_bytes + 2)
            if not line:
                return
            if len(line.rstrip(b"\r\n")) > limits.max_json_bytes:
                raise ValueError(f"line {number} is longer than {limits.max_json_bytes} bytes ({_LIMIT})")
            if not line.isspace():
                yield start, start + len(line)
            start += len(line)


_LIMIT = "Limits(max_json_bytes)"


def is_of_lines(path: Path, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Whether the first two lines of a file that are not blank are an object each, by their first and last characters:
    inside one object, no other follows its `}` without a comma."""
    with open(path, "rb") as file:
        lines = (
            line.removeprefix(codecs.BOM_UTF8).strip()
            for line in iter(lambda: file.readline(limits.max_json_bytes), b"")
        )
        first, second = itertools.islice(itertools.chain(filter(None, lines), (b"", b"")), 2)
    return first[:1] + first[-1:] == b"{}" and second.startswith(b"{")


def _object_parser(limits: Limits) -> Parse:
    def parse(data: bytes) -> dict[str, Any]:
        try:
            value = parse_json(data, limits, unique=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"is not UTF-8: {error}") from None
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
        if not isinstance(value, dict):
            fix = ": if the whole file is one list, give --format json" if isinstance(value, list) else ""
            raise ValueError(f"is a {type(value).__name__}; expected an object, such as {{'image': 'a.jpg'}}{fix}")
        return value

    return parse


def json_array(files: Sequence[Path], limits: Limits = DEFAULT_LIMITS) -> TextTable:
    """A record for each object in the list that each file is."""
    return TextTable("JSON list", files, lambda *of: (_array_spans(*of), _object_parser(limits)), limits)


def _array_spans(path: Path, limits: Limits) -> Spans:
    with JsonStream(path, limits) as stream:
        yield from ((start, end) for start, end, _ in stream.list_values())
        stream.expect_end()


class JsonStream:
    """Reads through a JSON file of any size, holding one value at a time."""

    def __init__(self, path: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  closed by `__exit__`
        self._limits = limits
        self._data, self._at, self._offset = b"", 0, 0
        if self._peek(3) == b"\xef\xbb\xbf":
            self._at = 3

    def __enter__(self) -> "JsonStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _fill(self) -> bool:
        """Read more; False at the end of the file."""
        more = self._file.read(max(READ_BYTES, len(self._data) - self._at))
        self._offset += self._at
        self._data, self._at = self._data[self._at :] + more, 0
        return bool(more)

    def _peek(self, count: int) -> bytes:
        while len(self._data) - self._at < count and self._fill():
            pass
        return self._data[self._at : self._at + count]

    def _skip_space(self) -> bytes:
        """The next character that is not blank, without taking it."""
        while True:
            while self._at < len(self._data):
                if self._data[self._at] not in b" \t\r\n":
                    return self._data[self._at : self._at + 1]
                self._at += 1
            if not self._fill():
                return b""

    def take(self, expected: bytes) -> bytes:
        """The next character that is not blank, one of `expected`."""
        found = self._skip_space()
        if not found or found not in expected:
            shown = " or ".join(repr(chr(one)) for one in expected)
            got = repr(found.decode(errors="replace")) if found else "the end of the file"
            raise ValueError(f"is not JSON: at byte {self._offset + self._at} expected {shown}, got {got}")
        self._at += 1
        return found

    def expect_end(self) -> None:
        """Ensure that nothing follows."""
        if self._skip_space():
            raise ValueError(f"is not JSON: has more at byte {self._offset + self._at}, after its end")

    def kind(self) -> str:
        """`[`, `{`, or another first character of the next value; empty at the end."""
        return self._skip_space().decode(errors="replace")

    def list_values(self) -> Iterator[tuple[int, int, Any]]:
        """(first byte, the one after its last, value) of each value in the list that comes next."""
        self.take(b"[")
        if self._skip_space() == b"]":
            self._at += 1
            return
        while True:
            start, value = self.value()
            yield start, self._offset + self._at, value
            if self.take(b",]") == b"]":
                return

    def names(self) -> Iterator[str]:
        """The names in the object that comes next; the caller reads the value after each."""
        self.take(b"{")
        if self._skip_space() == b"}":
            self._at += 1
            return
        while True:
            _, name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"is not JSON: {name!r} stands where a name should")
            self.take(b":")
            yield name
            if self.take(b",}") == b"}":
                return

    def value(self) -> tuple[int, Any]:
        """(first byte, value) of what comes next."""
        self._skip_space()
        limit = self._limits.max_json_bytes
        while True:
            start = self._offset + self._at
            available = self._data[self._at : self._at + limit]
            complaint = "ends within a value"
            try:
                # a cut character decodes to one stand-in a byte, so byte positions stay right
                text = available.decode("utf-8", "surrogateescape")
                value, end = _DECODER.raw_decode(text)
                if end < len(text) or isinstance(value, str | dict | list) or not self._fill():  # a number may continue
                    self._at += len(text[:end].encode("utf-8", "surrogateescape"))
                    return start, value
                continue
            except json.JSONDecodeError as error:
                complaint = error.msg
            except RecursionError:
                raise ValueError(f"the value at byte {start} is nested too deeply") from None
            if len(available) >= limit:
                raise ValueError(f"the value at byte {start} is larger than {limit} bytes ({_LIMIT}), or not JSON")
            if not self._fill():
                raise ValueError(f"is not JSON: the value at byte {start}: {complaint}")


_DECODER = json.JSONDecoder()


_LONGEST_HEADING = 100
"""Characters in the name of a column: a longer one is the text of a row, as in files without names."""


def csv_rows(files: Sequence[Path], limits: Limits = DEFAULT_LIMITS) -> TextTable:
    """A record for each row below the headings, which name the columns; values are text."""
    return TextTable("CSV", files, _csv_spans, limits)


def _csv_spans(path: Path, limits: Limits) -> tuple[Spans, Parse]:
    delimiter, first = _delimiter(path, limits)
    quoting = _Quoting(first, delimiter)
    rows = _csv_records(path, delimiter, limits, quoting)
    _, _, headings = next(rows, (0, 0, [""]))
    try:
        delimiter.join(headings).encode()
    except UnicodeEncodeError:
        raise ValueError("its first line is not UTF-8; write the file in UTF-8") from None
    is_wrong = not all(headings) or len(set(headings)) < len(headings)
    if is_wrong or any(names_media(one) or "|" in one or len(one) > _LONGEST_HEADING for one in headings):
        shown = str(headings)[:200]
        raise ValueError(f"its first line should name the columns, each once, as in `image,caption`; got {shown}")
    return ((start, end) for start, end, _ in rows), _row_parser(headings, delimiter, quoting)


def _delimiter(path: Path, limits: Limits) -> tuple[str, str]:
    """The delimiter of columns, by the file's name, else the most frequent one in its first line; and that line."""
    with open(path, "rb") as file:
        first = file.readline(limits.max_json_bytes).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t", first
    return max(",;\t|", key=first.count), first


class _Quoting:
    """Which quotation marks of a table are those of CSV. In columns between tabs or `|`, most writers have none: there
    a mark is text, but around a field with marks doubled in it, in a table whose headings have marks around them, and
    where a field goes on in the next line."""

    _QUOTED = re.compile(r'"(?:[^"]|"")*"')

    def __init__(self, headings: str, delimiter: str) -> None:
        self._delimiter, self._is_plain = delimiter, delimiter in "\t|"
        self._num_delimiters, self._all_quoted = headings.count(delimiter), headings.startswith('"')

    def as_csv(self, line: str, following: str = "") -> str:
        """A line, before the line `following`, as the CSV reader takes it."""
        if not self._is_plain or '"' not in line or line.count(self._delimiter) != self._num_delimiters:
            return line
        fields = line.rstrip("\r\n").split(self._delimiter)
        goes_on = fields[-1].startswith('"') and not self._QUOTED.fullmatch(fields[-1])
        if goes_on and following and following.count(self._delimiter) != self._num_delimiters:
            return line
        return self._delimiter.join(map(self._field, fields)) + "\n"

    def _field(self, field: str) -> str:
        if self._QUOTED.fullmatch(field) and (self._all_quoted or '""' in field or "\r" in field):
            return field
        return '"' + field.replace('"', '""') + '"' if field.startswith('"') else field


def _csv_records(path: Path, delimiter: str, limits: Limits, quoting: _Quoting) -> Iterator[tuple[int, int, list[str]]]:
    """(first byte, the byte after its last, values) of each row, headings included; blank lines are skipped."""
    consumed = start = 0

    def checked(line: bytes) -> bytes:
        if len(line) > limits.max_json_bytes:
            raise ValueError(f"the line at byte {consumed} is longer than {limits.max_json_bytes} bytes ({_LIMIT})")
        return line

    def lines(file: BinaryIO) -> Iterator[str]:
        nonlocal consumed
        following = file.readline(limits.max_json_bytes + 1)
        while line := checked(following):
            following = file.readline(limits.max_json_bytes + 1)
            if consumed - start > limits.max_json_bytes:
                raise ValueError(
                    f"the row at byte {start} is longer than {limits.max_json_bytes} bytes ({_LIMIT}): is a quotation "
                    "mark not closed?"
                )
            text, after = (one.decode("utf-8", "surrogateescape") for one in (line, following))
            text = text.removeprefix("\ufeff") if not consumed else text
            consumed += len(line)
            yield quoting.as_csv(text, after)

    with open(path, "rb") as file:
        try:
            reader = csv.reader(lines(file), delimiter=delimiter)
            while (row := _next_row(reader, limits.max_json_bytes)) is not None:
                if row:
                    yield start, consumed, row
                start = consumed
        except csv.Error as error:
            raise ValueError(f"the row at byte {start} is not CSV: {error}") from None


def _next_row(reader: Iterator[list[str]], max_bytes: int) -> list[str] | None:
    """The next row, whose fields may have up to `max_bytes`; None at the end. The limit is global to the process, so
    it is set and restored."""
    before = csv.field_size_limit(max_bytes)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _row_parser(headings: Sequence[str], delimiter: str, quoting: _Quoting) -> Parse:
    def parse(data: bytes) -> dict[str, Any]:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"is not UTF-8: {error}") from None
        if "\n" not in text.rstrip("\r\n"):
            text = quoting.as_csv(text)
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
            rows = [row for row in iter(partial(_next_row, reader, len(data)), None) if row]
        except csv.Error as error:
            raise ValueError(f"is not CSV: {error}: is a quotation mark not closed, or not doubled?") from None
        if len(rows) != 1 or len(rows[0]) != len(headings):
            got = len(rows[0]) if rows else 0
            raise ValueError(f"has {got} columns; expected {len(headings)}: {', '.join(headings)[:200]}")
        return dict(zip(headings, rows[0], strict=True))

    return parse


class _OtherEntries:
    """What else is in a JSON object: the names of lists of objects, and the first file that is named as a data set."""

    def __init__(self) -> None:
        self._lists: list[str] = []
        self._named: tuple[str, str] | None = None

    def add(self, name: str, stream: JsonStream) -> None:
        """Pass over the value at `name`, which comes next; a list is read by its values, as it may be long."""
        if stream.kind() == "[":
            kinds = {type(value) for _, _, value in stream.list_values()}
            self._lists += [name] * (kinds == {dict})
            return
        _, value = stream.value()
        if isinstance(value, dict) and self._named is None:
            files = (value.get(at) for at in _NAMES_OF_DATA)
            self._named = next(((name, file) for file in files if isinstance(file, str)), None)

    def way_out(self, path: Path) -> str:
        """How to convert what is there."""
        if self._lists:
            return (
                f"It has lists of objects at {listed(self._lists)}: make a file of one, such as by `jq -c "
                f"'.{self._lists[0]}[]' {shlex.quote(str(path))} > {self._lists[0]}.jsonl`, and convert that"
            )
        if self._named is not None:
            return (
                f"It names data sets, such as {self._named[0]!r} in {self._named[1]}: convert each of these files, "
                "--media-root being the folder of its media, and blend the results in a metadataset"
            )
        return (
            "Other records are a list of objects, or lines in a file that is called .jsonl: if this object is the only "
            "line, give --format jsonl"
        )


_NAMES_OF_DATA = ("annotation", "annotation_path", "file_name", "data_path", "json_path")
"""Where lists of data sets, such as those of InternVL and LLaMA-Factory, name the file of each."""


class CocoCaptions(RecordSource):
    """Captions in the form of COCO: a record for each image that has some, in the order of `images`: `image` (its file
    name), `caption` (the first), `captions` (all, in the order of the file), `image_id`, and all other fields of the
    image. An annotation of an image that is not listed is a broken record, after the others. An annotation takes 32
    bytes of memory, its text none.

    Source: the format, https://cocodataset.org/#format-data
    """

    title = "COCO captions"

    def __init__(self, path: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self._path, self._limits = path, limits
        storage.close_file(path)  # the file may have been replaced
        images: list[tuple[int, int, int]] = []
        annotations: list[tuple[int, int, int]] = []
        others = _OtherEntries()
        try:
            with JsonStream(path, limits) as stream:
                for name in stream.names():
                    if name in ("images", "annotations"):
                        into, field = (images, "id") if name == "images" else (annotations, "image_id")
                        into += self._listed(stream, field)
                    else:
                        others.add(name, stream)
                stream.expect_end()
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from None
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
        if not images or not annotations:
            raise DatasetError(
                f"{path}: expected both images and annotations, as in COCO; got {len(images)} and {len(annotations)}. "
                f"{others.way_out(path)}"
            )
        spans = numpy.array(annotations, dtype=numpy.int64)
        self._annotations = spans[numpy.argsort(spans[:, 0], kind="stable")]
        known = numpy.array(images, dtype=numpy.int64)
        if len(numpy.unique(known[:, 0])) < len(known):
            raise DatasetError(f"{path}: two images have the same id")
        self._stray = spans[~numpy.isin(spans[:, 0], known[:, 0])]
        self._images = known[numpy.isin(known[:, 0], spans[:, 0])]
        num_without = len(known) - len(self._images)
        self.notes = [f"left out: {counted(num_without, 'image')} without captions"] * bool(num_without)

    def _listed(self, stream: JsonStream, field: str) -> Iterator[tuple[int, int, int]]:
        for position, (start, end, value) in enumerate(stream.list_values()):
            if position == 0 and field == "image_id" and isinstance(value, dict) and "caption" not in value:
                raise ValueError(
                    f"its annotations have no caption, but {listed(sorted(value))}: of COCO, only captions are read. "
                    "Give the file of captions, or write what you need of this one as JSON lines that name the images"
                )
            number = value.get(field) if isinstance(value, dict) else None
            if type(number) is not int or abs(number) >= 2**63:
                raise ValueError(
                    f"the entry at byte {start} has no whole number at {field!r}, as in COCO: if the file is of JSON "
                    "lines, give --format jsonl"
                )
            yield number, start, end

    def __len__(self) -> int:
        return len(self._images) + len(self._stray)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            if number >= len(self._images):
                image_id, start, _ = map(int, self._stray[number - len(self._images)])
                where = f"{self._path.name}, the annotation at byte {start}"
                yield BrokenRecord(number, where, f"is of image {image_id}, which the file does not list")
                continue
            image_id, start, end = map(int, self._images[number])
            where = f"{self._path.name}, image {image_id}"
            first, last = numpy.searchsorted(self._annotations[:, 0], [image_id, image_id + 1])
            try:
                image = self._entry(start, end)
                captions = [self._entry(*map(int, span[1:])).get("caption") for span in self._annotations[first:last]]
            except (ValueError, AttributeError, DatasetError) as error:
                yield BrokenRecord(number, where, str(error))
                continue
            name = image.pop("file_name", None)
            if not isinstance(name, str) or not all(isinstance(caption, str) for caption in captions):
                yield BrokenRecord(number, where, "expected a text at 'file_name', and at 'caption' of each annotation")
                continue
            image.pop("id")
            values = {"image": name, "caption": captions[0], "captions": captions, "image_id": image_id}
            values |= {other: value for other, value in image.items() if other not in values}
            yield SourceRecord(number, where, values, f"{image_id:012d}" if image_id >= 0 else str(image_id))

    def _entry(self, start: int, end: int) -> dict[str, Any]:
        value: dict[str, Any] = parse_json(storage.read(str(self._path), start, end - start), self._limits)
        return value

    def fingerprint(self) -> str:
        return digest_of_files([self._path])


def open_lines(path: Path, config: SourceConfig) -> RecordSource:
    """JSON lines."""
    return JsonLines(files_of_source(path, config, KINDS["jsonl"].endings), config.limits)


def open_list(path: Path, config: SourceConfig) -> RecordSource:
    """Lists of JSON objects."""
    return json_array(files_of_source(path, config, (".json",)), config.limits)


def open_csv(path: Path, config: SourceConfig) -> RecordSource:
    """CSV and TSV."""
    return csv_rows(files_of_source(path, config, KINDS["csv"].endings), config.limits)


def open_coco(path: Path, config: SourceConfig) -> RecordSource:
    """COCO captions."""
    return CocoCaptions(path, config.limits)
