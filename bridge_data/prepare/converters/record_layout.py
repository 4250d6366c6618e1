"""How records become samples: columns of media become parts; all others go into the part `json`.

Reads the first records of a source, which show what each column holds, and what the user says about columns. Returns a
`RecordLayout`, which makes the parts of any record, and a `Definition` for the `dataset.yaml`: the sample class, and
the column that fills each of its fields. Every value of a record is in its sample, except columns dropped by name.
Raises a `SampleError` for media that are missing or unreadable; a `ConfigError` that says what to give, if two columns
fit a field and no name decides. A guess depends only on names and contents of columns.

A medium becomes the part `jpg`, `mp4`, ... by its content; with several media columns `left.jpg`, in a list `0.jpg`,
`1.jpg`. Media named in the content of conversation turns become parts too, and are named there by these. So are
images and videos at `image`, `images`, `video`, `videos` of which a record says more, and the frames of videos.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias

from bridge_data.data.plain_data import parse_json
from bridge_data.decode.media_kinds import AV_ENDINGS, IMAGE_ENDINGS, kind_of_name
from bridge_data.decode.named_media import (
    NAMED_AT,
    NamedVisual,
    VisualKind,
    check_moving,
    frames_among,
    visual_in,
    visuals_at,
)
from bridge_data.errors import ConfigError, SampleError
from bridge_data.prepare.converters.media_files import (
    MediaRoot,
    ending_of,
    kind_of_ending,
    names_media,
)
from bridge_data.prepare.converters.sample_files import UsualParts
from bridge_data.prepare.converters.source_records import BrokenRecord, RecordSource, SourceRecord
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES, find_sample_type
from bridge_data.samples import required_fields

NUM_FIRST = 100
"""Records that are read to find what columns hold."""

ColumnKind: TypeAlias = Literal["image", "clip", "bytes", "text", "number", "turns", "other", "empty"]

TURNS = ("messages", "conversations", "conversation")
_CONTENT = ("content", "value")
_VISUAL_COLUMNS: Mapping[str, VisualKind] = {"image": "image", "images": "image", "video": "video", "videos": "video"}
_NOT_IN_PARTS = re.compile(r"[^\w-]")


@dataclasses.dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column or part: what it holds, and its access in a field map (empty: it has none)."""

    name: str
    kind: ColumnKind
    access: str
    is_list: bool = False
    is_named: bool = False
    """Whether its texts name files."""


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
    kinds = {name: _kind_of(name, seen) for name, seen in values.items() if name not in dropped}
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
        found.append(RecordColumn(name, kind, access, is_list, is_named))
    return found


def _part_name(column: str) -> str:
    return _NOT_IN_PARTS.sub("_", column) or "_"


def _kind_of(name: str, values: Sequence[Any]) -> tuple[ColumnKind, bool, bool]:
    """(what a column holds, whether in lists, whether by the names of files)."""
    seen = [value for value in values if value is not None and value != ""]
    if not seen:
        return "empty", False, False
    if all(isinstance(value, list) for value in seen):
        if name in TURNS:
            return "turns", True, False
        inner = [one for value in seen for one in value if one not in (None, "")]
        kinds = {_kind_of_value(one) for one in inner}
        if len(kinds) == 1 and (kind := kinds.pop())[0] in ("image", "clip"):
            return kind[0], True, kind[1]
        return "other", True, False
    counts = collections.Counter(_kind_of_value(value) for value in seen)
    usual, times = counts.most_common(1)[0]
    if times == len(seen) or (usual[0] in ("image", "clip") and 2 * times > len(seen)):
        return usual[0], False, usual[1]  # the others are broken
    if all(isinstance(value, str) for value in seen):
        return "text", False, False
    # a column with one image or a list of them counts as one with lists
    if {kind for kind, _ in counts} <= {"image", "other"} and any(isinstance(value, list) for value in seen):
        flat = [one for value in seen for one in (value if isinstance(value, list) else [value])]
        return _kind_of(name, [flat])
    return ("bytes" if any(kind == "bytes" for kind, _ in counts) else "other"), False, False


