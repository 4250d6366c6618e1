"""Bytes by location: of a local file, or of an object in a store.

Enters: a path or a URL. Leaves: exactly the bytes that were asked for. Guarantee: whole or not at all; see
`bridge_data.storage.local` and `bridge_data.storage.remote`.
"""

import os
from collections.abc import Sequence

from bridge_data.storage import local, remote
from bridge_data.storage.prefetching import joined


def read(path: str | os.PathLike[str], start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of what is at `path`, from byte `start`.

    Raises:
        DatasetError: if it is missing, unreadable or ends before that. ConfigError: if it is a URL that cannot be read
        here.
    """
    location = os.fspath(path)
    return (remote if "://" in location else local).read(location, start, num_bytes)


def read_all(path: str | os.PathLike[str]) -> bytes:
    """All of what is at `path`; it is not kept open.

    Raises:
        DatasetError: if it is missing or unreadable. ConfigError: if it is a URL that cannot be read here.
    """
    location = os.fspath(path)
    return (remote if "://" in location else local).read_all(location)


def read_if_there(path: str | os.PathLike[str]) -> bytes | None:
    """All of what is at `path`; None if nothing is.

    Raises:
        DatasetError: if it is unreadable. ConfigError: if it is a URL that cannot be read here.
    """
    location = os.fspath(path)
    if "://" in location:
        return remote.read_if_there(location)
    return local.read_all(location) if os.path.isfile(location) else None


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The size of what is at `path`; of an object that was read before, as it was then.

    Raises:
        DatasetError: if it is missing or unreadable. ConfigError: if it is a URL that cannot be read here.
    """
    location = os.fspath(path)
    return (remote if "://" in location else local).size_bytes(location)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, or an object, at `path`.

    Raises:
        DatasetError, ConfigError: of a URL, if it cannot be found out.
    """
    location = os.fspath(path)
    return remote.find(location) is not None if "://" in location else os.path.isfile(location)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder at `path`, or objects below it.

    Raises:
        DatasetError, ConfigError: of a URL, if it cannot be found out.
    """
    location = os.fspath(path)
    return remote.is_folder(location) if "://" in location else os.path.isdir(location)


def prefetch(places: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Fetch ranges (location, offset, number of bytes) in the background, as they will be read soon, in about this
    order. A `read` within one of them waits for it and takes its bytes, which are then forgotten. It costs requests if
    they are not read, and is no error if it fails; for local files nothing is done.
    """
    located = [(os.fspath(path), start, num_bytes) for path, start, num_bytes in places]
    wanted = [place for place in located if "://" in place[0]]
    if wanted:
        remote.prefetch(wanted)


def by_request(places: Sequence[tuple[str | os.PathLike[str], int, int]]) -> list[list[tuple[str, int, int]]]:
    """Those of `places` that `prefetch` would fetch, in groups that each come with one request if they are announced
    together; in the order in which they are wanted first.
    """
    located = [(os.fspath(path), start, num_bytes) for path, start, num_bytes in places]
    requests = joined([place for place in located if "://" in place[0] and place[2]])
    return [[(request.url, *one) for one in request.ranges] for request in requests]
