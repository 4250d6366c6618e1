"""`bridge-data at`, `when` and `order`: the samples of a step, the steps of a sample, the samples of many steps as a
file, and the step from which two runs differ. They share the options that describe a run.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from bridge_data.cli.terminal import (
    LOCATION,
    OUTPUT_ON_DISK,
    echo_json,
    json_option,
    note,
    options_of,
    setting,
    table,
    trust_options,
    where_options,
)
from bridge_data.errors import BridgeDataError, ConfigError, counted
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.storage import Location
from bridge_data.tools.oracle import RunOrder, RunSample, first_difference, open_run, steps_text, write_order
from bridge_data.tools.runs import (
    RunFiles,
    RunSettings,
    data_module,
    find_run,
    found_states,
    is_run,
    is_state,
    named_encoder,
    newest_of,
    read_states,
)

Command = TypeVar("Command", bound=Callable[..., Any])

STATES_HELP = "What the run saved: a file (also a .ckpt), a folder of an iteration, or one with several. Repeatable."


def run_options(command: Command) -> Command:
    """Add the options that override settings of a config, or complete the path of data."""
    options = [
        click.option("--state", "states", multiple=True, type=LOCATION, help=STATES_HELP),
        setting("--world-size", more="[default: of the newest state, or 1]"),
        setting("--task-encoder", more="[default for packs: of the config]"),
        click.option(
            "--ledger",
            type=LOCATION,
            help="The folder of the run's ledger (`ledger_path`), which has what the micro-batches held.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            help="The data set of the run, if RUN is a folder without a config, or the data have moved.",
        ),
        click.option(
            "--lists",
            type=click.Choice(["now", "then"]),
            help="Which lists of forgotten samples apply after the last state, if they have changed since: those of "
            "now, for a run that resumes now, or those that the run had then.",
        ),
        click.option("--replay", is_flag=True, help="Run the hooks, even if the order can be computed."),
        setting("--batch-size"),
        setting("--global-batch-size", more="[default: that of the states, or a micro-batch a rank]"),
        setting("--num-lanes", more="[default: 8 for each rank]"),
        setting("--seed"),
        setting("--packing-buffer-size"),
        setting("--shuffle-buffer-size", more="[default: 100]"),
        setting("--max-samples-per-sequence"),
        setting("--split-part", more="[default: train]"),
    ]
    decorated = where_options(trust_options(command))
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def opened(
    path: Path,
    states: Sequence[Location],
    *,
    replay: bool,
    ledger: Location | None = None,
    data: Path | None = None,
    lists: Any = None,
    **options: Any,
) -> RunOrder:
    """The order of the run in the folder or the config at `path`, or over the data there, with the given `run_options`.

    Raises:
        ConfigError: if settings are missing, unknown, contradict each other or those in the states.
        StateError: for states of other data.
    """
    if path.is_file() and is_state(path):
        files, states = RunFiles(), (path, *states)
    else:
        files = find_run(path) if is_run(path) else RunFiles(config=path)
    left_out: list[str] = []
    saved = read_states(states) if states else found_states(files.states, left_out)
    for reason in left_out:
        note(f"left out: {reason}")
    if not states:  # a pass that is over says nothing of the next one
        saved = [one for one in saved if not one.state.ended and not one.state.repetition]
    source = files.config or data
    if source is None:
        raise ConfigError(
            f"{path}: a saved state alone, without the config of its run: give the data set that it reads (--data), or "
            f"the run, and this as --state {path}"
        )
    settings = RunSettings.read(source)
    is_config = settings.path != str(source)
    if data is not None:
        settings = dataclasses.replace(settings, path=str(data))
    if saved:
        _check_given(options, saved)
        settings = _of_states(settings, saved, options, is_config=is_config)
    elif not is_config and not path.exists():
        raise ConfigError(f"{path}: no such file or folder; expected the folder or the config of a run, or a data set")
    elif not is_config and options["batch_size"] is None:
        raise ConfigError(
            f"{path}: neither a config nor a state says the size of a micro-batch: give --batch-size, or the config, "
            "the folder or a --state of the run"
        )
    settings = _changed(settings, options)
    records = None if (folder := ledger or files.ledger) is None else RunLedger(folder)

    def with_encoder() -> RunSettings:
        return dataclasses.replace(settings, task_encoder=data_module(str(source)).task_encoder)

    is_unnamed = is_config and settings.task_encoder is None
    if is_unnamed and (settings.options.data.packing_buffer_size is not None or replay):
        settings, is_unnamed = with_encoder(), False
    run = open_run(settings, states=saved, replay=replay, records=records, lists=lists)
    if is_unnamed and run.needs_encoder:
        try:
            run = open_run(with_encoder(), states=saved, records=records, lists=lists)
        except BridgeDataError as error:  # what the ledger says is known without it
            note(f"the task encoder of {source} cannot be made: {error}")
    _check_steps(run, saved)
    return run


def _of_states(
    settings: RunSettings, saved: Sequence[Checkpoint], options: dict[str, Any], *, is_config: bool
) -> RunSettings:
    """`settings` with what the states say: all, if there is no config; of a config, the ranks of the newest."""
    if is_config:
        return dataclasses.replace(settings, world_size=newest_of(saved).world_size or 1)
    given = options["global_batch_size"] is not None
    return type(settings).of_states(
        settings.path, [dataclasses.replace(one, step=None) for one in saved] if given else saved
    )


_SAVED = ("batch_size", "seed", "packing_buffer_size", "shuffle_buffer_size", "max_samples_per_sequence")
"""Options whose values states have."""


def _check_given(options: dict[str, Any], saved: Sequence[Checkpoint]) -> None:
    """Check that no option contradicts the states.

    Raises:
        ConfigError: naming option, values and state.
    """
    newest = newest_of(saved)
    known = {name: newest.state.fingerprint.get(name) for name in _SAVED}
    for option, has in {**known, "num_lanes": newest.state.num_lanes}.items():
        given = options[option]
        if given is not None and (given or None) != (has or None):
            raise ConfigError(
                f"--{option.replace('_', '-')} {given}: the run had {has} when it saved {newest.path}; leave it "
                "out. What a resume with other settings would do, a config says that has them"
            )


def _check_steps(run: RunOrder, saved: Sequence[Checkpoint]) -> None:
    """Note a state whose step does not begin where the schedule lets it begin."""
    for one in saved:
        if one.step is not None and one.step >= 0 and not one.state.is_finite:
            first = run.micro_batches(one.step).start
            if first != one.state.num_handed_out:
                note(
                    f"{one.path} was saved at step {one.step:,} after {one.state.num_handed_out:,} micro-batches, and "
                    f"by this global batch size that step begins after {first:,}: steps are not those of the run's log"
                )
                return


def _changed(settings: RunSettings, options: dict[str, Any]) -> RunSettings:
    """The settings, overridden by the options that were given."""
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    changed: dict[str, Any] = {"options": settings.options.with_options(**options_of(given))}
    if "world_size" in given:
        changed["world_size"] = given["world_size"]
    if "task_encoder" in given:
        changed["task_encoder"] = named_encoder(given["task_encoder"])
    return dataclasses.replace(settings, **changed)


def steps_of(text: str) -> range:
    """The steps of `A..B`, both included, or of one number.

    Raises:
        ConfigError: for any other text.
    """
    first, _, last = text.partition("..")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise ConfigError(f"--steps {text}: expected A..B with 0 <= A <= B, such as 1200..1260")
    return range(int(first), int(last or first) + 1)


def samples_table(samples: Sequence[RunSample], *, with_step: bool = False) -> str:
    """A row for each sample."""
    packs = any(sample.place_in_pack is not None for sample in samples)
    header = ["source", *(["step"] if with_step else []), "micro-batch", "lane", "rank", "place"]
    header += [*(["in pack"] if packs else []), "epoch", "index", "key"]
    rows = [
        [
            sample.source,
            *([f"{sample.step:,}"] if with_step else []),
            f"{sample.micro_batch:,}",
            str(sample.lane),
            str(sample.rank),
            str(sample.place),
            *([str(sample.place_in_pack)] if packs else []),
            str(sample.epoch),
            f"{sample.index:,}",
            sample.key + (f" (part {sample.part})" if sample.part else ""),
        ]
        for sample in samples
    ]
    return table(header, rows)


def note_how(run: RunOrder, *, assumes_no_skips: bool) -> None:
    """Print how many samples were replayed, and what was assumed."""
    if run.num_replayed:
        note(f"replayed {counted(run.num_replayed, 'sample')}")
    if assumes_no_skips:
        note(
            "by arithmetic: right if no sample was left out before; --replay runs the hooks, a --state of a "
            "later step proves it"
        )


def _echo_json(run: RunOrder, samples: list[dict[str, Any]], **facts: Any) -> None:
    skips = None if run.skips is None else str(run.skips)
    echo_json({"samples": samples, "edits": skips, **facts})


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("step", type=click.IntRange(min=0))
@click.option("--rank", type=click.IntRange(min=0), help="Only those of this data-parallel rank.")
@run_options
@json_option
def at(path: Path, step: int, rank: int | None, states: tuple[Location, ...], as_json: bool, **options: Any) -> None:
    """Show the samples of the global batch of a STEP of RUN, counted from 0.

    RUN is the folder of a run (its config, states and ledger are found), the YAML of a recipe (as --print-config
    writes it) or of a LightningCLI, or the path of a data set or metadataset, with options.
    """
    run = opened(path, states, **options)
    found = run.at(step, rank=rank)
    if as_json:
        samples = [{**sample.to_dict(), "restore_key": sample.restore_key} for sample in found.samples]
        _echo_json(run, samples, num_replayed=found.num_replayed, assumes_no_skips=found.assumes_no_skips)
        return
    click.echo(samples_table(found.samples))
    if options["lists"] is not None and found.micro_batches.stop <= run.last_state:
        note(f"--lists says nothing of step {step:,}, for which there is a later state")
    if run.skips is not None:
        steps = " and ".join(f"{number:,}" for number in run.plain_steps(step))
        note(f"step {step:,} has the data of step {steps} of the run without skips ({run.skips})")
    note_how(run, assumes_no_skips=found.assumes_no_skips)


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("key", required=False)
@click.option("--source", default="", help="The source of the sample, by name or number.")
@click.option("--index", type=click.IntRange(min=0), help="The number of the sample in the source, instead of KEY.")
@click.option("--until", type=click.IntRange(min=0), required=True, help="The last step to look at.")
@run_options
@json_option
def when(
    path: Path,
    key: str | None,
    source: str,
    index: int | None,
    until: int,
    states: tuple[Location, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Show the steps of RUN in which the sample KEY (or SHARD:KEY) came or will come.

    Exit code 1 if some of the steps are not known, such as those before the first state of a run that was resharded.

    RUN is the folder of a run (its config, states and ledger are found), the YAML of a recipe (as --print-config
    writes it) or of a LightningCLI, or the path of a data set or metadataset, with options.
    """
    run = opened(path, states, **options)
    found = run.when(key, source=source, index=index, until=until, is_partial=True)
    unknown = run.unknown(until)
    if as_json:
        left_out = [{"first": steps[0], "last": steps[-1], "reason": reason} for steps, reason in unknown]
        samples = [sample.to_dict() for sample in found]
        _echo_json(run, samples, unknown_steps=left_out, assumes_no_skips=run.assumes_no_skips)
        click.get_current_context().exit(1 if unknown else 0)
    click.echo(samples_table(found, with_step=True) if found else f"not in steps 0 to {until:,}")
    if found:
        click.echo(f"{counted(len(found), 'time')} in steps 0 to {until:,}")
    for steps, reason in unknown:
        click.echo(f"not counted: {counted(len(steps), 'step')}, {steps_text(steps)}: {reason}")
    note_how(run, assumes_no_skips=run.assumes_no_skips)
    click.get_current_context().exit(1 if unknown else 0)


