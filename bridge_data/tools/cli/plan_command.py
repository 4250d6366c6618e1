"""`bridge-data plan`: what a run will see, before it starts."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.planned import deal_of
from bridge_data.storage import is_remote
from bridge_data.task import DefaultTaskEncoder
from bridge_data.tools.cli.terminal import (
    counted,
    echo_report,
    headed,
    json_option,
    note,
    options_of,
    setting,
    table,
    trust_options,
    where_options,
)
from bridge_data.tools.planning import EXACT_SAMPLES, Planner, RunLength, RunPlan, Spread, Totals
from bridge_data.tools.runs import (
    BENCH_OPTIONS,
    data_module,
    find_run,
    is_config,
    is_run,
    named_encoder,
    training_settings,
)

_MAX_SOURCES = 20
"""Maximum data sets shown; of a large blend, those with the most samples drawn."""


@click.command()
@click.argument("path", metavar="RUN")
@click.option("--steps", type=int, help="Steps of the run.  [default: of the config, or one epoch]")
@click.option("--tokens", type=int, help="Tokens of the run, instead of steps.")
@click.option("--epochs", type=float, help="Epochs of the run, of all data or of --epochs-of, instead of steps.")
@click.option("--epochs-of", "source", metavar="SOURCE", help="The source of --epochs, such as photos/train.")
@click.option(
    "--exact-steps",
    type=click.IntRange(min=1),
    help=f"First steps that are planned one by one.  [default: as many as draw {EXACT_SAMPLES:,} samples]",
)
@setting("--task-encoder", more="[default: of the config]")
@setting("--world-size", default=1)
@setting("--num-lanes", more="[default: 8 for each rank]")
@setting("--batch-size", more="[default without a config: 16]")
@setting("--global-batch-size", more="[default: a micro-batch of each rank]")
@click.option("--packing", type=click.Choice(["online", "planned"]), help="How packs are made.")
@setting("--packing-buffer-size")
@click.option("--planning-window", type=int, help="Samples that are packed together, if packs are planned.")
@click.option("--balance", metavar="COST", help="The cost by which planned packs are dealt to ranks.")
@setting("--shuffle-buffer-size")
@setting("--max-samples-per-sequence")
@setting("--seed")
@setting("--split-part", more="[default: train]")
@where_options
@json_option
@trust_options
def plan(
    path: str,
    task_encoder: str | None,
    world_size: int,
    exact_steps: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what RUN will see, before it starts: steps, samples, tokens, epochs, the fill of packs, the loads of ranks.

    RUN is the YAML of a recipe or of a LightningCLI, MODULE:NAME of a DataModule, the folder of a run, or the path of a
    data set or metadataset, with options. Tokens are those of the cost index (`bridge-data measure`); no sample is
    read. Figures of the first steps are exact; those of a longer run are extrapolated from them.
    """
    config = str(find_run(Path(path)).config or path) if is_run(Path(path)) else path
    is_module = ":" in config and not is_remote(config) and not Path(config).exists()
    told: dict[str, Any] = {}
    data: Any = config
    run, encoder = BENCH_OPTIONS, None
    if is_module or (config.endswith((".yaml", ".yml")) and is_config(Path(config))):
        module = data_module(config)
        data, run, encoder = module.path, module.options, module.task_encoder
        told = {} if is_module else training_settings(Path(config))
    length = {name: options.pop(name) for name in ("steps", "tokens", "epochs", "source")}
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    run = run.with_options(**options_of(given))
    if task_encoder is not None or encoder is None:
        encoder = DefaultTaskEncoder() if task_encoder is None else named_encoder(task_encoder)
    steps, size = run.trainer, run.data.batch_size or 1
    per_step = world_size * told.get("num_accumulated", 1)
    schedule = BatchSchedule.for_ranks(steps.global_batch_size, size, steps.rampup_batch_size, per_step)
    if length == dict.fromkeys(length):
        samples = told.get("train_samples")
        length["steps"] = told.get("train_steps") if samples is None else schedule.step_after(samples)
        length |= {name: told.get(key) for name, key in (("tokens", "max_tokens"), ("epochs", "max_epochs"))}
        length["source"] = told.get("epochs_of")
    dataset = training_data(data, run.data, run.worker.changed(world_size=world_size), encoder)
    dataset = dataset.changed(deal=deal_of(run, schedule, world_size))
    dataset.skips = schedule.skips(steps.skip_steps)
    asked = None if length == dict.fromkeys(length) else RunLength(**length)
    begin = time.perf_counter()
    found = Planner(dataset, schedule).plan(asked, exact_steps=exact_steps)
    seconds = time.perf_counter() - begin
    echo_report(found, _shown(found), as_json=as_json)
    if not as_json:
        if found.exact.drawn is not None:
            click.echo(f"planned {int(found.exact.drawn.sum()):,} samples in {seconds:.1f} s")
        for sentence in found.notes:
            note(sentence)


def _shown(found: RunPlan) -> Iterator[str]:
    exact, run = found.exact, found.run
    columns = [exact] if found.is_exact else [exact, run]
    heads = ["the run"] if found.is_exact else [f"first {counted(exact.steps, 'step')}", "the run, about"]
    rows = [["steps", *(f"{one.steps:,}" for one in columns)], [found.unit, *(f"{one.units:,}" for one in columns)]]
    if found.unit == "packs" and run.samples is not None:
        rows.append(["samples in them", *(f"{one.samples:,}" for one in columns)])
    rows += [[name, *(f"{one.costs[at]:,}" for one in columns)] for at, name in enumerate(found.names)]
    if found.names:
        rows.append(["left out: skipped", *(f"{one.skipped:,}" for one in columns)])
        rows.append(["left out: too long", *(f"{one.too_long:,}" for one in columns)])
    yield table(["", *heads], rows) + "\n"
    if run.drawn is not None:
        yield _sources(found, columns, heads) + "\n"
    facts = []
    if found.fill is not None:
        facts.append(("packs", f"{found.fill:.2%} full, {1 - found.fill:.2%} padding"))
    for heading, spread, is_so in (
        ("undealt", found.undealt, not found.is_dealt),
        ("dealt", found.dealt, found.is_dealt),
    ):
        if spread is not None and found.num_ranks > 1:
            facts.append((heading, _loads(spread, found) + ("" if is_so else ", if it were so (balance)")))
    if facts:
        yield headed(facts)
    if not found.is_exact:
        yield f"The run is extrapolated from its first {counted(exact.steps, 'step')}, which are exact (--exact-steps)."


def _sources(found: RunPlan, columns: list[Totals], heads: list[str]) -> str:
    of_all = [found.epochs(one) or [] for one in columns]
    last = columns[-1].drawn
    assert last is not None
    order = sorted(range(len(found.sources)), key=lambda number: -int(last[number]))
    rows = [
        [
            found.sources[at][0],
            f"{found.sources[at][1]:,}",
            f"{last[at]:,}",
            *(f"{epochs[at]:,.3f}" for epochs in of_all),
        ]
        for at in order[:_MAX_SOURCES]
    ]
    more = len(order) - len(rows)
    header = ["data set", "samples", "drawn", *(f"epochs, {head}" for head in heads)]
    return table(header, rows) + (f"\n… and {more} more" if more else "")


def _loads(spread: Spread, found: RunPlan) -> str:
    return (
        f"greatest over mean {found.load} of {found.num_ranks} ranks: mean {spread.mean:.3f}, p99 {spread.p99:.3f}, "
        f"worst {spread.worst:.3f} in step {spread.worst_step:,}"
    )
