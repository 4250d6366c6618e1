"""File stores, which read a file by its name from any kind of storage; and lazies, which read it later.

Reads a key, such as `images/0001.jpg`. Returns the content of the file (decoded, if the store decodes) and its source.
A file is found without listing the others. A key gives the same content on any rank or worker and with any cache pool,
so batches do not depend on the pool. A missing file is a `SampleError` of the sample that asks for it; storage that
cannot be read is a `DatasetError`, which stops the run. A store can be pickled, and used by several threads.

A lazy holds no content until `get` is called. Samples in packing buffers may hold lazies. States hold none: pending
samples of a restored state are cooked again, which makes their lazies again.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from bridge_data.decode.media_metadata import MediaMetadata
from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import SourceInfo, provenance_of

T = TypeVar("T")


class FileStore(abc.ABC, Generic[T]):
    """Files by key. Your own store needs `__getitem__` and `get_path`.

    >>> class Texts(FileStore[str]):
    ...     def __getitem__(self, key):
    ...         return key.upper(), SourceInfo(dataset_path="texts", index=key, shard_name="texts", file_names=(key,))
    ...     def get_path(self):
    ...         return "texts"
    >>> Texts().get("a.txt")
    'A.TXT'
    """

    @abc.abstractmethod
    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        """The content of the file `key`, and its source.

        Raises:
            SampleError: if there is no such file.
            DatasetError: if it cannot be read.
        """

    @abc.abstractmethod
    def get_path(self) -> str:
        """The location of the files; stores with different files have different ones."""

    @property
    def forgotten_version(self) -> str:
        """Differs between stores of the same files of which some have no longer all: caches of several jobs tell them
        apart by it."""
        return ""

    def get(self, key: str, sample: Any = None) -> T:
        """The content of the file `key`. Its source is added to those of `sample`.

        Raises:
            SampleError: if there is no such file.
            DatasetError: if it cannot be read.
        """
        return asked_for(lambda: self[key], sample)

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        """As `[]`, without decoding."""
        return self[key]

    def decode_raw(self, key: str, raw: Any) -> T:
        """Decode the content `raw` of the file `key`, as `[]` does."""
        content: T = raw
        return content

    def resolve(self, key: str) -> "tuple[FileStore[T], str]":
        """The store and the key that `key` refers to, if that depends on the current sample."""
        return self, key

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """The size, duration and the like of the file `key`, from `bridge-data prepare --media`.

        Raises:
            SampleError: if this file has none.
            ConfigError: if the store has none at all.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} has no media metadata")

    def list_files(self) -> Iterator[str]:
        """The keys of all files.

        Raises:
            ConfigError: if the store cannot list them.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} does not know all of its files")

    def list_folder(self, key: str) -> list[str]:
        """The keys of the files in the folder `key`; none if there is no such folder, or the store has no folders."""
        return []

    def __str__(self) -> str:
        return self.get_path()


class FileStoreDecoder(Protocol):
    """Turns the content of files into objects. `SampleDecoder` is one.

    >>> class Upper:
    ...     def decode(self, fname, raw):
    ...         return raw.decode().upper()
    """

    @abc.abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """The object in `raw`, the content of the file `fname`, by its extension."""


class _FileStoreAround(FileStore[T]):
    """The files of another store, `inner`."""

    inner: FileStore[Any]

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        raw, source = self.get_raw(key)
        return self.decode_raw(key, raw), source

    def get_path(self) -> str:
        return self.inner.get_path()

    @property
    def forgotten_version(self) -> str:
        return self.inner.forgotten_version

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        return self.inner.get_raw(key)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(key)

    def list_files(self) -> Iterator[str]:
        return self.inner.list_files()

    def list_folder(self, key: str) -> list[str]:
        return self.inner.list_folder(key)

    def __str__(self) -> str:
        return str(self.inner)


class DecodeFileStore(_FileStoreAround[Any]):
    """The files of `inner`, decoded.

    >>> from pathlib import Path
    >>> from bridge_data import SampleDecoder, SystemFileStore
    >>> _ = Path("a.txt").write_text("hello")
    >>> DecodeFileStore(SystemFileStore("."), decoder=SampleDecoder()).get("a.txt")
    'hello'
    """

    def __init__(self, inner: FileStore[Any], *, decoder: FileStoreDecoder) -> None:
        self.inner, self.decoder = inner, decoder

    def decode_raw(self, key: str, raw: Any) -> Any:
        return self.decoder.decode(key, self.inner.decode_raw(key, raw))


class PrimaryFileStore(_FileStoreAround[T]):
    """A sample's own data set. A key that starts with a dot is a part of the sample itself: `.jpg` is its part `jpg`.

    `current_key` is the sample's key.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self.inner, self.current_key = inner, current_key

    def resolve(self, key: str) -> tuple[FileStore[T], str]:
        return self.inner.resolve(f"{self.current_key}{key}" if key.startswith(".") else key)

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        store, full_key = self.resolve(key)
        return store.get_raw(full_key)

    def decode_raw(self, key: str, raw: Any) -> T:
        store, full_key = self.resolve(key)
        return store.decode_raw(full_key, raw)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        store, full_key = self.resolve(key)
        return store.get_media_metadata(full_key)


