"""How records become samples: columns of media become parts; all others go into the part `json`.

Reads the first records of a source, which show what each column holds. Returns a `RecordLayout`, which makes the parts
of any record. Every value of a record is in its sample, except columns dropped by name. Raises a `SampleError` for
media that are missing or unreadable.

A medium becomes the part `jpg`, `mp4`, ... by its content; with several media columns `left.jpg`, in a list `0.jpg`,
`1.jpg`. Media named in the content of conversation turns become parts too, and are named there by these. So are
images and videos at `image`, `images`, `video`, `videos` of which a record says more, and the frames of videos.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bridge_data.decode.media_kinds import AV_ENDINGS, IMAGE_ENDINGS, names_media
from bridge_data.decode.named_media import (
    DOCUMENT_IMAGES,
    DOCUMENT_PARTS,
    NAMED_AT,
    NamedVisual,
    VisualKind,
    check_moving,
    frames_among,
    picture_at,
    visual_in,
    visuals_at,
)
from bridge_data.encoders.conversations import TURNS, is_chat, listed_turns
from bridge_data.errors import ConfigError, SampleError
from bridge_data.plugins.convert.column_guess import (
    RecordColumn,
    columns_of_parts,
    guess_definition,
    kind_of_value,
    kind_of_values,
    names_urls,
)
from bridge_data.plugins.convert.media_files import MediaRoot
from bridge_data.plugins.convert.sample_files import UsualParts
from bridge_data.prepare.record_source import BrokenRecord, RecordSource, SourceRecord

NUM_FIRST = 100
"""Records that are read to find what columns hold."""

_CONTENT = ("content", "value")

_VISUAL_COLUMNS: Mapping[str, VisualKind] = {"image": "image", "images": "image", "video": "video", "videos": "video"}

_NOT_IN_PARTS = re.compile(r"[^\w-]")


def first_records(source: RecordSource) -> list[SourceRecord]:
    """The first records that can be read.

    Raises:
        ConfigError: if none of them can be read.
    """
    found: list[SourceRecord] = []
    complaint = ""
    for block in itertools.islice(source.blocks(), NUM_FIRST):
        for record in source.read(block[: NUM_FIRST - len(found)]):
            if isinstance(record, BrokenRecord):
                complaint = complaint or f": {record.where}: {record.reason}"
            else:
                found.append(record)
        if len(found) == NUM_FIRST:
            break
    if not found:
        raise ConfigError(f"{source.title}: none of the first {NUM_FIRST} records can be read{complaint or ''}")
    return found


def find_columns(
    source: RecordSource, dropped: Collection[str] = (), require_parts: frozenset[str] = frozenset()
) -> list[RecordColumn]:
    """What the first records of a source hold; of samples, those with all `require_parts`, if there are any.

    Raises:
        ConfigError: if none can be read, or a dropped column does not exist.
    """
    records = first_records(source)
    if source.has_parts:
        return columns_of_parts([one for one in records if require_parts <= one.values.keys()] or records)
    values: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.values.items():
            values.setdefault(name, []).append(value)
    unknown = sorted(set(dropped) - values.keys())
    if unknown:
        raise ConfigError(f"--drop {','.join(unknown)}: there is no such column, but {', '.join(values)}")
    kinds = {name: kind_of_values(name, seen) for name, seen in values.items() if name not in dropped}
    if any(kind in ("image", "clip") and not is_named for kind, _, is_named in kinds.values()):
        # if media are stored themselves, file names only say where they came from
        kinds = {name: ("text", False, False) if kind[2] else kind for name, kind in kinds.items()}
    counts = {kind: sum(kind == other for other, _, _ in kinds.values()) for kind in ("image", "clip")}
    found = []
    for name, (kind, is_list, is_named) in kinds.items():
        access = f"json[{name}]" if name and not {"[", "]"} & {*name} else ""
        if kind in ("image", "clip"):
            endings = IMAGE_ENDINGS if kind == "image" else AV_ENDINGS
            before = "" if counts[kind] == 1 else f"{_part_name(name)}."
            access = "" if is_list else ",".join(f"{before}{ending}" for ending in endings)
        found.append(RecordColumn(name, kind, access, is_list, is_named, names_urls(name, values[name])))
    return found


def _part_name(column: str) -> str:
    return _NOT_IN_PARTS.sub("_", column) or "_"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """Makes the parts of a sample from the columns of a record.

    `key` is the column whose text is the sample's key; None: the source's name for the record, or its number. Values of
    the columns `as_lists` are put into a list of one.
    """

    columns: tuple[RecordColumn, ...]
    media_root: MediaRoot | None = None
    key: str | None = None
    dropped: frozenset[str] = frozenset()
    as_lists: frozenset[str] = frozenset()

    def sample_of(self, record: SourceRecord) -> dict[str, Any]:
        """The sample in the form that `encode_sample` takes.

        Raises:
            SampleError: naming what cannot be stored.
        """
        sample: dict[str, Any] = {"__key__": self._key_of(record)}
        if self.media_root is None:
            return sample | dict(record.values)
        rest = {name: value for name, value in record.values.items() if name not in self.dropped}
        found = {
            name: self._visuals_with_settings(name, rest[name], is_chat(rest))
            for name in _VISUAL_COLUMNS
            if name in rest
        }
        found = {name: visuals for name, visuals in found.items() if visuals}
        for name, visuals in found.items():
            numbered = enumerate(visuals)
            rest[name] = [self._stored(one, f"{name}.{n}", _VISUAL_COLUMNS[name], sample) for n, one in numbered]
        for column in list(self._columns_in(rest)):
            if column.kind in ("image", "clip", "bytes") and column.name in rest and column.name not in found:
                for name, data in self._parts_of(column, rest.pop(column.name)):
                    if name in sample:
                        raise SampleError(f"column {column.name!r}: has another part {name!r}")
                    sample[name] = data
        for name in TURNS:
            if isinstance(turns := listed_turns(rest.get(name)), list):
                rest[name] = [self._turn(turn, sample) for turn in turns]
        for name in (*DOCUMENT_PARTS, DOCUMENT_IMAGES):
            if isinstance(rest.get(name), list) and not is_chat(rest):
                numbered = enumerate(rest[name])
                rest[name] = [self._part_of_document(part, f"{name}.{n}", sample) for n, part in numbered]
        for name in self.as_lists & rest.keys():
            rest[name] = [rest[name]]
        return sample | ({"json": rest} if rest or len(sample) == 1 else {})

    def _columns_in(self, values: Mapping[str, Any]) -> Iterator[RecordColumn]:
        """The columns of a record: known ones, and media in columns that were empty in the first records."""
        yield from self.columns
        known = {column.name for column in self.columns if column.kind != "empty"}
        for name, value in values.items():
            if name not in known:
                kind, is_list, is_named = kind_of_values(name, [value])
                if kind in ("image", "clip", "bytes"):
                    yield RecordColumn(name, kind, "", is_list, is_named)

    def _key_of(self, record: SourceRecord) -> str:
        if self.key is None:
            return record.key if record.key is not None else f"{record.number:09d}"
        value = record.values.get(self.key)
        if value is None or isinstance(value, list | dict | bytes):
            raise SampleError(f"has no text or number at {self.key!r}, which is to be its key")
        return str(value)

    def _parts_of(self, column: RecordColumn, value: Any) -> Iterator[tuple[str, bytes]]:
        """(part, content) of each medium in a column."""
        assert self.media_root is not None
        if value is None or value == "":
            return
        if column.kind == "bytes":
            data = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(data, bytes):
                raise SampleError(f"column {column.name!r}: holds a {type(data).__name__}; expected bytes")
            yield f"{_part_name(column.name)}.bin", data
            return
        alone = all(column.kind != other.kind or column.name == other.name for other in self.columns)
        before = "" if alone else f"{_part_name(column.name)}."
        several = value if isinstance(value, list) else [value]
        for number, one in enumerate(several):
            if one in (None, ""):  # no medium
                continue
            try:
                ending, data = self.media_root.read(one)
            except SampleError as error:
                raise SampleError(f"column {column.name!r}: {error}") from None
            yield f"{before}{f'{number}.' if isinstance(value, list) else ''}{ending}", data

    def _turn(self, turn: Any, sample: dict[str, Any]) -> Any:
        """A turn without the files that its content names: they become parts of `sample`."""
        assert self.media_root is not None
        if not isinstance(turn, dict):
            return turn
        changed = dict(turn)
        for at in _CONTENT:
            if not isinstance(turn.get(at), list):
                continue
            changed[at] = []
            for part in turn[at]:
                changed[at].append(self._part_of_turn(part, sample))
        return changed

    def _part_of_document(self, part: Any, name: str, sample: dict[str, Any]) -> Any:
        """A part of a document that names a part of `sample`, if it has a picture."""
        at = picture_at(part)
        found = [] if at is None else visuals_at(part[at], "image")
        if at is None or len(found) != 1 or found[0].source is None:
            return part
        return {**part, at: self._stored(found[0], name, "image", sample)}

    def _part_of_turn(self, part: Any, sample: dict[str, Any]) -> Any:
        """A part of a turn's content that names a part of `sample`, if it is a medium."""
        assert self.media_root is not None
        number = len({name.split(".")[1] for name in sample if name.startswith("content.")})
        found = visual_in(part)
        if found is None:
            sound = _sound_in(part)
            if sound is None:
                return part
            ending, data = self.media_root.read(sound)
            sample[f"content.{number}.{ending}"] = data
            return {"type": "audio"}
        kind, visuals = found
        if len(visuals) != 1 or visuals[0].source is None:
            return part
        visual = self._with_frames(visuals[0], kind)
        stored = self._stored(visual, f"content.{number}", kind, sample)
        return {"type": kind, **(stored if isinstance(stored, dict) else {kind: stored})}

    def _visuals_with_settings(self, name: str, value: Any, is_chat: bool) -> list[NamedVisual]:
        """The images or videos in a column, if it says more of them than where each is; else none."""
        kind = _VISUAL_COLUMNS[name]
        if not isinstance(value, str | list | dict):
            return []
        try:
            found = visuals_at(value, kind, is_one=name == kind)
        except SampleError as error:
            if is_chat:
                raise SampleError(f"column {name!r}: {error}") from None
            return []
        visuals = [self._with_frames(one, kind) for one in found if one.source is not None]
        if any(isinstance(one.source, tuple) for one in visuals):
            return visuals
        if not is_chat:
            return []
        if kind == "video":
            for one in visuals:
                check_moving(one.source)
        moving = kind == "video" and any(kind_of_value(one.source)[0] == "image" for one in visuals)  # a GIF
        return visuals if moving or any(one.said for one in visuals) else []

    def _with_frames(self, visual: NamedVisual, kind: VisualKind) -> NamedVisual:
        """A video that is a folder of pictures as these."""
        assert self.media_root is not None
        if kind == "video" and isinstance(visual.source, str) and not names_media(visual.source):
            frames = frames_among(self.media_root.list_folder(visual.source))
            if frames:
                return NamedVisual(tuple(frames), visual.said)
        return visual

    def _stored(self, visual: NamedVisual, name: str, kind: VisualKind, sample: dict[str, Any]) -> Any:
        """Make an image or a video parts of `sample`; what the JSON says of it, with the names of these."""
        assert self.media_root is not None
        if kind == "video":
            check_moving(visual.source)
        frames = visual.source if isinstance(visual.source, tuple) else (visual.source,)
        parts = []
        for number, frame in enumerate(frames):
            ending, data = self.media_root.read(frame)
            parts.append(f"{name}.{number:05d}.{ending}" if isinstance(visual.source, tuple) else f"{name}.{ending}")
            sample[parts[-1]] = data
        where: Any = parts if isinstance(visual.source, tuple) else parts[0]
        return {kind: where, **visual.said} if visual.said else where


