"""What `bridge-data at`, `when` and `order` share: the options that say what a run is, and how samples are shown."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bridge_data.errors import ConfigError
from bridge_data.tools.cli.terminal import counted, note, table, trust_options

if TYPE_CHECKING:
    from bridge_data.tools.oracle import RunOrder, RunSample, RunSettings

Command = TypeVar("Command", bound=Callable[..., Any])

STATES_HELP = "What the run saved: a file (also a .ckpt), a folder of an iteration, or one with several. Repeatable."

_DATASET = {"split_part": "split_part", "trusted_module": "trusted_modules", "trust_dataset_code": "trust_dataset_code"}
_WORKERS = {"seed": "seed_offset", "num_lanes": "num_lanes"}


def run_options(command: Command) -> Command:
    """Add the options that replace settings of a config, or complete the path of data."""
    options = [
        click.option("--state", "states", multiple=True, type=click.Path(path_type=Path), help=STATES_HELP),
        click.option(
            "--world-size",
            type=click.IntRange(min=1),
            help="Data-parallel ranks now.  [default: of the newest state, or 1]",
        ),
        click.option(
            "--task-encoder",
            metavar="MODULE:NAME",
            help="The TaskEncoder of the run, or a function that makes one.  [default for packs: of the config]",
        ),
        click.option(
            "--ledger",
            type=click.Path(path_type=Path),
            help="The folder of the run's ledger (`ledger_path`), which has what the micro-batches held.",
        ),
        click.option("--replay", is_flag=True, help="Run the hooks, also where arithmetic would do."),
        click.option("--batch-size", type=int, help="Samples or packs of a micro-batch; 0: single samples."),
        click.option(
            "--global-batch-size", type=int, help="Samples or packs of a step.  [default: a micro-batch a rank]"
        ),
        click.option("--num-lanes", type=int, help="Lanes of the job.  [default: 8 for each rank]"),
        click.option("--seed", type=int, help="The seed of the run."),
        click.option("--packing-buffer-size", type=int, help="Samples among which packs are chosen."),
        click.option("--shuffle-buffer-size", type=int, help="Samples to be mixed at least.  [default: 100]"),
        click.option("--max-samples-per-sequence", type=int, help="Neighbouring samples of a chunk."),
        click.option("--split-part", help="The part of the split.  [default: train]"),
    ]
    decorated = trust_options(command)
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def opened(
    path: Path, states: Sequence[Path], *, replay: bool, ledger: Path | None = None, **options: Any
) -> "RunOrder":
    """The order of the run in the config at `path`, or over the data there, with the `run_options` that were given.

    Raises:
        ConfigError: if settings are missing, unknown, or contradict each other. StateError: for states of other data.
    """
    from bridge_data.loader.ledger_files import RunLedger
    from bridge_data.tools.oracle import RunSettings, open_run, read_states
    from bridge_data.tools.view.named_runs import data_module

    saved = read_states(states)
    settings = _changed(RunSettings.read(path), options)
    is_config = settings.path != str(path)
    if is_config and settings.packing_buffer_size is not None and settings.task_encoder is None:
        settings = dataclasses.replace(settings, task_encoder=data_module(str(path)).task_encoder)
    if options["world_size"] is None and (newest := max(saved, key=lambda one: one.state.next_slot, default=None)):
        settings = dataclasses.replace(settings, world_size=newest.world_size or 1)
    records = None if ledger is None else RunLedger(ledger)
    return open_run(settings, states=saved, replay=replay, records=records)


def _changed(settings: "RunSettings", options: dict[str, Any]) -> "RunSettings":
    """The settings with those that were given as options."""
    given = {name: value for name, value in options.items() if value not in (None, (), False)}
    if "batch_size" in given:
        given["batch_size"] = given["batch_size"] or None
    encoder = given.pop("task_encoder", None)
    if encoder is not None:
        from bridge_data.tools.named_encoder import named_encoder

        given["task_encoder"] = named_encoder(encoder)
    dataset = {_DATASET[name]: given.pop(name) for name in list(given) if name in _DATASET}
    workers = {_WORKERS[name]: given.pop(name) for name in list(given) if name in _WORKERS}
    given |= {"dataset": {**settings.dataset, **dataset}, "workers": {**settings.workers, **workers}}
    return dataclasses.replace(settings, **given)


def steps_of(text: str) -> range:
    """The steps of `A..B`, both included, or of one number.

    Raises:
        ConfigError: for another text.
    """
    first, _, last = text.partition("..")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise ConfigError(f"--steps {text}: expected A..B with 0 <= A <= B, such as 1200..1260")
    return range(int(first), int(last or first) + 1)


def samples_table(samples: Sequence["RunSample"], *, with_step: bool = False) -> str:
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


def note_how(run: "RunOrder", *, assumes_no_skips: bool) -> None:
    """Say how many samples were replayed, and what was taken for granted."""
    if run.num_replayed:
        note(f"replayed {counted(run.num_replayed, 'sample')}")
    if assumes_no_skips:
        note(
            "by arithmetic: right if no sample was left out before; --replay runs the hooks, a --state of a "
            "later step proves it"
        )
