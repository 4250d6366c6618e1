"""File stores over a folder, a prepared tar data set or a prepared JSONL file; and the stores that a source names.

Reads a path, or a source with its auxiliary data and the task encoder's decoder. Returns file stores. Those of a source
decode a file by its extension, as they decode the parts of samples.
"""

import errno
import functools
import os
import posixpath
import urllib.parse
from collections.abc import Collection, Iterator
from typing import Any

from bridge_data import storage
from bridge_data.counts import COUNTS
from bridge_data.data.blocks import RecordReader
from bridge_data.data.jsonl_file import PART, JsonlLines
from bridge_data.data.metadata import META_FOLDER, without_shard
from bridge_data.data.prepared import tars_of
from bridge_data.data.records import stored_records
from bridge_data.data.sample_keys import number_of_key
from bridge_data.data.withheld import digest_of_keys, reader_of, withheld
from bridge_data.decode import SampleDecoder
from bridge_data.decode.media_metadata import MediaIndex, MediaMetadata
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plan import Source
from bridge_data.samples import SourceInfo
from bridge_data.storage import RemotePath
from bridge_data.task.stores.file_store import DecodeFileStore, FileStore
from bridge_data.task.stores.part_reader import PartReader


def _below(folder: str, name: str) -> str | None:
    """The path of the file `name` below `folder`, without `..` and `.` in it; None if it is elsewhere."""
    scheme = f"{folder.partition('://')[0]}://" if storage.is_remote(folder) else ""
    is_url = bool(scheme) and name.startswith(scheme)
    path = name.removeprefix(scheme) if is_url else posixpath.join(folder.removeprefix(scheme), name)
    path = f"{scheme}{posixpath.normpath(path)}"
    return path[len(folder) + 1 :] if path.startswith(f"{folder}/") else None


class _NamedStore(FileStore[bytes]):
    """A store that messages name as in `aux`."""

    _name: str | None

    def __str__(self) -> str:
        return self.get_path() if self._name is None else f"auxiliary data {self._name!r} ({self.get_path()})"


