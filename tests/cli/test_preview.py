import io
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.cli.preview import describe
from tests.cli.conftest import Run
from tests.cli.test_prepare import QUIET


@pytest.fixture
def prepared(run: Run, tars: Path) -> Path:
    assert run("prepare", tars, *QUIET, "--split-ratio", "0,2,1").exit_code == 0
    return tars


def test_shows_the_first_samples(run: Run, prepared: Path) -> None:
    result = run("preview", prepared, "--count", 2)
    assert result.exit_code == 0
    assert "val 0  data-000000.tar/000001\n" in result.output
    assert "val 1  data-000000.tar/000002\n" in result.output
    assert "000003" not in result.output
    assert "PNG 41×30 RGB" in result.output
    assert "picture number 1" in result.output
    assert '"caption": "caption 1"' in result.output


def test_any_part_from_any_place(run: Run, prepared: Path) -> None:
    result = run("preview", prepared, "--split-part", "test", "--start", 3)
    assert result.exit_code == 0
    assert "test 3  data-000005.tar/000012" in result.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--count", "0"], "expected a count of at least 1"),
        (["--start", "8"], "--start 8: val has 8 samples"),
        (["--split-part", "train"], "no samples in train"),
        (["--split-part", "dev"], "there is no split part 'dev'"),
    ],
)
def test_wrong_flags(run: Run, prepared: Path, flags: list[str], message: str) -> None:
    result = run("preview", prepared, *flags)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_damaged_shard_is_an_error(run: Run, prepared: Path) -> None:
    (prepared / "data-000000.tar").write_bytes(b"")
    result = run("preview", prepared)
    assert result.exit_code == 1
    assert "data-000000.tar" in result.stderr


def picture(format: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, 6)).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize(
    ("part", "data", "expected"),
    [
        ("txt", b"hello\nworld", "hello\nworld"),
        ("txt", b"", "empty"),
        ("txt", b"\x1b[31mred", "\\x1b[31mred"),
        ("txt", b"\xff", "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("json", b"[1]", "[\n  1\n]"),
        ("meta.json", b'{"a": "\xc3\xa4"}', '{\n  "a": "ä"\n}'),
        ("json", b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("left.jpg", picture("JPEG", "L"), "JPEG 8×6 L"),
        ("PNG", picture("PNG", "RGBA"), "PNG 8×6 RGBA"),
        ("bin", b"\x00\x01", "00 01"),
        ("bin", bytes(20), "00 " * 16 + "…"),
        ("bin", b"", "empty"),
    ],
)
def test_descriptions(part: str, data: bytes, expected: str) -> None:
    assert describe(part, data) == expected


def test_what_is_no_picture_is_told() -> None:
    assert describe("png", b"no picture").startswith("not a readable image")


def test_long_contents_are_cut() -> None:
    assert len(describe("txt", b"word " * 10_000)) < 500
    assert len(describe("json", b'{"a": [' + b"1, " * 10_000 + b'1], "b": "' + b"x y " * 1000 + b'"}')) < 300
    assert len(describe("txt", b"a\n" * 1000).splitlines()) == 13
