"""`bridge-data duplicates`: samples that are stored several times, within data sets and across them."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import click

from bridge_data.cli.terminal import (
    ON_DISK,
    OUTPUT_ON_DISK,
    comma_separated,
    echo_report,
    headed,
    in_cli_words,
    json_option,
    limits_option,
    note,
    progress_bar,
    progress_option,
    setting,
    sized,
    table,
)
from bridge_data.errors import ConfigError, counted
from bridge_data.limits import Limits
from bridge_data.plugins.duplicates import DuplicateConfig, DuplicateReport, find_duplicates
from bridge_data.plugins.duplicates.found_duplicates import MAX_SHOWN, DuplicateCounts, check_folder, check_table
from bridge_data.plugins.duplicates.hash_groups import MAX_DISTANCE
from bridge_data.plugins.duplicates.sample_rows import FAULTS

DISTANCE = 4


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=ON_DISK)
@click.option(
    "--split-part",
    "split_parts",
    metavar="NAMES",
    callback=comma_separated,
    help="Read these parts of the split, such as val,train. Of equal samples the first is kept, so an earlier part "
    "keeps its own.  [default: all, train last]",
)
@setting("--split-config")
@click.option(
    "--parts",
    metavar="NAMES",
    callback=comma_separated,
    help="Compare these parts of a sample, such as jpg,txt.  [default: all]",
)
@click.option("--near", is_flag=True, help="Also find samples whose pictures look alike, by a perceptual hash.")
@click.option(
    "--distance",
    type=click.IntRange(0, MAX_DISTANCE),
    help=f"How many of their 64 hash bits may differ.  [default: {DISTANCE}]",
)
@click.option(
    "--out",
    "output",
    type=OUTPUT_ON_DISK,
    metavar="FILE",
    help="Write a row for each sample, .parquet, .jsonl or .csv.",
)
@click.option("--keys", type=OUTPUT_ON_DISK, metavar="FILE", help="Write SHARD:KEY of all but the first of each group.")
@setting("--num-workers", help="Processes that read.", more="[default: one a core, at most 16]")
@setting("--limit", default=5, help="Groups to show, at most: the largest.")
@json_option
@limits_option
@progress_option
@click.pass_context
def duplicates(
    context: click.Context,
    paths: tuple[Path, ...],
    split_parts: tuple[str, ...],
    split_config: str | None,
    parts: tuple[str, ...],
    near: bool,
    distance: int | None,
    output: Path | None,
    keys: Path | None,
    num_workers: int | None,
    limit: int,
    as_json: bool,
    limits: Limits,
    progress: bool,
) -> None:
    """Find samples that are stored several times in PATH..., also across split parts and data sets.

    A PATH is any data that are read in place, such as a prepared data set, a JSONL file or tables. Samples are equal if
    all their parts are, name and bytes. Nothing is changed: --keys and --out say what to exclude. The exit status is 1
    if samples could not be read.
    """
    if distance is not None and not near:
        raise ConfigError("--distance has no effect without --near")
    if output is not None:
        check_table(output)
    if keys is not None:
        check_folder(keys)
    bits = (DISTANCE if distance is None else distance) if near else None
    config = DuplicateConfig(
        split_parts=split_parts, parts=parts, distance=bits, split_config=split_config, limits=limits
    )
    if num_workers is not None:
        config = dataclasses.replace(config, num_workers=num_workers)
    with contextlib.ExitStack() as stack:
        reading = progress_bar("reading", "samples", shown=progress)
        with reading as on_read, progress_bar("comparing", "tables", shown=progress) as on_compare:
            found = stack.enter_context(find_duplicates(paths, config, on_read=on_read, on_compare=on_compare))
        report = found.report(limit)
        if output is not None:
            found.write_table(output)
        written = {} if keys is None else found.write_keys(keys)
    echo_report(report, _shown(report), as_json=as_json)
    for file, (num_keys, num_left_out) in written.items():
        if num_left_out:
            note(f"{file}: left out, as keys with line breaks do not fit in a list: {_copies(num_left_out)}")
        if not as_json:
            click.echo(f"{file}: {counted(num_keys, 'key')}")
    context.exit(1 if report.faults.get("unreadable") else 0)


def _shown(report: DuplicateReport) -> Iterator[str]:
    rows = [
        ("data sets" if len(report.paths) > 1 else "data set", ", ".join(report.paths)),
        ("read", f"{counted(report.num_samples, 'sample')}, {sized(report.num_bytes)}"),
        ("equal", _counts(report.exact)),
    ]
    if report.near is not None:
        rows.append(("near", f"{_counts(report.near)}, within {report.distance} of 64 bits"))
    yield headed(rows)
    for kind, count in report.faults.items():
        yield f"\n{click.style('note:', fg='yellow')} {count:,} {FAULTS[kind]}"
        yield from (f"  {in_cli_words(example)}" for example in report.examples[kind])
    for where, count in report.shared.items():
        yield f"\n{click.style('note:', fg='yellow')} {counted(count, 'sample')} of {where} are the same stored ones"
    if report.common:
        cells = [[f"{one.first}, {one.second}", f"{one.num_groups:,}", f"{one.num_copies:,}"] for one in report.common]
        yield "\n" + table(["in both", "groups", "copies in the second"], cells)
    for size, names in report.largest:
        yield f"\n{counted(size, 'sample')}:"
        yield from (f"  {name}" for name in names)
        if size > MAX_SHOWN:
            yield f"  … and {size - MAX_SHOWN:,} more"


def _counts(counts: DuplicateCounts) -> str:
    if not counts.num_groups:
        return "none"
    besides = f"besides the first, {sized(counts.copied_bytes)}"
    return f"{counted(counts.num_groups, 'group')}, {_copies(counts.num_copies)} {besides}"


def _copies(number: int) -> str:
    return "1 copy" if number == 1 else f"{number:,} copies"
