"""The checkup of a planned run: everything is checked, and one fault does not hide others.

Enters: a path, a planned run, and how long to measure. Leaves: a `Checkup`: facts, and findings in order of gain.
Guarantee: without a measurement no shard is read.
"""

import dataclasses
from typing import Any

from bridge_data.errors import BridgeDataError
from bridge_data.plan import Plan, load_plan
from bridge_data.storage import Location
from bridge_data.task import TaskEncoder
from bridge_data.tools.bench import BenchConfig, Figures, measure
from bridge_data.tools.doctor.environment import (
    MachineLimits,
    check_codecs,
    check_environment,
    check_rate,
    needed_batches_per_s,
    samples_per_unit,
)
from bridge_data.tools.doctor.order_checks import SourceOrder, check_order, check_ranks, orders_of
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun, in_order_of_gain
from bridge_data.tools.doctor.source_checks import ShardsSeen, SourceDraws, check_data, check_epochs_of, plan_sources


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CheckupConfig:
    """What to check: the training data at `path`, for `run`. The speed is measured for `measure_s` seconds; 0: not at
    all."""

    path: Location
    run: PlannedRun
    measure_s: float = 3.0
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """The results. `plan` is None if the data cannot be opened, `figures` if nothing was measured. `samples_per_unit`
    is how many samples are drawn for a sample of a batch (with packing, for a pack)."""

    path: str
    run: PlannedRun
    environment: MachineLimits
    findings: list[Finding]
    seen: ShardsSeen
    plan: Plan | None = None
    sources: list[SourceDraws] = dataclasses.field(default_factory=list)
    orders: list[SourceOrder] = dataclasses.field(default_factory=list)
    figures: Figures | None = None
    samples_per_unit: float = 1.0

    @property
    def stops(self) -> bool:
        """Whether something would stop the run."""
        return any(finding.level is Level.STOPS for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: unlimited numbers are None."""
        machine = {
            name: None if value == float("inf") else value
            for name, value in dataclasses.asdict(self.environment).items()
        }
        return {
            "version": 1,
            "path": self.path,
            "run": self.run.to_dict(),
            "environment": machine,
            "shards": dataclasses.asdict(self.seen),
            "sources": [dataclasses.asdict(source) for source in self.sources],
            "orders": [_order_dict(order) for order in self.orders],
            "samples_per_unit": self.samples_per_unit,
            "needed_batches_per_s": needed_batches_per_s(self.run),
            "figures": None if self.figures is None else self.figures.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "stops": self.stops,
        }


def examine(config: CheckupConfig) -> Checkup:
    """Check this machine, the data and the order, and measure the speed."""
    run, data, environment, seen = config.run, config.run.options.data, MachineLimits.read(), ShardsSeen()
    findings = [*check_environment(environment, run), *check_ranks(run)]
    plan, sources, orders, figures, per_unit = None, [], [], None, 1.0
    try:
        plan = load_plan(
            config.path,
            split_part=data.split_part,
            trusted_modules=data.trusted_modules,
            trust_dataset_code=data.trust_dataset_code,
            where=data.where,
            columns=data.columns,
        )
        findings += [*check_data(plan.sources, seen), *check_codecs(environment, plan.sources)]
    except BridgeDataError as error:
        findings.append(_failed("data", error))
    can_run = plan is not None and not any(finding.level is Level.STOPS for finding in findings)
    if can_run and config.measure_s:
        try:
            figures = measure(
                BenchConfig(
                    path=config.path, options=run.options, task_encoder=config.task_encoder, seconds=config.measure_s
                )
            )
        except BridgeDataError as error:
            findings.append(_failed("loader", error))
        else:
            findings += check_rate(figures, run, environment)
            per_unit = samples_per_unit(figures, run)
    if plan is not None:
        drawn = None if run.steps is None else run.steps * run.step_size * per_unit
        sources = plan_sources(plan, drawn)
        findings += check_epochs_of(sources)
    if plan is not None and can_run:
        orders = orders_of(plan, run, per_unit)
        findings += [finding for order in orders for finding in check_order(order, run)]
    return Checkup(
        path=str(config.path),
        run=run,
        environment=environment,
        findings=in_order_of_gain(findings),
        seen=seen,
        plan=plan,
        sources=sources,
        orders=orders,
        figures=figures,
        samples_per_unit=per_unit,
    )


def _failed(code: str, error: BridgeDataError) -> Finding:
    return Finding(code=code, level=Level.STOPS, what=str(error), change="do what the message says, then check again")


def _order_dict(order: SourceOrder) -> dict[str, Any]:
    return {
        "name": order.source.name,
        "samples_of_a_lane_in_a_step": order.size,
        "geometry": dataclasses.asdict(order.geometry),
        "num_chunks": order.chunks.num_chunks,
        "mixing": dataclasses.asdict(order.mixing),
        "overlap": dataclasses.asdict(order.overlap),
    }
