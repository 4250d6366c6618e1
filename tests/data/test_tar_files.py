import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data.data.tar_files import FileTar, Member, MemoryTar, header_is_intact, walk
from bridge_data.errors import DatasetError
from bridge_data.storage import close_files

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def members_of(data: bytes) -> list[Member]:
    return list(walk(MemoryTar(data, 0), 0, len(data), file="x.tar"))


def expected_of(data: bytes) -> list[tuple[str, int, int, int, str]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(m.name, m.offset, m.offset_data, m.size if m.isreg() else 0, kind_of(m)) for m in archive.getmembers()]


def kind_of(member: tarfile.TarInfo) -> str:
    return "file" if member.isreg() else "folder" if member.isdir() else "symbolic link"


def tar_of(names: list[tuple[str, int]], format: int, mtime: float = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, num_bytes in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = num_bytes, mtime  # type: ignore[assignment]
            archive.addfile(info, io.BytesIO(b"z" * num_bytes))
    return buffer.getvalue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    names=st.lists(
        st.tuples(
            st.text(alphabet="ab./ü", min_size=1, max_size=250).filter(lambda s: s.strip("/") != ""),
            st.sampled_from([0, 1, 511, 512, 513, 2000]),
        ),
        max_size=6,
    ),
    format=st.sampled_from(FORMATS[1:]),
    mtime=st.sampled_from([0, 1700000000, 1700000000.25]),
)
def test_finds_what_tarfile_finds(names: list[tuple[str, int]], format: int, mtime: float) -> None:
    data = tar_of(names, format, mtime)
    assert [member[:5] for member in members_of(data)] == expected_of(data)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["0001.png", "d" * 90 + "/" + "f" * 90 + ".txt", "ordner/ä.txt", "a/b.c/1.x.y"])
def test_every_dialect_from_any_member_on(format: int, name: str) -> None:
    data = tar_of([(name, 700), ("second.txt", 3)], format, mtime=0.5 if format == FORMATS[2] else 0)
    first, second = members_of(data)
    assert [first[:5], second[:5]] == expected_of(data) and first.name == name
    piece = MemoryTar(data[second.offset : second.next_offset], second.offset)
    assert list(walk(piece, second.offset, second.next_offset, file="x.tar")) == [second]
    assert members_of(tar_of([], format)) == []


def with_checksum(header: bytes) -> bytes:
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank[:512]) + blank[156:]


def test_base_256_sizes_and_old_tars_without_magic_are_read() -> None:
    data = tar_of([("a.txt", 600), ("b.txt", 1)], tarfile.GNU_FORMAT)
    size = b"\x80" + bytes(9) + (600).to_bytes(2, "big")
    for other in (data[:124] + size + data[136:], data[:257] + bytes(8) + data[265:]):
        assert members_of(with_checksum(other)) == members_of(data)


def test_folders_links_and_global_headers_are_no_files() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "hello"}) as archive:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link.txt", tarfile.SYMTYPE), ("a.txt", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.txt" if kind == tarfile.SYMTYPE else ""
            archive.addfile(info, io.BytesIO())
    data = buffer.getvalue()
    assert [(m.name, m.is_file) for m in members_of(data)] == [("folder", False), ("link.txt", False), ("a.txt", True)]
    assert [member[:5] for member in members_of(data)] == expected_of(data)


def test_a_checksum_of_signed_bytes_counts_too() -> None:
    header = bytearray(tar_of([("ä.txt", 0)], tarfile.GNU_FORMAT)[:512])
    assert header_is_intact(bytes(header))
    signed = sum(byte - 256 if byte > 127 else byte for byte in header[:148] + header[156:]) + 8 * 32
    header[148:156] = b"%06o\0 " % signed
    assert header_is_intact(bytes(header))
    header[0] ^= 1
    assert not header_is_intact(bytes(header))


@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_or_compressed_tar_is_an_error(format: int) -> None:
    data = tar_of([("first.txt", 1000), ("second.txt", 2000)], format)
    for cut in (100, 512, 600, 1100, 2048 + 100):
        with pytest.raises(DatasetError, match=r"x\.tar: .*(truncated|damaged)"):
            members_of(data[:cut])
    with pytest.raises(DatasetError, match="compressed"):
        members_of(gzip.compress(data) + bytes(1024))


@pytest.mark.parametrize("number", [0, 2])
def test_a_changed_bit_in_a_header_is_found_and_the_member_before_is_named(number: int) -> None:
    sound, where = tar_of([(f"{n}.txt", 300) for n in range(4)], tarfile.GNU_FORMAT), 1024 * number
    told = rf"byte {where}, " + ("after member '1.txt'" if number else "at the beginning")
    for at in (where + at for at in (0, 50, 123, 130, 147, 149, 156, 258, 300, 511)):
        with pytest.raises(DatasetError, match=told):
            members_of(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    kinds=st.lists(
        st.tuples(
            st.sampled_from(["", "ü", "b/", "c.d/", "d" * 97, "e" * 120 + "/"]),
            st.sampled_from([0, 1, 511, 512, 513, 70_000]),
            st.sampled_from(FORMATS),
            st.sampled_from([0, 1700000000, 0.5]),
        ),
        min_size=1,
        max_size=8,
    ),
    repeated=st.integers(1, 40),
)
def test_dialects_may_change_and_windows_end_anywhere(
    kinds: list[tuple[str, int, int, float]], repeated: int, tmp_path: Path
) -> None:
    path, tars = tmp_path / "x.tar", []
    for number, (folder, num_bytes, format, mtime) in enumerate(kinds * repeated):
        name = f"{folder}{number}.txt"
        format = FORMATS[1] if len(name) > 100 and "/" not in name else format
        members = tar_of([(name, num_bytes)], format, mtime)
        tars.append(members[: members_of(members)[0].next_offset])
    data = b"".join(tars) + bytes(1024)
    path.write_bytes(data)
    tar = FileTar(str(path), len(data))
    assert [member[:5] for member in walk(tar, 0, tar.end, file="x.tar")] == expected_of(data)
    close_files()
