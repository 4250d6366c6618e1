"""What columns or parts hold, and the class of samples and the field map that fit them: a guess, by names and contents.

Reads the first records of a source, or the first samples of tars. Returns a `RecordColumn` for each column or part, and
a `Definition` for the `dataset.yaml`: the sample class, and the column that fills each of its fields. Raises a
`ConfigError` that says what to give, if two columns fit a field and no name decides.
"""

import collections
import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias

from bridge_data.data.plain_data import parse_json
from bridge_data.decode.media_kinds import ending_of, kind_of_ending, kind_of_name, names_media
from bridge_data.decode.named_media import DOCUMENT_PARTS, DOCUMENT_TEXTS, content_of_text
from bridge_data.encoders.conversations import EXCHANGES, PAIRS, TURNS, are_exchanges, listed_turns
from bridge_data.errors import ConfigError, SampleError
from bridge_data.prepare.record_source import SourceRecord
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES, find_sample_type
from bridge_data.samples import required_fields

ColumnKind: TypeAlias = Literal["image", "clip", "bytes", "text", "texts", "number", "turns", "other", "empty"]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column or part: what it holds, and its access in a field map (empty: it has none)."""

    name: str
    kind: ColumnKind
    access: str
    is_list: bool = False
    is_named: bool = False
    """Whether its texts name files."""
    has_urls: bool = False
    """Whether its texts name media by URL, which are not downloaded."""


def kind_of_values(name: str, values: Sequence[Any]) -> tuple[ColumnKind, bool, bool]:
    """(what a column holds, whether in lists, whether by the names of files)."""
    seen = [value for value in values if value is not None and value != ""]
    if not seen:
        return "empty", False, False
    if all(holds_turns(name, value) for value in seen):
        return "turns", True, False
    if all(isinstance(value, list) for value in seen):
        inner = [one for value in seen for one in value if one not in (None, "")]
        kinds = collections.Counter(map(kind_of_value, inner)).most_common(1)
        if kinds and kinds[0][0][0] in ("image", "clip") and 2 * kinds[0][1] > len(inner):
            return kinds[0][0][0], True, kinds[0][0][1]  # the others are broken
        return "texts" if inner and all(isinstance(one, str) for one in inner) else "other", True, False
    counts = collections.Counter(kind_of_value(value) for value in seen)
    usual, times = counts.most_common(1)[0]
    if times == len(seen) or (usual[0] in ("image", "clip") and 2 * times > len(seen)):
        return usual[0], False, usual[1]  # the others are broken
    if all(isinstance(value, str) for value in seen):
        return "text", False, False
    # a column with one image or a list of them counts as one with lists
    if {kind for kind, _ in counts} <= {"image", "other"} and any(isinstance(value, list) for value in seen):
        flat = [one for value in seen for one in (value if isinstance(value, list) else [value])]
        return kind_of_values(name, [flat])
    return ("bytes" if any(kind == "bytes" for kind, _ in counts) else "other"), False, False


_WORDS_OF_MEDIA = frozenset(("image", "images", "img", "photo", "picture", "video", "videos", "audio"))


def names_urls(name: str, values: Sequence[Any]) -> bool:
    """Whether the texts of a column, or those in its lists, name media by URL: by their endings, or by its own name."""
    inner = [one for value in values for one in (value if isinstance(value, list) else [value]) if one]
    if not inner or not all(isinstance(one, str) and one.startswith(("http://", "https://", "s3://")) for one in inner):
        return False
    is_of_media = not _WORDS_OF_MEDIA.isdisjoint(re.findall(r"[a-z]+", name.lower()))
    return is_of_media or any(names_media(urllib.parse.urlsplit(one).path) for one in inner)


def holds_turns(name: str, value: Any) -> bool:
    """Whether a column of this name holds the turns of a chat, in a form that `cook_conversation` reads."""
    turns = listed_turns(value)
    return (name in TURNS and isinstance(turns, list)) or (name == EXCHANGES and are_exchanges(turns))


def holds_documents(columns: Sequence[RecordColumn]) -> bool:
    """Whether records are documents of texts and pictures, or texts alone in lists."""
    lists = {column.name: column.kind for column in columns if column.is_list}
    return any(name in DOCUMENT_TEXTS or (name in DOCUMENT_PARTS and kind == "other") for name, kind in lists.items())


def kind_of_value(value: Any) -> tuple[ColumnKind, bool]:
    """(kind of a value, whether it is the name of a file)."""
    if isinstance(value, bool | int | float):
        return "number", False
    if isinstance(value, str):
        is_url = "://" in value[:20] and not value.startswith("file://")
        if is_url or not names_media(value):
            content = None if is_url else _inline(value)
            return ("text" if content is None else kind_of_value(content)[0]), False
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


def _inline(text: str) -> bytes | None:
    """The medium that a text is, in base64; None if it is none."""
    try:
        content = content_of_text(text)
    except SampleError:  # a long text
        return None
    return content if content is not None and ending_of(content) else None


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
        if isinstance(inner, list) and any(isinstance(one, dict) and one.keys() & {"from", "role"} for one in inner):
            return [RecordColumn("json", "turns", "json", is_list=True)]
        for name, value in inner.items() if isinstance(inner, dict) else ():
            values.setdefault(name, []).append(value)
    found = []
    for name, seen in values.items():
        kind, is_list, is_named = kind_of_values(name, seen)
        if not {"[", "]"} & {*name} and name:
            found.append(RecordColumn(name, "text" if is_named else kind, f"json[{name}]", is_list))
    return found


_FIELD_KINDS = {"image": "image", "video": "clip"}
"""Fields that are media."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "img", "picture", "photo"),
    "video": ("video", "clip"),
    "caption": ("caption", "captions", "text", "txt", "description", "alt_text", "alt", "sentence"),
    "text": ("text", "txt", "content", "document", "body"),
    "context": ("question", "query", "context"),
    "answers": ("answers", "answer", "response", "label"),
    "label": ("label", "cls", "class_id", "category_id", "target"),
    "label_name": ("label_name", "class_name", "label", "class", "category"),
}
"""Usual names of the column for each field, the likeliest first."""

