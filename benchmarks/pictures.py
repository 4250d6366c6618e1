"""Pictures for the docs, drawn from figures that this program measures; only `scale` depends on speed.

    shuffle   how much the means of batches vary, in orders that are drawn, beside what `bridge-data check --run` says
    blend     the shares of three data sets that were drawn of a blend whose weights change, and how far they are off
    packs     how full packs are, by packer and buffer, in a loader
    state     the size of a job's state, by ranks
    scale     what a lane takes to begin, and holds, by samples
    stragglers  the batches of a loader in which 1% of the samples take 100 times as long, by time
    soak      memory and open files over a long run with kills and resumes (`soak.py`)

    python -m benchmarks.pictures [--only shuffle,packs] [--redraw]

Figures go to benchmarks/results/pictures.json, and pictures to docs/images. Needs matplotlib.
"""

import argparse
import dataclasses
import json
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import figures, soak
from benchmarks.figures import RESULTS, ROOT
from benchmarks.mixing.statistics import group_inflation
from benchmarks.speed import data, stragglers
from benchmarks.speed.programs import OURS
from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    LaneDataset,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.order import BlendSchedule, Cursor, Geometry, Row
from bridge_data.order.row import ChunkTable
from bridge_data.plugins.doctor.mixing import mixing_of, windows_of_epoch
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task import Packing
from bridge_data.task.packers import PACKERS

FIGURES, IMAGES = RESULTS / "pictures.json", ROOT / "docs/images"

BATCH, SEEDS = 32, 5
COUNTS = (1_000,) * 100
CHUNKS, LANES = (20, 50, 100, 250, 500), (1, 8, 64)
PHASES = ((0, (0.6, 0.3, 0.1)), (200_704, (0.3, 0.3, 0.4)))
NAMES, BLEND_LANES, BLEND_STEPS = ("images", "text", "chat"), 8, 100
STEP_DRAWS = 512
"""Draws of each lane between two points of the picture of a blend."""
CAPACITY, NUM_LENGTHS, NUM_PACKS = 4_096, 20_000, 1_000
BUFFERS = (10, 30, 100, 300, 1_000, 3_000)
RANKS, LANES_OF_RANK, STATE_SOURCES, STATE_BATCHES = (8, 32, 128, 512, 1_024), 8, 20, 600
SCALES, SCALE_LANES = (10**5, 10**6, 10**7, 10**8, 10**9), 64
STRAGGLING, STRAGGLING_S = stragglers.CASES[0], 12.0
LANE_FIGURES = ("first draw, CPU ms", "held by a lane, MB")


