"""A folder as a file store: the files below it, by their relative paths."""

import errno
import functools
import os
import posixpath
from collections.abc import Iterator
from typing import Any

from bridge_data import storage
from bridge_data.cache.file_store import FileStore
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.index.media import MediaIndex, MediaMetadata
from bridge_data.index.names import META_FOLDER, without_shard
from bridge_data.samples import SourceInfo


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
            if "://" in self._base:
                raise ConfigError(
                    f"{self}: only local folders can be read; mount the store, or copy the files to a disk"
                )
            self._base = os.path.abspath(self._base)
            if not os.path.isdir(self._base):
                raise ConfigError(f"{self}: no such folder")

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        for relative in (key, without_shard(key)):
            path = None if relative is None else self._found(relative)
            if path is not None and relative is not None:
                base = self.get_path()
                source = SourceInfo(dataset_path=base, index=relative, shard_name=base, file_names=(relative,))
                return storage.read_all(path), source
        raise SampleError(f"{self}: there is no file {key!r}. Add it, or mend the name.")

    def get_path(self) -> str:
        """The folder; the root, if there is none."""
        return self._base or "/"

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Those that `bridge-data prepare-media` has found in the file `key`."""
        media, relative = self._media, key
        if self._found(key) is None:
            relative = without_shard(key) or key
        return media.get(posixpath.normpath(relative))

    def list_files(self) -> Iterator[str]:
        """The relative paths of all files but the metadata, sorted within each folder."""
        if self._base is None:
            raise ConfigError(f"{self}: has no folder whose files could be listed")
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

    def _found(self, key: str) -> str | None:
        """The path of the file `key`, None if there is none.

        Raises:
            SampleError: if it would lie outside of the folder. DatasetError: if the folder is gone.
        """
        if self._base is None:
            if not os.path.isabs(key):
                raise SampleError(f"{self}: {key!r} is no absolute path, and the store has no folder to begin at")
            path = key
        else:
            path = os.path.normpath(os.path.join(self._base, key))
            if os.path.isabs(key) or not path.startswith(self._base.rstrip("/") + "/"):
                raise SampleError(f"{self}: {key!r} leads out of the folder; expected a path below it")
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            if self._base is not None and not os.path.isdir(self._base):
                raise DatasetError(f"{self}: the folder is gone; is its disk still mounted?") from None
            return None
        except OSError as error:
            return None if error.errno == errno.ENAMETOOLONG else path  # reading it tries again, and says what is wrong
        return None if os.path.isdir(path) else path

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_media"}


def _raise(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: cannot be listed: {error.strerror}") from error
