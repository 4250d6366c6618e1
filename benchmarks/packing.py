"""Packs that are planned from the costs of samples, beside those of a buffer, and of Megatron-Energon and -Bridge.

First, how full packs are and what they cost. Input: sequences of 16 to 1,000 tokens (the chats of `benchmarks.speed`)
and of up to 65,536 (log-normal, deviation 1.6), as two bytes a token in prepared tars. Each run is a process without
workers, in turns; rates are of processor time, and ratios are between runs of the same round. Bridge
packs a whole data set before a run: its algorithm gets all lengths at once.

Then the load of the slowest data-parallel rank of a step, divided by the mean load, if attention costs a sample the
square of its tokens: as read, with packs exchanged after reading, with packs assigned before, and as Megatron-core's
scheduler of hybrid context parallelism places single samples. Sent are bytes by rank and step (28 a token).

    python -m benchmarks.packing [--rounds N] [--steps N] [--json FILE] [--merge]
"""

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.figures import ROOT
from benchmarks.speed import data, tables
from benchmarks.speed.programs import ENERGON, ENVIRONMENTS, PROGRAMS, Figures, limited, python_of
from bridge_data.plugins.planned.planned import longest_first
from bridge_data.plugins.sharing.assignment import Assignment, assign, greatest_load, round_robin
from bridge_data.task.packers import packs_within

PAGE, BEGIN, END = ROOT / "docs/benchmarks.md", "<!-- packing -->", "<!-- /packing -->"
WINDOW, PACKS_OF_A_RANK, BYTES_OF_A_TOKEN = 4_096, 8, 28
"""A token of Megatron's batches: tokens, labels and positions of 8 bytes, and a loss mask of 4."""
LIMIT_S = 180
OURS = "planned, window 4,096"
BRIDGE = {"first fit, longest first": "first_fit_decreasing", "first fit, shuffled (its default)": "first_fit_shuffle"}
ALGORITHMS = "megatron/bridge/data/packing/algorithms.py"


class Workload(NamedTuple):
    """Data, the capacity of a pack, and how many samples a run reads."""

    data: str
    capacity: int
    samples: int


class Way(NamedTuple):
    """How packs are made."""

    is_peer: bool
    packing: str
    window: int
    packer: str = "first_fit_decreasing"


WORKLOADS = {
    "chats, 2,048": Workload("chat_tokens", 2_048, 24_000),
    "chats, 8,192": Workload("chat_tokens", 8_192, 24_000),
    "long tail, 65,536": Workload("long_tokens", 65_536, 16_000),
}
WAYS = {
    OURS: Way(False, "planned", WINDOW),
    "online, buffer 200": Way(False, "online", 200),
    "online, buffer 1,000": Way(False, "online", 1_000),
    "Energon, buffer 200": Way(True, "online", 200),
    "Energon, buffer 1,000": Way(True, "online", 1_000),
    "Energon, 1,000, its documentation's example": Way(True, "online", 1_000, "example"),
}


def make(name: str, folder: Path, scale: float) -> Path:
    """A data set with its costs."""
    made = data.make(name, folder, scale) / "tars"
    command = [sys.executable, "-m", "bridge_data.cli", "prepare", str(made), "--costs", "packs:Packs"]
    paths = os.pathsep.join([str(ROOT), str(PROGRAMS)])
    subprocess.run(
        [*command, "--no-progress"], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths}
    )
    return made


def run(way: Way, workload: Workload, folder: Path, energon: Path, scale: float) -> Figures:
    """The figures of one process; why there are none, if it failed."""
    asked = {**workload._asdict(), **way._asdict(), "data": str(folder), "samples": int(scale * workload.samples)}
    asked["mean"] = float(lengths_of(workload, 100_000).mean())
    python = energon if way.is_peer else Path(sys.executable)
    if not python.exists():
        return {"failed": "not installed"}
    status, output, errors = limited([str(python), str(PROGRAMS / "packs.py"), json.dumps(asked)], LIMIT_S)
    if status != 0:
        return {"failed": (errors.strip().splitlines() or [f"exit status {status}"])[-1][:200]}
    return json.loads(output.splitlines()[-1])


def lengths_of(workload: Workload, count: int) -> np.ndarray:
    """Lengths as those of the data."""
    return data.token_lengths(workload.data, np.random.default_rng(0), count)


