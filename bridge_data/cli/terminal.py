"""What the commands share: the format of numbers, names and tables, the progress bar, and arguments that name data."""

import contextlib
import dataclasses
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from bridge_data.errors import ConfigError
from bridge_data.limits import Limits
from bridge_data.options import MAX_RANKS, MAX_STEPS, MAX_WORKERS, path_text
from bridge_data.storage import COPY_IT, Location, location, output, output_on_disk

if TYPE_CHECKING:
    from tqdm import tqdm

    from bridge_data.data.prepared import PreparedDataset
    from bridge_data.runs.training_run import TrainingRun

SHOWN_AFTER_S = 0.5
"""Shorter commands show no bar."""

LINE_EVERY_S = 10.0
"""How often progress is a line where there is no terminal."""

CRUDE = "crude, cooked by the task encoder (those of bridge_data.encoders cook chats)"
"""What stands for the class of samples without one."""


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


_SETTING = re.compile(r"(?<![\w./?&-])(?:[A-Z]\w+\()?(\w+)=(?:\(('[^']*'),?\)|([^\s:;,)]+))\)?")
"""`name=value` in a message, also as `Class(name=value)`; of a tuple with one text, the text."""


def in_cli_words(message: str, command: click.Command | None = None, kept: Collection[str] = ()) -> str:
    """`message` with the options of a command (None: the running one) instead of Python arguments: `--num-workers 0`,
    not `num_workers=0`. Arguments `kept`, which the user gave as KEY=VALUE, and everything else stay."""
    if command is None:
        context = click.get_current_context(silent=True)
        command = None if context is None else context.command
    parameters = [] if command is None else command.params
    options = {option.name: option for option in parameters if isinstance(option, click.Option)}

    def replaced(match: re.Match[str]) -> str:
        if match[1] in kept:
            return match[0]
        if match[1] == "trust_dataset_code" and "trusted_modules" in options:
            return f"--trust {DATASET_CODE}"
        option = options.get(match[1])
        if option is None:
            return match[0]
        return option.opts[0] if option.is_flag else f"{option.opts[0]} {match[2] or match[3]}"

    return _SETTING.sub(replaced, message)


def note(text: str) -> None:
    """Write a note for the user to stderr."""
    click.echo(f"{click.style('note:', fg='yellow')} {in_cli_words(text)}", err=True)


