"""Which parts of the data fill the fields of a sample class, and the questions that `prepare` asks for both.

Reads names, field maps, answers. Returns the content of a dataset.yaml. The questions are Energon's: the ratio, the
sample class by number or name, and the part that fills each of its fields, such as `png`, `json[caption]` or `jpg,png`.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Sequence
from typing import Any

import click

from bridge_data import storage
from bridge_data.data.index_file import Part
from bridge_data.data.plain_data import parse_json
from bridge_data.data.prepared import first_samples
from bridge_data.encoders.fitting_class import GUESS
from bridge_data.errors import ConfigError, DatasetError, SampleError, listed
from bridge_data.plan.source import FieldAccess, other_names, parse_access, renamed
from bridge_data.prepare.sample_definitions import CRUDE, SAMPLE_TYPES, find_sample_type, read_definition
from bridge_data.prepare.splits import parse_ratio
from bridge_data.samples import Sample, required_fields
from bridge_data.storage import Location

MAX_FIRST_SAMPLES = 100
"""Samples used to check a field map before the data set is indexed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a sample class."""

    name: str
    shown_type: str
    required: bool


def fields_of(sample_class: type[Sample]) -> list[Field]:
    """The fields that data fill."""
    hints = typing.get_type_hints(sample_class)
    required = required_fields(sample_class)
    return [
        Field(field.name, str(hints[field.name]), field.name in required)
        for field in dataclasses.fields(sample_class)
        if field.init and not field.name.startswith("__")
    ]


def parse_field_map(text: str) -> dict[str, str]:
    """The field map in a text such as `image=jpg,png,caption=json[caption]`, or in JSON.

    >>> parse_field_map("image=jpg,png,caption=txt")
    {'image': 'jpg,png', 'caption': 'txt'}

    Raises:
        ConfigError: if it is anything else, or has a field twice.
    """
    if not text.lstrip().startswith("{"):
        pieces = re.split(r"(?:^|,)(\w+)=", text)
        fields = dict(zip(pieces[1::2], pieces[2::2], strict=True))
        if pieces[0] or not fields or not all(fields.values()) or len(fields) < len(pieces) // 2:
            raise ConfigError(f"--field-map {text}: expected FIELD=PART, each once, such as image=jpg,caption=txt")
        return fields
    try:
        field_map = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"--field-map {text!r} is not JSON: {error}") from None
    if not isinstance(field_map, dict) or not all(isinstance(part, str) for part in field_map.values()):
        raise ConfigError(f'--field-map {text!r}: expected fields with parts, such as {{"image": "jpg"}}')
    return field_map


class FirstSamples:
    """The first samples of a data set before it is prepared; used to check answers."""

    def __init__(self, root: Location, shards: Sequence[str]) -> None:
        self._samples: dict[str, list[Part]] = {}
        for shard in shards:  # up to the first that holds samples
            self.shard = root / shard
            self._samples = first_samples(root, shard, MAX_FIRST_SAMPLES)
            if self._samples:
                break
        else:
            raise DatasetError(
                f"{root}: none of its tars holds a sample, such as 000001.png with 000001.txt: {listed(shards)}"
            )
        named = dict.fromkeys(part for parts in self._samples.values() for part, _, _ in parts)
        self.parts: tuple[str, ...] = tuple(sorted(named))

    def likely_definition(self) -> tuple[str, dict[str, str]]:
        """(sample class, field map) that probably fit."""
        guess = GUESS.find()
        samples = (
            {part: storage.read(self.shard, *where) if part == "json" else b"" for part, *where in members}
            for members in self._samples.values()
        )
        return (CRUDE, {}) if guess is None else guess([*samples])

    def check(self, content: dict[str, Any]) -> None:
        """Ensure that the dataset.yaml `content` can be read, and that these samples have what it names.

        Raises:
            ConfigError: naming the field, and the parts there are.
        """
        for field, access in read_definition(content).field_map.items():
            self.check_access(field, access)

    def check_access(self, field: str, access: FieldAccess) -> None:
        """Ensure that these samples have what fills `field`."""
        options = (access, *access.alternatives)
        if access.names.isdisjoint((*self.parts, "__key__")):
            wanted = " or ".join(repr(option.part) for option in options)
            near = difflib.get_close_matches(access.part, self.parts, n=1)
            raise ConfigError(
                f"field {field!r}: no part {wanted} in the first {len(self._samples)} samples of {self.shard}; "
                f"the parts there are: {listed(self.parts, 20)}" + (f". Did you mean {near[0]!r}?" if near else "")
            )
        if all(option.path and option.part.endswith("json") for option in options):
            self._check_content(field, access)

    def _check_content(self, field: str, access: FieldAccess) -> None:
        """Ensure that at least one of the first samples has the value inside its JSON."""
        complaint = ""
        for key, members in list(self._samples.items())[:10]:
            content: dict[str, Any] = {"__key__": key}
            for part, offset, num_bytes in members:
                if part in access.names:
                    try:
                        content[part] = parse_json(storage.read(self.shard, offset, num_bytes))
                    except ValueError as error:
                        raise DatasetError(f"{self.shard}: {key}.{part} is not JSON: {error}") from None
            try:
                access.get(renamed(content, other_names(access.parts), key))
                return
            except SampleError as error:
                complaint = complaint or str(error)
        raise ConfigError(f"field {field!r}: {complaint}")


def ask_ratio() -> str:
    """The shares of train, val and test."""
    while True:
        answer: str = click.prompt('Ratio of train, val and test, such as "8,1,1"')
        try:
            parse_ratio(answer)
            return answer
        except ConfigError as error:
            click.echo(f"  {error}")


def ask_sample_type() -> str:
    """The name of a sample class."""
    click.echo("\nSample classes:")
    for number, (name, sample_class) in enumerate(SAMPLE_TYPES.items()):
        fields = [field.name if field.required else f"[{field.name}]" for field in fields_of(sample_class)]
        click.echo(f"  {number:>2}  {name:<27} {', '.join(fields)}")
    click.echo(f"  {len(SAMPLE_TYPES):>2}  {CRUDE:<27} all parts unchanged, for your cooker")
    while True:
        try:
            return find_sample_type(click.prompt("Dataset class (number or name)"))
        except ConfigError as error:
            click.echo(f"  {error}")


def ask_field_map(sample_type: str, first: FirstSamples) -> dict[str, str]:
    """For each field of the class, the part that fills it.

    The first question also accepts `Yes`, as an answer to "Field map:", and is then asked again.
    """
    click.echo(f"\nField map of {sample_type}: the part that fills each field. There is {listed(first.parts, 20)}.")
    click.echo("  json[caption] takes a value out of JSON; jpg,png takes the one that is there; Enter skips an option.")
    field_map: dict[str, str] = {}
    for number, field in enumerate(fields_of(SAMPLE_TYPES[sample_type])):
        answer = _ask_field(field, first)
        if number == 0 and answer.lower() in ("y", "yes") and answer not in first.parts:
            answer = _ask_field(field, first)
        while not _is_good(answer, field, first):
            answer = _ask_field(field, first)
        if answer:
            field_map[field.name] = answer
    return field_map


def _ask_field(field: Field, first: FirstSamples) -> str:
    question = f"Please enter a webdataset field name for {field.name!r} ({field.shown_type})"
    answer: str = click.prompt(question, default=None if field.required else "", show_default=False)
    answer = answer.partition("#")[0].strip()
    return answer.removeprefix(f"{field.name}:").strip()


def _is_good(answer: str, field: Field, first: FirstSamples) -> bool:
    if not answer:
        if field.required:
            click.echo(f"  {field.name} is needed")
        return not field.required
    try:
        first.check_access(field.name, parse_access(answer))
    except ConfigError as error:
        click.echo(f"  {error}")
        return False
    return True
