"""A prepared data set as a file store: the parts of its samples, by their names `0001.jpg`."""

import functools
import os
from collections.abc import Iterator

from bridge_data import storage
from bridge_data.errors import SampleError
from bridge_data.samples import SourceInfo
from bridge_data.shards.jsonl_file import PART, JsonlLines
from bridge_data.shards.key_index import PartReader
from bridge_data.shards.media_metadata import MediaIndex, MediaMetadata
from bridge_data.shards.records import RecordReader
from bridge_data.task.stores.file_store import FileStore


class WebdatasetFileStore(FileStore[bytes]):
    """The parts of all samples of the prepared data set in the folder `path`; `name` is what messages call it.

    A key is the name of a part as the shard has it. One that begins with a shard's name, as a sample's `__key__` does,
    is also found without that. Splits do not matter here.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        self._parts, self._name = PartReader(path), name
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
        """The folder."""
        return str(self._parts.root)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Those that `bridge-data prepare-media` has found in the part `key`."""
        try:
            return self._media.get(self._parts.find(key).name)
        except SampleError as error:
            raise self._named(error) from None

    def list_files(self) -> Iterator[str]:
        """The names of all parts, in the order of the data set."""
        return self._parts.index.part_names()

    def __str__(self) -> str:
        return self.get_path() if self._name is None else f"auxiliary data {self._name!r} ({self.get_path()})"

    def _named(self, error: SampleError) -> SampleError:
        return error if self._name is None else SampleError(f"auxiliary data {self._name!r}: {error}")


class JsonlFileStore(FileStore[bytes]):
    """The lines of the prepared JSONL file `path`, by their numbers: `17.json`; `name` is what messages call it.

    Raises:
        ConfigError: if it is not prepared. DatasetError: if it was changed since.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        self._lines = JsonlLines.open(storage.location(path).absolute(), "")
        self._name = name

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        number = key.removesuffix(f".{PART}")
        if not (key.endswith(f".{PART}") and number.isascii() and number.isdigit()):
            raise SampleError(f"{self}: {key!r} is no part in it; expected the number of a line, as in 17.{PART}.")
        if int(number) >= self._lines.num_samples:
            raise SampleError(f"{self}: there is no part {key!r}; it has {self._lines.num_samples} samples, from 0 on.")
        raw = self._reader.read(int(number))
        return raw.parts[PART], raw.source_info()

    def get_path(self) -> str:
        """The file."""
        return str(self._lines.root)

    def list_files(self) -> Iterator[str]:
        """The names of all lines."""
        return (f"{number}.{PART}" for number in range(self._lines.num_samples))

    def __str__(self) -> str:
        return self.get_path() if self._name is None else f"auxiliary data {self._name!r} ({self.get_path()})"

    @functools.cached_property
    def _reader(self) -> RecordReader:
        return self._lines.reader()
