"""Orders: each library reads the same numbered samples through its public API, in its own process.

Input: a geometry, and the Pythons that have the libraries. Output: an `Order` of each, or why there is none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.numbers_data import write_shards
from benchmarks.speed.programs import PROGRAMS, limited
from bridge_data import order
from bridge_data.order import Row
from bridge_data.order.plan_order import PlanOrder, ShuffleSettings
from bridge_data.plan import load_plan

BATCH, BUFFER, EPOCHS, NUM_LANES = 32, 100, 2, 8
LIMIT_S = 900

PERMUTATION = "true permutation"
OURS, OURS_ONE_LANE = f"bridge_data, {NUM_LANES} lanes", "bridge_data, 1 lane"
ENERGON, ENERGON_ONE_RANK = f"Energon, {NUM_LANES} ranks", "Energon, 1 rank"
MOSAIC, MOSAIC_DEFAULT = f"mosaic, block {BUFFER}", "mosaic, default block"
PROGRAM_OF = {
    OURS: "order_tars.py",
    OURS_ONE_LANE: "order_tars.py",
    ENERGON: "order_tars.py",
    ENERGON_ONE_RANK: "order_tars.py",
    MOSAIC: "order_mds.py",
    MOSAIC_DEFAULT: "order_mds.py",
}
LIBRARIES = (PERMUTATION, *PROGRAM_OF)
NUM_LANES_OF = {OURS: NUM_LANES, OURS_ONE_LANE: 1, ENERGON: NUM_LANES, ENERGON_ONE_RANK: 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Samples per shard, and `max_samples_per_sequence`."""

    counts: tuple[int, ...]
    chunk: int | None

    def describe(self) -> str:
        equal = min(self.counts) == max(self.counts)
        lengths = f"{self.counts[0]:,}" if equal else f"{min(self.counts):,} to {max(self.counts):,}"
        return f"{len(self.counts)} shards of {lengths} samples, max_samples_per_sequence={self.chunk}"


GEOMETRIES = {
    "large-shards": Geometry(counts=(1_000,) * 20, chunk=100),
    "small-shards": Geometry(counts=(100,) * 100, chunk=100),
    "unequal-shards": Geometry(counts=tuple(20 + 960 * n // 19 for n in range(20)), chunk=100),
    "whole-shards": Geometry(counts=(500,) * 20, chunk=None),
}


@dataclass(frozen=True, slots=True)
class Order:
    """One stream of sample numbers per seed, with its batches (batches, 32); and the first sample of many seeds."""

    streams: Sequence[np.ndarray]
    batches: Sequence[np.ndarray]
    firsts: np.ndarray
    version: str


def write_data(geometry: Geometry, folder: Path) -> None:
    """The tars for bridge_data and Energon; the program of mosaicml-streaming makes its own shards."""
    (folder / "tars").mkdir(parents=True)
    write_shards(folder / "tars", geometry.counts)


def rows(library: str, geometry: Geometry, folder: Path, seeds: int) -> list[Row]:
    """The rows of our order, one per seed; none for other libraries."""
    if library not in (OURS, OURS_ONE_LANE):
        return []
    plan = load_plan(folder / "tars", split_part="train", training=True)
    shuffle = ShuffleSettings(shuffle_buffer_size=BUFFER, max_samples_per_sequence=geometry.chunk)
    num_lanes, [numbers] = PlanOrder(plan, 0, shuffle, BATCH).first_generation(NUM_LANES_OF[library])
    return [Row(geometry.counts, order.Geometry(num_lanes, *numbers), seed) for seed in range(seeds)]


def permutations(geometry: Geometry, seeds: int, first_seeds: int) -> Order:
    """True permutations, the baseline of every order."""
    samples = sum(geometry.counts)
    rngs = [np.random.default_rng(seed) for seed in range(seeds)]
    streams = [np.concatenate([rng.permutation(samples) for _ in range(EPOCHS)]) for rng in rngs]
    firsts = [np.random.default_rng(seed).integers(samples) for seed in range(first_seeds)]
    batches = [stream[: len(stream) // BATCH * BATCH].reshape(-1, BATCH) for stream in streams]
    return Order(streams, batches, np.array(firsts, dtype=np.int64), f"numpy {np.__version__}")


def draw(
    library: str, geometry: Geometry, folder: Path, pythons: Mapping[str, Path], seeds: int, first_seeds: int
) -> Order | str:
    """A library's order, or a sentence why there is none."""
    if library == PERMUTATION:
        return permutations(geometry, seeds, first_seeds)
    python = pythons[library]
    if not python.exists():
        return "not installed"
    slug = "".join(letter if letter.isalnum() else "-" for letter in library)
    out = folder / f"{slug}.npz"
    job = {
        "tars": str(folder / "tars"),
        "mds": str(folder / f"mds-{slug}"),
        "counts": geometry.counts,
        "chunk": geometry.chunk,
        "batch": BATCH,
        "buffer": BUFFER,
        "num_lanes": NUM_LANES_OF.get(library),
        "block": BUFFER if library == MOSAIC else None,
        "epochs": EPOCHS,
        "seeds": seeds,
        "first_seeds": first_seeds,
        "out": str(out),
    }
    status, _, errors = limited([str(python), str(PROGRAMS / PROGRAM_OF[library]), json.dumps(job)], LIMIT_S)
    if status is None:
        return f"not done after {LIMIT_S} s"
    if status != 0:
        return "failed: " + (errors.strip().splitlines() or [f"exit status {status}"])[-1][:200]
    with np.load(out) as found:
        streams = [found[f"stream{seed}"] for seed in range(seeds)]
        last = EPOCHS * sum(geometry.counts)
        batches = [full_batches(stream, found[f"sizes{seed}"], last) for seed, stream in enumerate(streams)]
        return Order(streams, batches, found["firsts"], str(found["version"]))


def full_batches(stream: np.ndarray, sizes: np.ndarray, last: int) -> np.ndarray:
    """The full batches of 32 among the first `last` samples; a library may end an epoch with a short one."""
    starts = np.cumsum(sizes) - sizes
    whole = starts[(sizes == BATCH) & (starts + BATCH <= last)]
    return stream[whole[:, None] + np.arange(BATCH)]
