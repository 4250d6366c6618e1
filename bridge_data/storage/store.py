"""What a client of an object store does: a few requests by key, each of them once."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeAlias

Content: TypeAlias = bytes | memoryview


class ObjectInfo(NamedTuple):
    """The size of an object, and what changes when it is written anew."""

    num_bytes: int
    version: str


class Store(Protocol):
    """The objects of one bucket, container or profile. It may be used by several threads; any method raises `Fault`."""

    def read(self, key: str, start: int, num_bytes: int) -> tuple[Content, int | None]:
        """(`num_bytes` bytes from `start`, or fewer if the object ends before; the object's size, if it was said)."""

    def read_all(self, key: str, at_most: int) -> bytes | int:
        """The whole object; if it is larger than `at_most` bytes and that is known before it is read, its size."""

    def info(self, key: str) -> ObjectInfo:
        """What is known of an object without reading it."""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """(path below `folder`, size) of every object below it."""


def first_line(error: BaseException, limit: int = 600) -> str:
    """What an error says, without the aids to debugging that follow."""
    text = str(error).split("\n\n", 1)[0].replace("\n", " ").strip() or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]} ..."
