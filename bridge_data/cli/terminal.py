"""What the commands share: the format of numbers, names and tables, the progress bar, and arguments that name data."""

import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from bridge_data.errors import ConfigError
from bridge_data.limits import Limits
from bridge_data.storage import COPY_IT, Location, location, output, output_on_disk

if TYPE_CHECKING:
    from tqdm import tqdm

    from bridge_data.data.prepared import PreparedDataset
    from bridge_data.prepare.executors import Executor

SHOWN_AFTER_S = 0.5
"""Shorter commands show no bar."""


def sized(num_bytes: float) -> str:
    """`512 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"


def spanned(names: Sequence[str]) -> str:
    """The first and the last of some names."""
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns with headings: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        right = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        return "  ".join((first.ljust(widths[0]), *right)).rstrip()

    return "\n".join((click.style(line(header), bold=True), *map(line, rows)))


def headed(rows: Iterable[tuple[str, str]]) -> str:
    """A line for each (heading, text)."""
    return "\n".join(f"{click.style(f'{heading:<12}', bold=True)} {text}" for heading, text in rows)


_OTHER_NAMES = {"micro_batch_size": "batch_size"}
"""Python arguments that stand for an option of another name."""

_SETTING = re.compile(r"(?<![\w./?&-])(?:[A-Z]\w+\()?(\w+)=(?:\(('[^']*'),?\)|([^\s:;,)]+))\)?")
"""`name=value` in a message, also as `Class(name=value)`; of a tuple with one text, the text."""


def in_cli_words(message: str, command: click.Command | None = None) -> str:
    """`message` with the options of a command (None: the running one) instead of Python arguments: `--num-workers 0`,
    not `num_workers=0`. Everything else stays."""
    if command is None:
        context = click.get_current_context(silent=True)
        command = None if context is None else context.command
    parameters = [] if command is None else command.params
    options = {option.name: option for option in parameters if isinstance(option, click.Option)}

    def replaced(match: re.Match[str]) -> str:
        option = options.get(match[1]) or options.get(_OTHER_NAMES.get(match[1], ""))
        if option is None:
            return match[0]
        return option.opts[0] if option.is_flag else f"{option.opts[0]} {match[2] or match[3]}"

    return _SETTING.sub(replaced, message)


def note(text: str) -> None:
    """Write a note for the user to stderr."""
    click.echo(f"{click.style('note:', fg='yellow')} {in_cli_words(text)}", err=True)


@contextlib.contextmanager
def progress_bar(what: str, unit: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows progress and the total (None: not known); shows nothing unless `shown`."""
    bar: tqdm[Any] | None = None
    started = time.time()

    def show(done: int, total: int | None) -> None:
        nonlocal bar
        if not shown or (bar is None and time.time() - started < SHOWN_AFTER_S):
            return
        if bar is None:
            bar = _bar(what, unit, started)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, unit: str, started: float) -> "tqdm[Any]":
    from tqdm import tqdm  # imported here: it takes as long as everything a short command imports

    class Bar(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
        """A bar without tqdm's monitor thread, so that processes can be forked while it is shown."""

        monitor_interval = 0

    bar = Bar(desc=what, unit=f" {unit}")
    bar.start_t = started
    return bar


class _LocationParam(click.ParamType):  # type: ignore[type-arg]
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        return location(value)


class _OnDiskParam(click.ParamType):  # type: ignore[type-arg]
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        found = location(value)
        if isinstance(found, Path):
            return found
        command = "bridge-data" if ctx is None else ctx.command_path
        raise ConfigError(
            f"{os.fspath(value)}: `{command}` takes data on a disk. Run it there, then copy the folder to the "
            "store, with its .nv-meta."
        )


class _OutputParam(click.ParamType):  # type: ignore[type-arg]
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        return output(_name_of(param), value)


class _OutputOnDiskParam(click.ParamType):  # type: ignore[type-arg]
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return output_on_disk(_name_of(param), value, COPY_IT)


def _name_of(param: click.Parameter | None) -> str:
    assert param is not None
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


LOCATION = _LocationParam()


def only_on_disk(path: Location) -> Path:
    """`path`, for data that can only be prepared on a disk."""
    if isinstance(path, Path):
        return path
    raise ConfigError(
        f"{path}: in an object store only folders of tars are prepared, and without media metadata. Prepare it on a "
        "disk, then copy it to the store, with the files written next to it."
    )


"""An argument that is a path or a URL."""

ON_DISK = _OnDiskParam()
"""An argument that is a path; a URL of a store is an error."""

OUTPUT = _OutputParam()
"""A path or a URL to write to."""

OUTPUT_ON_DISK = _OutputOnDiskParam()
"""A path to write to; a URL of a store is an error."""


Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer")


def trust_options(command: Command) -> Command:
    """Add the flags that permit code to be run."""
    module = click.option(
        "--trusted-module",
        "trusted_modules",
        multiple=True,
        callback=_find_modules_here,
        help="A module that YAML files may name classes of, also one in the current folder. Repeatable.",
    )
    code = click.option(
        "--trust-dataset-code", is_flag=True, help="Run the code stored next to the data (sample_loader.py)."
    )
    return module(code(command))


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's arguments that are options of a run (see `RunOptions`), by their names there."""
    from bridge_data.run_options import PART_OF  # here: other commands do not need it

    names = {theirs: ours for ours, theirs in _OTHER_NAMES.items()}
    found = {names.get(name, name): value for name, value in given.items() if names.get(name, name) in PART_OF}
    return found | ({"micro_batch_size": found["micro_batch_size"] or None} if "micro_batch_size" in found else {})


def where_options(command: Command) -> Command:
    """Add `--where` and `--columns`, which choose samples as the options of `get_train_dataset` do."""
    where = click.option(
        "--where", metavar="EXPRESSION", help="Only samples for which this holds, such as 'jpg.bytes > 1000'."
    )
    columns = click.option(
        "--columns", metavar="FILE", help="For --where: a Parquet file with columns of your own, by `key`."
    )
    return where(columns(command))


def limits_option(command: Command) -> Command:
    """Add `--limits`, which gives the command a `Limits`."""
    names = ", ".join(field.name for field in dataclasses.fields(Limits))
    option = click.option(
        "--limits",
        metavar="NAME=NUMBER,...",
        callback=_limits,
        help=f"Limits for data that the defaults refuse: {names}.",
    )
    return option(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")

progress_option = click.option("--progress/--no-progress", default=True, help="Show a progress bar.")

_SETTINGS: dict[str, tuple[type | click.ParamType, str]] = {  # type: ignore[type-arg]
    "--world-size": (click.IntRange(min=1), "Data-parallel ranks."),
    "--num-workers": (int, "Processes that work; 0: none."),
    "--num-lanes": (click.IntRange(min=1), "Lanes of the job."),
    "--batch-size": (int, "Samples or packs of a micro-batch; 0: single samples."),
    "--global-batch-size": (click.IntRange(min=1), "Samples or packs of a step, of all ranks."),
    "--packing-buffer-size": (int, "Samples among which packs are chosen."),
    "--shuffle-buffer-size": (int, "Samples to be mixed at least."),
    "--max-samples-per-sequence": (int, "Neighbouring samples of a chunk."),
    "--seed": (int, "The seed of the run."),
    "--step-seconds": (float, "How long the trainer takes for a step."),
    "--task-encoder": (str, "Your TaskEncoder, MODULE:NAME, or a function that makes one."),
    "--split-part": (str, "The part of the split."),
}
"""The settings of runs that options of commands stand for, under the names of the Python interface, where there is one:
the type of each, and its help."""


def setting(
    name: str, *names: str, help: str | None = None, default: Any = None, more: str = ""
) -> Callable[[Command], Command]:
    """The option of a setting. `help` replaces the usual one, `more` comes after it; `names` are others for the option,
    or for its argument in Python."""
    kind, usual = _SETTINGS[name]
    shown = {} if default is None else {"default": default, "show_default": True}
    text = f"{help or usual}{more and '  ' + more}"
    return click.option(name, *names, type=kind, help=text, **shown)


class Report(Protocol):
    """What a command found."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""


def echo_report(report: Report, lines: Iterable[str], *, as_json: bool) -> None:
    """Write a report to standard output: as one JSON document, or as its `lines`."""
    if as_json:
        echo_json(report.to_dict())
    else:
        click.echo("\n".join(lines))


def echo_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document to standard output."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


executor_option = click.option(
    "--executor",
    metavar="WHERE",
    default="local",
    show_default=True,
    help="Where the work is done: local, in processes; ray, on the cluster of this machine or of $RAY_ADDRESS; or the "
    "address of a Ray cluster. All its machines must see the data under the same path.",
)


def named_executor(name: str, num_workers: int | None) -> "Executor":
    """The executor that `--executor` and `--num-workers` select."""
    from bridge_data.prepare.executors import executor_named  # imported here: few commands need it

    return executor_named(name, num_workers)


def _limits(context: click.Context, option: click.Parameter, text: str | None) -> Limits:
    known = {field.name for field in dataclasses.fields(Limits)}
    given: dict[str, int] = {}
    for piece in text.split(",") if text else ():
        name, _, number = piece.strip().partition("=")
        if name not in known or name in given or not number.replace("_", "").isdecimal() or len(number) > 24:
            raise ConfigError(
                f"--limits {text}: got {piece!r}, expected NAME=NUMBER, such as max_image_pixels=200000000, each once; "
                f"the names are {', '.join(sorted(known))}"
            )
        given[name] = int(number)
    return Limits(**given)


def _find_modules_here(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Search for modules in the current folder, last (`python -m`: first), so that it shadows no package."""
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return names


def answers(ask: Callable[[], Answer], fix: str) -> Answer:
    """The user's answer.

    Raises:
        ConfigError: if no one can answer; `fix` says which flags to give instead.
    """
    try:
        return ask()
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():  # Ctrl-C or Ctrl-D
            raise
        raise ConfigError(f"there are questions, and no answers on standard input: {fix}") from None


def split_options(parts_help: str) -> Callable[[Command], Command]:
    """Add `--split-parts`, a tuple of names (empty: not given), and `--dataset-config`."""

    def names(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
        return tuple(text.split(",")) if text else ()

    parts = click.option("--split-parts", "--split-part", callback=names, metavar="NAMES", help=parts_help)
    file_help = "The file of the samples in .nv-meta.  [default: dataset.yaml]"
    config = click.option("--dataset-config", metavar="NAME", help=file_help)
    return lambda command: parts(config(command))


def split_counts(dataset: "PreparedDataset", split_config: str | None = None) -> list[dict[str, Any]]:
    """Shards, samples and bytes by split part, and those in no part (None)."""
    parts = {part: dataset.split(part, split_config=split_config) for part in dataset.split_parts(split_config)}
    counts: list[tuple[str | None, list[str], int]] = [
        (part, list(shards.names), shards.num_samples) for part, shards in parts.items()
    ]
    named = {name for _, names, _ in counts for name in names}
    if rest := [name for name in dataset.shard_counts if name not in named]:
        counts.append((None, rest, sum(dataset.shard_counts[name] for name in rest)))
    return [
        {
            "split_part": part,
            "num_shards": len(names),
            "num_samples": num_samples,
            "num_bytes": sum(map(dataset.shard_bytes, names)),
        }
        for part, names, num_samples in counts
    ]


def split_table(counts: Sequence[dict[str, Any]]) -> str:
    """A row for each of `split_counts`."""
    rows = [
        [
            "(in no part)" if one["split_part"] is None else one["split_part"],
            f"{one['num_shards']:,}",
            f"{one['num_samples']:,}",
            sized(one["num_bytes"]),
        ]
        for one in counts
    ]
    return table(["split part", "shards", "samples", "bytes"], rows)
