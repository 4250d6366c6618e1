"""`bridge-data forget`: samples that no run may see any more."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from bridge_data.cli.terminal import ON_DISK, table
from bridge_data.errors import ConfigError, counted
from bridge_data.plugins.forget.tombstone_writing import ForgetReport, forget_samples, read_tombstones, renew_tombstones
from bridge_data.plugins.forget.tombstones import Tombstones, TombstoneVersion


@click.command()
@click.argument("dataset", type=ON_DISK)
@click.option(
    "--keys",
    "keys_file",
    type=click.File(encoding="utf-8", errors="surrogateescape"),
    help="A file with a key a line: KEY, SHARD:KEY, or a `__key__` of batches, also of a pack; - for standard input.",
)
@click.option("--reason", help="Why; stored in the list.")
@click.option("--restore", is_flag=True, help="Take these samples from the list: runs see them again.")
@click.option("--renew", is_flag=True, help="Look up all keys of the list again, after shards were rewritten.")
@click.option("--ignore-unknown", is_flag=True, help="Leave out keys that no sample has, instead of an error.")
@click.option("--list", "is_listed", is_flag=True, help="Show the versions of the list, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --list: one JSON object a version, with the keys.")
def forget(
    dataset: Path,
    keys_file: TextIO | None,
    reason: str | None,
    restore: bool,
    renew: bool,
    ignore_unknown: bool,
    is_listed: bool,
    as_json: bool,
) -> None:
    """Exclude the samples with the keys in a file from all runs on DATASET.

    DATASET is a prepared folder, a Parquet or JSONL file, a folder of Parquet files or a saved data set. The data stay
    unchanged; `.nv-meta/forgotten.jsonl`, or of files the `_forgotten.bridge` next to them, gets a new version. A run
    in progress applies it when it is restarted from a checkpoint; the order of all other samples, and the states, stay
    the same.
    """
    if is_listed:
        _list(dataset, as_json=as_json)
        return
    if as_json:
        raise ConfigError("--json is for --list")
    if (keys_file is None) != renew:
        raise ConfigError("give --keys FILE; or --renew or --list without it")
    if not reason:
        raise ConfigError("give --reason: it is kept in the list, for those who ask later why a sample is gone")
    if keys_file is None:
        _tell(renew_tombstones(dataset, reason), "found again", "gone", is_renewed=True)
        return
    keys = [key for line in keys_file if (key := line.rstrip("\r\n"))]
    if not keys:
        raise ConfigError(f"--keys {keys_file.name}: has no keys; expected one a line")
    report = forget_samples(dataset, keys, reason, restore=restore, ignore_unknown=ignore_unknown)
    _tell(report, "taken back" if restore else "forgotten from the next restart on", "ignored")


def _tell(report: ForgetReport, done: str, ignored: str, *, is_renewed: bool = False) -> None:
    versions = [f"version {own.newest.number} of {_name(own, report.lists)}" for own in report.lists]
    if not report.num_changed and not is_renewed:
        click.echo(f"nothing changes: {', '.join(versions)} says so already" if versions else "nothing changes")
    else:
        click.echo(f"{done}: {counted(report.num_changed, 'sample')} ({', '.join(versions)})")
    if report.ignored:
        click.echo(f"{ignored}: {counted(len(report.ignored), 'key')}, such as {report.ignored[0]}")
    click.echo(f"forgotten in all: {counted(report.num_forgotten, 'sample')}")


def _list(dataset: Path, *, as_json: bool) -> None:
    lists = read_tombstones(dataset)
    if as_json:
        for own in lists:
            for version in own.versions:
                click.echo(version.line() if len(lists) == 1 else _with_file(version, own), nl=False)
        return
    if not lists:
        click.echo("no samples are forgotten")
    for own in lists:
        if len(lists) > 1:
            click.echo(f"{own.file}:")
        rows = [
            (str(one.number), one.date, one.action, f"{one.num_samples:,}", json.dumps(one.reason, ensure_ascii=False))
            for one in own.versions
        ]
        click.echo(table(("version", "date", "action", "samples", "reason"), rows))


def _with_file(version: TombstoneVersion, own: Tombstones) -> str:
    """The line of a version of one of several lists, which may have shards of the same name."""
    return json.dumps({"list": str(own.file), **json.loads(version.line())}, ensure_ascii=False) + "\n"


def _name(own: Tombstones, lists: Sequence[Tombstones]) -> str:
    """`the list`; of several, its path."""
    return "the list" if len(lists) == 1 else str(own.file)
