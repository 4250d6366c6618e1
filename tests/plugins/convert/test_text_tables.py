"""Records of JSON and CSV files, of any form that Python's readers accept."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import Limits
from bridge_data.plugins.convert import text_tables
from bridge_data.prepare.record_source import BrokenRecord, RecordSource, SourceRecord

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=8)
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def values(source: RecordSource) -> list[Any]:
    read = [record for block in source.blocks() for record in source.read(block)]
    assert all(isinstance(record, SourceRecord) for record in read)
    return [dict(record.values) for record in read if isinstance(record, SourceRecord)]


@given(RECORDS, st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 40))
@SETTINGS
def test_lists_are_read_as_json_reads_them(
    tmp_path: Path, records: list[Any], indent: int | None, is_ascii: bool, read_bytes: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(records, indent=indent, ensure_ascii=is_ascii), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_tables, "READ_BYTES", read_bytes)
        assert values(text_tables.json_array([path])) == json.loads(path.read_text())


@given(RECORDS)
@SETTINGS
def test_lines_are_read_as_json_reads_them(tmp_path: Path, records: list[Any]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n \r\n".join(json.dumps(record).encode() for record in records))
    assert values(text_tables.JsonLines([path, path])) == 2 * records


CELLS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\r"), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=6), st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n"]))
@SETTINGS
def test_rows_are_read_as_csv_reads_them(
    tmp_path: Path, rows: list[tuple[str, str]], delimiter: str, ending: str
) -> None:
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=ending)
        writer.writerows([("name", "größe"), *rows])
    with open(path, newline="", encoding="utf-8-sig") as file:
        expected = list(csv.DictReader(file, delimiter=delimiter))
    assert values(text_tables.csv_rows([path])) == expected


LONG = '[{"a": "' + "x" * 5000 + '"}]'


PLAIN = st.text('ab ",;', max_size=6)


@given(st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=8), st.sampled_from("\t|"))
@SETTINGS
def test_marks_in_a_table_without_quotation_are_text(
    tmp_path: Path, rows: list[tuple[str, str]], delimiter: str
) -> None:
    """As in the TSV of Common Voice, and as LJSpeech has its columns."""
    rows = [row for row in rows if not any(one.startswith('"') and '""' in one for one in row)]
    path = tmp_path / "a.csv"
    path.write_text(f"name{delimiter}text\n" + "".join(f"{delimiter.join(row)}\n" for row in rows))
    assert values(text_tables.csv_rows([path])) == [{"name": name, "text": text} for name, text in rows]


@pytest.mark.parametrize(
    ("open_file", "data", "message"),
    [
        (text_tables.json_array, "[1", "ends|expected"),
        (text_tables.json_array, '[{"a": 1},]', "the value at byte 10"),
        (text_tables.json_array, '[{"a": 1}', "expected ',' or ']', got the end of the file"),
        (text_tables.json_array, '[{"a": 1}] x', "has more at byte 11"),
        (text_tables.json_array, "[" * 100_000, "at byte|deeply"),
        (text_tables.json_array, LONG, "is larger than 1000 bytes"),
        (text_tables.JsonLines, f'{{"a": 1}}\n{LONG}\n', "line 2 is longer than 1000 bytes"),
        (text_tables.csv_rows, "a,b\n" + '1,"open\n' + "x\n" * 2000, "is a quotation mark not closed"),
        (text_tables.csv_rows, "name,text\na,b\n".encode("utf-16"), "is UTF-16; expected UTF-8"),
        (text_tables.csv_rows, "name,größe\na,b\n".encode("latin-1"), "its first line is not UTF-8"),
        (text_tables.csv_rows, "a.png,a cat\nb.png,a dog\n", "^[^:]*: its first line should name the columns"),
        (text_tables.csv_rows, "LJ1-1|one, two, of|one\nLJ1-2|a, b, c|a\n", "its first line should name the columns"),
        (text_tables.csv_rows, f"LJ1-1,{'one ' * 30}\nLJ1-2,a\n", "its first line should name the columns"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_position(
    tmp_path: Path, open_file: Any, data: str | bytes, message: str
) -> None:
    (tmp_path / "a").write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises((ConfigError, DatasetError), match=message):
        open_file([tmp_path / "a"], Limits(max_json_bytes=1000))


def test_broken_records_are_told_and_the_others_read(tmp_path: Path) -> None:
    lines = [b'{"a": 1}', b'{"a": ', b"[1]", b'{"a": "\xff"}', b'{"a": {"b": 1, "c": 2, "b": 3}}', b'{"a": 2}', b""]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "a.csv").write_text('name,text\na,fine\nb,"open\nc,lost\nd,lost too\n')
    read = list(text_tables.JsonLines([tmp_path / "a.jsonl"] * 2).read(range(6, 12)))
    read += text_tables.csv_rows([tmp_path / "a.csv"]).read(range(2))
    reasons = [
        "",
        "is not JSON: Expecting value: line 2 column 1 (char 7)",
        "is a list; expected an object, such as {'image': 'a.jpg'}: if the whole file is one list, give --format json",
        "is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 7: invalid start byte",
        "key 'b' is there 2 times",
        "",
        "",
        "is a quotation mark not closed",
    ]
    for record, reason in zip(read, reasons, strict=True):
        assert isinstance(record, BrokenRecord) == bool(reason)
        assert not isinstance(record, BrokenRecord) or reason in record.reason
    assert read[1].where == "a.jsonl, record 2 at byte 9"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    import tracemalloc

    with open(tmp_path / "a.json", "w") as file:
        file.write("[" + ",".join(json.dumps({"text": "x" * 2000, "n": n}) for n in range(10_000)) + "]")
    tracemalloc.start()
    source = text_tables.json_array([tmp_path / "a.json"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(source) == 10_000
    assert peak < 8 << 20 < (tmp_path / "a.json").stat().st_size


def test_fields_may_be_long_and_other_readers_of_csv_keep_their_limit(tmp_path: Path) -> None:
    before, long = csv.field_size_limit(), "x" * 200_000
    (tmp_path / "a.csv").write_text(f"name,text\na,{long}\n")
    source = text_tables.csv_rows([tmp_path / "a.csv"])
    assert values(source) == [{"name": "a", "text": long}]
    assert csv.field_size_limit() == before