def asked_for(read: Callable[[], tuple[T, SourceInfo]], sample: Any) -> T:
    """The content that `read` returns; its source is added to those of `sample`. A SampleError names the sample."""
    try:
        content, source = read()
    except SampleError as error:
        name = provenance_of(sample, "__key__")
        if name is None:
            raise
        raise type(error)(f"{error} Sample {name} requested it.") from error
    add_source(sample, source)
    return content


def add_source(sample: Any, source: SourceInfo) -> None:
    """Add the source of a part to a sample (or a crude one, a dict); other objects are ignored."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)


@dataclasses.dataclass(kw_only=True, eq=False)
class Lazy(abc.ABC, Generic[T]):
    """The file `fname` of the store `ds`, to be read later by way of `pool`. Lazies of the same file are equal."""

    ds: FileStore[T] | None
    fname: str
    pool: "CachePool | None" = dataclasses.field(repr=False)

    @abc.abstractmethod
    def get(self, sample: Any = None) -> T:
        """The content. Its source is added to those of `sample`.

        Raises:
            SampleError: if there is no such file.
            DatasetError: if it cannot be read.
        """

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname


class CachePool(abc.ABC):
    """Fetches files for cookers in the background, and stores their objects for a while."""

    @abc.abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of `ds`, now. Its source is added to those of `sample`."""

    @abc.abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """The content of the file `fname` of `ds`, later."""

    @abc.abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object `data`, later; `name` is for messages."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the pool's content. Its lazies of files can still be resolved."""


@dataclasses.dataclass(kw_only=True, eq=False)
class DirectLazy(Lazy[T]):
    """A file that is read at the first `get`."""

    _content: tuple[T, SourceInfo] | None = dataclasses.field(default=None, init=False, repr=False)

    def get(self, sample: Any = None) -> T:
        return asked_for(self._read, sample)

    def _read(self) -> tuple[T, SourceInfo]:
        if self._content is None:
            assert self.ds is not None
            self._content = self.ds[self.fname]
        return self._content


class MockLazy(Lazy[T]):
    """The result of `get_fn(fname)` at each `get`.

    >>> MockLazy("a.txt", str.upper).get()
    'A.TXT'
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(ds=None, fname=fname, pool=None)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """The result of the function; nothing is added to the sources of `sample`."""
        return self.get_fn(self.fname)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MockLazy) and self.fname == other.fname and self.get_fn == other.get_fn


class NoCachePool(CachePool):
    """A pool that fetches nothing in advance, and keeps objects in memory.

    >>> NoCachePool().to_cache([1, 2], "numbers").get()
    [1, 2]
    """

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        store, key = ds.resolve(fname)
        return DirectLazy(ds=store, fname=key, pool=self)

    def to_cache(self, data: T, name: str) -> MockLazy[T]:
        return MockLazy(name, lambda _: data)

    def close(self) -> None:
        pass
