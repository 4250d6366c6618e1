import functools
import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bridge_data import storage
from bridge_data.prepare.part_file import open_range

DATA = bytes(range(256)) * 10

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 3000)),
        st.tuples(st.just("seek"), st.integers(0, 3000)),
        st.tuples(st.just("end"), st.integers(-100, 0)),
    ),
    max_size=10,
)


@given(steps=STEPS, start=st.integers(0, 2560), end=st.integers(0, 2560))
def test_it_is_a_file_of_these_bytes(tmp_path_factory, steps, start, end) -> None:  # type: ignore[no-untyped-def]
    start, end = sorted((start, end))
    path = tmp_path_factory.getbasetemp() / "data.bin"
    path.write_bytes(DATA)
    file, plain = (
        open_range(functools.partial(storage.read, str(path)), start, end - start),
        io.BytesIO(DATA[start:end]),
    )
    for action, number in steps:
        if action == "read":
            assert file.read(number) == plain.read(number)
        elif action == "seek" or end - start + number < 0:
            assert file.seek(abs(number)) == plain.seek(abs(number))
        else:
            assert file.seek(number, io.SEEK_END) == plain.seek(number, io.SEEK_END)
        assert file.tell() == plain.tell()


def test_nothing_is_read_ahead_of_need(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"head")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    part = open_range(functools.partial(storage.read, str(path)), 0, 1 << 40)
    assert part.read(4) == b"head"
    assert part.seek(-1, io.SEEK_END) == (1 << 40) - 1
    assert part.read() == b"\0"