def _kind_of_value(value: Any) -> tuple[ColumnKind, bool]:
    """(kind of a value, whether it is the name of a file)."""
    if isinstance(value, bool | int | float):
        return "number", False
    if isinstance(value, str):
        is_url = "://" in value[:20] and not value.startswith("file://")
        if not names_media(value) or is_url:
            return "text", False
        if value.startswith("data:"):
            return ("image" if value.startswith("data:image/") else "clip"), False
        return ("image" if kind_of_name(value) == "image" else "clip"), True
    data, name = value, ""
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"} and value:
        data, name = value.get("bytes"), str(value.get("path") or "")
        if data is None:
            ending = name.rpartition(".")[2].lower()
            return (kind_of_ending(ending) if kind_of_name(name) else "other"), False  # type: ignore[return-value]
    if not isinstance(data, bytes):
        return "other", False
    ending = ending_of(data, name) or ""
    return (kind_of_ending(ending) if ending else "bytes"), False  # type: ignore[return-value]


def columns_of_parts(records: Sequence[SourceRecord]) -> list[RecordColumn]:
    """The parts of samples, and the values in their JSON."""
    parts = list(dict.fromkeys(part for record in records for part in record.values))
    found: list[RecordColumn] = []
    for kind, wanted in (("image", "image"), ("clip", "av")):
        alike = [part for part in parts if "." not in part and kind_of_name(f"x.{part}") == wanted]
        if alike:
            found.append(RecordColumn(alike[0], kind, ",".join(alike)))  # type: ignore[arg-type]
    texts = [part for part in parts if part.lower() in ("txt", "text")]
    for part in parts:
        if part in texts:
            alike = [other for other in texts if other.lower() == part.lower()]
            if part == alike[0]:
                found.append(RecordColumn(part, "text", ",".join(alike)))
        elif part == "cls":
            found.append(RecordColumn(part, "number", part))
        elif part == "json":
            found += _columns_of_json([record.values["json"] for record in records if "json" in record.values])
        elif not any(part in column.access.split(",") for column in found):
            kind_there = kind_of_name(f"x.{part}")
            kind_here: ColumnKind = "image" if kind_there == "image" else "clip" if kind_there else "other"
            found.append(RecordColumn(part, kind_here, part))
    return found


def _columns_of_json(contents: Sequence[Any]) -> list[RecordColumn]:
    values: dict[str, list[Any]] = {}
    for content in contents:
        try:
            inner = parse_json(content)
        except ValueError:
            continue
        for name, value in inner.items() if isinstance(inner, dict) else ():
            values.setdefault(name, []).append(value)
    found = []
    for name, seen in values.items():
        kind, is_list, is_named = _kind_of(name, seen)
        if not {"[", "]"} & {*name} and name:
            found.append(RecordColumn(name, "text" if is_named else kind, f"json[{name}]", is_list))
    return found


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
            name: self._visuals_with_settings(name, rest[name], _is_chat(rest))
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
            if isinstance(rest.get(name), list):
                rest[name] = [self._turn(turn, sample) for turn in rest[name]]
        for name in self.as_lists & rest.keys():
            rest[name] = [rest[name]]
        return sample | ({"json": rest} if rest or len(sample) == 1 else {})

    def _columns_in(self, values: Mapping[str, Any]) -> Iterator[RecordColumn]:
        """The columns of a record: known ones, and media in columns that were empty in the first records."""
        yield from self.columns
        known = {column.name for column in self.columns if column.kind != "empty"}
        for name, value in values.items():
            if name not in known:
                kind, is_list, is_named = _kind_of(name, [value])
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
        moving = kind == "video" and any(_kind_of_value(one.source)[0] == "image" for one in visuals)  # a GIF
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


def _is_chat(values: Mapping[str, Any]) -> bool:
    """Whether a record has turns, in any of the shapes that `cook_conversation` reads."""
    return (
        any(values.get(name) for name in TURNS)
        or values.keys() >= {"instruction", "output"}
        or (values.keys() >= {"prompt", "completion"})
    )


