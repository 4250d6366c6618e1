import itertools
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from bridge_data.shards import index_file
from bridge_data.shards.index_file import Part, Segment, build_segment, directory_size
from bridge_data.shards.paged_file import DamagedIndexError

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
    with mock.patch.object(index_file, "PAGE_SAMPLES", 3):
        return build_segment(
            [key for key, _ in samples], offsets, ends, [part for _, parts in samples for part in parts], digests
        )


@given(SAMPLES, st.lists(SIZES, min_size=21, max_size=21))
def test_gives_back_what_was_put_in(samples: list[tuple[str, list[Part]]], numbers: list[int]) -> None:
    offsets = numbers[: len(samples) + 1]
    data = built(samples, offsets)
    assert len(data) % 8 == 0
    segment = Segment.of(memoryview(b"12345678" + data)[8:])
    assert len(segment) == len(samples)
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


def test_there_are_no_columns_unless_all_samples_have_the_one_part() -> None:
    one, two = [("txt", 0, 1)], [("txt", 0, 1), ("png", 2, 1)]
    assert Segment.of(built([("a", one), ("b", two)], [0, 1, 2])).columns(0, 0) is None
    without = Segment.of(built([("a", one), ("b", one), ("c", one), ("d", []), ("e", one)], [*range(6)]))
    assert without.columns(0, 4) is None
    assert without.columns(0, 2) == (["a", "b", "c"], [0, 0, 0], [1, 1, 1])


def test_digests_are_those_of_the_parts() -> None:
    samples = [(str(n), [("txt", 0, 1), ("png", 1, 1)][: 1 + n % 2]) for n in range(8)]
    segment = Segment.of(built(samples, list(range(9)), digests=list(range(12))))
    assert segment.has_digests
    digests = [segment.digests(position) for position in range(4)]
    assert digests == [{"txt": 0}, {"txt": 1, "png": 2}, {"txt": 3}, {"txt": 4, "png": 5}]


def test_pages_of_many_parts_have_few_samples() -> None:
    samples = [(str(n), [(str(part), part, 1) for part in range(600)]) for n in range(10)]
    segment = Segment.of(built(samples, list(range(11))))
    assert [len(page) for page in segment.pages()] == [1] * 10


def test_every_flipped_bit_is_an_error_where_it_is_read() -> None:
    samples = [(str(n), [("txt", 512 * n, n)]) for n in range(7)]
    data = built(samples, list(range(8)))
    directory = directory_size(data)
    for position in range(directory, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        found: list[object] = []
        segment = Segment.of(damaged)
        for number in range(7):
            try:
                found.append(segment.sample(number))
            except DamagedIndexError:
                found.append(None)
        assert None in found
        assert all(one in (None, sample) for one, sample in zip(found, samples, strict=True))