_CHOICES = ("choices", "options", "candidates", "multiple_choices")
"""Usual names of the column with the answers to choose from."""

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


def guess_of_samples(samples: Sequence[Mapping[str, bytes]]) -> tuple[str, dict[str, str]]:
    """(class, field map) that probably fit samples with these parts, of which only `json` need have content: a class
    only if its fields are clear, else that of crude samples."""
    records = [SourceRecord(number, "", parts) for number, parts in enumerate(samples)]
    try:
        found = guess_definition(columns_of_parts(records))
    except ConfigError:
        return CRUDE, {}
    return found.sample_type or CRUDE, found.field_map


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
    images = [column for column in columns if column.kind == "image"]
    pairs = [pair for pair in PAIRS if names >= {*pair} and not (images and pair[0] == "question")]
    if pairs or any(column.kind == "turns" for column in columns) or holds_documents(columns):
        return CRUDE
    clips = [column for column in columns if column.kind == "clip"]
    texts = [column for column in columns if column.kind == "text"]
    asked = _by_name(texts, "context") is not None
    if asked and any(column.kind in ("texts", "other") and column.name.lower() in _CHOICES for column in columns):
        return CRUDE  # an answer alone may be the number of one
    answered = any(column.name in _NAMES["answers"] for column in columns)
    if any(column.is_list for column in images + clips) or len(images) + len(clips) > 1:
        return CRUDE
    if asked and images and (answered or _by_name(texts, "caption") is None):
        return "VQASample"
    if images and _by_name(texts, "caption") is None:
        labels = [column for column in columns if column.kind == "number"]
        if _by_name(labels, "label") is not None or _by_name(texts, "label_name") is not None:
            return "ImageClassificationSample"
    if images:
        return "CaptioningSample" if texts else "ImageSample"
    if clips or any(column.kind == "other" and column.name.lower() in _WORDS_OF_MEDIA for column in columns):
        return CRUDE  # the words alone would be other samples
    is_alone = len(texts) == 1 and not asked and not any(column.kind in ("texts", "other") for column in columns)
    return "TextSample" if is_alone or _by_name(texts, "text") is not None else CRUDE


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
        by_name = [column for column in columns if column.name in _NAMES["answers"] and column.access]
        fitting = [column for column in by_name if column.kind in ("text", "texts", "empty")]
        if by_name and not fitting:
            holds = "numbers" if by_name[0].kind == "number" else "no texts"
            raise ConfigError(
                f"column {by_name[0].name!r} holds {holds}, and the field {field!r} takes a text, or a list of texts: "
                f"give another column by --field-map {field}=COLUMN, or --sample-type crude"
            )
    else:
        fitting = [column for column in columns if column.kind == "text" and column.access]
    found = _by_name(fitting, field)
    lists = _by_name([column for column in columns if column.kind == "texts" and column.access], field)
    if found is None and lists is not None:
        raise ConfigError(
            f"column {lists.name!r} holds lists of texts, and the field {field!r} takes one: give --field-map "
            f"'{field}={lists.access}[0]', for the first of each, or --sample-type crude"
        )
    found = found or (fitting[0] if len(fitting) == 1 else None)
    if found is None:
        answer = ask(field, [column.name for column in fitting])
        found = _named_column(columns, field, answer)
    return found


def _by_name(columns: Sequence[RecordColumn], field: str) -> RecordColumn | None:
    """The column whose name says that it is for a field."""
    by_name = {column.name.lower(): column for column in columns}
    return next((by_name[name] for name in _NAMES.get(field, (field,)) if name in by_name), None)
