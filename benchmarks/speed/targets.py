"""The targets: each as a row with its measured value, met or missed by how much.

Input: summaries by measurement (`text/2` is the text workload with two workers). Output: rows; a row whose
figures are missing says so.
"""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.speed.programs import BARE, ENERGON, OURS
from benchmarks.speed.summary import Summary, best_peer, median, ratio
from benchmarks.speed.workloads import WORKLOADS

CORES = 2
Row = dict[str, Any]


def rows(results: dict[str, Summary]) -> list[Row]:
    """All targets that were measured."""
    return [
        row for make in (_rates, _limits, _best_of_others, _resized_by_torch, _starts, _costs) for row in make(results)
    ]


def _row(label: str, wanted: str, target: float, value: float | None, low: Any = None, high: Any = None) -> Row:
    """`wanted` is `≥` or `≤`; `shortfall` is the share by which the target is missed."""
    if value is None:
        return {"label": label, "wanted": wanted, "target": target, "value": None, "met": False, "shortfall": None}
    missing = 1 - value / target if wanted == "≥" else (value - target) / target if target else value
    row = {"label": label, "wanted": wanted, "target": target, "value": float(f"{value:.4g}"), "met": missing <= 0}
    row["shortfall"] = round(max(0.0, missing), 4)
    return row | ({"low": low, "high": high} if low is not None else {})


def _compared(
    results: dict[str, Summary], at: str, name: str, figure: str
) -> Callable[[str, str, float], Iterator[Row]]:
    """Makes the row of a ratio to a library, if the measurement was made at all."""

    def row(label: str, wanted: str, target: float) -> Iterator[Row]:
        if at in results and name in results[at]:
            found = ratio(results[at], name, figure) or {}
            yield _row(label, wanted, target, found.get("median"), found.get("low"), found.get("high"))

    return row


def _rates(results: dict[str, Summary]) -> Iterator[Row]:
    rate = "samples_per_s"
    yield from _compared(results, "text/0", ENERGON, rate)("text, in-process, times Energon's", "≥", 20)
    yield from _compared(results, "text/2", ENERGON, rate)("text, 2 workers, times Energon's", "≥", 10)
    yield from _compared(results, "text/0", "litdata", rate)("text, in-process, times litdata's", "≥", 0.5)
    yield from _compared(results, "jpeg/0", ENERGON, rate)("JPEG 55 KB, in-process, times Energon's", "≥", 2.7)
    yield from _compared(results, "jpeg/2", ENERGON, rate)("JPEG 55 KB, 2 workers, times Energon's", "≥", 4.5)


def _limits(results: dict[str, Summary]) -> Iterator[Row]:
    limit = median(results.get("jpeg/0", {}), BARE, "samples_per_s")
    for workers, cores in ((0, 1), (2, CORES)):
        rate = median(results.get(f"jpeg/{workers}", {}), OURS, "samples_per_s")
        if limit is not None and rate is not None:
            how = (
                "in-process, share of the bare loop" if not workers else f"2 workers, share of the bare loop × {CORES}"
            )
            yield _row(f"JPEG 55 KB, {how}", "≥", 0.9, rate / limit / cores)


def _best_of_others(results: dict[str, Summary]) -> Iterator[Row]:
    """With workers, the best of the libraries; text and JPEG have rows of their own for Energon."""
    for workload, settings in WORKLOADS.items():
        at = f"{workload}/2"
        if at in results and settings.peers:
            without = (ENERGON,) if workload in ("text", "jpeg") else ()
            name = best_peer(results[at], without)
            if name is not None:
                label = f"{settings.label.partition(', batch')[0]}, 2 workers, times the best other peer's ({name})"
                yield from _compared(results, at, name, "samples_per_s")(label, "≥", 1.5)


def _resized_by_torch(results: dict[str, Summary]) -> Iterator[Row]:
    """The peers resize with Pillow; their rates are those of the workload that does."""
    theirs, name = results.get("photos/2", {}), best_peer(results.get("photos/2", {}))
    rate = median(results.get("photos_torch/2", {}), OURS, "samples_per_s")
    if name is not None and rate is not None:
        value = rate / (median(theirs, name, "samples_per_s") or 1)
        yield _row(f"the same, resized by torch, 2 workers, times that peer's ({name})", "≥", 1.5, value)


def _starts(results: dict[str, Summary]) -> Iterator[Row]:
    for workload in ("text", "jpeg"):
        first = _compared(results, f"{workload}/2", ENERGON, "first_batch_s")
        yield from first(f"first batch, {workload}, 2 workers, share of Energon's time", "≤", 0.5)
        again = _compared(results, f"{workload}/2", ENERGON, "restore_s")
        yield from again(f"restore to first batch, {workload}, 2 workers, share of Energon's time", "≤", 0.1)
    if "cold/2" in results:
        cold = results["cold/2"]
        yield _row("10,000 shards cold, first batch, s", "≤", 1.0, median(cold, OURS, "first_batch_s"))
        yield from _compared(results, "cold/2", ENERGON, "first_batch_s")("the same, share of Energon's time", "≤", 0.5)
    yield from _compared(results, "import", "torch", "wall_s")("import, times that of torch", "≤", 2.0)


def _costs(results: dict[str, Summary]) -> Iterator[Row]:
    for workload in ("text", "jpeg"):
        memory = _compared(results, f"{workload}/4", ENERGON, "pss_mb")
        yield from memory(f"memory (PSS) with 4 workers, {workload}, share of Energon's", "≤", 0.7)
    prepare = results.get("prepare", {})
    theirs, ours = median(prepare, ENERGON, "wall_s"), median(prepare, OURS, "wall_s")
    if theirs is not None and ours is not None:
        yield _row("`prepare` of 50,000 samples, 2 workers, times Energon's speed", "≥", 8.0, theirs / ours)
    for workers in (0, 2):
        at, how = f"growth/{workers}", f"{workers} workers" if workers else "in-process"
        grown = _compared(results, at, "10,000 samples", "samples_per_s")
        yield from grown(f"rate at 1,000,000 samples, share of that at 10,000, {how}", "≥", 0.95)
    if "s3/2" in results:
        far, near = results["s3/2"].get("s3", {}), results["s3/2"].get("local", {})
        stalls = [side.get("stalled_share", {}).get("median") for side in (far, near)]
        stalled = None if None in stalls else max(0.0, stalls[0] - stalls[1])
        yield _row("S3 at 20 ms, half the local rate: share of time stalled, less that at local", "≤", 0.01, stalled)
        cpu = [side.get("cpu_s_per_1000", {}).get("median") for side in (far, near)]
        yield _row("S3 at 20 ms: CPU of a sample, times local", "≤", 1.3, None if None in cpu else cpu[0] / cpu[1])
