"""`bridge-data checkpoint diff`, `redist` and `skip`: compare saved data states, write them for other ranks, make their
runs skip steps. What a path may be, `bridge_data.plugins.checkpoints.checkpoint_command` says.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from bridge_data.cli.terminal import LOCATION, ON_DISK, OUTPUT, echo_json, json_option, note, setting, table
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, DatasetError, StateError, counted
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint, save_states
from bridge_data.loader.checkpoint.checkpoint_folder import (
    beside_state,
    holds_state,
    is_part_of_checkpoint,
    rank_files,
    read_bytes,
    with_state,
)
from bridge_data.loader.checkpoint.lightning_file import LIGHTNING_SUFFIX, write_lightning
from bridge_data.options import MAX_RANKS
from bridge_data.order.state import LoaderState
from bridge_data.plugins.checkpoints.checkpoint_command import key_option, read_one, saved_words
from bridge_data.plugins.checkpoints.state_differences import differences
from bridge_data.storage import Location, on_disk, write


@click.command()
@click.argument("first", metavar="A", type=LOCATION)
@click.argument("second", metavar="B", type=LOCATION)
@key_option
@setting("--limit", default=8, help="Lanes that differ to show, at most; --json has all.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context, first: Location, second: Location, keys: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """Show in what the data states at A and B differ: data and settings, position, lanes. Exit code 1 if they do."""
    a, b = read_checkpoint(first, keys), read_checkpoint(second, keys)
    of_all, of_lanes = differences(a.state, b.state)
    shown_lanes = list(of_lanes) if as_json else list(of_lanes)[:limit]
    rows = [*of_all, *(row for lane in shown_lanes for row in of_lanes[lane])]
    if as_json:
        states = [
            {"path": str(one.path), "step": one.step, "world_size": one.world_size, "num_bytes": one.num_bytes}
            for one in (a, b)
        ]
        echo_json({"states": states, "differences": [row.to_dict() for row in rows]})
        ctx.exit(1 if rows else 0)
    if rows:
        click.echo(table(("", "A", "B"), [(row.heading, *row.texts) for row in rows]))
    else:
        click.echo(
            f"the same state: {counted(a.state.num_lanes, 'lane')} after {a.state.num_handed_out:,} micro-batches"
        )
    if len(of_lanes) > limit:
        click.echo(f"and {counted(len(of_lanes) - limit, 'more lane')}")
    if (a.step, a.world_size) != (b.step, b.world_size):
        note(f"A was saved {saved_words(a)}; B was saved {saved_words(b)}")
    ctx.exit(1 if rows else 0)


@click.command()
@click.argument("sources", metavar="SRC...", type=LOCATION, nargs=-1, required=True)
@click.argument("target", metavar="DST", type=OUTPUT)
@key_option
@click.option(
    "--world-size", type=click.IntRange(1, MAX_RANKS), required=True, help="Data-parallel ranks to write files for."
)
@click.option("--step", type=click.IntRange(min=0), help="The step to record, if SRC does not say it.")
def redist(
    sources: tuple[Location, ...], target: Location, keys: tuple[str, ...], world_size: int, step: int | None
) -> None:
    """Write the whole data state at SRC, or in the files of all ranks, to the folder DST as files of another number of
    ranks.

    This is for trainers in which each rank reads only its own file and must have one; load_states takes any checkpoint
    unchanged. The file of rank 0 has all lanes, the others those of their rank. If the ranks cannot share the lanes
    equally, the DataModule's loader sends the state of rank 0 to all ranks, and they reshard it.
    """
    found = read_one(sources, keys)
    source = found.path
    if None not in (found.step, step) and found.step != step:
        raise ConfigError(f"--step {step}: {source} says that it is of step {found.step}")
    step = found.step if step is None else step
    if step is None:
        raise ConfigError(f"{source}: does not say its step; give --step")
    if holds_state(target):
        raise ConfigError(f"{target}: holds a data state already; give another folder")
    if missing := [lane for lane in range(found.state.num_lanes) if lane not in found.state.lanes]:
        raise StateError(
            f"{source}: lacks lanes {missing[:16]} of {found.state.num_lanes}: it is the file of one rank. "
            "Give the folder with the files of all ranks."
        )
    save_states(target, found.state.to_dict(), step=step, world_size=world_size)
    num_lanes = found.state.num_lanes
    if num_lanes % world_size:
        ranks, lanes = counted(world_size, "rank"), counted(num_lanes, "lane")
        note(f"{ranks} cannot share {lanes} equally: they will be resharded when restored")
    held = f"{'all ' * (num_lanes > 1)}{counted(num_lanes, 'lane')} in that of rank 0"
    click.echo(f"{target}: step {step:,}, {counted(world_size, 'file')}, {held}")


@click.command()
@click.argument("source", metavar="STATE", type=LOCATION)
@key_option
@click.option("--steps", metavar="A..B", multiple=True, required=True, help="Steps, both included. Repeatable.")
@click.option("--config", type=ON_DISK, help="The config of the run, which says what a step is.")
@setting("--global-batch-size", help="Samples or packs of a step, without a ramp.")
@click.option("--out", type=OUTPUT, help="A folder, or a file if STATE is one, to write.  [default: STATE itself]")
def skip(
    source: Location,
    keys: tuple[str, ...],
    steps: tuple[str, ...],
    config: Path | None,
    global_batch_size: int | None,
    out: Location | None,
) -> None:
    """Make the run that resumes from STATE skip the data of some steps.

    STATE is a folder of an iteration, a file with the state of the whole job, or a Lightning checkpoint (*.ckpt), in
    which the model and everything else stay unchanged. Steps are counted from 0 in the run without skips.
    Those before the saved step are left out. Skips that STATE already has remain.
    """
    found = read_checkpoint(source, keys)
    found.state.check_complete()
    schedule = _schedule(found.state, config, global_batch_size)
    skips = schedule.skips(steps)
    assert skips is not None
    state = found.state.skipping(skips)
    if behind := skips.not_skipped(state.skips):
        what = f"before the position of the state, which cannot be skipped: micro-batches {'; '.join(behind)}"
        if state is found.state:
            raise StateError(f"{source}: nothing to skip: {what}. Take a checkpoint that was saved before them")
        note(f"not skipped: {what}")
    if found.world_size is not None and state.skips is not None:
        state.skips.check_shared(state.micro_batch_index, found.world_size)
    target = out or source
    if source.is_dir():
        _write_folder(found, state, target)
    else:
        _write_file(source, keys, state, target)
    click.echo(f"{target}: {skips}")


def _schedule(state: LoaderState, config: Path | None, global_batch_size: int | None) -> BatchSchedule:
    """The size of a step in the run of `state`."""
    size = state.fingerprint.get("batch_size") or 1
    if config is None:
        if global_batch_size is None:
            raise ConfigError("what is a step? Give --config of the run, or --global-batch-size")
        return BatchSchedule(global_batch_size, size)
    from bridge_data.configs import DataConfig, look_here  # here: few calls need it

    look_here()
    run = DataConfig.read(config).run_options
    given = global_batch_size or run.trainer.global_batch_size
    if given is None:
        raise ConfigError(f"{config}: has no global_batch_size; give --global-batch-size")
    if (run.data.batch_size or 1) != size:
        raise ConfigError(
            f"{config}: has micro-batches of {run.data.batch_size}, the state has {size}: is it from this run?"
        )
    return BatchSchedule(given, size, run.trainer.rampup_batch_size)


def _write_folder(found: Checkpoint, state: LoaderState, target: Location) -> None:
    if target != found.path and holds_state(target):
        raise ConfigError(f"{target}: holds a data state already; give another folder")
    if found.step is None:
        raise ConfigError(f"{found.path}: does not say its step; name the folder as it was, such as iter_0001200")
    for path in rank_files(target).values() if target == found.path else ():
        if others := beside_state(read_bytes(path)):
            raise ConfigError(
                f"{path}: holds {others} beside the data state, which a new file would lack; write another folder "
                "with --out, or give skip_steps in the config of the run"
            )
    save_states(target, state.to_dict(), step=found.step, world_size=found.world_size or found.num_files)


def _write_file(source: Location, keys: Sequence[str], state: LoaderState, target: Location) -> None:
    if not keys and is_part_of_checkpoint(source):
        raise ConfigError(f"{source}: is a part of a checkpoint: give the folder {source.parent}")
    if target != source and target.exists():
        raise ConfigError(f"{target}: already exists; give another name")
    if (target.suffix == LIGHTNING_SUFFIX) != (source.suffix == LIGHTNING_SUFFIX):
        raise ConfigError(f"{target}: {source} is written with its other content; give a name with {source.suffix!r}")
    if source.suffix == LIGHTNING_SUFFIX and not keys:
        write_lightning(on_disk(source), state, on_disk(target))
        return
    try:
        write(target, with_state(read_bytes(source), state, keys))
    except (OSError, DatasetError) as error:
        raise StateError(f"{target}: was not written: {error}") from error
