"""`bridge-data checkpoint verify`: whether the checkpoints of a run, its ledger and its data agree on its samples.

Reads the folders of checkpoints; the ledger files; the data. Returns for each checkpoint the sums in its state,
compared with those of the ledger files and with those of the order (see `run_sections`), from data and settings alone.
No sample is read. A swapped, lost or repeated sample changes a sum. States have sums if the run had a `ledger_path`.

The order can be computed only without packing, groups, filters, generators and reshards.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import (
    LOCATION,
    echo_json,
    json_option,
    table,
    trust_options,
)
from bridge_data.configs import DataConfig
from bridge_data.errors import ConfigError, StateError, counted
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.order.state import LoaderState
from bridge_data.plugins.ledger.ledger import sums_of
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.plugins.ledger.ledger_sums import LedgerSums, packed_references, tallies
from bridge_data.run_options import SECTION_OF
from bridge_data.runs.run_sections import RunSection, section_to
from bridge_data.runs.saved_files import read_states, saved_files
from bridge_data.runs.training_run import TrainingRun, settings_of_state
from bridge_data.storage import Location


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What a checkpoint was compared with: `source` is "ledger" or "data". `sums` is None if there is nothing to
    compare (`why` has the reason); else `is_same` says whether they equal those of the state."""

    checkpoint: Checkpoint
    source: str
    expected: LedgerSums | None
    sums: LedgerSums | None
    why: str = ""

    @property
    def is_same(self) -> bool:
        """Whether samples and both sums are equal."""
        if self.sums is None or self.expected is None:
            return False
        return dataclasses.replace(self.sums, since=self.expected.since) == self.expected

    @property
    def result(self) -> str:
        """ "equal", "different", "lacking" (micro-batches in the ledger), or "not compared"."""
        if self.sums is not None:
            return "equal" if self.is_same else "different"
        return "lacking" if "lacks" in self.why else "not compared"

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data for JSON."""
        return {
            "checkpoint": str(self.checkpoint.path),
            "num_micro_batches": self.checkpoint.state.num_handed_out,
            "compared_with": self.source,
            "result": self.result,
            "reason": self.why or None,
            "state": None if self.expected is None else self.expected.to_dict(),
            "found": None if self.sums is None else self.sums.to_dict(),
        }


def compare_with_ledger(checkpoints: Sequence[Checkpoint], ledger_files: RunLedger) -> list[Comparison]:
    """Compare checkpoints, sorted by position, with ledger files."""
    states = [checkpoint.state for checkpoint in checkpoints]
    positions = [_position(state) for state in states]
    sums, counts, last = [LedgerSums()] * len(states), [0] * len(states), (0, -1)
    expected = [sums_of(state) for state in states]
    sinces = [0 if one is None else one.since for one in expected]
    for at, one in ledger_files.sums():
        last = max(last, at)
        first = bisect.bisect_right(positions, at)
        while first and _has(states[first - 1], at):
            first -= 1
        if first < len(states) and (at[0] or at[1] >= sinces[first]):
            sums[first], counts[first] = sums[first].plus(one), counts[first] + 1
    findings, so_far, count = [], LedgerSums(), 0
    for number, checkpoint in enumerate(checkpoints):
        so_far, count, state = so_far.plus(sums[number]), count + counts[number], states[number]
        why = _NO_SUMS if expected[number] is None else _lacking(state, count, sinces[number], last)
        findings.append(Comparison(checkpoint, "ledger", expected[number], None if why else so_far, why))
    return findings


_NO_SUMS = "the state has no sums: the run had no ledger_path when it saved it"


def _position(state: LoaderState) -> tuple[int, int]:
    return state.repetition, state.micro_batch_index


def _has(state: LoaderState, at: tuple[int, int]) -> bool:
    """Whether a micro-batch was handed out before `state`."""
    repetition, number = at
    if repetition != state.repetition:
        return repetition < state.repetition
    num_had = state.num_made(number % state.num_lanes)
    return number // state.num_lanes < num_had


def _lacking(state: LoaderState, count: int, since: int, last: tuple[int, int]) -> str:
    """Why the ledger lacks micro-batches that `state` counts; "" if it has all, or if that cannot be known."""
    expected = (sum(map(state.num_made, state.lanes)) if state.skips is None else state.num_handed_out) - since
    if state.repetition or count >= expected:
        return ""
    if expected - count <= state.micro_batch_index - 1 - last[1]:
        return f"the ledger ends with micro-batch {last[1]}"
    return f"the ledger lacks {expected - count} micro-batches"


def compare_with_data(checkpoints: Sequence[Checkpoint], path: str, **options: Any) -> list[Comparison]:
    """Compare checkpoints with the order computed from the training data at `path`, opened with `options`.

    Raises:
        ConfigError: if the data cannot be opened.
    """
    findings, opened = [], dict[str, LaneDataset]()
    for checkpoint in checkpoints:
        state, sums = checkpoint.state, None
        why = _not_computable(state)
        if not why:
            settings = settings_of_state(state) | options
            dataset = opened.get(repr(settings))
            if dataset is None:
                run = TrainingRun(data=DataConfig(path=path, options=settings))
                opened = {repr(settings): (dataset := run.dataset())}
            sums, why = _computed(state, dataset)
        findings.append(Comparison(checkpoint, "data", sums_of(state), sums, why))
    return findings


def _not_computable(state: LoaderState) -> str:
    """Why the order up to a state cannot be computed; "" if it can."""
    if state.fingerprint["order"] != "shuffled" or state.fingerprint.get("packing_buffer_size") is not None:
        return "the order can be computed only for training without packing"
    if (sums := sums_of(state)) is None:
        return _NO_SUMS
    if len(state.generations) > 1 or state.drawn_before or state.repetition or sums.since:
        return "the lanes were resharded, or not counted from the beginning"
    if "withheld" in state.extras and state.skips is not None:
        return "samples were forgotten in a run that skips steps: only a ledger says which"
    return ""


def _computed(state: LoaderState, dataset: LaneDataset) -> tuple[LedgerSums | None, str]:
    batch_size = {"batch_size": state.fingerprint["batch_size"]}
    try:
        section = section_to(dataset, state)
    except StateError:
        section = None
    if section is None or state.differences(state.fingerprint | dataset.order.fingerprint() | batch_size):
        return None, "the data or their blend are not those of the run"
    if section.unknown:
        return None, "samples were left out, grouped, or made of others: only a ledger says which"
    return _sums(section, state), ""


_MANY_MICRO_BATCHES = 1_000
"""Micro-batches of a lane whose sums are made together."""


def _sums(section: RunSection, state: LoaderState) -> LedgerSums:
    """The sums over the samples that the run handed out from the beginning of the section to `state`."""
    found, skips = LedgerSums(), section.state.skips or ()
    for lane in state.lanes:
        num_made = state.num_made(lane)
        for first in range(0, num_made, _MANY_MICRO_BATCHES):
            batches = []
            made = section.lane(lane).units(first, min(_MANY_MICRO_BATCHES, num_made - first))
            for place, units in enumerate(made, start=first):
                number = place * section.num_lanes + lane
                refs = [ref._replace(output=max(0, ref.output)) for unit in units for ref in unit]
                if number not in skips:
                    batches.append((number, packed_references(refs)))
            for one in tallies(batches, section.source_ids):
                found = found.plus(one)
    return found


_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.argument("run", type=_FOLDER)
@click.option("--ledger", type=LOCATION, help="The folder of ledger_path.  [default: found below RUN]")
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The data set that the run trained on.")
@trust_options
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    run: Path,
    ledger: Location | None,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare the checkpoints below the folder RUN with the samples in the run's ledger, and with its data.

    For runs with a ledger_path: without one, states have no sums to compare.

    The sums in each state are computed again: from the ledger files, and with --data from the data set alone, if the
    order can be computed (no packing, groups, filters, generators, reshards). Exit code 1 if they differ.
    """
    files = saved_files(run)
    checkpoints = sorted(read_states(files.states), key=lambda checkpoint: _position(checkpoint.state))
    folder = ledger or files.records
    if not checkpoints:
        raise ConfigError(f"{run}: holds no data state, nor do the folders below it")
    if folder is None and data is None:
        raise ConfigError(f"{run}: holds no ledger; give --ledger, or the data set of the run (--data)")
    findings = [] if folder is None else compare_with_ledger(checkpoints, RunLedger(folder))
    if data is not None:
        of_data = {name: value for name, value in options.items() if name in SECTION_OF}
        findings += compare_with_data(checkpoints, str(data), **of_data)
    num_same = sum(finding.is_same for finding in findings)
    different = [finding for result in ("different", "lacking") for finding in findings if finding.result == result]
    if as_json:
        comparisons = [finding.to_dict() for finding in findings]
        echo_json({"comparisons": comparisons, "num_equal": num_same, "num_different": len(different)})
    else:
        click.echo(table(("checkpoint", "micro-batches", "samples", "compared with", ""), [*map(_row, findings)]))
        for finding in different[:1]:
            click.echo(f"the first to differ is {finding.checkpoint.path}: the state has {finding.expected}")
            click.echo(finding.why or f"the {finding.source} has {finding.sums}")
        click.echo(f"{counted(num_same, 'comparison')} equal, {len(different)} different")
    ctx.exit(1 if different or not num_same else 0)


def _row(finding: Comparison) -> tuple[str, ...]:
    result = finding.why or ("equal" if finding.is_same else "DIFFERENT")
    state = finding.checkpoint.state
    return (
        str(finding.checkpoint.path),
        f"{state.num_handed_out:,}",
        "" if finding.expected is None else f"{finding.expected.samples:,}",
        finding.source,
        result,
    )
