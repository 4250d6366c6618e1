"""`bridge-data order`: the samples of a step, the steps of a sample, the samples of many steps as a file, and the step
from which two runs differ.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import (
    LOCATION,
    OUTPUT_ON_DISK,
    echo_json,
    json_option,
    note,
    note_assumed,
    progress_bar,
    run_arguments,
    setting,
    table,
)
from bridge_data.configs import is_run_folder
from bridge_data.errors import BridgeDataError, ConfigError, counted
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.options import MAX_STEPS
from bridge_data.runs.run_order import RunOrder, RunSample, first_difference, steps_text, write_order
from bridge_data.runs.saved_files import (
    RECORDS,
    SavedFiles,
    found_states,
    is_state,
    ranks_of,
    read_states,
    saved_files,
    without_abandoned,
)
from bridge_data.runs.training_run import TrainingRun
from bridge_data.storage import Location

STATES_HELP = "What the run saved: a file (also a .ckpt), a folder of an iteration, or one with several. Repeatable."


def opened(
    run_name: str,
    overrides: Sequence[str] = (),
    *,
    states: Sequence[Location] = (),
    world_size: int | None = None,
    replay: bool = False,
) -> tuple[TrainingRun, RunOrder]:
    """A run, and its order, by the states and the ledger in its folder, or those that are given.

    Raises:
        ConfigError: if settings are missing, unknown, or contradict each other or those in the states.
        StateError: for states of other data.
    """
    path = Path(run_name)
    if path.exists() and is_state(path):
        raise ConfigError(
            f"{run_name}: a saved state alone is no run: give its config, or the data that it reads; and this as "
            "--state"
        )
    files = saved_files(path) if is_run_folder(path) else SavedFiles()
    left_out: list[str] = []
    saved = read_states(states) if states else found_states(without_abandoned(files.states, left_out), left_out)
    for reason in left_out:
        note(f"left out: {reason}")
    if not states:  # a pass that is over says nothing of the next one
        saved = [one for one in saved if not one.state.ended and not one.state.repetition]
    run = TrainingRun.read(run_name, overrides, states=saved, num_ranks=world_size)
    note_assumed(run)
    run.schedule.check(0, run.num_ranks)
    own = run.options.loader.ledger_path
    folder = files.records if own is None or not Path(own).is_dir() else Path(own)
    records = None if folder is None else RECORDS.get(f"the records in {folder}")(folder)
    encoder = run.data.build_task_encoder() if run.names_encoder and (replay or run.is_packing) else None

    def order(encoder: Any) -> RunOrder:
        return RunOrder(
            run.dataset(encoder),
            schedule=run.schedule,
            states=[one.state for one in saved],
            replay=replay,
            records=records,
            num_ranks=ranks_of(saved),
        )

    found = order(encoder)
    if found.needs_encoder and run.names_encoder:
        try:
            found = order(run.data.build_task_encoder())
        except BridgeDataError as error:  # what the ledger says is known without it
            note(f"the task encoder of {run_name} cannot be made: {error}")
    _check_steps(found, saved)
    return run, found


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


def steps_of(text: str) -> range:
    """The steps of `A..B`, both included, or of one number.

    Raises:
        ConfigError: for any other text.
    """
    first, _, last = text.partition("..")
    is_number = first.isdecimal() and (last or first).isdecimal()
    if not is_number or not int(first) <= int(last or first) <= MAX_STEPS:
        raise ConfigError(f"--steps {text}: expected A..B with 0 <= A <= B <= {MAX_STEPS:,}, such as 1200..1260")
    return range(int(first), int(last or first) + 1)


@click.command()
@run_arguments
@click.option("--step", type=click.IntRange(0, MAX_STEPS), help="Show the samples of the global batch of this step.")
@click.option("--key", help="Show the steps of the sample KEY, or SHARD:KEY.")
@click.option("--index", type=click.IntRange(min=0), help="The number of the sample in --source, instead of --key.")
@click.option("--source", default="", help="The source of the sample, by name or number.")
@click.option("--steps", metavar="A..B", help="The steps to look at, both included.  [default: those of an epoch]")
@click.option("--diff", metavar="OTHER", help="Compare with another run.")
@click.option("--out", type=OUTPUT_ON_DISK, help="A file .jsonl or .parquet.  [default: JSONL to stdout]")
@click.option("--state", "states", multiple=True, type=LOCATION, help=STATES_HELP)
@setting("--world-size", more="[default: of the newest state, or 1]")
@click.option("--replay", is_flag=True, help="Run the hooks, even if the order can be computed.")
@json_option
@click.pass_context
def order(
    context: click.Context,
    /,
    run_name: str,
    overrides: tuple[str, ...],
    step: int | None,
    key: str | None,
    index: int | None,
    source: str,
    steps: str | None,
    diff: str | None,
    out: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Show the samples of a step of RUN, the steps of a sample, or where two runs differ.

    RUN is a YAML of LightningCLI, package.module:name of a Python function that returns the run, the folder of a run
    (its config, states and ledger are found), or the path of data; KEY=VALUE override its settings. With --steps
    alone, the samples of these steps are written, one a line. Steps are counted from 0. Exit code 1 if steps are not
    known, or runs differ.
    """
    asked = [step is not None, key is not None or index is not None, diff is not None]
    if sum(asked) > 1 or (not any(asked) and steps is None):
        raise ConfigError("give one of --step, --key (or --index with --source), --diff OTHER; or --steps alone")
    if as_json and not any(asked):
        raise ConfigError("--json: --steps alone writes JSON lines; leave it out")
    chosen = None if steps is None else steps_of(steps)
    run, found = opened(run_name, overrides, **how)
    if step is not None:
        _show_step(found, step, as_json=as_json)
        return
    if chosen is None:
        chosen = range(_steps_of_epoch(run, found))
    if diff is not None:
        (_, other) = opened(diff, overrides, **{**how, "states": ()})
        context.exit(_show_difference((run_name, diff), (found, other), chosen, as_json=as_json))
    if key is not None or index is not None:
        context.exit(_show_times(found, chosen, key, source, index, as_json=as_json))
    write_order(found, chosen, out)


