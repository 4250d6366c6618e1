"""`bridge-data plan`: what a run will see, before it starts."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import (
    OUTPUT_ON_DISK,
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
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import counted
from bridge_data.lanes.datasets import training_data
from bridge_data.plugins.planned.planned_sources import assigned
from bridge_data.storage import is_remote
from bridge_data.task import DefaultTaskEncoder
from bridge_data.tools.planning import EXACT_SAMPLES, Planner, RunLength, RunPlan
from bridge_data.tools.runs import (
    BENCH_OPTIONS,
    data_module,
    find_run,
    is_config,
    is_run,
    named_encoder,
    training_settings,
)


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
@click.option("--balance", metavar="COST", help="The cost by which planned packs are assigned to ranks.")
@setting("--shuffle-buffer-size")
@setting("--max-samples-per-sequence")
@setting("--seed")
@setting("--split-part", more="[default: train]")
@click.option("--html", type=OUTPUT_ON_DISK, help="Also write it, with charts, to this file, as one page.")
@where_options
@json_option
@trust_options
def plan(
    path: str,
    task_encoder: str | None,
    world_size: int,
    exact_steps: int | None,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what RUN will see, before it starts: steps, samples, tokens, epochs, the fill of packs, the loads of ranks.

    RUN is the YAML of a recipe or of a LightningCLI, MODULE:NAME of a DataModule, the folder of a run, or the path of a
    data set or metadataset, with options. Tokens are those of the cost index (`prepare --costs`); no sample is read.
    Figures of the first steps are exact; those of a longer run are extrapolated from them.
    """
    config = str(find_run(Path(path)).config or path) if is_run(Path(path)) else path
    is_module = ":" in config and not is_remote(config) and not Path(config).exists()
    settings: dict[str, Any] = {}
    data: Any = config
    run, encoder = BENCH_OPTIONS, None
    if is_module or (config.endswith((".yaml", ".yml")) and is_config(Path(config))):
        module = data_module(config)
        data, run, encoder = module.path, module.options, module.task_encoder
        settings = {} if is_module else training_settings(Path(config))
    length = {name: options.pop(name) for name in ("steps", "tokens", "epochs", "source")}
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    run = run.with_options(**options_of(given))
    if task_encoder is not None or encoder is None:
        encoder = DefaultTaskEncoder() if task_encoder is None else named_encoder(task_encoder)
    steps, size = run.trainer, run.data.batch_size or 1
    per_step = world_size * settings.get("num_accumulated", 1)
    schedule = BatchSchedule.for_ranks(steps.global_batch_size, size, steps.rampup_batch_size, per_step)
    if length == dict.fromkeys(length):
        samples = settings.get("train_samples")
        length["steps"] = settings.get("train_steps") if samples is None else schedule.step_after(samples)
        length |= {name: settings.get(key) for name, key in (("tokens", "max_tokens"), ("epochs", "max_epochs"))}
        length["source"] = settings.get("epochs_of")
    dataset = training_data(data, run.data, run.worker.changed(world_size=world_size), encoder)
    dataset = assigned(dataset, run, schedule, world_size)
    dataset.skips = schedule.skips(steps.skip_steps)
    asked = None if length == dict.fromkeys(length) else RunLength(**length)
    begin = time.perf_counter()
    found = Planner(dataset, schedule).plan(asked, exact_steps=exact_steps)
    seconds = time.perf_counter() - begin
    if html is not None:
        from bridge_data.plugins.view.charts import write_plan  # imports slowly

        write_plan(html, path, found)
    echo_report(found, _shown(found), as_json=as_json)
    if not as_json:
        if found.exact.drawn is not None:
            click.echo(f"planned {int(found.exact.drawn.sum()):,} samples in {seconds:.1f} s")
        for sentence in found.notes:
            note(sentence)


def _shown(found: RunPlan) -> Iterator[str]:
    for heads, rows in found.tables():
        yield table(heads, rows) + "\n"
    if (more := len(found.sources) - len(found.shown_sources)) and found.run.drawn is not None:
        yield f"… and {more} more\n"
    if facts := [*found.facts()]:
        yield headed(facts)
    if not found.is_exact:
        first = counted(found.exact.steps, "step")
        yield f"The run is extrapolated from its first {first}, which are exact (--exact-steps)."
