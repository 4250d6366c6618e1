"""What a crude sample holds, and the code that makes a typed sample of it; for messages.

Reads the parts of a crude sample. Returns the line of a cooker, or for a table a `sample_type` with its `field_map`.
The code names only parts and columns that are there; what is missing stands as `...`.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import ConfigError, SampleError
from bridge_data.plan import Source
from bridge_data.samples import CaptioningSample, CrudeSample, ImageSample, TextSample, required_fields

_TEXTS = ("txt", "text")
"""What names of parts with texts end with."""

_LIKELY = {
    "text": ("text", "txt", "content"),
    "caption": ("caption", "captions", "text", "txt", "description", "alt_text", "alt", "title"),
}
"""The parts, columns or fields of JSON that probably fill a field, the likeliest first."""

_TURNS = ("messages", "conversations", "conversation")
"""Where the turns of a conversation are."""

_PAIRS = (("instruction", "output"), ("prompt", "completion"))
"""Or a question and its answer."""

TURN_KEYS = (("role", "content"), ("from", "value"))
"""Where a turn says who speaks, and what."""

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


def example_of_cookers(sample: Mapping[str, Any]) -> str:
    """The `cookers` that a task encoder could have for such samples, and how to write them."""
    part = _conversation_in(sample)
    if part in ("json", "", *_TURNS):
        return (
            "cookers = [Cooker(cook_conversation)], with\n  from bridge_data.encoders import cook_conversation\n"
            "It makes a ConversationSample; FamilyTaskEncoder and the others there have this cooker, and take that"
        )
    if part is None:
        made = _example_of_cook(sample)
    else:
        made = f'cook_conversation({{**sample, "json": sample[{_quoted(part)}]}})  # of bridge_data.encoders'
    return f"cookers = [Cooker(cook)], with\n  def cook(sample): return {made}"


def turns_of(content: Mapping[str, Any], key: str) -> tuple[Any, tuple[str, ...]]:
    """The turns of a conversation in JSON, as people store them, and the fields that hold them; (None, ()) if it holds
    none.

    Raises:
        SampleError: for a form that cannot be read without loss.
    """
    for name in _TURNS:
        if content.get(name):
            return content[name], (name,)
    asked, answer, more = (content.get(name) for name in (*_PAIRS[0], "input"))
    if isinstance(asked, str) and isinstance(answer, str) and isinstance(more, str | None):
        if content.get("history"):
            raise SampleError(
                f"sample {key!r}: has both 'history' and 'instruction'; write all turns as a list at 'messages', or "
                "remove it from the data"
            )
        turns = [
            {"role": "user", "content": f"{asked}\n\n{more}" if more else asked},
            {"role": "assistant", "content": answer},
        ]
        return turns, (*_PAIRS[0], "input")
    asked, answer = (content.get(name) for name in _PAIRS[1])
    if not (isinstance(asked, str | list) and isinstance(answer, str | list)):
        return None, ()
    before = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    after = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    before = [{**turn, "weight": 0} if isinstance(turn, dict) else turn for turn in before]
    return [*before, *after], _PAIRS[1]


def _conversation_in(sample: Mapping[str, Any]) -> str | None:
    """The part, or the column, that holds a conversation; empty if the columns do together; None if there is none."""
    for name, value in sample.items():
        turns = None if name.startswith("__") else value
        if isinstance(value, Mapping):
            try:
                turns, _ = turns_of(value, str(sample.get("__key__")))
            except SampleError:
                return name  # a conversation, and `cook_conversation` says what is wrong with it
        first = turns[0] if isinstance(turns, Sequence) and turns else None
        if isinstance(first, Mapping) and any(role in first and said in first for role, said in TURN_KEYS):
            return name
    is_asked = any({asked, answer} <= sample.keys() for asked, answer in _PAIRS)
    return "" if is_asked else None


def _example_of_cook(sample: Mapping[str, Any]) -> str:
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
    has_image, has_text = _image_in(sample) is not None, _likeliest(_texts_in(sample), "caption") is not None
    kind = (CaptioningSample if has_text else ImageSample) if has_image else TextSample
    return f"sample_type={kind.__name__}, {_field_map(kind, sample)}"


def class_mismatch(source: Source, wanted: type[Any]) -> ConfigError:
    """The error where samples of `source` are not of the class that was asked for; of a table without a field map, it
    names one."""
    said = f"{source.path}: has {source.sample_class.__name__}, not sample_type={wanted.__name__}"
    if not (issubclass(source.sample_class, CrudeSample) and source.format == "tables"):
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
    for name in required_fields(kind):
        if name.startswith("__"):
            continue
        found = "..."
        if name in columns:
            found = name
        elif name == "image" and image is not None:
            found = _column(image)
        elif name in _LIKELY and (text := _likeliest(texts, name)):
            found = text[0]
        chosen[name] = found
    return f"field_map={json.dumps(chosen, ensure_ascii=False)}"


def _column(part: str) -> str:
    """The name of the column that a part of a table's sample is from."""
    return part.removesuffix(_MEDIA_PART) or part


def _image_in(sample: Mapping[str, Any]) -> str | None:
    """The first part that is decoded as an image."""
    return next((name for name in sample if name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS), None)


def _texts_in(sample: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """(part,) or (part, field of its JSON) of each text, with the text."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in sample.items():
        if name.startswith("__"):
            continue
        if isinstance(value, Mapping):
            found |= {(name, field): entry for field, entry in value.items() if isinstance(entry, str)}
        elif isinstance(value, str) or name.rpartition(".")[2] in _TEXTS:
            found[(name,)] = value
    return found


def _likeliest(texts: Mapping[tuple[str, ...], Any], field: str) -> tuple[str, ...] | None:
    """The text whose name says that it is for a field, or else the longest of several words; None if there is neither:
    an id, a URL or a language is not what a model learns."""
    by_name = {text[-1].lower(): text for text in reversed([*texts])}
    for name in _LIKELY[field]:
        if name in by_name:
            return by_name[name]
    for name in _LIKELY[field]:
        if found := [text for lower, text in by_name.items() if name in re.split(r"[^a-z]+", lower)]:
            return found[-1]
    spoken = [text for text, value in texts.items() if isinstance(value, str) and len(value.split()) > 1]
    return max(spoken, key=lambda text: len(texts[text]), default=None)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