def measure_shuffle() -> dict[str, Any]:
    """Inflation of a value per chunk, for 100 shards of 1,000 samples of 500 bytes: drawn, and computed."""
    found: dict[str, Any] = {"max_samples_per_sequence": CHUNKS, "lanes": LANES, "drawn": [], "computed": []}
    for lanes in LANES:
        drawn, computed = [], []
        for length in CHUNKS:
            geometry = Geometry.choose(
                COUNTS, num_lanes=lanes, max_samples_per_sequence=length, shuffle_buffer_size=100, sample_bytes=500
            )
            chunks = ChunkTable(COUNTS, geometry.chunk_size)
            groups, _ = chunks.chunk_of(np.arange(sum(COUNTS)))
            values = []
            for seed in range(SEEDS):
                order = np.concatenate(list(windows_of_epoch(Row(COUNTS, geometry, seed))))
                values.append(group_inflation(order[: len(order) // BATCH * BATCH].reshape(-1, BATCH), groups))
            drawn.append(float(np.mean(values)))
            computed.append(mixing_of(Row(COUNTS, geometry, 0), chunks, BATCH).inflation)
        found["drawn"].append(drawn)
        found["computed"].append(computed)
    return found


def measure_blend() -> dict[str, Any]:
    """Shares of the draws, by point, and how far the draws are off in all; the same of draws at random."""
    schedule = BlendSchedule(PHASES, seed=0)
    points = [number * STEP_DRAWS for number in range(BLEND_STEPS + 1)]
    totals = np.array(points) * BLEND_LANES
    counts = np.array([sum(schedule.counts(lane, BLEND_LANES, n) for lane in range(BLEND_LANES)) for n in points])
    change = schedule.first_draw(1, BLEND_LANES) * BLEND_LANES
    asked = np.array([np.where(totals[1:] <= change, *(weights[s] for _, weights in PHASES)) for s in range(3)]).T
    rng = np.random.default_rng(0)
    step = int(totals[1])
    at_random = np.array([rng.multinomial(step, share) for share in asked])
    expected = np.cumsum(asked * step, axis=0)
    return {
        "drawn": totals[1:].tolist(),
        "shares": (np.diff(counts, axis=0) / step).tolist(),
        "off": np.abs(counts[1:] - expected).max(axis=1).tolist(),
        "off_at_random": np.abs(np.cumsum(at_random, axis=0) - expected).max(axis=1).tolist(),
    }


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    """A text that says how long it is."""
    return TextSample(__key__=sample["__key__"], __restore_key__=(), text=sample["json"]["text"])


class LengthEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs texts that say their length; a pack says how full it is."""

    cookers = (Cooker(cook),)

    def __init__(self, packer: str, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.select_samples_to_pack = Packing(
            length=lambda text: int(text.text), capacity=capacity, packer=packer, overlong="drop"
        )

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> TextSample:
        """The fill of the pack."""
        filled = sum(int(sample.text) for sample in samples)
        return TextSample(__key__=samples[0].__key__, __restore_key__=(), text=str(filled))


def measure_packs() -> dict[str, Any]:
    """Mean share of 4,096 tokens that are filled, of lengths with a long tail, in a loader with one lane."""
    draw = random.Random(0)
    lengths = [min(CAPACITY, 1 + int(draw.lognormvariate(5.5, 1.2))) for _ in range(NUM_LENGTHS)]
    found: dict[str, Any] = {"buffers": BUFFERS, "fill": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = _written(Path(folder, "lengths.jsonl"), lengths)
        for packer in PACKERS:
            found["fill"][packer] = [_fill(path, packer, buffer) for buffer in BUFFERS]
    return found


def _written(path: Path, lengths: Sequence[int]) -> Path:
    path.write_text("".join(json.dumps({"text": str(length)}) + "\n" for length in lengths))
    prepare_jsonl(path)
    return path


def _dataset(path: Path, num_lanes: int, buffer: int | None, encoder: LengthEncoder) -> LaneDataset:
    return get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, 0, num_lanes=num_lanes),
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        packing_buffer_size=buffer,
        task_encoder=encoder,
    )


def _fill(path: Path, packer: str, buffer: int) -> float:
    with get_loader(_dataset(path, 1, buffer, LengthEncoder(packer))) as loader:
        fills = [int(pack.text) for pack, _ in zip(loader, range(NUM_PACKS), strict=False)]
    return sum(fills) / len(fills) / CAPACITY


def measure_state() -> dict[str, Any]:
    """MB of the state of a job as JSON, with 20 sources and 8 lanes a rank, which are copies of 8 lanes at random
    moments; packs hold about five samples."""
    rng = random.Random(0)
    found: dict[str, Any] = {"ranks": RANKS, "MB": {}}
    with tempfile.TemporaryDirectory() as folder:
        lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
        for source in range(STATE_SOURCES):
            path = _written(Path(folder, f"{source}.jsonl"), [rng.randint(10, 59) for _ in range(2_000)])
            lines += [f"      - path: {path.name}", "        weight: 1"]
        blend = Path(folder, "blend.yaml")
        blend.write_text("\n".join(lines) + "\n")
        for name, buffer in (("no packing", None), ("packing, buffer of 1,000", 1_000)):
            dataset = _dataset(blend, LANES_OF_RANK, buffer, LengthEncoder("first_fit_decreasing", 160))
            states = []
            for number in range(LANES_OF_RANK):
                lane = dataset.lane(number, dataset.new_state())
                later = [lane.next().state for _ in range(2 * STATE_BATCHES)][STATE_BATCHES:]
                states.append(rng.choice(later))
            found["MB"][name] = [_megabytes(dataset, states, ranks * LANES_OF_RANK) for ranks in RANKS]
    return found


def _megabytes(dataset: LaneDataset, states: Sequence[Any], num_lanes: int) -> float:
    lanes = {lane: states[lane % len(states)] for lane in range(num_lanes)}
    job = dataclasses.replace(dataset.new_state(num_lanes), lanes=lanes, micro_batch_index=num_lanes * STATE_BATCHES)
    return len(json.dumps(job.to_dict())) / 1e6


def measure_scale() -> dict[str, Any]:
    """CPU time to the first draw of a lane, and its memory, by samples of 1 KB, in shards of 9,000 to 11,000."""
    rng = random.Random(0)
    found: dict[str, Any] = {"samples": SCALES, "lanes": SCALE_LANES, **{key: [] for key in LANE_FIGURES}}
    for samples in SCALES:
        counts = [rng.randint(9_000, 11_000) for _ in range(samples // 10_000)]
        geometry = Geometry.choose(
            counts,
            num_lanes=SCALE_LANES,
            max_samples_per_sequence=100,
            shuffle_buffer_size=100,
            sample_bytes=1_000,
        )
        starts = []
        for lane in random.Random(0).sample(range(SCALE_LANES), 5):
            begin = time.process_time()
            Cursor([[Row(counts, geometry, 7)]], None, lane).take(1)
            starts.append(1e3 * (time.process_time() - begin))
        tracemalloc.start()
        cursor = Cursor([[Row(counts, geometry, 7)]], None, 1)
        cursor.take(1)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        found["first draw, CPU ms"].append(statistics.median(starts))
        found["held by a lane, MB"].append(held / 1e6)
    return found


def measure_stragglers() -> dict[str, Any]:
    """When batches were taken, of workers that help each other and of others."""
    folder = data.make("ten_thousand", ROOT / ".bench", 1.0)
    runs = {"workers that help each other": OURS, stragglers.ALONE: stragglers.ALONE}
    taken = {
        name: [round(at, 4) for at in stragglers.taken_at(folder, STRAGGLING, library, STRAGGLING_S)]
        for name, library in runs.items()
    }
    return {"ideal": STRAGGLING.ideal, "taken_s": taken}


def draw_shuffle(found: dict[str, Any], axes: Any) -> None:
    """Points: drawn; lines: computed."""
    (axis,) = axes
    for lanes, drawn, computed in zip(found["lanes"], found["drawn"], found["computed"], strict=True):
        name = "1 lane" if lanes == 1 else f"{lanes} lanes"
        (line,) = axis.plot(found["max_samples_per_sequence"], computed, label=name)
        axis.plot(found["max_samples_per_sequence"], drawn, "o", color=line.get_color())
    axis.axhline(1, color="grey", linestyle=":", label="true permutation")
    axis.set(xscale="log", xlabel="max_samples_per_sequence", ylabel="inflation, a value per chunk", ylim=(0.9, None))
    axis.set_xticks(found["max_samples_per_sequence"], [str(length) for length in found["max_samples_per_sequence"]])
    axis.set_title("100 shards of 1,000; points drawn, lines computed")
    axis.legend()


def draw_blend(found: dict[str, Any], axes: Any) -> None:
    """Shares, and deviations."""
    shares, off = axes
    thousands = [number / 1000 for number in found["drawn"]]
    for source, name in enumerate(NAMES):
        shares.plot(thousands, [point[source] for point in found["shares"]], label=name)
    shares.set(xlabel="thousands of samples drawn", ylabel="share of the last 4,096 draws", ylim=(0, 1))
    shares.set_title("a blend whose weights change")
    shares.legend()
    off.plot(thousands, found["off"], label="bridge_data")
    off.plot(thousands, found["off_at_random"], label="draws at random")
    off.set(xlabel="thousands of samples drawn", ylabel="draws off, worst data set", title="deviation")
    off.set_yscale("symlog", linthresh=1)
    off.set_ylim(0, None)
    off.legend()


def draw_packs(found: dict[str, Any], axes: Any) -> None:
    """A line for each packer."""
    (axis,) = axes
    for packer, fill in found["fill"].items():
        axis.plot(found["buffers"], [100 * share for share in fill], marker="o", label=packer)
    axis.set(xscale="log", xlabel="packing_buffer_size", ylabel="tokens filled, %", title="packs of 4,096 tokens")
    axis.set_xticks(found["buffers"], [f"{buffer:,}" for buffer in found["buffers"]])
    axis.legend()


def draw_state(found: dict[str, Any], axes: Any) -> None:
    """A line with packing, and one without."""
    (axis,) = axes
    for name, sizes in found["MB"].items():
        axis.plot(found["ranks"], sizes, marker="o", label=name)
    axis.set(xscale="log", yscale="log", xlabel="ranks, of 8 lanes", ylabel="MB as JSON")
    axis.set_title("state of a job, 20 data sets")
    axis.set_xticks(found["ranks"], [f"{ranks:,}" for ranks in found["ranks"]])
    axis.legend()


def draw_scale(found: dict[str, Any], axes: Any) -> None:
    """Time and memory of a lane."""
    for axis, key in zip(axes, LANE_FIGURES, strict=True):
        axis.plot(found["samples"], found[key], marker="o")
        axis.set(xscale="log", yscale="log", xlabel="samples of the data set, in shards of about 10,000", ylabel=key)
        axis.set_title(f"one of {found['lanes']} lanes")


def draw_stragglers(found: dict[str, Any], axes: Any) -> None:
    """A line with help, and one without."""
    (axis,) = axes
    axis.plot([0, STRAGGLING_S], [0, STRAGGLING_S * found["ideal"]], ":", color="grey", label=stragglers.IDEAL)
    for name, times in found["taken_s"].items():
        axis.plot([0, *times], [stragglers.BATCH * number for number in range(len(times) + 1)], label=name)
    axis.set(xlabel="seconds", ylabel="samples taken", title="1% of samples take 100 times as long, 8 workers")
    axis.legend()


def draw_soak(found: dict[str, Any], axes: Any) -> None:
    """Memory and files, with the kills and resumes."""
    memory, files = axes
    memory.plot(found["batches"], found["workers_MB"], label="2 workers")
    memory.plot(found["batches"], found["trainer_MB"], label="trainer")
    memory.set(ylabel="resident memory, MB", title="a worker is killed (dotted), the loader resumed (solid)")
    files.plot(found["batches"], found["files"])
    files.set(ylabel="open files of the trainer", title=f"{found['samples']:,} samples, the same as undisturbed")
    for axis in axes:
        for style, name in ((":", "kills"), ("-", "resumes")):
            for at in found[name]:
                axis.axvline(at, color="grey", linestyle=style, linewidth=0.6)
        axis.set(xlabel="batches of 32", ylim=(0, None))
    memory.legend()


PARTS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any], Any], None], int]] = {
    "shuffle": (measure_shuffle, draw_shuffle, 1),
    "blend": (measure_blend, draw_blend, 2),
    "packs": (measure_packs, draw_packs, 1),
    "state": (measure_state, draw_state, 1),
    "scale": (measure_scale, draw_scale, 2),
    "stragglers": (measure_stragglers, draw_stragglers, 1),
    "soak": (soak.measure, draw_soak, 2),
}
"""By name: what measures, what draws, and the number of panels."""


def draw(name: str, found: dict[str, Any]) -> Path:
    """Draw a picture of the figures."""
    from matplotlib.figure import Figure

    _, drawing, panels = PARTS[name]
    figure = Figure(figsize=(5 * panels, 3.4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    drawing(found, axes)
    for axis in axes:
        axis.minorticks_off()
    file = IMAGES / f"{name}.png"
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=90, metadata={"Software": None})
    return file


def main(given: Sequence[str] | None = None) -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="pictures, separated by commas (default: %(default)s)")
    parser.add_argument("--redraw", action="store_true", help="draw the figures that are there; measure nothing")
    arguments = parser.parse_args(given)
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in arguments.only.split(","):
        if not arguments.redraw:
            found[name] = PARTS[name][0]()
            figures.write(FIGURES, found)
        print(draw(name, json.loads(json.dumps(found[name]))))


if __name__ == "__main__":
    main()
