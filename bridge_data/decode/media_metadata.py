"""Media metadata by key: sizes of images, durations of clips, without opening them.

Reads the folder of a prepared data set, or any folder of files, after `bridge-data prepare --media`. Returns the
metadata from the header of one of its files, by one look-up in an index, in a data set of any size; no file or shard is
touched. Raises `SampleError` for a file without metadata. A key is a part's name (`000017.jpg`), or a path relative to
the folder (`clips/a.mp4`).

Source: the tables `media_metadata` and `media_filters` in `.nv-meta/index.sqlite`, and the names of the fields, are
those of Megatron-Energon 7.4.
"""

import dataclasses
import functools
import json
from os import PathLike
from typing import Any, ClassVar, TypeAlias

from bridge_data import storage
from bridge_data.data.key_index import ReadOnlyDatabase
from bridge_data.data.metadata import INDEX_SQLITE, META_FOLDER
from bridge_data.data.plain_data import parse_json
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.samples import edataclass
from bridge_data.storage import Location

MEDIA_TABLE = "media_metadata"

_METADATA = f"SELECT metadata_type, metadata_json FROM {MEDIA_TABLE} WHERE entry_key = CAST(? AS TEXT)"
_SPREAD = f"SELECT entry_key, metadata_type, metadata_json FROM {MEDIA_TABLE} WHERE rowid % ? = 0"

_WAY_OUT = "run `bridge-data prepare {root} --media extension`"


@edataclass
class ImageMetadata:
    """An image as its file declares it: pixels, Pillow's name of the format (`JPEG`) and of the mode (`RGB`)."""

    metadata_type: ClassVar[str] = "image"

    width: int
    height: int
    format: str
    mode: str


@edataclass
class AVMetadata:
    """The first video and the first audio stream of a clip; None for what it does not have. Durations are in
    seconds."""

    metadata_type: ClassVar[str] = "av"

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None

    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


MediaMetadata: TypeAlias = ImageMetadata | AVMetadata

_CLASSES: dict[str, type[Any]] = {kind.metadata_type: kind for kind in (ImageMetadata, AVMetadata)}


def encode_metadata(metadata: MediaMetadata) -> str:
    """The stored JSON text of `metadata`, without fields that are None."""
    fields = {name: value for name, value in dataclasses.asdict(metadata).items() if value is not None}
    return json.dumps(fields, separators=(",", ":"))


def decode_metadata(kind: str, text: str) -> MediaMetadata:
    """The metadata of this kind (`image`, `av`) in JSON `text`.

    Raises:
        ValueError, TypeError: if there is no such kind, or the text does not match it.
    """
    if kind not in _CLASSES:
        raise ValueError(f"unknown kind of media {kind!r}, expected {' or '.join(_CLASSES)}")
    metadata: MediaMetadata = _CLASSES[kind](**parse_json(text))
    return metadata


class MediaIndex:
    """The media metadata of the data set, or the plain folder, `root`. It may be pickled, and used by any thread."""

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = storage.location(root)

    @classmethod
    def open(cls, root: str | PathLike[str]) -> "MediaIndex":
        """The index of the folder `root`.

        Raises:
            ConfigError: if `root` has no media metadata.
        """
        index = cls(root)
        _ = index._database
        return index

    @property
    def path(self) -> Location:
        """The database."""
        return self.root / META_FOLDER / INDEX_SQLITE

    def get(self, key: str) -> MediaMetadata:
        """The metadata of the file `key`.

        Raises:
            SampleError: if there are none.
            DatasetError: if they are damaged.
        """
        row = next(iter(self._database.rows(_METADATA, key)), None)
        if row is None:
            raise SampleError(
                f"{self.root}: no media metadata of {key!r}: there is no such file, or it was not seen as media. Check "
                f"the name, or {_WAY_OUT.format(root=self.root)} (or -by-header, -by-glob) for what is new"
            )
        return self._decoded(key, *row)

    def spread(self, limit: int) -> tuple[list[MediaMetadata], int]:
        """(at most `limit` of the metadata, evenly spread over them; how many there are).

        Raises:
            DatasetError: if they are damaged.
        """
        ((total,),) = self._database.rows(f"SELECT COUNT(*) FROM {MEDIA_TABLE}")
        rows = self._database.rows(_SPREAD, max(1, -(-total // limit)))
        return [self._decoded(*row) for row in rows], total

    def _decoded(self, key: str, kind: str, text: str) -> MediaMetadata:
        try:
            return decode_metadata(kind, text)
        except (ValueError, TypeError) as error:
            raise DatasetError(
                f"{self.path}: the metadata of {key!r} cannot be understood: {error}; "
                f"{_WAY_OUT.format(root=self.root)} again"
            ) from error

    @functools.cached_property
    def _database(self) -> ReadOnlyDatabase:
        file = storage.local_copy(self.path)
        if file is None:
            raise ConfigError(f"{self.root}: has no media metadata; {_WAY_OUT.format(root=self.root)}")
        database = ReadOnlyDatabase(file, f"prepare {self.root} again")
        if not database.has_table(MEDIA_TABLE):
            raise ConfigError(f"{self.root}: has no media metadata yet; {_WAY_OUT.format(root=self.root)}")
        return database

    def __reduce__(self) -> tuple[type["MediaIndex"], tuple[Location]]:
        return MediaIndex, (self.root,)
