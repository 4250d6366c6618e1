"""The images and videos of a crude sample: named by its turns or its rows, in its parts or in files.

Reads parts of turns, then the row around them (see `decode.named_media`), the parts of the sample, and the auxiliary
data. Returns for each image and video, in the order of its placeholder, encoded bytes, an `AVDecoder`, or a list of
pictures; a `Visual` if the row has settings for it. Raises a `SampleError` that names the sample.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bridge_data.data.metadata import is_jsonl
from bridge_data.decode.av import AV_EXTENSIONS
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.decode.media_kinds import kind_of_name
from bridge_data.decode.named_media import (
    NamedVisual,
    VisualKind,
    by_number,
    check_moving,
    content_of_text,
    frames_among,
    names_of,
    visual_in,
    visuals_at,
)
from bridge_data.encoders.chat_fields import (
    MEDIUM,
    PART,
    RANGE,
    ROW,
    FieldOwner,
    check_fields,
    check_media_part,
    log_unknown_field,
    only_of,
)
from bridge_data.encoders.visual_settings import TIMES, naming_sample, settings_in, settings_of_row, with_settings
from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import CrudeSample
from bridge_data.storage import location
from bridge_data.task.stores import FileStore, SystemFileStore

_EXTENSIONS: Mapping[VisualKind, Any] = {"image": IMAGE_EXTENSIONS, "video": AV_EXTENSIONS}


class SampleMedia:
    """The images and videos of one sample; `placeholders` are those of the encoder."""

    def __init__(
        self, sample: CrudeSample, stores: Mapping[str, FileStore[Any]], placeholders: Mapping[str, str]
    ) -> None:
        self.sample, self.key, self.placeholders = sample, str(sample["__key__"]), placeholders
        self._stores = stores
        self._row: Mapping[str, Any] = {}
        names = sorted((name for name in sample if not name.startswith("__")), key=by_number)
        self._parts = {
            kind: [name for name in names if name.rpartition(".")[2].lower() in extensions]
            for kind, extensions in _EXTENSIONS.items()
        }
        self._named: dict[VisualKind, list[NamedVisual]] = {"image": [], "video": []}
        self._has_empty_name: dict[str, bool] = {"image": False, "video": False}

    def parts(self, kind: VisualKind) -> list[str]:
        """The parts of the sample that are images or videos, in the order of their numbers."""
        return self._parts[kind]

    def other_parts(self) -> dict[str, Any]:
        """The parts of the sample that are neither media nor `json`."""
        media = {"json", *self._parts["image"], *self._parts["video"]}
        return {name: value for name, value in self.sample.items() if not name.startswith("__") and name not in media}

    def check_fields(
        self, owner: FieldOwner, fields: Mapping[str, Any], *, used: Collection[str] = (), said: Collection[str] = ()
    ) -> None:
        """As the function of this name; unknown fields are logged."""
        media = {kind for kind, named in self._named.items() if named or self._parts[kind]}
        self._log_unknown(owner, check_fields(owner, fields, self.key, used=used, said=said, media=media))

    def _log_unknown(self, owner: FieldOwner, unknown: Iterable[str]) -> None:
        sources = self.sample.get("__sources__")
        for name in unknown:
            log_unknown_field(sources[0].dataset_path if sources else "a data set", owner.name, name)

    def placeholder_of(self, part: Any) -> str | None:
        """The placeholder of a part of a turn that is an image or a video, which is noted; None of any other."""
        with naming_sample(self.key):
            found = visual_in(part)
        if found is None:
            return None
        kind, visuals = found
        for visual in visuals:
            self.check_fields(PART, visual.said)
        if all(one.source is None for one in visuals):
            self._check_number(part, kind)
            self._has_empty_name[kind] |= any(part.get(at) == "" for at in names_of(kind))
        self._named[kind] += visuals
        return self.placeholders[kind]

    def add_named(self, row: Mapping[str, Any]) -> None:
        """Note the files at `image`, `images`, `video`, `videos`; those that turns have named may be there again; and
        what the row says of them."""
        self._row = row
        with naming_sample(self.key):
            for kind, in_turns in self._named.items():
                self._named[kind] = self._with_row(row, kind, in_turns)
            if self._named["video"] or self._parts["video"]:
                self.check_fields(RANGE, only_of(RANGE, row))

    def opened(self) -> tuple[list[Any], list[Any]]:
        """The images and the videos: the parts of the sample, in the order of their names in it if named, or else the
        files that it names; with what is said of each."""
        with naming_sample(self.key):
            images, videos = self._chosen("image"), self._chosen("video")
            return self._all_opened(images, "image", len(videos)), self._all_opened(videos, "video", len(images))

    def check_promised(self, kind: str, messages: Sequence[Mapping[str, Any]], number: int) -> None:
        """Refuse a sample with an empty name, which is no image, where its text has a placeholder for one."""
        promised = sum(turn["content"].count(self.placeholders[kind]) for turn in messages)
        if self._has_empty_name[kind] and promised > number:
            raise SampleError(
                f"sample {self.key!r}: its text has {promised} placeholders {self.placeholders[kind]!r}, but a name of "
                f"its {kind}s is empty, which is no {kind}: write the name, or remove the placeholder"
            )

    def _check_number(self, part: Mapping[str, Any], kind: VisualKind) -> None:
        """Refuse an image or video that is not the next one of the sample, by its `index`."""
        number, index = sum(one.source is None for one in self._named[kind]), part.get("index")
        if index not in (None, number):
            raise SampleError(
                f"sample {self.key!r}: {kind} {number + 1} of its turns has index {index!r:.80}, expected {number}: "
                f"write the {kind}s of the row in the order of the turns"
            )

    def _with_row(self, row: Mapping[str, Any], kind: VisualKind, in_turns: list[NamedVisual]) -> list[NamedVisual]:
        """The images or videos of turns and row. Turns may say how, and the row which."""
        found = {kind: visuals_at(row.get(kind), kind, is_one=True), f"{kind}s": visuals_at(row.get(f"{kind}s"), kind)}
        for visuals in found.values():
            for visual in visuals:
                self.check_fields(MEDIUM, visual.said)
            self._has_empty_name[kind] |= any(one.source is None for one in visuals)
        at_row = {at: [one for one in visuals if one.source is not None] for at, visuals in found.items()}
        named = [one for one in in_turns if one.source is not None]
        lists = [visuals for visuals in (named, *at_row.values()) if visuals]
        if any(_sources(visuals) != _sources(lists[0]) for visuals in lists):
            sources = [*(["its turns"] if named else []), *(repr(at) for at, visuals in at_row.items() if visuals)]
            raise SampleError(
                f"{' and '.join(sources)} name different {kind}s: "
                f"{', '.join(repr(_sources(visuals))[:80] for visuals in lists)}. Name them once"
            )
        if not lists:
            return in_turns
        merged = lists[0]
        for visuals in lists[1:]:
            merged = _with_settings_of_turns(merged, visuals, kind)
        return merged if named else _with_settings_of_turns(merged, in_turns, kind)

    def _chosen(self, kind: VisualKind) -> list[NamedVisual]:
        """The images or videos; those that are parts of the sample have the names of these."""
        in_turns = self._named[kind]
        named = [one for one in in_turns if one.source is not None]
        shown = {name for one in self._named["video"] for name in _names(one)} if kind == "image" else ()
        parts = [name for name in self._parts[kind] if name not in shown]
        for part in parts:
            check_media_part(part, self.key)
        if not parts or (named and all(map(self._is_part, named)) and {*parts} <= {*_sources(named)}):
            return named
        if named and len(named) != len(parts):
            raise SampleError(
                f"names {len(named)} {kind}s ({repr(_sources(named))[:80]}), but has the parts {', '.join(parts)}: "
                "store all of them in the sample, or none"
            )
        return _with_settings_of_turns([NamedVisual(name) for name in parts], in_turns, kind)

    def _is_part(self, visual: NamedVisual) -> bool:
        return all(isinstance(name, str) and name in self.sample for name in _names(visual))

    def _all_opened(self, visuals: list[NamedVisual], kind: VisualKind, others: int) -> list[Any]:
        of_row = settings_of_row(self._row, kind, len(visuals), others)
        made = []
        for visual, said in zip(visuals, of_row, strict=True):
            opened = self._opened(visual.source, kind)
            if not isinstance(opened, list):  # `timestamps` of a row with a file are of its questions, say
                self._log_unknown(ROW, said.keys() & {*TIMES})
                said = {name: value for name, value in said.items() if name not in TIMES}
            made.append(with_settings(opened, settings_in({**said, **visual.said}, kind)))
        return made

    def _opened(self, source: Any, kind: VisualKind) -> Any:
        """An image or a video, or the list of its frames."""
        if isinstance(source, tuple):
            return [self.read(frame, kind) for frame in source]
        if kind == "video":
            check_moving(source)
            if frames := self._frames_in(source):
                return [self.read(frame, kind) for frame in frames]
        return self.read(source, kind)

    def read(self, source: Any, kind: VisualKind) -> Any:
        """An image or a video: `source` is its content, the name of a part, or that of a file.

        Raises:
            SampleError: if there is no such file, or it would have to be downloaded.
            ConfigError: if it is unknown where files are.
        """
        if isinstance(source, bytes):
            return source
        if source in self.sample:
            return self.sample[source]
        if (content := content_of_text(source)) is not None:
            return content
        if "://" in source and not source.startswith("file://"):
            raise SampleError(
                f"names {source[:200]!r}, which is not downloaded; store the files, and name their folder in `aux` of "
                "the metadataset"
            )
        return self._store(kind).get(source.removeprefix("file://"), self.sample)

    def _frames_in(self, source: Any) -> list[str]:
        """The pictures in the folder that a video is, in the order of their numbers; none if it is something else."""
        if not isinstance(source, str) or source in self.sample or source.startswith("data:"):
            return []
        if kind_of_name(source) is not None or ("://" in source and not source.startswith("file://")):
            return []
        return frames_among(self._store("video").list_folder(source.removeprefix("file://")))

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
        path = self.sample["__sources__"][0].dataset_path
        if not is_jsonl(path):
            raise ConfigError(
                f"sample {self.key!r} names a file of an unknown folder: set `aux: {{{kind}s: "
                "filesystem://FOLDER}` of the data set in a metadataset"
            )
        return _beside(path)


def _names(visual: NamedVisual) -> tuple[Any, ...]:
    """Where an image or a video is, or the frames of one."""
    return visual.source if isinstance(visual.source, tuple) else (visual.source,)


def _sources(visuals: Iterable[NamedVisual]) -> list[Any]:
    return [one.source for one in visuals]


def _with_settings_of_turns(
    visuals: list[NamedVisual], in_turns: list[NamedVisual], kind: VisualKind
) -> list[NamedVisual]:
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
