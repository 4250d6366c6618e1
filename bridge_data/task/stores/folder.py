"""A folder, on a disk or in an object store, as a file store: the files below it, by their relative paths."""

import errno
import functools
import os
import posixpath
from collections.abc import Iterator
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.samples import SourceInfo
from bridge_data.shards.media_metadata import MediaIndex, MediaMetadata
from bridge_data.shards.metadata import META_FOLDER, without_shard
from bridge_data.storage import RemotePath
from bridge_data.task.stores.file_store import FileStore


class SystemFileStore(FileStore[bytes]):
    """The files in the folder `base_dir`; `name` is what messages call it.

    A key is a path relative to it. One that leads out of it, by `..` or from the root, is refused; links in the folder
    are followed. A key that begins with a shard's name, as a sample's `__key__` does, is also found without that. With
    `base_dir` None, keys are absolute paths, and any file can be read.

    Raises:
        ConfigError: if there is no such folder.
    """

    def __init__(self, base_dir: str | os.PathLike[str] | None = None, *, name: str | None = None) -> None:
        self._base = None if base_dir is None else os.fspath(base_dir)
        self._name = name
        if self._base is not None:
            self._base = str(RemotePath(self._base)) if storage.is_remote(self._base) else os.path.abspath(self._base)
            if not storage.is_folder(self._base):
                raise ConfigError(f"{self}: no such folder")

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        for relative in (key, without_shard(key)):
            content = None if relative is None else self._content(relative)
            if content is not None and relative is not None:
                base = self.get_path()
                source = SourceInfo(dataset_path=base, index=relative, shard_name=base, file_names=(relative,))
                return content, source
        raise SampleError(f"{self}: there is no file {key!r}. Add it, or mend the name.")

    def get_path(self) -> str:
        """The folder; the root, if there is none."""
        return self._base or "/"

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Those that `bridge-data prepare-media` has found in the file `key`."""
        media, relative = self._media, key
        if not self._is_file(self._place(key)):
            relative = without_shard(key) or key
        return media.get(posixpath.normpath(relative))

    def list_files(self) -> Iterator[str]:
        """The relative paths of all files but the metadata, sorted within each folder."""
        if self._base is None:
            raise ConfigError(f"{self}: has no folder whose files could be listed")
        if storage.is_remote(self._base):
            yield from (key for key in storage.list_sizes(self._base) if not key.startswith(f"{META_FOLDER}/"))
            return
        for folder, folders, files in os.walk(self._base, onerror=_raise):
            folders[:] = sorted(name for name in folders if name != META_FOLDER)
            for file in sorted(files):
                yield os.path.relpath(os.path.join(folder, file), self._base)

    def __str__(self) -> str:
        place = self._base or "the file system"
        return place if self._name is None else f"auxiliary data {self._name!r} ({place})"

    @functools.cached_property
    def _media(self) -> MediaIndex:
        if self._base is None:
            raise ConfigError(f"{self}: media metadata are those of a folder, and this store has none")
        return MediaIndex(self._base)

    def _content(self, key: str) -> bytes | None:
        """What the file `key` holds, None if there is none; of an object store this is one request."""
        path = self._place(key)
        if storage.is_remote(path):
            return storage.read_if_there(path)
        return storage.read_all(path) if self._is_file(path) else None

    def _place(self, key: str) -> str:
        """The path of the file `key`, be it there or not.

        Raises:
            SampleError: if it would lie outside of the folder.
        """
        if self._base is None:
            if not os.path.isabs(key):
                raise SampleError(f"{self}: {key!r} is no absolute path, and the store has no folder to begin at")
            return key
        relative = posixpath.normpath(key)
        if os.path.isabs(key) or relative.split("/", 1)[0] == ".." or relative == ".":
            raise SampleError(f"{self}: {key!r} leads out of the folder; expected a path below it")
        return f"{self._base.rstrip('/')}/{relative}"

    def _is_file(self, path: str) -> bool:
        """Whether there is a file at `path`.

        Raises:
            DatasetError: if the folder is gone.
        """
        if storage.is_remote(path):
            return storage.is_file(path)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            if self._base is not None and not os.path.isdir(self._base):
                raise DatasetError(f"{self}: the folder is gone; is its disk still mounted?") from None
            return False
        except OSError as error:
            return error.errno != errno.ENAMETOOLONG  # reading it tries again, and says what is wrong
        return not os.path.isdir(path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_media"}


def _raise(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: cannot be listed: {error.strerror}") from error