def _sound_in(part: Any) -> Any:
    """The sound in a part of a turn; None if it has none."""
    if not isinstance(part, dict) or part.get("type") not in ("audio", "audio_url", "input_audio"):
        return None
    value = next((part[at] for at in ("audio", "audio_url", *NAMED_AT) if part.get(at)), None)
    if isinstance(value, dict) and "bytes" not in value:
        value = next((value[at] for at in NAMED_AT if value.get(at)), None)
    return value


_FIELD_KINDS = {"image": "image", "video": "clip"}
"""Fields that are media."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "img", "picture", "photo"),
    "video": ("video", "clip"),
    "caption": ("caption", "captions", "text", "txt", "description", "alt_text", "alt", "sentence"),
    "text": ("text", "txt", "content", "document", "body"),
    "context": ("question", "query", "context"),
    "answers": ("answers", "answer", "response"),
    "label": ("label", "cls", "class_id", "category_id", "target"),
    "label_name": ("label_name", "class_name", "label", "class", "category"),
}
"""Usual names of the column for each field, the likeliest first."""

_REQUIRED = {
    "CaptioningSample": ("image", "caption"),
    "VQASample": ("image", "context", "answers"),
    "VidQASample": ("video", "context", "answers"),
    "ImageClassificationSample": ("image",),
    "ImageSample": ("image",),
    "TextSample": ("text",),
}
"""The fields that make a class useful."""

Ask = Callable[[str, Sequence[str]], str]
"""(field, columns) to the column that fills it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Definition:
    """What the samples are: a class (None: crude ones), its field map, and the columns in it by field."""

    sample_type: str | None
    field_map: dict[str, str]
    columns: dict[str, str]


def no_answer(field: str, columns: Sequence[str]) -> NoReturn:
    """Do not ask.

    Raises:
        ConfigError: always, with the option to give.
    """
    if not columns:
        raise ConfigError(f"no column fits field {field!r}: give --field-map {field}=COLUMN, or --sample-type crude")
    raise ConfigError(
        f"it is not clear which column fills the field {field!r}: {', '.join(columns)[:200]}. Give --field-map "
        f"{field}={columns[0]}, or --sample-type crude"
    )


def guess_definition(
    columns: Sequence[RecordColumn],
    *,
    sample_type: str | None = None,
    fields: Mapping[str, str] | None = None,
    ask: Ask = no_answer,
    known: tuple[str, Mapping[str, str]] | None = None,
) -> Definition:
    """The class that fits, and its fields. `fields` are those that the user names, each with a column or an access;
    `known` is the source's own definition, used if the user gives none.

    Raises:
        ConfigError: for an unknown class or column, or if the choice is unclear and no one answers.
    """
    fields = dict(fields or {})
    if known is not None and sample_type is None and not fields:
        by_access = {access: column.name for column in columns for access in column.access.split(",")}
        shown = {field: by_access.get(access.partition(",")[0], access) for field, access in known[1].items()}
        return Definition(None if known[0] == CRUDE else known[0], dict(known[1]), shown)
    name = _class_for(columns, fields) if sample_type is None else find_sample_type(_spelled(sample_type))
    if name == CRUDE:
        if fields:
            raise ConfigError(f"--field-map {next(iter(fields))}: crude samples have no fields; give a --sample-type")
        return Definition(None, {}, {})
    own = own_fields(name)
    unknown = sorted(fields.keys() - own)
    if unknown:
        raise ConfigError(f"--field-map {unknown[0]}: {name} has the fields {', '.join(sorted(own))}")
    required = _REQUIRED.get(name, tuple(sorted(_required_of(name))))
    chosen: dict[str, RecordColumn] = {}
    for field in dict.fromkeys((*required, *fields)):
        if field in fields:
            chosen[field] = _named_column(columns, field, fields[field])
        else:
            chosen[field] = _column_for(columns, field, ask)
    if name == "ImageClassificationSample":
        for field, kind in (("label", "number"), ("label_name", "text")):
            found = _by_name([column for column in columns if column.kind == kind], field)
            if field not in chosen and found is not None:
                chosen[field] = found
        if len(chosen) == 1:
            raise ConfigError("no column holds a label: give --field-map label=COLUMN or --field-map label_name=COLUMN")
    return Definition(
        name,
        {field: column.access for field, column in chosen.items()},
        {field: column.name for field, column in chosen.items()},
    )


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


