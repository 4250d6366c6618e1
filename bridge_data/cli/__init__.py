"""The command line: `bridge-data convert`, `prepare`, `info`, `check`, `duplicates`, `mount`, `plan`,
`checkpoint`, `order`, `forget` and `view`.

User mistakes and faults in the data end as one line or a few, `error: ...`, with exit code 1. A command is imported
when it is called, so none waits for another's imports.
"""

import atexit
import errno
import gc
import importlib
import importlib.util
import io
import json
import os
import sys
from typing import Any

import click

from bridge_data.cli.terminal import in_cli_words
from bridge_data.errors import BridgeDataError
from bridge_data.extensions import Seam, importing


def _end_quickly() -> None:
    """Skip the garbage collection at exit, in which DuckDB prints a page about leftovers."""
    if "duckdb" not in sys.modules:
        gc.freeze()


atexit.register(_end_quickly)

_COMMANDS = {
    "check": "Read everything of PATH, and report all that is wrong with it; or check a run before it starts.",
    "checkpoint": "Look at saved data states, compare them, write them for other ranks, skip steps, or verify a run.",
    "convert": "Convert the data in SRC to the data set in the folder DST, or at its URL.",
    "duplicates": "Find samples that are stored several times in PATH..., also across split parts and data sets.",
    "forget": "Exclude the samples with the keys in a file from all runs on DATASET.",
    "info": "Show what PATH holds: split parts, shards, samples, parts, sample type; of a metadataset, what it blends.",
    "mount": "Show the parts of the data set in the folder PATH as files below the folder MOUNTPOINT, read-only.",
    "order": "Show the samples of a step of RUN, the steps of a sample, or where two runs differ.",
    "plan": "Show what RUN will see, before it starts: steps, samples, tokens, epochs, fill, loads, and how fast.",
    "prepare": "Prepare the tars below the folder PATH, the file PATH.jsonl or the joins of the metadataset PATH.yaml.",
    "view": "Show RUN in a browser: samples, the blend, sizes, batches as the trainer gets them, the steps of a run.",
}
"""The help line of each command: the first sentence of its own help."""

COMMANDS = Seam[click.Command]("commands")
"""By the name of the command; that of one within a group has the group's before it: `checkpoint verify`."""


class _Commands(click.Group):
    """Imports commands when they are called, and turns our own errors into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys((*_COMMANDS, *(name for name in COMMANDS.names_of_others if " " not in name))))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = f"bridge_data.cli.{name}_command"
        if name in _COMMANDS and importlib.util.find_spec(module) is not None:
            with importing(f"bridge-data {name}"):
                found: click.Command = getattr(importlib.import_module(module), name.replace("-", "_"))
            return found
        return COMMANDS.get(name, f"bridge-data {name}") if name in _COMMANDS else COMMANDS.find(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            others = {name: self.get_command(ctx, name) for name in self.list_commands(ctx) if name not in _COMMANDS}
            helps = {name: command.get_short_help_str(200) for name, command in others.items() if command is not None}
            formatter.write_dl([*_COMMANDS.items(), *helps.items()])

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names may have surrogates, and a terminal may be ASCII only
                stream.reconfigure(errors="backslashreplace")
        settings = {text.partition("=")[0].removeprefix("data.") for text in ctx.args if "=" in text}
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno not in _OF_MACHINE:
                raise
            where = "standard output, or a file" if error.filename is None else _shown(error.filename)
            click.echo(f"{click.style('error:', fg='red', bold=True)} {where}: {error.strerror}", err=True)
            if as_json and error.filename is not None:
                _echo_error(f"{where}: {error.strerror}")
            if error.filename is None:
                sys.stdout = io.StringIO()  # what it holds cannot be written at exit, either
            ctx.exit(1)
        except click.UsageError as error:
            if as_json:
                _echo_error(error.format_message())
            raise
        except BridgeDataError as error:
            command = None if ctx.invoked_subcommand is None else self.get_command(ctx, ctx.invoked_subcommand)
            message = in_cli_words(str(error), command, settings)
            if as_json:
                _echo_error(message)
            click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
            ctx.exit(1)


_OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of a disk, an output or a name, not of our code: no traceback helps."""

_MAX_SHOWN = 400
"""Characters of a name in an error: those that are too long for a file system are not shown whole."""


def _shown(name: Any) -> str:
    text = os.fsdecode(name) if isinstance(name, bytes) else str(name)
    return text if len(text) <= _MAX_SHOWN else f"{text[:60]}… ({len(text):,} characters)"


def _echo_error(message: str) -> None:
    """Write an error to standard output, for those who read JSON there."""
    click.echo(json.dumps({"error": message}, ensure_ascii=False))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", "-V", package_name="bridge-data", prog_name="bridge-data")
def main() -> None:
    """Make, prepare and look at multimodal data sets, and at the data states of training runs."""
