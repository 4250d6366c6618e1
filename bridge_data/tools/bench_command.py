"""`bridge-data bench`: how fast a user's own pipeline is, and where its time goes."""

from collections.abc import Iterator
from typing import Any

import click

from bridge_data.cli.terminal import (
    LOCATION,
    echo_json,
    headed,
    json_option,
    note,
    options_of,
    progress_bar,
    progress_option,
    setting,
    sized,
    table,
    trust_options,
    where_options,
)
from bridge_data.storage import Location
from bridge_data.tools.bench import BenchConfig, Figures, Profile, advise, measure
from bridge_data.tools.bench import profile as profile_of
from bridge_data.tools.runs import BENCH_OPTIONS, named_encoder

_MAX_SOURCES = 20
"""Maximum data sets shown; of a large blend, the most expensive ones."""


@click.command()
@click.argument("path", type=LOCATION)
@click.option("--profile", "with_profile", is_flag=True, help="Show where the time goes, in a second run with clocks.")
@setting("--task-encoder")
@setting("--split-part", default="train")
@setting("--num-workers", default=BENCH_OPTIONS.worker.num_workers)
@setting("--batch-size", default=BENCH_OPTIONS.data.batch_size)
@setting("--packing-buffer-size", more="[default: no packing]")
@setting("--shuffle-buffer-size", default=BENCH_OPTIONS.data.shuffle_buffer_size)
@setting("--max-samples-per-sequence", default=BENCH_OPTIONS.data.max_samples_per_sequence)
@click.option(
    "--prefetch-factor",
    default=BENCH_OPTIONS.loader.prefetch_factor,
    show_default=True,
    help="Batches made ahead per worker.",
)
@click.option("--pin-memory", is_flag=True, help="Copy batches to page-locked memory, with CUDA.")
@setting("--step-seconds", "step_s", default=0.0, help="How long the trainer is busy after each batch.")
@click.option("--seconds", default=10.0, show_default=True, help="How long each run is measured.")
@click.option("--num-batches", type=int, help="Measure this many batches instead.")
@progress_option
@json_option
@where_options
@trust_options
def bench(
    path: Location,
    with_profile: bool,
    task_encoder: str | None,
    progress: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure how fast PATH becomes batches, and with --profile where the time goes.

    PATH is a prepared data set, a metadataset or a JSONL file, or the URL of one.
    """
    config = BenchConfig(
        path=path,
        task_encoder=None if task_encoder is None else named_encoder(task_encoder),
        options=BENCH_OPTIONS.with_options(**options_of(settings)),
        seconds=settings["seconds"],
        num_batches=settings["num_batches"],
        step_s=settings["step_s"],
    )
    trusted_modules = settings.pop("trusted_modules")
    length = f"{config.seconds:g} s" if config.num_batches is None else f"{config.num_batches} batches"
    note(f"measuring {length}{', and again with clocks' if with_profile else ''}")
    unit = "s" if config.num_batches is None else "batches"
    with progress_bar("measuring", unit, shown=progress) as on_progress:
        figures = measure(config, on_progress)
    if not as_json:
        click.echo(headed(_figures(path, config, figures)))
    profile = None
    if with_profile:
        with progress_bar("measuring with clocks", unit, shown=progress) as on_progress:
            profile = profile_of(config, on_progress)
        if not as_json:
            click.echo("\n".join(shown_profile(profile, figures)))
    if as_json:
        document = {
            "version": 1,
            "path": str(path),
            "settings": {**settings, "trusted_module": trusted_modules, "task_encoder": task_encoder},
            "figures": figures.to_dict(),
            **({} if profile is None else {"profile": {**profile.to_dict(), "advice": advise(profile)}}),
        }
        echo_json(document)


def _figures(path: Location, config: BenchConfig, figures: Figures) -> list[tuple[str, str]]:
    rate = sized(figures.samples_per_s * figures.sample_bytes)
    rows = [
        ("data set", f"{path} [{config.options.data.split_part}]"),
        (
            "speed",
            f"{figures.samples_per_s:,.1f} samples/s, {figures.batches_per_s:,.1f} batches/s, about {rate}/s read",
        ),
        ("CPU", f"{figures.cpu_s_per_1000:.3g} s for 1,000 samples, of all processes"),
        ("first batch", f"after {figures.first_batch_s:.2f} s"),
        ("save", f"{figures.save_s * 1000:.3f} ms, {sized(figures.state_bytes)}"),
        ("restore", f"{figures.restore_s:.2f} s to the first batch"),
    ]
    if (num_workers := config.options.worker.num_workers) > 0:
        rows.insert(4, ("workers", f"{num_workers}, running after {figures.workers_ready_s:.2f} s"))
    if figures.num_skipped:
        rows.insert(2, ("left out", f"{figures.num_skipped:,} of {figures.num_samples:,} samples"))
    if config.options.data.where is not None:
        rows.insert(1, ("where", config.options.data.where))
    return rows


def shown_profile(profile: Profile, figures: Figures) -> Iterator[str]:
    """The lines that show a profile; `figures` are those of the same run without clocks."""
    yield ""
    per_sample, per_batch = 1e6 / max(1, profile.num_samples), 1e3 / profile.num_batches
    rows = [
        [s.name, f"{s.seconds * per_sample:,.1f}", f"{s.seconds * per_batch:,.2f}", f"{s.share:.1%}", f"{s.waited:.0%}"]
        for s in profile.stages
    ]
    total_s = profile.total_s
    rows.append(["all work", f"{total_s * per_sample:,.1f}", f"{total_s * per_batch:,.2f}", "100.0%", ""])
    yield table(["stage", "µs/sample", "ms/batch", "share", "waits"], rows)
    yield ""
    trainer = profile.trainer
    if profile.num_workers:
        yield f"workers  work {profile.busy:.0%} of their time, wait for the trainer {1 - profile.busy:.0%}"
        parts = {
            "waits for batches": trainer.waiting_s,
            "receives": trainer.receiving_s,
            "does its step": trainer.step_s,
        }
        yield "trainer  " + ", ".join(f"{what} {seconds / trainer.seconds:.0%}" for what, seconds in parts.items())
    rate = profile.num_samples / trainer.seconds
    yield f"clocks   {rate:,.1f} samples/s with them, {figures.samples_per_s:,.1f} without"
    if len(profile.sources) > 1:
        yield ""
        yield _sources(profile)
    yield ""
    yield from advise(profile)


def _sources(profile: Profile) -> str:
    """Table of µs per sample of each data set, by stage."""
    stages = [stage.name for stage in profile.stages if any(stage.name in s.seconds for s in profile.by_source)]
    rows = []
    for source in profile.by_source[:_MAX_SOURCES]:
        scale = 1e6 / max(1, source.num_samples)
        times = [source.seconds[stage] * scale if stage in source.seconds else None for stage in stages]
        shown = ["" if time is None else f"{time:,.1f}" for time in times]
        every = f"{sum(source.seconds.values()) * scale:,.1f}"
        rows.append([source.name, f"{source.num_samples:,}", *shown, every, f"{source.share:.1%}"])
    shown_table = table(["data set, µs/sample", "samples", *stages, "all", "share"], rows)
    more = len(profile.sources) - len(rows)
    return shown_table + (f"\n… and {more} more that cost less" if more > 0 else "")