def _spelled(sample_type: str) -> str:
    return CRUDE if sample_type.lower() == "crude" else sample_type


def _required_of(name: str) -> set[str]:
    return {field for field in required_fields(SAMPLE_TYPES[name]) if not field.startswith("__")}


def _class_for(columns: Sequence[RecordColumn], fields: Mapping[str, str]) -> str:
    """The class that these columns are probably for."""
    if fields:
        for name, needed in _REQUIRED.items():
            if fields.keys() <= own_fields(name) and (fields.keys() & {*needed[1:]} or len(needed) == 1):
                return name
        return next((name for name in _REQUIRED if fields.keys() <= own_fields(name)), "CaptioningSample")
    names = {column.name for column in columns}
    if any(column.kind == "turns" for column in columns) or names >= {"instruction", "output"}:
        return CRUDE
    if names >= {"prompt", "completion"}:
        return CRUDE
    images = [column for column in columns if column.kind == "image"]
    clips = [column for column in columns if column.kind == "clip"]
    texts = [column for column in columns if column.kind == "text"]
    asked = _by_name(texts, "context") is not None
    answered = any(column.name in _NAMES["answers"] for column in columns)
    if any(column.is_list for column in images + clips) or len(images) + len(clips) > 1:
        return CRUDE
    if asked and answered and images:
        return "VQASample"
    if images and _by_name(texts, "caption") is None:
        labels = [column for column in columns if column.kind == "number"]
        if _by_name(labels, "label") is not None or _by_name(texts, "label_name") is not None:
            return "ImageClassificationSample"
    if images:
        return "CaptioningSample" if texts else "ImageSample"
    if clips:
        return CRUDE
    return "TextSample" if len(texts) == 1 or _by_name(texts, "text") is not None else CRUDE


def own_fields(name: str) -> set[str]:
    """The fields of a class of samples."""
    return {field.name for field in dataclasses.fields(SAMPLE_TYPES[name]) if not field.name.startswith("__")}


def _named_column(columns: Sequence[RecordColumn], field: str, given: str) -> RecordColumn:
    """The column that the user names, by its name or as a field map does."""
    for column in columns:
        if given in (column.name, column.access):
            if not column.access:
                raise ConfigError(f"--field-map {field}={given}: a list of media fills no field: --sample-type crude")
            return column
    options = ", ".join(column.name for column in columns)
    if given.partition("[")[0] in {column.access.partition("[")[0] for column in columns}:
        return RecordColumn(given, "other", given)  # deeper inside of a part that is there
    raise ConfigError(f"--field-map {field}={given}: there is no such column, but {options}")


def _column_for(columns: Sequence[RecordColumn], field: str, ask: Ask) -> RecordColumn:
    """The column that probably fills a field."""
    kind = _FIELD_KINDS.get(field)
    if kind is not None:
        fitting = [column for column in columns if column.kind == kind and column.access]
    elif field == "answers":
        fitting = [column for column in columns if column.name in _NAMES["answers"] and column.access]
    else:
        fitting = [column for column in columns if column.kind == "text" and column.access]
    found = _by_name(fitting, field) or (fitting[0] if len(fitting) == 1 else None)
    if found is None:
        answer = ask(field, [column.name for column in fitting])
        found = _named_column(columns, field, answer)
    return found


def _by_name(columns: Sequence[RecordColumn], field: str) -> RecordColumn | None:
    """The column whose name says that it is for a field."""
    by_name = {column.name.lower(): column for column in columns}
    return next((by_name[name] for name in _NAMES.get(field, (field,)) if name in by_name), None)
