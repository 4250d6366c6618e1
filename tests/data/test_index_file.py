"""Our index of a data set, from its pages up: what was put in is found again; damage and replacement are noticed."""

import itertools
import pickle
import struct
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Part, Segment, directory_size
from bridge_data.data.paged_file import (
    HEADER_BYTES,
    DamagedIndexError,
)
from bridge_data.errors import DatasetError
from bridge_data.prepare import index_writing
from bridge_data.prepare.index_writing import BridgeIndexWriter, build_segment


def test_what_cannot_be_used_is_told_and_taken_for_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "i"
    assert BridgeIndex.open(path) is None and caplog.messages == []
    write(path)
    data = path.read_bytes()
    older = data[:12] + struct.pack("=I", 1) + data[16:]
    for content, why in (
        (older, "is of version 1, not 3, and is not used"),
        (data[:-1], "is damaged, and is not used"),
        (data + b"x", "is damaged, and is not used"),
        (data[:20], "is damaged, and is not used"),
        (b"", "is damaged, and is not used"),
        (bytes(HEADER_BYTES) + data[HEADER_BYTES:], "is damaged, and is not used"),  # it was not finished
        (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "is damaged, and is not used"),
    ):
        path.write_bytes(content)
        caplog.clear()
        assert BridgeIndex.open(path) is None
        (message,) = caplog.messages
        assert message.startswith(f"{path}: {why}") and "run `bridge-data prepare`" in message


SIZES = st.integers(0, 2**63 - 1)
SAMPLES = st.lists(
    st.tuples(
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.lists(st.tuples(st.sampled_from(["png", "txt", "left.jpg", "ü"]), SIZES, SIZES), max_size=4),
    ),
    max_size=20,
)


def built(samples: list[tuple[str, list[Part]]], offsets: list[int], digests: list[int] | None = None) -> bytes:
    ends = list(itertools.accumulate(len(parts) for _, parts in samples))
    with mock.patch.object(index_writing, "PAGE_SAMPLES", 3):
        return build_segment(
            [key for key, _ in samples], offsets, ends, [part for _, parts in samples for part in parts], digests
        )


@given(SAMPLES, st.lists(SIZES, min_size=21, max_size=21))
def test_a_segment_gives_back_what_was_put_in(samples: list[tuple[str, list[Part]]], numbers: list[int]) -> None:
    offsets = numbers[: len(samples) + 1]
    data = built(samples, offsets)
    assert len(data) % 8 == 0
    segment = Segment.of(memoryview(b"12345678" + data)[8:])
    assert segment.offsets().tolist() == (offsets if samples else [0])
    assert segment.keys() == [key for key, _ in samples]
    positions = range(len(segment))
    assert [segment.sample(position) for position in positions] == samples
    assert [(segment.key(position), segment.parts(position)) for position in positions] == samples
    assert [segment.span(position, position) for position in positions] == list(itertools.pairwise(offsets))
    assert list(segment.rows()) == [(number, *part) for number, (_, parts) in enumerate(samples) for part in parts]
    assert not segment.has_digests


@given(st.lists(st.tuples(st.text("aü", min_size=1), SIZES, SIZES), min_size=1, max_size=20), st.data())
def test_columns_go_over_pages(rows: list[tuple[str, int, int]], data: st.DataObject) -> None:
    segment = Segment.of(built([(key, [("txt", at, size)]) for key, at, size in rows], list(range(len(rows) + 1))))
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    assert segment.columns(first, last) == tuple(map(list, zip(*rows[first : last + 1], strict=True)))


def test_digests_are_those_of_the_parts_and_pages_of_many_parts_have_few_samples() -> None:
    samples = [(str(n), [("txt", 0, 1), ("png", 1, 1)][: 1 + n % 2]) for n in range(8)]
    segment = Segment.of(built(samples, list(range(9)), digests=list(range(12))))
    digests = [segment.digests(position) for position in range(4)]
    assert segment.has_digests and digests == [{"txt": 0}, {"txt": 1, "png": 2}, {"txt": 3}, {"txt": 4, "png": 5}]
    large = [(str(n), [(str(part), part, 1) for part in range(600)]) for n in range(10)]
    assert [len(page) for page in Segment.of(built(large, list(range(11)))).pages()] == [1] * 10


def test_every_flipped_bit_is_an_error_where_it_is_read() -> None:
    samples = [(str(n), [("txt", 512 * n, n)]) for n in range(7)]
    data = built(samples, list(range(8)))
    for position in range(directory_size(data), len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        segment, num_errors = Segment.of(damaged), 0
        for number in range(7):
            try:
                assert segment.sample(number) == samples[number]
            except DamagedIndexError:
                num_errors += 1
        assert num_errors


def write(path: Path, uuid: str = "u", keys: tuple[str, ...] = ("a", "b")) -> BridgeIndex:
    with open(path, "wb") as file:
        writer = BridgeIndexWriter(file)
        for number, key in enumerate(keys):
            writer.add(f"{key}.tar", 10240, 7, build_segment([key], [0, 1024], [1], [("txt", 512, number)]), 0)
        writer.finish(uuid)
    index = BridgeIndex.open(path)
    assert index is not None
    return index


def test_segments_are_found_by_shard_in_the_index_of_one_preparation(tmp_path: Path) -> None:
    for index in (made := write(tmp_path / "i"), pickle.loads(pickle.dumps(made))):
        assert [entry.name for entry in index.entries.values()] == ["a.tar", "b.tar"]
        entry = index.entries["a.tar"]
        assert (entry.num_bytes, entry.mtime_ns, entry.count, index.entries.get("c.tar")) == (10240, 7, 1, None)
        assert index.segment("b.tar").sample(0) == ("b", [("txt", 512, 1)])
        assert index.sizes_bytes(["b.tar", "b.tar"]) == [10240, 10240]
    counts = {"a.tar": 1, "b.tar": 1}
    assert made.describes(counts, "u") and made.describes(counts, None) and not made.describes(counts, "v")
    assert not made.describes(counts | {"b.tar": 2}, "u") and not made.describes({"a.tar": 1}, "u")


def test_a_replacement_under_a_running_job_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "i"
    early, late = write(path), BridgeIndex.open(path)
    assert late is not None and early.segment("a.tar").key(0) == "a"
    write(tmp_path / "new", uuid="v", keys=("c", "b", "a"))
    (tmp_path / "new").replace(path)
    assert early.segment("b.tar").key(0) == "b"  # the file as it was is still open
    storage.close_files()
    with pytest.raises(DatasetError, match="prepared again"):
        late.segment("a.tar")
    path.unlink()
    storage.close_files()
    with pytest.raises(DatasetError, match="replaced or removed"):
        pickle.loads(pickle.dumps(early)).segment("a.tar")