class SystemFileStore(_NamedStore):
    """The files in the folder `base_dir`, on a disk or in an object store; `name` is its name in messages.

    A key is a path below the folder: relative, or absolute, also as a URL `file://`. One that leaves the folder is
    refused; links in the folder are followed. If a key starts with a shard's name, as a sample's `__key__` does, the
    file is also looked for without it. With `base_dir` None, keys are absolute paths, and any file can be read.

    >>> from pathlib import Path
    >>> _ = Path("a.txt").write_text("hello")
    >>> SystemFileStore(".").get("a.txt")
    b'hello'

    Raises:
        ConfigError: if there is no such folder.
    """

    def __init__(self, base_dir: str | os.PathLike[str] | None = None, *, name: str | None = None) -> None:
        self._base = None if base_dir is None else os.fspath(base_dir)
        self._name = name
        if self._base is not None:
            is_remote = storage.is_remote(self._base)
            self._base = str(RemotePath(self._base).absolute()) if is_remote else os.path.abspath(self._base)
            if not storage.is_folder(self._base):
                raise ConfigError(f"{self}: no such folder")

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        for relative in (self._relative(key), without_shard(key)):
            content = None if relative is None else self._content(relative)
            if content is not None and relative is not None:
                base = self.get_path()
                source = SourceInfo(dataset_path=base, index=relative, shard_name=base, file_names=(relative,))
                return content, source
        raise SampleError(f"{self}: there is no file {key!r}. Add it, or fix the name.")

    def get_path(self) -> str:
        """The folder; the root if `base_dir` is None."""
        return self._base or "/"

    def get_media_metadata(self, key: str) -> MediaMetadata:
        media, relative = self._media, self._relative(key)
        if not self._is_file(self._path(relative)):
            relative = without_shard(key) or relative
        return media.get(posixpath.normpath(relative))

    def list_files(self) -> Iterator[str]:
        """The relative paths of all files except the metadata, sorted within each folder."""
        if self._base is None:
            raise ConfigError(f"{self}: has no folder whose files could be listed")
        if storage.is_remote(self._base):
            yield from (key for key in storage.list_sizes(self._base) if not key.startswith(f"{META_FOLDER}/"))
            return
        for folder, folders, files in storage.walk(self._base):
            folders[:] = sorted(name for name in folders if name != META_FOLDER)
            for file in sorted(files):
                yield os.path.relpath(os.path.join(folder, file), self._base)

    def list_folder(self, key: str) -> list[str]:
        path = self._path(key)
        if storage.is_remote(path):
            names = [name for name in storage.list_sizes(path) if "/" not in name]
        elif os.path.isdir(path):
            names = next(iter(storage.walk(path)))[2]
        else:
            return []
        return [f"{key.rstrip('/')}/{name}" for name in sorted(names)]

    def __str__(self) -> str:
        path = self._base or "the file system"
        return path if self._name is None else f"auxiliary data {self._name!r} ({path})"

    @functools.cached_property
    def _media(self) -> MediaIndex:
        if self._base is None:
            raise ConfigError(f"{self}: media metadata need a folder, and this store has none")
        return MediaIndex(self._base)

    def _content(self, key: str) -> bytes | None:
        """The content of the file `key`, None if there is none; one request to an object store."""
        path = self._path(key)
        if storage.is_remote(path):
            content = storage.read_if_there(path)
        else:
            content = storage.read_all(path) if self._is_file(path) else None
        num_bytes = 0 if content is None else len(content)
        COUNTS.bytes_read += num_bytes
        return content

    def _path(self, key: str) -> str:
        """The path of the file `key`, which need not exist. A SampleError if it is outside of the folder."""
        relative = self._relative(key)
        return relative if self._base is None else f"{self._base.rstrip('/')}/{relative}"

    def _relative(self, key: str) -> str:
        """The path of the file `key` below the folder; without a folder, its absolute path."""
        name = urllib.parse.unquote(key.removeprefix("file://")) if key.startswith("file://") else key
        if self._base is None:
            if not os.path.isabs(name):
                raise SampleError(f"{self}: {key!r} is not an absolute path, and the store has no folder")
            return name
        base = self._base.rstrip("/")
        below = _below(base, name)
        if below is None and not storage.is_remote(base):
            below = _below(os.path.realpath(base), name)  # an absolute name may be written without the links in it
        if below is None:
            raise SampleError(f"{self}: {key!r} is outside of the folder; expected a path below it")
        return below

    def _is_file(self, path: str) -> bool:
        """Whether there is a file at `path`. A DatasetError if the folder is gone."""
        if storage.is_remote(path):
            return storage.is_file(path)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            if self._base is not None and not os.path.isdir(self._base):
                raise DatasetError(f"{self}: the folder is gone; is its disk still mounted?") from None
            return False
        except OSError as error:
            return error.errno != errno.ENAMETOOLONG  # reading it retries, and reports the error
        return not os.path.isdir(path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_media"}


class WebdatasetFileStore(_NamedStore):
    """The parts of all samples of the prepared data set in the folder `path`, in any split; `name` is its name in
    messages. A forgotten sample is a `ForgottenSampleError`; `forgotten` are (shard, key) of these (None: those on the
    newest list).

    A key is the name of a part in its shard. If it starts with a shard's name, as a sample's `__key__` does, the part
    is also looked for without it.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        forgotten: Collection[tuple[str, str]] | None = None,
    ) -> None:
        self._parts, self._name = PartReader(path, forgotten), name
        self._media = MediaIndex(self._parts.root)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        parts = self._parts
        try:
            part = parts.find(key)
        except SampleError as error:
            raise self._named(error) from None
        shard = parts.index.shard_names[part.shard]
        source = SourceInfo(dataset_path=self.get_path(), index=part.name, shard_name=shard, file_names=(part.name,))
        return parts.read(part), source

    def get_path(self) -> str:
        return str(self._parts.root)

    @property
    def forgotten_version(self) -> str:
        return self._parts.forgotten_digest

    def get_media_metadata(self, key: str) -> MediaMetadata:
        try:
            return self._media.get(self._parts.find(key).name)
        except SampleError as error:
            raise self._named(error) from None

    def list_files(self) -> Iterator[str]:
        return self._parts.part_names()

    def _named(self, error: SampleError) -> SampleError:
        return error if self._name is None else type(error)(f"auxiliary data {self._name!r}: {error}")


class JsonlFileStore(_NamedStore):
    """The lines of the prepared JSONL file `path`, by line number: `17.json`; `name` is its name in messages,
    `lines` are its lines, if it was opened before, and `forgotten` are (shard, key) of those that are forgotten (None:
    those on the newest list).

    Raises:
        ConfigError: if it is not prepared.
        DatasetError: if it was changed since.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        lines: JsonlLines | None = None,
        forgotten: Collection[tuple[str, str]] | None = None,
    ) -> None:
        self._lines = lines or JsonlLines.open(storage.location(path).absolute(), "")
        self._name, self._forgotten = name, withheld(self._lines).keys if forgotten is None else forgotten

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        number = key.removesuffix(f".{PART}")
        if not (key.endswith(f".{PART}") and number.isascii() and number.isdigit()):
            raise SampleError(f"{self}: {key!r} is not a part; expected the number of a line, as in 17.{PART}.")
        if int(number) >= self._lines.num_samples:
            raise SampleError(f"{self}: there is no part {key!r}; it has {self._lines.num_samples} samples, from 0 on.")
        raw = self._reader.read(int(number))
        return raw.parts[PART], raw.source_info()

    def get_path(self) -> str:
        return str(self._lines.root)

    @property
    def forgotten_version(self) -> str:
        return digest_of_keys(self._forgotten)

    def list_files(self) -> Iterator[str]:
        return (f"{number}.{PART}" for number in range(self._lines.num_samples) if number not in self._gone)

    @functools.cached_property
    def _gone(self) -> frozenset[int]:
        numbers = (number_of_key(key) for _, key in self._forgotten)
        return frozenset(number for number in numbers if number is not None)

    @functools.cached_property
    def _reader(self) -> RecordReader:
        return reader_of(self._lines, self._gone)