def offline(file: Path, algorithm: str, workload: Workload, num_samples: int) -> Figures:
    """Packs that Bridge's algorithm makes of the lengths of a data set."""
    if not file.exists():
        return {"failed": "not installed"}
    sys.modules.setdefault("megatron.bridge.utils.safe_pickle", types.SimpleNamespace(safe_load_npy=None))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("bridge_algorithms", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    histogram = np.bincount(lengths_of(workload, num_samples)).tolist()
    np.random.seed(0)
    packs, _ = module.create_packing_strategy(histogram, workload.capacity, algorithm)
    return {"fill": sum(map(sum, packs)) / len(packs) / workload.capacity}


def measure_packs(arguments: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """Medians of the runs of every workload, and the rate of planned packs over theirs, with its range."""
    found: dict[str, dict[str, Figures]] = {}
    for label, workload in WORKLOADS.items():
        folder = make(workload.data, arguments.data, arguments.scale)
        runs: dict[str, list[Figures]] = {name: [] for name in (*WAYS, *(f"Bridge, offline, {one}" for one in BRIDGE))}
        for _ in range(arguments.rounds):
            for name, way in WAYS.items():
                runs[name].append(run(way, workload, folder, arguments.energon, arguments.scale))
                print(f"{label}: {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
            for name, algorithm in BRIDGE.items():
                size = int(20_000 * arguments.scale)
                runs[f"Bridge, offline, {name}"].append(offline(arguments.bridge, algorithm, workload, size))
        found[label] = {name: summary(made, runs[OURS]) for name, made in runs.items()}
    return found


def summary(made: Sequence[Figures], ours: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    if failed := next((one["failed"] for one in made if "failed" in one), None):
        return {"failed": failed}
    medians = {name: statistics.median(one[name] for one in made) for name in made[0]}
    pairs = zip((one.get("packs_per_s") for one in ours), (one.get("packs_per_s") for one in made), strict=True)
    ratios = [own / other for own, other in pairs if own and other]
    return medians | ({"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)} if ratios else {})


class Step(NamedTuple):
    """The packs of one step: the lengths of the samples of each, and what they cost."""

    packs: list[np.ndarray]
    loads: list[int]


def steps_of(workload: Workload, num_ranks: int, count: int) -> Iterator[Step]:
    """Steps of planned packs."""
    rng = np.random.default_rng(0)

    def packs() -> Iterator[np.ndarray]:
        while True:
            lengths = data.token_lengths(workload.data, rng, WINDOW)
            groups = packs_within(lengths[:, None], [workload.capacity])
            yield from (lengths[groups[number]] for number in rng.permutation(len(groups)))

    endless = packs()
    for _ in range(count):
        taken = list(itertools.islice(endless, num_ranks * PACKS_OF_A_RANK))
        yield Step(taken, [int((pack**2).sum()) for pack in taken])


def placed(step: Step, made: Assignment) -> tuple[float, int]:
    """The greatest load of a rank, and the tokens of packs that are not where they were read."""
    away = (number for rank, group in enumerate(made) for number in group if number % len(made) != rank)
    return greatest_load(made, step.loads), sum(int(step.packs[number].sum()) for number in away)


def exchanged(step: Step, num_ranks: int) -> tuple[float, int]:
    """Packs exchanged after reading."""
    return placed(step, assign(step.loads, num_ranks))


def assigned(step: Step, num_ranks: int) -> tuple[float, int]:
    """Packs assigned before reading: none is sent."""
    return greatest_load(longest_first(step.loads, num_ranks), step.loads), 0


def scheduled(step: Step, num_ranks: int, longest: int) -> tuple[float, int]:
    """Samples as Megatron-core's scheduler places them: in groups that wait for each other, and on several ranks those
    of more than `longest` tokens. What its all-to-all sends is counted."""
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    order = [number for rank in range(num_ranks) for number in range(rank, len(step.packs), num_ranks)]
    lengths = [int(length) for number in order for length in step.packs[number]]
    homes = [number % num_ranks for number in order for _ in step.packs[number]]
    scheduler = BalancedCPScheduler(longest, types.SimpleNamespace(size=lambda: num_ranks))
    _, groups = scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)
    greatest, sent = 0.0, 0
    for group in groups:
        holders: dict[int, list[int]] = {}
        for rank, numbers in enumerate(group):
            for number in numbers:
                holders.setdefault(number, []).append(rank)
        loads = [sum(lengths[number] ** 2 / len(holders[number]) for number in numbers) for numbers in group]
        greatest += max(loads)
        sent += sum(lengths[number] * sum(rank != homes[number] for rank in ranks) for number, ranks in holders.items())
    return greatest, sent


PLACED: dict[str, Callable[[Step, int, int], tuple[float, int]]] = {
    "as read": lambda step, ranks, _: placed(step, round_robin(len(step.packs), ranks)),
    "exchanged after reading": lambda step, ranks, _: exchanged(step, ranks),
    "assigned before reading": lambda step, ranks, _: assigned(step, ranks),
    "Megatron-core, no sample shared": lambda step, ranks, capacity: scheduled(step, ranks, capacity),
    "Megatron-core, samples above a quarter of a pack shared": lambda step, ranks, capacity: scheduled(
        step, ranks, capacity // 4
    ),
}


def measure_balance(arguments: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """By workload and ranks: the mean over the steps of greatest over mean load, bytes sent, and time to decide."""
    found: dict[str, dict[str, Figures]] = {}
    for (label, workload), num_ranks in itertools.product(list(WORKLOADS.items())[1:], (8, 64)):
        row = found.setdefault(f"{label}, {num_ranks} ranks", {})
        steps = list(steps_of(workload, num_ranks, arguments.steps))
        for name, place in PLACED.items():
            try:
                place(steps[0], num_ranks, workload.capacity)  # imports what it needs
                begin = time.process_time()
                made = [place(step, num_ranks, workload.capacity) for step in steps]
            except Exception as error:
                row[name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
                continue
            over = [most * num_ranks / sum(step.loads) for (most, _), step in zip(made, steps, strict=True)]
            row[name] = {
                "over": statistics.mean(over),
                "most": max(over),
                "sent_mb": statistics.mean(sent for _, sent in made) * BYTES_OF_A_TOKEN / num_ranks / 1e6,
                "ms": (time.process_time() - begin) / len(steps) * 1e3,
            }
    return found


def page_of(document: dict[str, Any]) -> str:
    """The tables."""
    head = ["packs", "filled", "packs a CPU second", "planned × it", "state, 8 lanes, KB", "restore, s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for label, row in document["packs"].items():
        lines.append(f"| **{label} tokens** |{' |' * (len(head) - 1)}")
        for name, one in row.items():
            ratio = f"{one['ratio']:.2f}, {one['low']:.2f}–{one['high']:.2f}" if "ratio" in one and name != OURS else ""
            cells = [one["failed"], "", ""] if "failed" in one else [f"{one['fill']:.2%}"]
            cells += [] if "failed" in one else [tables.number(one.get("packs_per_s")), ratio]
            state = one.get("state_bytes")
            cells += [tables.number(state and state / 1e3), tables.number(one.get("restore_s"))]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    head = [
        "a step of 8 packs a rank",
        "greatest over mean load",
        "in the worst step",
        "MB sent, by rank",
        "ms to decide",
    ]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for label, row in document["balance"].items():
        lines.append(f"| **{label}** |{' |' * (len(head) - 1)}")
        for name, one in row.items():
            cells = [one["failed"], "", "", ""] if "failed" in one else [f"{one[key]:.3f}" for key in ("over", "most")]
            cells += [] if "failed" in one else [tables.number(one[key]) for key in ("sent_mb", "ms")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of which the balance is taken")
    parser.add_argument("--energon", type=Path, default=python_of(ENERGON), help="a Python that has it")
    parser.add_argument(
        "--bridge", type=Path, default=ENVIRONMENTS / "bridge_code" / ALGORITHMS, help=f"its {Path(ALGORITHMS).name}"
    )
    parser.add_argument("--data", type=Path, default=ROOT / ".bench", help="where data is made and kept")
    parser.add_argument("--scale", type=float, default=1.0, help="less data, for trying the benchmark itself")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--merge", action="store_true", help="also write the tables into docs/benchmarks.md")
    arguments = parser.parse_args(given)
    document = {"packs": measure_packs(arguments), "balance": measure_balance(arguments)}
    text = page_of(document)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.merge:
        PAGE.write_text(tables.in_page(PAGE.read_text(), text, BEGIN, END))
    return document


if __name__ == "__main__":
    main()
