"""The images and videos of a crude sample: named by its turns or its rows, in its parts or in files.

Enters: parts of turns, then the row around them, as `shards.named_media` reads them; the parts of the sample; the
auxiliary data. Leaves: for each image and video, in the order of its placeholder, encoded bytes, an `AVDecoder`, or a
list of pictures, as a `Visual` if the row says more of it. Raises a `SampleError` that names the sample.
"""

import base64
import binascii
import functools
import re
from collections.abc import Mapping
from typing import Any

from bridge_data.decode.av import AV_EXTENSIONS
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.encoders.visual_settings import naming_sample, settings_in, settings_of_row, with_settings
from bridge_data.errors import ConfigError, SampleError
from bridge_data.plan.document import is_jsonl
from bridge_data.samples import CrudeSample
from bridge_data.shards.media_kinds import kind_of_name
from bridge_data.shards.named_media import NamedVisual, VisualKind, check_moving, is_stored, visual_in, visuals_at
from bridge_data.storage import location
from bridge_data.task.stores import FileStore, SystemFileStore

KINDS: tuple[VisualKind, ...] = ("image", "video")


class SampleMedia:
    """The images and videos of one sample; `placeholders` are those of the encoder."""

    def __init__(
        self, sample: CrudeSample, stores: Mapping[str, FileStore[Any]], placeholders: Mapping[str, str]
    ) -> None:
        self.key: str = sample["__key__"]
        self.placeholders = placeholders
        self._sample, self._stores = sample, stores
        self._row: Mapping[str, Any] = {}
        self._named: dict[VisualKind, list[NamedVisual]] = {"image": [], "video": []}

    def placeholder_of(self, part: Any) -> str | None:
        """The placeholder of a part of a turn that is an image or a video, which is noted; None of any other."""
        with naming_sample(self.key):
            found = visual_in(part)
        if found is None:
            return None
        kind, visuals = found
        self._named[kind] += visuals
        return self.placeholders[kind]

    def add_named(self, row: Mapping[str, Any]) -> None:
        """Note the files at `image`, `images`, `video`, `videos`, unless turns have named some; and what the row says
        of them."""
        self._row = row
        with naming_sample(self.key):
            for kind, in_turns in self._named.items():
                if any(one.source is not None for one in in_turns):
                    continue
                in_row = [*visuals_at(row.get(kind), kind, is_one=True), *visuals_at(row.get(f"{kind}s"), kind)]
                if in_row:
                    self._named[kind] = _told(in_row, in_turns, kind)

    def opened(self) -> tuple[list[Any], list[Any]]:
        """The images and the videos: the parts of the sample, in the order of their names in it if named, or else the
        files that it names; with what is said of each."""
        with naming_sample(self.key):
            images = self._chosen("image", IMAGE_EXTENSIONS)
            videos = self._chosen("video", AV_EXTENSIONS)
            made = [
                self._all_opened(images, "image", len(videos)),
                self._all_opened(videos, "video", len(images)),
            ]
        return made[0], made[1]

    def _chosen(self, kind: VisualKind, extensions: Any) -> list[NamedVisual]:
        """The images or videos; those that are parts of the sample have the names of these."""
        named = self._named[kind]
        if named and all(map(self._is_part, named)):
            return named
        frames = {name for video in self._named["video"] if isinstance(video.source, tuple) for name in video.source}
        names = sorted((name for name in self._sample if not name.startswith("__")), key=_by_number)
        parts = [name for name in names if name.rpartition(".")[2] in extensions and name not in frames]
        if parts:
            return _told([NamedVisual(name) for name in parts], named, kind)
        return [one for one in named if one.source is not None]

    def _is_part(self, visual: NamedVisual) -> bool:
        source = visual.source
        names = source if isinstance(source, tuple) else (source,)
        return all(isinstance(name, str) and name in self._sample for name in names)

    def _all_opened(self, visuals: list[NamedVisual], kind: VisualKind, others: int) -> list[Any]:
        of_row = settings_of_row(self._row, kind, len(visuals), others)
        return [
            with_settings(self._opened(one.source, kind), settings_in({**said, **one.said}, kind))
            for one, said in zip(visuals, of_row, strict=True)
        ]

    def _opened(self, source: Any, kind: VisualKind) -> Any:
        """An image or a video, or the frames of one."""
        if isinstance(source, tuple):
            return [self._read(frame, kind) for frame in source]
        if kind == "video":
            check_moving(source)
            if frames := self._frames_in(source):
                return [self._read(frame, kind) for frame in frames]
        return self._read(source, kind)

    def _read(self, source: Any, kind: VisualKind) -> Any:
        if not isinstance(source, str):
            return source["bytes"] if is_stored(source) else source
        if source in self._sample:
            return self._sample[source]
        if source.startswith("data:"):
            try:
                return base64.b64decode(source.partition("base64,")[2], validate=True)
            except binascii.Error as error:
                raise SampleError(f"a data: URL is no base64: {error}") from None
        if "://" in source and not source.startswith("file://"):
            raise SampleError(
                f"names {source[:200]!r}, which is not downloaded; store the files, and name their folder in `aux` of "
                "the metadataset"
            )
        return self._store(kind).get(source.removeprefix("file://"), self._sample)

    def _frames_in(self, source: Any) -> list[str]:
        """The pictures in the folder that a video is, in the order of their numbers; none if it is something else."""
        if not isinstance(source, str) or source in self._sample or source.startswith("data:"):
            return []
        if kind_of_name(source) is not None or ("://" in source and not source.startswith("file://")):
            return []
        found = self._store("video").list_folder(source.removeprefix("file://"))
        return sorted((name for name in found if kind_of_name(name) == "image"), key=_by_number)

    def _store(self, kind: VisualKind) -> FileStore[Any]:
        if len(self._stores) == 1:
            return next(iter(self._stores.values()))
        for name in (f"{kind}s", kind, "media"):
            if name in self._stores:
                return self._stores[name]
        if self._stores:
            raise ConfigError(
                f"sample {self.key!r} names a file, but the auxiliary data are called {', '.join(self._stores)}: call "
                f"those with its {kind}s `{kind}s`"
            )
        path = self._sample["__sources__"][0].dataset_path
        if not is_jsonl(path):
            raise ConfigError(
                f"sample {self.key!r} names a file of an unknown folder: set `aux: {{{kind}s: "
                "filesystem://FOLDER}` of the data set in a metadataset"
            )
        return _beside(path)


def _told(visuals: list[NamedVisual], in_turns: list[NamedVisual], kind: VisualKind) -> list[NamedVisual]:
    """The images or videos of a sample, with what its turns say of each."""
    if len(visuals) == len(in_turns):
        pairs = zip(visuals, in_turns, strict=True)
        return [NamedVisual(one.source, {**one.said, **more.said}) for one, more in pairs]
    if any(settings_in(one.said, kind).given for one in in_turns):
        raise SampleError(f"has {len(visuals)} {kind}s, and turns that say more of {len(in_turns)}; name each there")
    return visuals


@functools.lru_cache(maxsize=64)
def _beside(path: str) -> SystemFileStore:
    """The files in the folder of a JSONL file."""
    return SystemFileStore(location(path).parent)


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(piece or 0), text) for text, piece in re.findall(r"(\D*)(\d*)", name)]
