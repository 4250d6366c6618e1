"""What crude samples hold, in words, and what to write so that they become samples of a class: for messages.

Enters: the parts of a crude sample. Leaves: the line of a cooker, or for tables a `sample_type` with its `field_map`.
Guarantee: the parts and columns that are named are there, or stand as `...`.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import ConfigError
from bridge_data.plan import Source
from bridge_data.plan.opening import has_tables
from bridge_data.samples import CaptioningSample, CrudeSample, ImageSample, TextSample

_TEXTS = ("txt", "text")
"""What names of parts with texts end with."""

_LIKELY = {"text": ("text", "txt"), "caption": ("caption", "captions", "text", "txt")}
"""The parts, columns or fields of JSON that probably fill a field, the likeliest first."""

_MEDIA_PART = ".jpg"
"""What the part of a column of pictures has after the name of the column, whatever their format."""


def first_parts(source: Source) -> dict[str, Any]:
    """The parts of the first sample, with JSON decoded; none if there is no sample."""
    if not source.num_samples:
        return {}
    parts: dict[str, Any] = dict(source.records.reader().read(0).parts)
    for name in parts:
        if name.rpartition(".")[2] == "json":
            with contextlib.suppress(TypeError, ValueError):  # of samples in memory, it is decoded
                parts[name] = json.loads(parts[name])
    return parts


def fields_in_words(sample: Mapping[str, Any]) -> str:
    """The parts of a crude sample, and what is in the JSON objects among them, for messages."""
    parts = []
    for name, value in sample.items():
        if not name.startswith("__"):
            is_object = isinstance(value, Mapping)
            inside = [f"{field}: {type(entry).__name__}" for field, entry in value.items()] if is_object else []
            parts.append(f"{name} {{{', '.join(inside)}}}" if is_object else f"{name} ({type(value).__name__})")
    return ", ".join(parts)[:500] or "none"


def example_of_cook(sample: Mapping[str, Any]) -> str:
    """What a cooker could return for such samples: with their image and a text, whichever there are."""
    image = _image_in(sample)
    text = _likeliest(_texts_in(sample), "text" if image is None else "caption")
    shown = "..." if text is None else f"sample{''.join(f'[{_quoted(name)}]' for name in text)}"
    if image is None:
        return f"TextSample(**basic_sample_keys(sample), text={shown})"
    given = f"image=sample[{_quoted(image)}]"
    if text is None:
        return f"ImageSample(**basic_sample_keys(sample), {given})"
    return f"CaptioningSample(**basic_sample_keys(sample), {given}, caption={shown})"


def table_fields(sample: Mapping[str, Any]) -> str:
    """The arguments that make samples of rows such as this one."""
    has_image, has_text = _image_in(sample) is not None, bool(_texts_in(sample))
    kind = (CaptioningSample if has_text else ImageSample) if has_image else TextSample
    return f"sample_type={kind.__name__}, {_field_map(kind, sample)}"


def class_mismatch(source: Source, wanted: type[Any]) -> ConfigError:
    """The error where samples of `source` are not of the class that was asked for; of a table without a field map, it
    names one."""
    said = f"{source.path}: has {source.sample_class.__name__}, not sample_type={wanted.__name__}"
    if not (issubclass(source.sample_class, CrudeSample) and has_tables(source.path)):
        return ConfigError(said)
    sample = first_parts(source)
    such_as = f", such as {_field_map(wanted, sample)}" if dataclasses.is_dataclass(wanted) else ""
    return ConfigError(
        f"{said}, as there is no field_map, without which rows stay crude: give one beside sample_type, which says "
        f"which column gives each field{such_as}. The columns: {', '.join(map(_column, sample)) or 'none'}"
    )


def _field_map(kind: Any, sample: Mapping[str, Any]) -> str:
    """`field_map={...}` for the fields that the class `kind` requires."""
    image, texts = _image_in(sample), _texts_in(sample)
    columns = {_column(name) for name in sample}
    chosen = {}
    for field in dataclasses.fields(kind):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if not is_required or field.name.startswith("__"):
            continue
        found = "..."
        if field.name in columns:
            found = field.name
        elif field.name == "image" and image is not None:
            found = _column(image)
        elif field.name in _LIKELY and (text := _likeliest(texts, field.name)):
            found = text[0]
        chosen[field.name] = found
    return f"field_map={json.dumps(chosen, ensure_ascii=False)}"


def _column(part: str) -> str:
    """The name of the column that a part of a table's sample is from."""
    return part.removesuffix(_MEDIA_PART) or part


def _image_in(sample: Mapping[str, Any]) -> str | None:
    """The first part that is decoded as an image."""
    return next((name for name in sample if name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS), None)


def _texts_in(sample: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """(part,) or (part, field of its JSON) of each text."""
    found: list[tuple[str, ...]] = []
    for name, value in sample.items():
        if name.startswith("__"):
            continue
        if isinstance(value, Mapping):
            found += [(name, field) for field, entry in value.items() if isinstance(entry, str)]
        elif isinstance(value, str) or name.rpartition(".")[2] in _TEXTS:
            found.append((name,))
    return found


def _likeliest(texts: list[tuple[str, ...]], field: str) -> tuple[str, ...] | None:
    """The text whose name says that it is for a field, or else the first."""
    by_name = {text[-1]: text for text in reversed(texts)}
    return next((by_name[name] for name in _LIKELY[field] if name in by_name), texts[0] if texts else None)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