@click.command()
@click.argument("path", metavar="[RUN]", type=click.Path(path_type=Path), required=False)
@click.option("--steps", metavar="A..B", required=True, help="The steps to write or to compare, both included.")
@click.option("--out", type=OUTPUT_ON_DISK, help="A file .jsonl or .parquet.  [default: JSONL to stdout]")
@click.option(
    "--differences",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    help="Compare two runs, or two states from which RUN resumes.",
)
@run_options
def order(
    path: Path | None,
    steps: str,
    out: Path | None,
    differences: tuple[Path, Path] | None,
    states: tuple[Location, ...],
    **options: Any,
) -> None:
    """Write the samples of some steps of RUN, one a line; or with --differences compare two runs.

    Exit code 1 if these differ.

    RUN is the folder of a run (its config, states and ledger are found), the YAML of a recipe (as --print-config
    writes it) or of a LightningCLI, or the path of a data set or metadataset, with options.
    """
    chosen = steps_of(steps)
    if differences:
        if options["ledger"] is not None:
            raise ConfigError("--differences compares orders: give it without --ledger, which is of one run")
        runs = [_one_of(path, one, states, options) for one in differences]
        click.get_current_context().exit(_compare(runs, chosen))
    if path is None:
        raise ConfigError("expected the path of a run, or --differences with two")

    run = opened(path, states, **options)
    write_order(run, chosen, out)
    if out is not None:
        click.echo(f"{out}: {counted(len(chosen), 'step')}")
    note_how(run, assumes_no_skips=run.assumes_no_skips)


def _one_of(path: Path | None, one: Path, states: tuple[Location, ...], options: dict[str, Any]) -> RunOrder:
    """One of the two compared runs: a run, or RUN resumed from a state."""
    if not is_state(one):
        return opened(one, states, **options)
    if path is None:
        raise ConfigError(f"{one} is a state: name its run first, as in `bridge-data order RUN --differences A B`")
    return opened(path, (*states, one), **options)


def _compare(runs: list[RunOrder], steps: range) -> int:

    found = first_difference(*runs, steps=steps)
    for reason in found.reasons:
        click.echo(reason)
    if found.step is None:
        click.echo(f"the same samples in steps {steps[0]:,} to {steps[-1]:,}")
        return 0
    click.echo(f"the samples differ from step {found.step:,} on; the first that differs:")
    for name, sample in (("A", found.first), ("B", found.second)):
        click.echo(f"\n{name}\n" + ("no sample" if sample is None else samples_table([sample])))
    for run in runs:
        note_how(run, assumes_no_skips=run.assumes_no_skips)
    return 1
