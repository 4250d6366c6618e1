import gzip
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bridge_data.data.jsonl_file import index_path, open_jsonl, split_path
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import Limits
from bridge_data.prepare import commit, jsonl_lines
from bridge_data.prepare.jsonl_lines import parse_line_range, prepare_jsonl, split_lines_by_ranges
from bridge_data.prepare.splits import parse_ratio, ratio_bounds


def test_the_index_is_that_of_energon(tmp_path: Path) -> None:
    """Offsets as `energon prepare` of 7.4.1 wrote them for these bytes."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n\n{"a": 1}\r\n\n{"b": "x"}\n{"c": 3}\n   \n{"d":4}')
    done = prepare_jsonl(path)
    assert struct.unpack("<5Q", index_path(path).read_bytes()) == (0, 13, 24, 37, 44)
    assert (done.num_samples, done.num_blank, done.num_bytes, done.parts) == (4, 4, 44, None)
    assert not split_path(path).exists()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_blocks_of_any_size_give_the_same_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + b"".join(b'{"text": "%s"}\n\n' % (b"x" * (number % 40)) for number in range(50)))
    prepare_jsonl(path)
    expected = index_path(path).read_bytes()
    for block_bytes in (1, 7, 64, 1000):
        monkeypatch.setattr(jsonl_lines, "BLOCK_BYTES", block_bytes)
        seen: list[tuple[int, int]] = []
        prepare_jsonl(path, num_workers=num_workers, on_progress=lambda *done, seen=seen: seen.append(done))
        assert index_path(path).read_bytes() == expected
        total = -(-path.stat().st_size // block_bytes)
        assert seen == [(done, total) for done in range(1, total + 1)]


DAMAGED = [b'{"a": 1}', b'{"a": }', b"", b'{"b": "\xff"}', b"[1]", b"3", b'{"a": 1} {"b": 2}', b"[" * 100_000, b"{}"]


@pytest.mark.parametrize("block_bytes", [10, 1 << 20])
def test_damaged_lines_are_named_the_first_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(jsonl_lines, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.jsonl"
    told = []
    for lines in (DAMAGED, [b"x"] * 5000):
        path.write_bytes(b"\n".join(lines))
        with pytest.raises(DatasetError) as caught:
            prepare_jsonl(path)
        told.append(str(caught.value).splitlines())
    assert told[0] == [
        f"{path}: 6 of 9 lines are no JSON object; fix or remove them, then prepare again:",
        "  line 2: not JSON: Expecting value (character 7)",
        "  line 4: not UTF-8: 0xff (byte 8)",
        '  line 5: expected an object such as {"text": "..."}, got list',
        '  line 6: expected an object such as {"text": "..."}, got int',
        "  line 7: not JSON: Extra data (character 10)",
        "  line 8: not readable: nested too deeply",
    ]
    assert told[1][10:] == ["  line 10: not JSON: Expecting value (character 1)", "  and 4,990 more"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "error", "told"),
    [
        ("a.jsonl", b"", DatasetError, r"a\.jsonl: holds no samples: it is empty"),
        ("a.jsonl", b"\n \r\n", DatasetError, r"a\.jsonl: holds no samples: its 2 lines are blank"),
        ("a.jsonl", None, ConfigError, r"a\.jsonl: expected a \.jsonl file, but there is none"),
        ("a.json", b"{}", ConfigError, r"a\.json: expected a \.jsonl file"),
    ],
)
def test_a_file_without_samples(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception], told: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=told):
        prepare_jsonl(tmp_path / name)


@pytest.mark.parametrize("blank", [b"", b"\n \n"])
def test_a_byte_order_mark_is_passed_over_in_place(tmp_path: Path, blank: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + blank + b'{"a": 1}\n{"a": 2}\n')
    assert prepare_jsonl(path).num_samples == 2
    lines = open_jsonl(path, "train")
    block = lines.reader().read_block(range(2), None)
    assert block is not None
    assert [lines.reader().read(index).parts["json"] for index in range(2)] == [b'{"a": 1}', b'{"a": 2}']
    assert [block.contents[index] for index in range(2)] == [b'{"a": 1}', b'{"a": 2}']


@pytest.mark.parametrize(
    ("packed", "fix"),
    [(gzip.compress(b'{"a": 1}'), "gunzip -k"), ('{"a": 1}'.encode("utf-16"), "iconv -f UTF-16")],
    ids=["gzip", "UTF-16"],
)
def test_what_is_compressed_or_no_utf8_is_told_with_the_command(tmp_path: Path, packed: bytes, fix: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(packed)
    with pytest.raises(DatasetError, match=rf"a\.jsonl: is .*`{fix}"):
        prepare_jsonl(tmp_path / "a.jsonl")


def test_a_file_that_is_still_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')

    def grow(done: int, total: int) -> None:
        with open(path, "a") as file:
            file.write('{"a": 2}\n')

    with pytest.raises(DatasetError, match="was written to while it was prepared"):
        prepare_jsonl(path, on_progress=grow)
    assert not index_path(path).exists()


def test_a_preparation_that_ends_before_its_split_is_written_leaves_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 3)
    prepare_jsonl(path, partial(ratio_bounds, parse_ratio("2,1,0")))
    index = index_path(path).read_bytes()
    path.write_bytes(b'{"a": 1}\n' * 30)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jsonl_lines, "write_file", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare_jsonl(path, partial(ratio_bounds, parse_ratio("2,1,0")))
    assert index_path(path).read_bytes() == index, "27 samples would be in no part"
    with pytest.raises(DatasetError, match="has 270 bytes, but had 27 when it was prepared"):
        open_jsonl(path, "train")


KILLED = """
import os, sys
from pathlib import Path
from functools import partial
from bridge_data.prepare import jsonl_lines
from bridge_data.prepare.splits import parse_ratio, ratio_bounds
os.replace = lambda *_: os.kill(os.getpid(), 9)
jsonl_lines.prepare_jsonl(Path(sys.argv[1]), partial(ratio_bounds, parse_ratio("2,1,0")))
"""


@pytest.mark.processes
def test_what_a_killed_preparation_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 3)
    others = [".b.jsonl.idx.0123abcd.77.tmp", ".a.jsonl.idx.old.0123abcd.77.tmp", "a.jsonl.idx.0123abcd.77.tmp"]
    for name in others:
        (tmp_path / name).touch()
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=100).returncode == -9
    left = {file.name for file in tmp_path.iterdir()} - {path.name, *others}
    assert {name.split(".")[3] for name in left} == {"idx", "split"}
    prepare_jsonl(path)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, index_path(path).name, *others}


def test_a_file_is_prepared_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "PATIENCE_S", 0.05)
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (one, other):
        path.write_bytes(b'{"a": 1}\n' * 3)
    with commit.preparing_alone(one):
        with pytest.raises(DatasetError, match=r"a\.jsonl: another process is preparing it"):
            prepare_jsonl(one)
        assert prepare_jsonl(other).num_samples == 3
    assert prepare_jsonl(one).num_samples == 3


def test_longer_lines_are_taken_if_the_limits_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_lines, "MAX_LINE_BYTES", 20)
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "%s"}\n' % ("x" * 20))
    with pytest.raises(DatasetError, match=r"line 1: longer than 20 bytes \(Limits\(max_json_bytes\)\)"):
        prepare_jsonl(path, limits=Limits(max_json_bytes=10))
    assert prepare_jsonl(path, limits=Limits(max_json_bytes=40)).num_samples == 1


def test_splits_are_written_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 10)
    done = prepare_jsonl(path, partial(ratio_bounds, parse_ratio("8,1,1")))
    assert done.parts == {"train": (0, 8), "val": (8, 9), "test": (9, 10)}
    assert [open_jsonl(path, part).num_samples for part in ("train", "val", "test")] == [8, 1, 1]
    assert prepare_jsonl(path).parts == done.parts
    path.write_text('{"a": 1}\n' * 5)
    index = index_path(path).read_bytes()
    told = r"a\.jsonl\.split\.yaml: split part 'train': .*have 5 samples.*--split-ratio"
    with pytest.raises(ConfigError, match=told):
        prepare_jsonl(path)
    assert index_path(path).read_bytes() == index, "nothing is written where the split does not fit"
    ranges = [parse_line_range("train:0..3"), parse_line_range("val:60%..100%")]
    assert prepare_jsonl(path, partial(split_lines_by_ranges, ranges)).parts == {"train": (0, 3), "val": (3, 5)}
    assert split_path(path).read_text() == "split_parts:\n  train:\n  - 0\n  - 3\n  val:\n  - 3\n  - 5\n"
    expected = 'expected "name:start..end"'
    for text, told in (("train:", expected), (":0..3", expected), ("train:0-3", expected), ("a:0..x", "'a:0..x'.*'x'")):
        with pytest.raises(ConfigError, match=told):
            parse_line_range(text)
    with pytest.raises(ConfigError, match="split part 'train' has two ranges"):
        split_lines_by_ranges([ranges[0], parse_line_range("train:3..5")], 10)
