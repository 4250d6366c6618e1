"""All measurements of the benchmark by name, in the order in which they run.

Output: summaries by `name/workers`, for `targets` and `tables`.
"""

from collections.abc import Callable

from benchmarks.speed import cold, commands, data, object_store
from benchmarks.speed.programs import ENERGON, OURS, Figures, convert, run
from benchmarks.speed.rounds import Extent, report, throughput
from benchmarks.speed.summary import Summary, summarize
from benchmarks.speed.workloads import WORKLOADS

MEMORY_WORKERS, MEMORY_SECONDS = 4, 1.0


def measure(name: str, extent: Extent) -> dict[str, Summary]:
    """The summaries of one measurement."""
    if name in WORKLOADS:
        return {f"{name}/{workers}": summarize(throughput(name, workers, extent)) for workers in (0, 2)}
    return {at: summarize(runs) for at, runs in OTHERS[name](extent).items()}


def memory(extent: Extent) -> dict[str, dict[str, list[Figures]]]:
    """Memory of all processes with four workers."""
    results = {}
    for workload in ("text", "jpeg"):
        folder = data.make(workload, extent.folder, extent.scale)
        data.warm(folder)
        names = [OURS, *(name for name in WORKLOADS[workload].peers if name in extent.peers)]
        runs: dict[str, list[Figures]] = {name: [] for name in names}
        for number in range(extent.other_rounds):
            for name in names:
                if not number or name in (OURS, ENERGON):
                    convert(name, workload, folder)
                    figures = run(name, workload, folder, MEMORY_WORKERS, MEMORY_SECONDS, ["--memory"])
                    figures.pop("check", None)
                    report(workload, MEMORY_WORKERS, name, figures)
                    runs[name].append({key: figures[key] for key in ("pss_mb", "failed") if key in figures})
        results[f"{workload}/{MEMORY_WORKERS}"] = runs
    return results


def growth(extent: Extent) -> dict[str, dict[str, list[Figures]]]:
    """Our rate over a million texts and over ten thousand."""
    sizes = {OURS: "million", "10,000 samples": "ten_thousand"}
    folders = {name: data.make(size, extent.folder, extent.scale) for name, size in sizes.items()}
    for folder in folders.values():
        data.warm(folder)
    results = {}
    for workers in (0, 2):
        runs: dict[str, list[Figures]] = {name: [] for name in sizes}
        for _ in range(extent.rounds):
            for name, size in sizes.items():
                figures = run(OURS, size, folders[name], workers, extent.seconds)
                figures.pop("check", None)
                report(size, workers, OURS, figures)
                runs[name].append(figures)
        results[f"growth/{workers}"] = runs
    return results


OTHERS: dict[str, Callable[[Extent], dict[str, dict[str, list[Figures]]]]] = {
    "memory": memory,
    "cold": lambda extent: {"cold/2": cold.measure(extent)},
    "import": lambda extent: {"import": commands.imports(extent)},
    "prepare": lambda extent: {"prepare": commands.prepare(extent)},
    "growth": growth,
    "s3": lambda extent: {"s3/2": object_store.measure(extent)},
}

NAMES = (*WORKLOADS, *OTHERS)
