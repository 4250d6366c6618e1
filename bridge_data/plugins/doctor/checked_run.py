"""`bridge-data check --run`: what would stop or slow a run, each finding with the change and its gain."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from bridge_data.cli.terminal import echo_report, headed, note_assumed, table
from bridge_data.errors import counted
from bridge_data.plugins.doctor.findings import Finding, Level
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.run_checks import Checkup, examine, needed_batches_per_s

_COLOURS = {Level.STOPS: "red", Level.SLOWS: "yellow", Level.MIXES: "yellow", Level.NOTE: "cyan"}
_MAX_SOURCES = 20
"""Maximum data sets shown; of a large blend, those with the largest shares."""

_MAX_OF_A_KIND = 5
"""Maximum findings shown of each code."""


def check_run(run_name: str, overrides: Sequence[str], *, measure_s: float, as_json: bool, **own: Any) -> int:
    """Check a run, print what was found, and return the exit code: 1 if something would stop the run. `own` are fields
    of a `PlannedRun`."""
    run = PlannedRun.read(run_name, overrides, **own)
    note_assumed(run)
    encoder = run.task_encoder() if measure_s else None
    checkup = examine(run, measure_s=measure_s, task_encoder=encoder)
    echo_report(checkup, _shown(checkup), as_json=as_json)
    return 1 if checkup.stops else 0


def _shown(checkup: Checkup) -> Iterator[str]:
    yield headed(_facts(checkup)) + "\n"
    if checkup.sources:
        yield _sources(checkup) + "\n"
    shown: Counter[str] = Counter()
    for number, finding in enumerate(checkup.findings, 1):
        shown[finding.code] += 1
        if shown[finding.code] <= _MAX_OF_A_KIND:
            yield from _lines(number, finding)
    for code, count in shown.items():
        if count > _MAX_OF_A_KIND:
            yield f"… and {count - _MAX_OF_A_KIND:,} more of {code}; --json shows all\n"
    num_stops = sum(finding.level is Level.STOPS for finding in checkup.findings)
    verdict = f", {num_stops} of which would stop the run" if num_stops else ""
    yield counted(len(checkup.findings), "finding") + verdict if checkup.findings else "nothing to change"


def _facts(checkup: Checkup) -> Iterator[tuple[str, str]]:
    run, data, machine = checkup.run, checkup.run.options.data, checkup.environment
    yield "data set", checkup.path
    ranks = counted(run.num_ranks, "rank") + (
        f", later {', '.join(map(str, run.later_ranks))}" if run.later_ranks else ""
    )
    sizes = f"micro-batches of {run.micro_batch_size}, steps of {run.step_size:,}"
    unit = "packs" if data.packing_buffer_size else "samples"
    yield "run", f"{ranks}, {counted(run.num_workers, 'worker')} each, {sizes} {unit}"
    if data.where is not None:
        yield "where", data.where
    lanes = checkup.orders[0].geometry.num_lanes if checkup.orders else run.num_lanes
    settings = (
        f"shuffle_buffer_size {data.shuffle_buffer_size}, max_samples_per_sequence {data.max_samples_per_sequence}"
    )
    yield "order", settings + ("" if lanes is None else f", {counted(lanes, 'lane')}")
    yield (
        "machine",
        f"{machine.num_cores:g} cores, {machine.memory_bytes / 1e9:.0f} GB, "
        f"/dev/shm of {(machine.shm_bytes or 0) / 1e9:.1f} GB",
    )
    yield "decoders", ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    seen = checkup.seen
    if seen.num_shards:
        spread = "" if seen.num_looked_at == seen.num_shards else ", evenly spread"
        yield "shards", f"{seen.num_shards:,}, {seen.num_looked_at:,} looked at{spread}"
    if seen.num_remote:
        yield "in a store", f"{counted(seen.num_remote, 'shard')}, not looked at"
    if checkup.figures is not None:
        needed, figures = needed_batches_per_s(run), checkup.figures
        of_samples = figures.num_samples / figures.num_batches
        need = "" if needed is None else f", needed {needed * of_samples:,.1f}"
        yield "speed", f"{figures.samples_per_s:,.1f} samples/s of a rank on this machine{need}"
        if data.packing_buffer_size:
            yield "packs", f"of {checkup.samples_per_unit:.1f} samples"


def _sources(checkup: Checkup) -> str:
    orders = {id(order.source): order for order in checkup.orders}
    assert checkup.plan is not None
    rows = []
    pairs = sorted(zip(checkup.sources, checkup.plan.sources, strict=True), key=lambda pair: -pair[0].share)
    for drawn, source in pairs[:_MAX_SOURCES]:
        order = orders.get(id(source))
        mixing = ["", "", ""]
        if order is not None:
            about = "" if order.mixing.is_exact else "about "
            mixing = [
                f"{order.chunks.num_chunks:,}",
                f"{about}{order.mixing.inflation:.2f}",
                f"± {order.mixing.position_std:.3f}",
            ]
        epochs = "" if drawn.epochs is None else f"{drawn.epochs:,.2f}"
        rows.append([drawn.name, f"{drawn.num_samples:,}", f"{drawn.share:.2%}", epochs, *mixing])
    share = "of first draws" if checkup.plan.later_weights else "of draws"
    header = ["data set", "samples", share, "epochs", "chunks", "inflation", "correlation"]
    more = len(checkup.sources) - len(rows)
    return table(header, rows) + (f"\n… and {more} more" if more else "")


def _lines(number: int, finding: Finding) -> Iterator[str]:
    level = click.style(finding.level.name.lower(), fg=_COLOURS[finding.level], bold=True)
    yield f"{number}. {level}  {click.style(finding.code, bold=True)}"
    yield f"   {finding.what}"
    yield f"   → {finding.change}"
    if finding.gain:
        yield f"   gain: {finding.gain}"
    yield ""
