import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.samples import SourceInfo
from bridge_data.shards.jsonl_file import JsonlLines, index_path, open_jsonl, split_path

VALUES = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.none(), max_size=3)
BLANK = st.sampled_from(["", " ", "\t", "\r"])
ENDS = st.sampled_from(["\n", "\r\n"])


def write_lines(path: Path, num: int = 10) -> Path:
    path.write_bytes(b"".join(b'{"text": "number %d"}\n' % number for number in range(num)))
    prepare_jsonl(path)
    return path


@pytest.mark.processes
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(VALUES | BLANK, ENDS), min_size=1, max_size=12),
    st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[dict[str, object] | str, str]], with_end: bool
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    expected = [line for line, _ in lines if isinstance(line, dict)]
    texts = [(json.dumps(line) if isinstance(line, dict) else line) + end for line, end in lines]
    content = "".join(texts)
    path.write_bytes((content if with_end else content.rstrip()).encode())
    if not expected:
        with pytest.raises(DatasetError, match=r"a\.jsonl: holds no samples"):
            prepare_jsonl(path)
        assert not index_path(path).exists()
        return
    prepare_jsonl(path)
    records = open_jsonl(path, "train")
    reader = records.reader()
    samples = [reader.read(index) for index in range(records.num_samples)]
    assert [json.loads(sample.parts["json"]) for sample in samples] == expected
    assert [sample.full_key for sample in samples] == [str(number) for number in range(len(expected))]
    assert (list(records.names), list(records.counts)) == (["a.jsonl"], [len(expected)])


def test_a_sample_is_known_by_its_number_and_says_its_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    records = open_jsonl(path, "anything")
    sample = records.reader().read(3)
    assert (sample.key, sample.full_key, sample.origin) == ("3", "3", "a.jsonl/3")
    assert sample.source_info() == SourceInfo(
        dataset_path=str(path), index=3, shard_name="a.jsonl", file_names=("3.json",)
    )
    assert records.describe(3) == "a.jsonl/3"
    assert set(records.part_names(0) or ()) == {"json"}
    assert records.reader().read(3, {"txt"}).parts == {}
    for index in (-1, 10):
        with pytest.raises(IndexError, match=f"sample {index} of 10"):
            records.reader().read(index)


def test_a_reader_travels_without_its_map(tmp_path: Path) -> None:
    reader = open_jsonl(write_lines(tmp_path / "a.jsonl"), "train").reader()
    expected = reader.read(7)
    assert pickle.loads(pickle.dumps(reader)).read(7) == expected


def test_a_split_part_is_a_range_and_keeps_the_numbers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text("split_parts: {train: [0%, 80%], val: [8, end], none: [3, 3]}")
    train, val = open_jsonl(path, "train"), open_jsonl(path, "val")
    assert (train.num_samples, val.num_samples, open_jsonl(path, "none").num_samples) == (8, 2, 0)
    assert [val.reader().read(index).key for index in range(2)] == ["8", "9"]
    assert train.identity() != val.identity() != JsonlLines.open(path, "val").identity()
    with pytest.raises(ConfigError, match=r"a\.jsonl\.split\.yaml: there is no split part 'test'; there is train, val"):
        open_jsonl(path, "test")
    (tmp_path / "other.yaml").write_text("split_parts: {test: [0, 3]}")
    assert open_jsonl(path, "test", split_config="other.yaml").num_samples == 3


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
def test_what_is_no_split_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.jsonl\.split\.yaml.*{message}"):
        open_jsonl(path, "train")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl: no such file"):
        open_jsonl(tmp_path / "a.jsonl", "train")
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(
        ConfigError, match=r"not prepared, there is no a\.jsonl\.idx; run `bridge-data prepare .*a\.jsonl`"
    ):
        open_jsonl(tmp_path / "a.jsonl", "train")
    prepare_jsonl(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=r"other\.yaml: no such file"):
        open_jsonl(tmp_path / "a.jsonl", "train", split_config="other.yaml")
    for name in ("sub/other.yaml", ""):
        with pytest.raises(ConfigError, match=rf"split_config='{name}': expected the name of a file beside .*a\.jsonl"):
            open_jsonl(tmp_path / "a.jsonl", "train", split_config=name)


def test_a_file_of_another_size_than_when_it_was_prepared(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    with open(path, "ab") as file:
        file.write(b"{}\n")
    with pytest.raises(DatasetError, match=r"a\.jsonl: has 213 bytes, but had 210 when it was prepared"):
        open_jsonl(path, "train")


@pytest.mark.parametrize("num_bytes", [0, 8, 20])
def test_a_damaged_index(tmp_path: Path, num_bytes: int) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    with open(index_path(path), "r+b") as file:
        file.truncate(num_bytes)
    with pytest.raises(DatasetError, match=rf"a\.jsonl\.idx: has {num_bytes} bytes.*run `bridge-data prepare"):
        open_jsonl(path, "train")


def test_lines_of_other_lengths_in_a_file_of_the_same_size(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", 3)
    reader = open_jsonl(path, "train").reader()
    size = path.stat().st_size
    path.write_bytes((b'{"a": 1}\n' + b'{"b": "' + b"x" * size)[: size - 3] + b'"}\n')
    for index in range(3):
        with pytest.raises(DatasetError, match=rf"a\.jsonl: sample {index}, at byte {21 * index}: .*was changed after"):
            reader.read(index)


def test_a_file_that_this_process_has_read_before_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in ("old", "new", "of another length"):  # the second file has the size of the first
        path.unlink(missing_ok=True)
        path.write_bytes(b'{"text": "%s"}\n' % text.encode() * 3)
        prepare_jsonl(path)
        sample = open_jsonl(path, "train").reader().read(2)
        assert json.loads(sample.parts["json"]) == {"text": text}


def test_an_index_that_was_replaced_meanwhile(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    reader = open_jsonl(path, "train").reader()
    write_lines(path, 11)
    with pytest.raises(DatasetError, match=r"a\.jsonl\.idx: was replaced while it was in use"):
        reader.read(0)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ((5, 30, 31), "sample {}, .*was changed after it was prepared"),
        ((9, 3, 1 << 60), "is damaged: the offsets of samples 0 to 2 do not ascend"),
    ],
)
def test_an_index_of_nonsense(tmp_path: Path, offsets: tuple[int, ...], message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    size = path.stat().st_size
    index_path(path).write_bytes(b"".join(number.to_bytes(8, "little") for number in (*offsets, size)))
    reader = open_jsonl(path, "train").reader()
    for index in (0, 1, 2):
        with pytest.raises(DatasetError, match=message.format(index)):
            reader.read(index)
