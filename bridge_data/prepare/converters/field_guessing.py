"""Which sample class the records of a source are for, and which column fills each of its fields.

Enters: columns, and what the user says about them. Leaves: a `Definition` for the `dataset.yaml`. Guarantee: what the
user says is taken; a guess depends only on the names and contents of columns; if two columns fit and no name decides,
there is a question, or a `ConfigError` that says what to give.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from bridge_data.errors import ConfigError
from bridge_data.prepare.converters.record_layout import RecordColumn, columns_of_parts, first_records
from bridge_data.prepare.converters.sample_files import UsualParts
from bridge_data.prepare.converters.source_records import RecordSource
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES, find_sample_type
from bridge_data.samples import required_fields

_MEDIA = {"image": "image", "video": "clip"}
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
        raise ConfigError(f"no column fits the field {field!r}: give --field {field}=COLUMN, or --sample-type crude")
    raise ConfigError(
        f"it is not clear which column fills the field {field!r}: {', '.join(columns)[:200]}. Give --field "
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
            raise ConfigError(f"--field {next(iter(fields))}: crude samples have no fields; give a --sample-type")
        return Definition(None, {}, {})
    own = own_fields(name)
    unknown = sorted(fields.keys() - own)
    if unknown:
        raise ConfigError(f"--field {unknown[0]}: {name} has the fields {', '.join(sorted(own))}")
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
            raise ConfigError("no column holds a label: give --field label=COLUMN or --field label_name=COLUMN")
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
                raise ConfigError(f"--field {field}={given}: a list of media fills no field; give --sample-type crude")
            return column
    options = ", ".join(column.name for column in columns)
    if given.partition("[")[0] in {column.access.partition("[")[0] for column in columns}:
        return RecordColumn(given, "other", given)  # deeper inside of a part that is there
    raise ConfigError(f"--field {field}={given}: there is no such column, but {options}")


def _column_for(columns: Sequence[RecordColumn], field: str, ask: Ask) -> RecordColumn:
    """The column that probably fills a field."""
    kind = _MEDIA.get(field)
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
