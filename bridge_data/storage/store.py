"""What is behind a URL: a `Store` for each scheme, which a plug-in offers.

Reads a URL. `store_of` returns the store of its scheme, one object for each process, made when the scheme is first met.
Raises `ConfigError` if nobody offers one. Stores are extensions of the kind `stores`, named by their scheme (see
`bridge_data.extensions`); what is offered is called without arguments and returns the store, so a class will do:

    class Memory(Store):
        objects: ClassVar[dict[str, bytes]] = {}

        def find(self, url: str) -> Version | None:
            data = self.objects.get(url)
            return None if data is None else Version(len(data), str(zlib.crc32(data)))

        ...  # read, list, write, delete
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.extensions import Seam

MAX_AHEAD_BYTES = 128 << 20
"""Bytes of announced ranges that a process holds or has in flight."""

REQUEST_BYTES = 1 << 19
"""One request to a store costs about as much as transferring this many bytes."""

ObjectRange: TypeAlias = tuple[str, int, int]
"""URL of an object, offset in it, number of bytes."""


class Version(NamedTuple):
    """The version of a location's content: its size, and the modification time of a file in ns, or a store's version of
    an object, such as its ETag."""

    num_bytes: int
    changed: int | str

    @property
    def stamp(self) -> int:
        """`changed` as a number, for an index: for an object a digest, larger than any modification time of a file."""
        if isinstance(self.changed, int):
            return self.changed
        import hashlib  # imported here: slow, and readers do without

        return 1 << 62 | int.from_bytes(hashlib.blake2b(self.changed.encode(), digest_size=7).digest())


class Prefetching(Protocol):
    """Fetches ranges of objects before they are read: at most `MAX_AHEAD_BYTES` of them at a time."""

    def by_request(self, ranges: Sequence[ObjectRange]) -> list[list[ObjectRange]]:
        """The ranges, grouped by the request that would fetch them if they were announced together, in order of first
        use."""

    def prefetch(self, ranges: Sequence[ObjectRange]) -> None:
        """Fetch ranges that will be read soon, in about this order. The store's `read` of one waits for it, and frees
        its bytes. A failed fetch is no error: the read reports it."""

    def release(self, ranges: Sequence[ObjectRange]) -> None:
        """Free ranges that were announced, or do not fetch them: they will not be read."""


class Store(Protocol):
    """The objects of a URL scheme. Those who subclass it define five methods; the others have a default.

    A store retries what may succeed later, for a bounded time. All methods may be called from any thread, and in forked
    processes unless `may_fork` says no. They raise `DatasetError`, which names the URL, if a store does not answer or
    denies access, and `ConfigError` if settings do not fit or a package is missing.
    """

    read_only: ClassVar[str] = ""
    """Why nothing can be written, and the fix; empty if objects can be written."""

    def find(self, url: str) -> Version | None:
        """The version of the object at `url` as it is now; None if there is none. It changes when the object does."""

    def read(self, url: str, start: int, num_bytes: int) -> tuple[bytes, Version]:
        """(`num_bytes` bytes from byte `start`, or fewer or none if the object ends before; the object's version).

        Raises:
            DatasetError: also if there is no such object.
        """

    def list(self, url: str) -> dict[str, Version]:
        """The versions of all objects below `url`, by their paths relative to it, sorted."""

    def write(self, url: str, content: bytes | Path) -> Version:
        """Write these bytes, or the content of a file. The object appears whole or not at all; the last writer wins.
        Return its version."""

    def delete(self, url: str) -> None:
        """Delete the object at `url`, if there is one."""

    def split(self, url: str) -> tuple[str, str]:
        """(`s3://bucket`, `folder/file`) of `s3://bucket/folder/file`: a base above which there are no folders, and the
        path below it.

        Raises:
            ConfigError: for a URL that names no base.
        """
        scheme, _, rest = url.partition("://")
        base, _, key = rest.partition("/")
        if not base:
            raise ConfigError(f"{url}: names no store; expected {scheme}://NAME/PATH")
        return f"{scheme}://{base}", key.strip("/")

    def pinned(self, url: str) -> str:
        """`url` for any other process; where the content at a URL may move on as a whole, a URL of what it is now."""
        return url

    def read_all(self, url: str) -> bytes | None:
        """The whole object at `url`; None if there is none."""
        found = self.find(url)
        return None if found is None else self.read(url, 0, found.num_bytes)[0]

    def size_bytes(self, url: str) -> int:
        """The size of the object at `url`; of one that was read before, maybe its size at that time."""
        return existing(self.find(url), url).num_bytes

    def is_folder(self, url: str) -> bool:
        """Whether there are objects below `url`."""
        return bool(self.list(url))

    def may_fork(self) -> bool:
        """Whether a forked child of this process can use the store."""
        return True

    @property
    def ahead(self) -> Prefetching | None:
        """What fetches ranges before they are read; None if that gains nothing."""
        return None


STORES = Seam[Callable[[], Store]]("stores")
"""By their schemes."""

_stores: dict[str, Store] = {}
"""By scheme, those that this process has met."""


def store_of(url: str) -> Store:
    """The store of the scheme of `url`.

    Raises:
        ConfigError: if there is none.
    """
    scheme = url.partition("://")[0]
    store = _stores.get(scheme)
    if store is None:
        store = _stores.setdefault(scheme, _opened(scheme, url))
    return store


def _opened(scheme: str, url: str) -> Store:
    try:
        return STORES.get(scheme, needed_by=f"{scheme}://")()
    except ConfigError as error:
        known = ", ".join(f"{name}://" for name in (*STORES.names, *STORES.names_of_others))
        expected = f"expected a local path{known and ', or one of '}{known}"
        raise ConfigError(f"{url}: unknown kind of URL; {expected}. {error}") from error


def may_fork() -> bool:
    """Whether a forked child of this process can use all stores that this process has used."""
    return all(store.may_fork() for store in _stores.values())


def existing(found: Version | None, url: str) -> Version:
    """`found`, the version of the object at `url`.

    Raises:
        DatasetError: if there is none.
    """
    if found is None:
        raise no_object(url)
    return found


def no_object(url: str) -> DatasetError:
    """The error of an object that is not there."""
    return DatasetError(f"{url}: no such object. Check the URL, or copy it there.")
