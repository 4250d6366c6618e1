"""File stores: files by name, in any kind of storage.

Enters: a key, such as `images/0001.jpg`. Leaves: the file's content, decoded if the store decodes, and its source.
Guarantees: a key leads to one file, found without listing the others; the same key gives the same content on any rank
or worker. A missing file is a failure of the sample that asks for it (`SampleError`); storage that cannot be read stops
the run (`DatasetError`). A store can be pickled, and used by several threads.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import SourceInfo
from bridge_data.shards.media_metadata import MediaMetadata

T = TypeVar("T")


class FileStore(abc.ABC, Generic[T]):
    """Files by key. Your own store needs `__getitem__` and `get_path`."""

    @abc.abstractmethod
    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        """The content of the file `key`, and its source.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
        """

    @abc.abstractmethod
    def get_path(self) -> str:
        """The location of the files; stores with different files have different ones."""

    def get(self, key: str, sample: Any = None) -> T:
        """The content of the file `key`. Its source is added to those of `sample`.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
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
        """The size, duration and the like of the file `key`, from `bridge-data prepare-media`.

        Raises:
            SampleError: if this file has none. ConfigError: if the store has none at all.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} has no media metadata")

    def list_files(self) -> Iterator[str]:
        """The keys of all files.

        Raises:
            ConfigError: if the store cannot list them.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} does not know all of its files")

    def __str__(self) -> str:
        return self.get_path()


class FileStoreDecoder(Protocol):
    """Turns the content of files into objects. `SampleDecoder` is one."""

    @abc.abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """The object in `raw`, the content of the file `fname`, by its extension."""


class DecodeFileStore(FileStore[Any]):
    """The files of `inner`, decoded."""

    def __init__(self, inner: FileStore[Any], *, decoder: FileStoreDecoder) -> None:
        self.inner, self.decoder = inner, decoder

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        raw, source = self.get_raw(key)
        return self.decode_raw(key, raw), source

    def get_path(self) -> str:
        """That of `inner`."""
        return self.inner.get_path()

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        """That of `inner`."""
        return self.inner.get_raw(key)

    def decode_raw(self, key: str, raw: Any) -> Any:
        """The decoded content."""
        return self.decoder.decode(key, self.inner.decode_raw(key, raw))

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """That of `inner`."""
        return self.inner.get_media_metadata(key)

    def list_files(self) -> Iterator[str]:
        """Those of `inner`."""
        return self.inner.list_files()

    def __str__(self) -> str:
        return str(self.inner)


class PrimaryFileStore(FileStore[T]):
    """A sample's own data set. A key that starts with a dot is a part of the sample itself: `.jpg` is its part `jpg`.

    `current_key` is the sample's key.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self.inner, self.current_key = inner, current_key

    def resolve(self, key: str) -> tuple[FileStore[T], str]:
        """`inner`, and the key in it."""
        return self.inner.resolve(f"{self.current_key}{key}" if key.startswith(".") else key)

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        store, full_key = self.resolve(key)
        return store[full_key]

    def get_path(self) -> str:
        """That of `inner`."""
        return self.inner.get_path()

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        """That of `inner`."""
        store, full_key = self.resolve(key)
        return store.get_raw(full_key)

    def decode_raw(self, key: str, raw: Any) -> T:
        """That of `inner`."""
        store, full_key = self.resolve(key)
        return store.decode_raw(full_key, raw)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """That of `inner`."""
        store, full_key = self.resolve(key)
        return store.get_media_metadata(full_key)

    def list_files(self) -> Iterator[str]:
        """Those of `inner`: of all samples."""
        return self.inner.list_files()

    def __str__(self) -> str:
        return str(self.inner)


def asked_for(read: Callable[[], tuple[T, SourceInfo]], sample: Any) -> T:
    """The content that `read` returns; its source is added to those of `sample`. A SampleError names the sample."""
    try:
        content, source = read()
    except SampleError as error:
        name = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        if name is None:
            raise
        raise type(error)(f"{error} It was asked for by sample {name}.") from error
    add_source(sample, source)
    return content


def add_source(sample: Any, source: SourceInfo) -> None:
    """Add the source of a part to a sample (or a crude one, a dict); other objects are ignored."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)