def _steps_of_epoch(run: TrainingRun, order: RunOrder) -> int:
    """The steps of the run, or else of one epoch."""
    num_samples = order.dataset.plan.num_samples
    found = run.steps or -(-num_samples // order.schedule.global_batch_size)
    note(f"assumed: steps 0 to {found - 1:,}, {'the run' if run.steps else 'an epoch'} (--steps)")
    return found


def _samples_table(samples: Sequence[RunSample], *, with_step: bool = False) -> str:
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
            *(["–" if sample.place_in_pack is None else str(sample.place_in_pack)] if packs else []),
            str(sample.epoch),
            f"{sample.index:,}",
            sample.key + (f" (part {sample.part})" if sample.part else ""),
        ]
        for sample in samples
    ]
    return table(header, rows)


def _note_how(run: RunOrder, *, assumes_no_skips: bool) -> None:
    """Print how many samples were replayed, and what was assumed."""
    if run.num_replayed:
        note(f"replayed {counted(run.num_replayed, 'sample')}")
    if assumes_no_skips:
        note("assumed: hooks have skipped no sample before (--replay runs them)")


def _echo_json(run: RunOrder, samples: list[dict[str, Any]], **facts: Any) -> None:
    echo_json({"samples": samples, "edits": None if run.skips is None else str(run.skips), **facts})


def _show_step(run: RunOrder, step: int, *, as_json: bool) -> None:
    found = run.at(step)
    if as_json:
        samples = [{**sample.to_dict(), "restore_key": sample.restore_key} for sample in found.samples]
        _echo_json(run, samples, num_replayed=found.num_replayed, assumes_no_skips=found.assumes_no_skips)
        return
    click.echo(_samples_table(found.samples))
    if run.skips is not None:
        steps = " and ".join(f"{number:,}" for number in run.plain_steps(step))
        note(f"step {step:,} has the data of step {steps} of the run without skips ({run.skips})")
    _note_how(run, assumes_no_skips=found.assumes_no_skips)


def _show_times(run: RunOrder, steps: range, key: str | None, source: str, index: int | None, *, as_json: bool) -> int:
    """Show where a sample comes; return the exit code."""
    with progress_bar("looking through", "micro-batches", shown=True) as on_progress:
        found = run.when(key, source=source, index=index, steps=steps, on_progress=on_progress)
    unknown = run.unknown(steps)
    if as_json:
        left_out = [{"first": some[0], "last": some[-1], "reason": reason} for some, reason in unknown]
        samples = [sample.to_dict() for sample in found]
        _echo_json(run, samples, unknown_steps=left_out, assumes_no_skips=run.assumes_no_skips)
        return 1 if unknown else 0
    where = steps_text(steps)
    click.echo(_samples_table(found, with_step=True) if found else f"not in {where}")
    if found:
        click.echo(f"{counted(len(found), 'time')} in {where}")
    if run.is_withheld(key, source=source, index=index):
        note("the sample is forgotten (`bridge-data forget --list`): no later step has it")
    for some, reason in unknown:
        click.echo(f"not counted: {counted(len(some), 'step')}, {steps_text(some)}: {reason}")
    _note_how(run, assumes_no_skips=run.assumes_no_skips)
    return 1 if unknown else 0


def _show_difference(names: tuple[str, str], runs: tuple[RunOrder, RunOrder], steps: range, *, as_json: bool) -> int:
    """Show where two runs differ; return the exit code."""
    found = first_difference(*runs, steps=steps)
    if as_json:
        samples = [None if sample is None else sample.to_dict() for sample in (found.first, found.second)]
        echo_json({"runs": names, "step": found.step, "reasons": list(found.reasons), "samples": samples})
        return 0 if found.step is None else 1
    for reason in found.reasons:
        click.echo(reason)
    if found.step is None:
        click.echo(f"the same samples in {steps_text(steps)}")
        return 0
    click.echo(f"step {found.step:,} is the first whose samples differ, from here on:")
    for name, sample in zip(names, (found.first, found.second), strict=True):
        click.echo(f"  {os.path.basename(name) or name}: {'none' if sample is None else sample.key}")
    return 1
