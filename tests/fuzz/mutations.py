"""Structured damage: of a good file becomes one that a disk, a copy, or somebody hostile could have made of it."""

import random
from collections.abc import Callable, Sequence

NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 48, (1 << 63) - 1)
BYTES = (
    b"\0",
    b"\xff",
    b"\xfe",
    b"\n",
    b"[",
    b"{",
    b"]",
    b"}",
    b"'",
    b'"',
    b":",
    b"*",
    b"&",
    b"<<: ",
    b"- ",
    b"\\",
    b"%",
)
TEXTS = (
    b"null", b"true", b"-1", b"1e309", b"nan", b"0x10", b"1_000", b"~", b"!!python/object/apply:os.system [id]",
    b"{0..9}", b"{000000000..999999999}", b"../../etc/passwd", b"/dev/zero", b"$HOME", b"file://", b"s3://nowhere/x",
    b"2001-99-99", b"9" * 5000, b"[" * 3000, b"{a: " * 3000, b"- " * 3000, b"\xf0\x9f\x98\x80", b"\xc3\x28",
    b"\xed\xa0\x80", b"&a [*a]", b"*a", b"&a [x]", b"train", b"split_parts", b"__class__", b"sample_loader",
    b"x" * 5000,
)  # fmt: skip

Mutation = Callable[[bytearray, random.Random], None]


def _flip_bit(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _set_bytes(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    piece = draw.choice(BYTES)
    data[at : at + len(piece)] = piece


def _set_number(data: bytearray, draw: random.Random) -> None:
    """A binary number of 1, 2, 4 or 8 bytes."""
    width = draw.choice((1, 2, 4, 8))
    at = draw.randrange(len(data))
    number = draw.choice(NUMBERS) & ((1 << 8 * width) - 1)
    data[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))


def _insert(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.choice((*BYTES, *TEXTS))


def _replace_word(data: bytearray, draw: random.Random) -> None:
    """A run of letters or digits becomes another text."""
    at = draw.randrange(len(data))
    start = end = at
    while start > 0 and chr(data[start - 1]).isalnum() and at - start < 64:
        start -= 1
    while end < len(data) and chr(data[end]).isalnum() and end - at < 64:
        end += 1
    data[start:end] = draw.choice((*TEXTS, *(str(number).encode() for number in NUMBERS)))


def _delete(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 2, 4, 8, 64, 512, 4096))]


def _duplicate(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    piece = bytes(data[start : start + draw.choice((1, 4, 16, 64, 512))])
    at = draw.randrange(len(data) + 1)
    data[at:at] = piece * draw.choice((1, 1, 2, 50))


def _swap(data: bytearray, draw: random.Random) -> None:
    size = draw.choice((1, 4, 8, 16, 64))
    a, b = draw.randrange(len(data)), draw.randrange(len(data))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def _zero(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    size = min(draw.choice((4, 64, 512)), len(data) - start)
    data[start : start + size] = bytes(size)


MUTATIONS: Sequence[Mutation] = (
    _flip_bit,
    _flip_bit,
    _set_bytes,
    _set_number,
    _set_number,
    _insert,
    _replace_word,
    _replace_word,
    _delete,
    _duplicate,
    _swap,
    _cut,
    _zero,
)

MAX_BYTES = 1 << 20


def mutated(seed: bytes, draw: random.Random) -> bytes:
    """`seed` with one to a few mutations."""
    data = bytearray(seed)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        if not data:
            data += draw.choice(BYTES)
        draw.choice(MUTATIONS)(data, draw)
    return bytes(data[: max(MAX_BYTES, len(seed))])
