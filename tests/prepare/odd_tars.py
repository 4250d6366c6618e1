"""Tars of which readers take less than was written."""

import io
import tarfile


def tar_of(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    """A tar of files, and of members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def without_content(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A link, a device or the like."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


TWO = tar_of(("1.txt", b"one"), ("1.bin", b"p"), ("2.txt", b"two"))
"""Two samples, of which the last ends at byte 3072."""

MORE = tar_of(("3.txt", b"three"))

_HARD_LINK = without_content("1.bin", tarfile.LNKTYPE, "1.txt")
_SYMBOLIC_LINKS = [without_content(f"{number}.txt", tarfile.SYMTYPE, "1.txt") for number in (2, 3, 4)]

LOSING = {
    "cat": (
        TWO + MORE,
        r"a block of zeros at byte 3072, after member '2\.txt', ends the tar, but member '3\.txt' follows at byte "
        "10240, and would be lost.*--ignore-zeros",
    ),
    "cat of three": (TWO + MORE + MORE, r"member '3\.txt' follows at byte 10240"),
    "zeros in the middle": (
        TWO[:1024] + bytes(512) + TWO[1024:],
        r"byte 1024, after member '1\.txt', ends the tar, but member '1\.bin' follows at byte 1536",
    ),
    "zeros for a header": (
        TWO[:1024] + bytes(512) + TWO[1536:],
        r"byte 1024, after member '1\.txt', ends the tar, but bytes that are no zeros follow at byte 1536",
    ),
    "zeros at the beginning": (bytes(512) + TWO, r"byte 0, at the beginning, .*'1\.txt' follows at byte 512"),
    "bytes behind the end": (TWO + b"signed", r"bytes that are no zeros follow at byte 10240"),
    "hard link": (
        tar_of(("1.txt", b"x"), _HARD_LINK),
        r"member '1\.bin' at byte 1024 is a hard link: .*--hard-dereference",
    ),
    "symbolic links": (
        tar_of(("1.txt", b"x"), *_SYMBOLIC_LINKS),
        r"'2\.txt' at byte 1024 is a symbolic link, and so are 2 more",
    ),
}
"""Tars, and what `prepare` says of them."""
