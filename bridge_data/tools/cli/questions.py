"""The questions that `bridge-data prepare` asks when it is not told otherwise.

They are those of Energon in its users' notes: the ratio, the sample class by number or name, and for each of its
fields the part that fills it, as `png`, `json[caption]` or `jpg,png`.
"""

import click

from bridge_data.errors import ConfigError
from bridge_data.plan.field_map import parse_access
from bridge_data.prepare.splits import parse_ratio
from bridge_data.tools.cli.sample_types import CRUDE, SAMPLE_TYPES, Field, FirstSamples, fields_of, find_sample_type
from bridge_data.tools.cli.tables import listed


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
    click.echo(f"  {len(SAMPLE_TYPES):>2}  {CRUDE:<27} all parts as they are, for a cooker of yours")
    while True:
        try:
            return find_sample_type(click.prompt("Dataset class (number or name)"))
        except ConfigError as error:
            click.echo(f"  {error}")


def ask_field_map(sample_type: str, first: FirstSamples) -> dict[str, str]:
    """For each field of the class, the part that fills it.

    The first question may be answered by `Yes` too, as an answer to "Field map:", and is then asked again.
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
