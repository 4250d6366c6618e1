"""File stores: files by name, wherever they lie.

Enters: a key, such as `images/0001.jpg`. Leaves: the file's content, decoded if the store does, and where it was read.
Guarantees: a key leads to one file, found without listing the others; the same key gives the same content on any rank
or worker. A file that is not there is the fault of the sample that asks for it (`SampleError`), storage that cannot be
read stops the run (`DatasetError`). A store may be pickled, and used by several threads.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import SourceInfo
from bridge_data.shards.media_metadata import MediaMetadata

T = TypeVar("T")


class FileStore(abc.ABC, Generic[T]):
    """Files by key. A store of your own needs `__getitem__` and `get_path`."""

    @abc.abstractmethod
    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        """The content of the file `key`, and where it was read.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
        """

    @abc.abstractmethod
    def get_path(self) -> str:
        """Where the files lie; no two stores with different files have the same."""

    def get(self, key: str, sample: Any = None) -> T:
        """The content of the file `key`. Where it was read is added to the sources of `sample`.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
        """
        return asked_for(lambda: self[key], sample)

    def get_raw(self, key: str) -> tuple[Any, SourceInfo]:
        """As `[]`, but not decoded."""
        return self[key]

    def decode_raw(self, key: str, raw: Any) -> T:
        """What `[]` makes of the content `raw` of the file `key`."""
        content: T = raw
        return content

    def resolve(self, key: str) -> "tuple[FileStore[T], str]":
        """The store and the key that `key` stands for, where it depends on the current sample."""
        return self, key

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Sizes, durations and the like of the file `key`, as `bridge-data prepare-media` has found them.

        Raises:
            SampleError: if there are none of this file. ConfigError: if the store has none at all.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} has no media metadata")

    def list_files(self) -> Iterator[str]:
        """The keys of all files.

        Raises:
            ConfigError: if the store cannot tell them.
        """
        raise ConfigError(f"{self}: a {type(self).__name__} does not know all of its files")

    def __str__(self) -> str:
        return self.get_path()


class FileStoreDecoder(Protocol):
    """Turns the content of files into objects. `SampleDecoder` is one."""

    @abc.abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """The object in `raw`, the content of the file `fname`, whose extension says what it is."""


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
    """The data set that a sample is of. A key that begins with a dot is of the sample itself: `.jpg` is its part `jpg`.

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
    """The content that `read` gives, for `sample`, which keeps where it was read.

    Raises:
        SampleError: naming the sample too, if there is no such file.
    """
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
    """Add where a part of it was read to a sample, or to a dict that is one; None and other things keep none."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)
