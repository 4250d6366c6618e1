"""`bridge-data audit`: whether the checkpoints of a run, its ledger and its data agree on which samples it got.

Enters: the folders of checkpoints; the ledger files; the data. Leaves: for each checkpoint, the sums in its state,
compared with those of the ledger files and with those computed from data and settings alone. Guarantee: no sample is
read. A swapped, lost or repeated sample changes a sum.

The order can be computed only without packing, groups, filters, generators and re-deals.
"""

import bisect
import dataclasses
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from bridge_data.dataset_loaders import load_dataset
from bridge_data.errors import ConfigError
from bridge_data.lanes.forgotten import ForgottenSamples
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.loader.ledger_files import RunLedger
from bridge_data.order import ledger
from bridge_data.order.cursor import Cursor, SampleRef, packed_references
from bridge_data.order.forgotten_lists import history_of
from bridge_data.order.ledger import LedgerSums, tallies
from bridge_data.order.pending import num_pending
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan
from bridge_data.tools.cli.terminal import counted, echo_json, json_option, setting, table, trust_options
from bridge_data.tools.oracle.run_settings import options_of_state
from bridge_data.tools.oracle.sample_numbers import JobNumbers
from bridge_data.tools.run_folder import find_run, read_states

_MANY = 1_000

_Lists: TypeAlias = Sequence[tuple[int, Container[SampleRef]]]
"""(first slot, the samples forgotten from that slot on)."""


@dataclasses.dataclass(frozen=True, slots=True)
class AuditFinding:
    """What a checkpoint was compared with: `source` is "ledger" or "data". `sums` is None if there is nothing to
    compare (`why` has the reason); else `is_same` says whether they equal those of the state."""

    checkpoint: Checkpoint
    source: str
    expected: LedgerSums
    sums: LedgerSums | None
    why: str = ""

    @property
    def is_same(self) -> bool:
        """Whether samples and both sums are equal."""
        return self.sums is not None and dataclasses.replace(self.sums, since=self.expected.since) == self.expected

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
            "num_micro_batches": self.checkpoint.state.next_slot,
            "compared_with": self.source,
            "result": self.result,
            "reason": self.why or None,
            "state": self.expected.to_dict(),
            "found": None if self.sums is None else self.sums.to_dict(),
        }


def compare_with_ledger(checkpoints: Sequence[Checkpoint], ledger_files: RunLedger) -> list[AuditFinding]:
    """Compare checkpoints, sorted by position, with ledger files."""
    states = [checkpoint.state for checkpoint in checkpoints]
    positions = [_position(state) for state in states]
    sums, counts, last = [LedgerSums()] * len(states), [0] * len(states), (0, -1)
    sinces = [state.sums().since for state in states]
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
        why = _lacking(state, count, sinces[number], last)
        findings.append(AuditFinding(checkpoint, "ledger", state.sums(), None if why else so_far, why))
    return findings


def _position(state: LoaderState) -> tuple[int, int]:
    return state.repetition, state.next_slot


def _has(state: LoaderState, at: tuple[int, int]) -> bool:
    """Whether a micro-batch was handed out before `state`."""
    repetition, number = at
    if state.skips is not None:
        return number < state.next_slot
    if repetition != state.repetition:
        return repetition < state.repetition
    num_had = state.place_of(number % state.num_lanes)
    return number // state.num_lanes < num_had


def _lacking(state: LoaderState, count: int, since: int, last: tuple[int, int]) -> str:
    """Why the ledger lacks micro-batches that `state` counts; "" if it has all, or if that cannot be known."""
    expected = sum(state.num_emitted(lane) for lane in state.lanes) - since
    if state.repetition or count >= expected:
        return ""
    if expected - count <= state.next_slot - 1 - last[1]:
        return f"the ledger ends with micro-batch {last[1]}"
    return f"the ledger lacks {expected - count} micro-batches"


def compare_with_data(checkpoints: Sequence[Checkpoint], plan: Plan) -> list[AuditFinding]:
    """Compare checkpoints with the order computed from a training plan."""
    findings = []
    for checkpoint in checkpoints:
        sums, why = _by_arithmetic(checkpoint.state, plan)
        findings.append(AuditFinding(checkpoint, "data", checkpoint.state.sums(), sums, why))
    return findings