def open_aux(source: Source, decoder: SampleDecoder | None) -> dict[str, FileStore[Any]]:
    """The stores of the auxiliary data of `source`, by name; without a decoder, they return bytes."""
    stores: dict[str, FileStore[Any]] = {}
    for name, reference in source.aux.items():
        store: FileStore[bytes] = (
            SystemFileStore(reference.path, name=name)
            if reference.kind == "folder"
            else WebdatasetFileStore(reference.path, name=name, forgotten=reference.forgotten)
        )
        stores[name] = _decoded(store, decoder)
    return stores


def open_primary(source: Source, decoder: SampleDecoder | None) -> FileStore[Any]:
    """The store of the data set of `source`; without a decoder, it returns bytes."""
    if source.composition is not None:
        raise ConfigError(
            f"{source.path}: its samples are made of those of several data sets, so there is no primary one; name the "
            "ones to be read in `aux`"
        )
    records, shards = stored_records(source.records), tars_of(source.records)
    if isinstance(records, JsonlLines):
        return _decoded(JsonlFileStore(source.path, lines=records, forgotten=source.withheld.keys), decoder)
    forgotten = None if shards is None else source.withheld.keys
    return _decoded(WebdatasetFileStore(source.path, forgotten=forgotten), decoder)


def _decoded(store: FileStore[Any], decoder: SampleDecoder | None) -> FileStore[Any]:
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)