def _sound_in(part: Any) -> Any:
    """The sound in a part of a turn; None if it has none."""
    if not isinstance(part, dict) or part.get("type") not in ("audio", "audio_url", "input_audio"):
        return None
    value = next((part[at] for at in ("audio", "audio_url", *NAMED_AT) if part.get(at)), None)
    if isinstance(value, dict) and "bytes" not in value:
        value = next((value[at] for at in NAMED_AT if value.get(at)), None)
    return value


def why_crude(source: RecordSource) -> str:
    """Why samples of files were guessed to be crude, if it is because of some with other parts than most, and which
    options leave these out; else empty."""
    records = first_records(source)
    usual = UsualParts((record.where, tuple(record.values)) for record in records)
    odd = [record for record in records if usual.complaint(tuple(record.values))]
    others = [record for record in records if not usual.complaint(tuple(record.values))]
    try:
        name = guess_definition(columns_of_parts(others)).sample_type if odd else None
    except ConfigError:
        return ""
    if name is None:
        return ""
    parts = others[0].values.keys()
    is_enough = all(record.values.keys() == parts for record in others)
    is_enough &= not any(parts <= record.values.keys() for record in odd)
    options = f"--require-parts {','.join(sorted(parts))}, or " if is_enough else ""
    return (
        f"crude because of samples with other parts than most, such as {odd[0].key or odd[0].where!r}: "
        f"{', '.join(sorted(odd[0].values))}. The others would be of {name}. Rename the files; or leave such samples "
        f"out by {options}--same-parts --skip-broken; or give a --sample-type"
    )
