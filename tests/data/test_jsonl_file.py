"""JSONL files as records: lines by their numbers, split parts as ranges; what was changed or damaged is told. (What all
records promise: `test_records_contract.py`; how a file is prepared: `tests/prepare/test_jsonl_lines.py`.)"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.data.jsonl_file import JsonlLines, index_path, open_jsonl, split_path
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import SourceInfo

VALUES = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.none(), max_size=3)
BLANK = st.sampled_from(["", " ", "\t", "\r"])
ENDS = st.sampled_from(["\n", "\r\n"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "a.jsonl")


def write_lines(path: Path, num: int = 10) -> Path:
    path.write_bytes(b"".join(b'{"text": "number %d"}\n' % number for number in range(num)))
    prepare_jsonl(path, num_workers=1)
    return path


@pytest.mark.processes
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(VALUES | BLANK, ENDS), min_size=1, max_size=12), st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[dict[str, object] | str, str]], with_end: bool
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    expected = [line for line, _ in lines if isinstance(line, dict)]
    content = "".join((json.dumps(line) if isinstance(line, dict) else line) + end for line, end in lines)
    path.write_bytes((content if with_end else content.rstrip()).encode())
    if not expected:
        with pytest.raises(DatasetError, match=r"a\.jsonl: holds no samples"):
            prepare_jsonl(path, num_workers=1)
        assert not index_path(path).exists()
        return
    prepare_jsonl(path, num_workers=1)
    reader = open_jsonl(path, "train").reader()
    samples = [reader.read(index) for index in range(len(expected))]
    assert [json.loads(sample.parts["json"]) for sample in samples] == expected
    assert [sample.full_key for sample in samples] == [str(number) for number in range(len(expected))]


def test_a_sample_says_its_file(path: Path) -> None:
    sample = open_jsonl(path, "anything").reader().read(3)
    assert (sample.key, sample.full_key, sample.origin) == ("3", "3", "a.jsonl/3")
    assert sample.source_info() == SourceInfo(
        dataset_path=str(path), index=3, shard_name="a.jsonl", file_names=("3.json",)
    )


def test_a_split_part_is_a_range_and_keeps_the_numbers(path: Path) -> None:
    split_path(path).write_text("split_parts: {train: [0%, 80%], val: [8, end], none: [3, 3]}")
    train, val = open_jsonl(path, "train"), open_jsonl(path, "val")
    assert (train.num_samples, val.num_samples, open_jsonl(path, "none").num_samples) == (8, 2, 0)
    assert [val.reader().read(index).key for index in range(2)] == ["8", "9"]
    assert train.identity() != val.identity() != JsonlLines.open(path, "val").identity()
    (path.parent / "other.yaml").write_text("split_parts: {test: [0, 3]}")
    assert open_jsonl(path, "test", split_config="other.yaml").num_samples == 3
    for name, told in (
        (None, r"a\.jsonl\.split\.yaml: there is no split part 'test'; there is train, val"),
        ("none.yaml", r"none\.yaml: no such file"),
        ("sub/other.yaml", r"split_config='sub/other\.yaml': expected the name of a file beside .*a\.jsonl"),
        ("", "split_config='': expected the name of a file"),
    ):
        with pytest.raises(ConfigError, match=told):
            open_jsonl(path, "test", split_config=name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: [0, 3]", "expected a mapping with `split_parts` alone"),
        ("split_parts: {train: [0, 3]}\nexclude: [1]", "expected a mapping with `split_parts` alone"),
        ("split_parts: [train]", "expected a mapping with `split_parts` alone"),
        ("split_parts: {train: 3}", "split part 'train': subset: range: got 3, expected two bounds"),
        ("split_parts: {train: [0, 11]}", r"split part 'train': .*\[0, 11\] reaches beyond the data, which have 10"),
        ("split_parts: {train: [0, 3]", r":\d: not readable as YAML"),
    ],
)
def test_what_is_no_split_is_named(path: Path, text: str, message: str) -> None:
    split_path(path).write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.jsonl\.split\.yaml.*{message}"):
        open_jsonl(path, "train")


def test_what_is_missing_or_no_longer_fits_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(ConfigError, match=r"a\.jsonl: no such file"):
        open_jsonl(path, "train")
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"not prepared, there is no a\.jsonl\.idx; run `bridge-data prepare .*a\.js"):
        open_jsonl(path, "train")
    write_lines(path)
    index = index_path(path).read_bytes()
    for num_bytes in (0, 8, 20):
        index_path(path).write_bytes(index[:num_bytes])
        with pytest.raises(DatasetError, match=rf"a\.jsonl\.idx: has {num_bytes} bytes.*run `bridge-data prepare"):
            open_jsonl(path, "train")
    index_path(path).write_bytes(index)
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(DatasetError, match=r"a\.jsonl: has 213 bytes, but had 210 when it was prepared"):
        open_jsonl(path, "train")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ((5, 30, 31, 210), "sample {}, .*was changed after it was prepared"),
        ((9, 3, 1 << 60, 210), "is damaged: the offsets of samples 0 to 2 do not ascend"),
        (None, r"a\.jsonl\.idx: was replaced while it was in use"),
    ],
)
def test_an_index_of_nonsense_or_that_was_replaced_meanwhile(
    path: Path, offsets: tuple[int, ...] | None, message: str
) -> None:
    if offsets is not None:
        index_path(path).write_bytes(b"".join(number.to_bytes(8, "little") for number in offsets))
    reader = open_jsonl(path, "train").reader()
    if offsets is None:
        write_lines(path, 11)
    for index in (0, 1, 2):
        with pytest.raises(DatasetError, match=message.format(index)):
            reader.read(index)
