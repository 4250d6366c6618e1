from hypothesis import given
from hypothesis import strategies as st

from bridge_data.shards.segment import Segment, build_segment

SIZES = st.integers(0, 2**63 - 1)
SAMPLES = st.lists(
    st.tuples(
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.lists(st.tuples(st.sampled_from(["png", "txt", "left.jpg", "ü"]), SIZES, SIZES), max_size=4),
    ),
    max_size=20,
)


@given(SAMPLES, st.lists(SIZES, min_size=21, max_size=21))
def test_gives_back_what_was_put_in(samples: list[tuple[str, list[tuple[str, int, int]]]], numbers: list[int]) -> None:
    ends, total = [], 0
    for _, parts in samples:
        total += len(parts)
        ends.append(total)
    offsets = numbers[: len(samples) + 1]
    data = build_segment([key for key, _ in samples], offsets, ends, [part for _, parts in samples for part in parts])
    assert len(data) % 8 == 0
    segment = Segment(memoryview(b"12345678" + data)[8:])
    assert len(segment) == len(samples)
    assert segment.offsets.tolist() == offsets
    assert segment.keys() == [key for key, _ in samples]
    assert [segment.parts(number) for number in range(len(segment))] == [parts for _, parts in samples]
    rows = [(number, *part) for number, (_, parts) in enumerate(samples) for part in parts]
    assert list(segment.rows()) == rows