@contextlib.contextmanager
def progress_bar(what: str, unit: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A function that shows progress and the total (None: not known): a bar on a terminal, else, as in a log, a line
    every `LINE_EVERY_S`. It shows nothing unless `shown`."""
    bar: tqdm[Any] | None = None
    started = last = time.time()
    has_bar = sys.stderr.isatty()

    def show(done: int, total: int | None) -> None:
        nonlocal bar, last
        now = time.time()
        if not shown or (bar is None and now - last < (SHOWN_AFTER_S if has_bar else LINE_EVERY_S)):
            return
        if not has_bar:
            of_all = "" if total is None else f" of {total:,}"
            click.echo(f"{what}: {done:,}{of_all} {unit} after {now - started:.0f} s", err=True)
            last = now
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


class _PathParam(click.ParamType):  # type: ignore[type-arg]
    """An argument that `read` reads, from what it is called and its text."""

    name = "path"

    def __init__(self, read: Callable[[str, str], Location]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._read(_name_of(param), value)


def _name_of(param: click.Parameter | None) -> str:
    if param is None:
        return "PATH"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


LOCATION = _PathParam(lambda name, text: location(path_text(name, text)))
"""An argument that is a path or a URL."""


def only_local(path: Location) -> Path:
    """`path`, for what reads data on a disk alone."""
    if isinstance(path, Path):
        return path
    context = click.get_current_context(silent=True)
    command = "bridge-data" if context is None else context.command_path
    raise ConfigError(
        f"{path}: `{command}` takes data on a disk here. Run it there, then copy the folder to the store, with its "
        ".nv-meta."
    )


def only_on_disk(path: Location) -> Path:
    """`path`, for data that can only be prepared on a disk."""
    if isinstance(path, Path):
        return path
    raise ConfigError(
        f"{path}: in an object store only folders of tars are prepared, and without media metadata. Prepare it on a "
        "disk, then copy it to the store, with the files written next to it."
    )


ON_DISK = _PathParam(lambda name, text: only_local(location(path_text(name, text))))
"""An argument that is a path; a URL of a store is an error."""

OUTPUT = _PathParam(output)
"""A path or a URL to write to."""

OUTPUT_ON_DISK = _PathParam(lambda name, text: output_on_disk(name, text, COPY_IT))
"""A path to write to; a URL of a store is an error."""


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value}: expected a positive number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds()
"""A time that passes."""

Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer")


DATASET_CODE = "dataset-code"
"""What `--trust` calls the code beside the data; no module is called so."""


def _trusted(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The modules. They are searched for in the current folder, too, last (`python -m`: first), so that it shadows no
    package."""
    context.params["trust_dataset_code"] = DATASET_CODE in names
    modules = tuple(name for name in names if name != DATASET_CODE)
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return modules


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


def comma_separated(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    """`train,val` as names: the callback of an option."""
    return tuple(text.split(",")) if text else ()


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--world-size": {"type": click.IntRange(1, MAX_RANKS), "help": "Data-parallel ranks."},
    "--num-workers": {"type": click.IntRange(max=MAX_WORKERS), "help": "Processes that work."},
    "--global-batch-size": {"type": click.IntRange(min=1), "help": "Samples or packs of a step, of all ranks."},
    "--run-steps": {"type": click.IntRange(1, MAX_STEPS), "help": "Steps of the run."},
    "--measure": {"type": SECONDS, "help": "Measure how fast a rank's data are, for so long."},
    "--step-seconds": {"type": SECONDS, "help": "How long the trainer takes for a step."},
    "--split-part": {"metavar": "NAMES", "callback": comma_separated, "help": "Parts of the split."},
    "--split-config": {"metavar": "NAME", "help": "The file of the split in .nv-meta.  [default: split.yaml]"},
    "--dataset-config": {"metavar": "NAME", "help": "The file of the samples there.  [default: dataset.yaml]"},
    "--sample-type": {"metavar": "CLASS", "help": "The class of the samples, such as CaptioningSample, or crude."},
    "--field-map": {"help": "The part that fills each field: image=jpg,caption=json[caption], or JSON."},
    "--where": {"metavar": "EXPRESSION", "help": "Only samples for which this holds, such as 'jpg.bytes > 1000'."},
    "--columns": {"metavar": "FILE", "help": "For --where: a Parquet file with columns of your own, by `key`."},
    "--orientation": {
        "type": click.Choice(["ignore", "apply"]),
        "default": "ignore",
        "show_default": True,
        "help": "apply: turn images as their EXIF data say.",
    },
    "--limit": {"type": click.IntRange(min=1), "help": "So many, at most."},
    "--limits": {
        "metavar": "NAME=NUMBER,...",
        "callback": _limits,
        "help": "Limits for data that the defaults refuse: "
        f"{', '.join(field.name for field in dataclasses.fields(Limits))}.",
    },
    "--trust": {
        "metavar": "NAME",
        "multiple": True,
        "callback": _trusted,
        "help": "A module, also one in the current folder, that YAML files may name classes of; dataset-code: the code "
        "stored next to the data (sample_loader.py). Repeatable.",
    },
    "--executor": {
        "metavar": "WHERE",
        "default": "local",
        "show_default": True,
        "help": "Where the work is done: local, in processes; ray, on the cluster of this machine or of $RAY_ADDRESS; "
        "or the address of a Ray cluster. All its machines must see the data under the same path.",
    },
    "--force-overwrite": {"is_flag": True, "help": "Do it again where it was done, without asking."},
    "--non-interactive": {"is_flag": True, "help": "Ask nothing."},
    "--json": {"is_flag": True, "help": "Write one JSON document."},
    "--progress/--no-progress": {"default": True, "help": "Show progress."},
}
"""The options that several commands have, each of one type and one meaning, under the names of the Python interface
where there is one: as `click.option` takes them."""


def setting(
    name: str, *names: str, help: str | None = None, default: Any = None, more: str = ""
) -> Callable[[Command], Command]:
    """An option of `OPTIONS`. `help` replaces the usual one, `more` comes after it; `names` are others for the option,
    or for its argument in Python."""
    usual = dict(OPTIONS[name])
    shown = {} if default is None else {"default": default, "show_default": True}
    text = f"{help or usual['help']}{more and '  ' + more}"
    return click.option(name, *names, **{**usual, **shown, "help": text})


json_option = setting("--json", "as_json")
progress_option = setting("--progress/--no-progress")
executor_option = setting("--executor")
limits_option = setting("--limits")
"""Gives the command a `Limits`."""
trust_options = setting("--trust", "trusted_modules")
"""Permits code to be run: the arguments `trusted_modules` and `trust_dataset_code`."""


def where_options(command: Command) -> Command:
    """Add `--where` and `--columns`, which choose samples as the options of `get_train_dataset` do."""
    return setting("--where")(setting("--columns")(command))


def run_arguments(command: Command) -> Command:
    """Add RUN, and what overrides its settings."""
    overrides = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
    return click.argument("run_name", metavar="RUN")(overrides(command))


def note_assumed(run: "TrainingRun") -> None:
    """Print what the user did not say."""
    for sentence in run.assumed:
        note(f"assumed: {sentence}")


def is_given(name: str) -> bool:
    """Whether the user has given the option with this name in Python."""
    defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None)
    return click.get_current_context().get_parameter_source(name) not in defaults


def refuse_others(why: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse options of these names in Python that are given and not `known`.

    Raises:
        ConfigError: naming the first, and `why`.
    """
    for name in names:
        if name not in known and is_given(name):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


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
    """Add `--split-part`, a tuple of names (empty: not given), and the files of split and samples."""

    def add(command: Command) -> Command:
        parts = setting("--split-part", "split_parts", help=parts_help)
        return parts(setting("--split-config")(setting("--dataset-config")(command)))

    return add


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