def _by_arithmetic(state: LoaderState, plan: Plan) -> tuple[LedgerSums | None, str]:
    run = state.fingerprint
    if run["order"] != "shuffled" or run.get("packing_buffer_size") is not None:
        return None, "the order can be computed only for training without packing"
    if len(state.generations) > 1 or ledger.NAME in state.extras or state.repetition or state.sums().since:
        return None, "the lanes were dealt again, or not counted from the beginning"
    order = PlanOrder(plan, run["seed"], options_of_state(state).data.shuffle, run["batch_size"] or 1)
    start = LoaderState(run, [order.first_generation(state.num_lanes)], 0, {})
    if [text for _, text in state.differences(run | order.fingerprint())] or start.generations != state.generations:
        return None, "the data or their blend are not those of the run"
    if history_of(state.extras) and state.skips is not None:
        return None, "samples were forgotten in a run that skips steps: only a ledger says which"
    sources, names = plan.sources, order.source_names
    lists = [(slot, ForgottenSamples.under(sources, names, own) or ()) for slot, own in history_of(state.extras)]
    found, size = LedgerSums(), run["batch_size"] or 1
    for lane, lane_state in state.lanes.items():
        count = lane_state.get("micro_batches", 0)
        own, num_draws = LedgerSums(), count * size
        if state.skips is None:
            own, num_draws = _of_lane(order, start, lane, (count, size), lists)
        if lane_state.get("draws", 0) - num_pending(lane_state) != num_draws:
            return None, "samples were left out, grouped, or made of others: only a ledger says which"
        found = found.plus(own if state.skips is None else _of_skipping_lane(order, start, lane, state))
    return found, ""


def _of_skipping_lane(order: PlanOrder, start: LoaderState, lane: int, state: LoaderState) -> LedgerSums:
    """The sums of the samples that a lane handed out before `state`, in a run that skips steps."""
    skips, size, num_lanes = state.skips, start.fingerprint["batch_size"] or 1, state.num_lanes
    assert skips is not None
    numbers = JobNumbers(order, dataclasses.replace(start, lanes={number: {} for number in state.lanes})).lane(lane)
    batches = [
        (slot, _references(numbers.take(place * size, size)))
        for place in range(state.place_of(lane))
        if (slot := skips.slot(place * num_lanes + lane)) is not None
    ]
    found = LedgerSums()
    for one in tallies(batches, [name for name, _ in start.fingerprint["sources"]]):
        found = found.plus(one)
    return found


def _references(refs: Sequence[SampleRef]) -> bytes:
    return packed_references([value for source, epoch, index, _ in refs for value in (source, epoch, index, 0)])


def _of_lane(
    order: PlanOrder, start: LoaderState, lane: int, micro_batches: tuple[int, int], lists: _Lists
) -> tuple[LedgerSums, int]:
    """(sums, samples drawn) of the first micro-batches of a lane, given as (number, samples in each)."""
    cursor, found, (count, size) = order.cursor(lane, start), LedgerSums(), micro_batches
    names = [name for name, _ in start.fingerprint["sources"]]
    for first in range(0, count, _MANY):
        batches = []
        for number in range(first, min(count, first + _MANY)):
            slot = number * start.num_lanes + lane
            forgotten = next((gone for begin, gone in reversed(lists) if begin <= slot), ())
            batches.append((slot, _references(_taken(cursor, size, forgotten))))
        for one in tallies(batches, names):
            found = found.plus(one)
    return found, cursor.draws


def _taken(cursor: Cursor, size: int, forgotten: Container[SampleRef]) -> list[SampleRef]:
    """The next `size` samples that are not forgotten."""
    refs: list[SampleRef] = []
    while len(refs) < size:
        refs += [ref for _, ref in cursor.take(size - len(refs)) if ref not in forgotten]
    return refs


_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.argument("run", type=_FOLDER)
@click.option("--ledger", type=_FOLDER, help="The folder of ledger_path.  [default: found below RUN]")
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The data set that the run trained on.")
@setting("--split-part", default="train")
@trust_options
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    run: Path,
    ledger: Path | None,
    data: Path | None,
    split_part: str,
    trusted_module: tuple[str, ...],
    trust_dataset_code: bool,
    as_json: bool,
) -> None:
    """Compare the checkpoints below the folder RUN with the samples in the run's ledger, and with its data.

    The sums in each state are computed again: from the ledger files, and with --data from the data set alone, if the
    order can be computed (no packing, groups, filters, generators, re-deals). Exit code 1 if they differ.
    """
    files = find_run(run, has_config=True)
    checkpoints = sorted(read_states(files.states), key=lambda checkpoint: _position(checkpoint.state))
    folder = ledger or files.ledger
    if not checkpoints:
        raise ConfigError(f"{run}: holds no data state, nor do the folders below it")
    if folder is None and data is None:
        raise ConfigError(f"{run}: holds no ledger; give --ledger, or the data set of the run (--data)")
    findings = [] if folder is None else compare_with_ledger(checkpoints, RunLedger(folder))
    if data is not None:
        loaded = load_dataset(data, trusted_modules=trusted_module, trust_dataset_code=trust_dataset_code)
        findings += compare_with_data(checkpoints, loaded.get_datasets(training=True, split_part=split_part))
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


def _row(finding: AuditFinding) -> tuple[str, ...]:
    result = finding.why or ("equal" if finding.is_same else "DIFFERENT")
    state = finding.checkpoint.state
    return str(finding.checkpoint.path), f"{state.next_slot:,}", f"{finding.expected.samples:,}", finding.source, result
