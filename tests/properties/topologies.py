"""The first 50 global batches of 8 micro-batches, for 1, 2, 4 and 8 ranks with 0, 1 and 3 workers, drawn by hypothesis;
and the line of the ledger.

A program of its own, with one thread a process. One loader stays open, which keeps the server alive that starts the
workers of all others.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, merge_states
from bridge_data.order.state import LoaderState
from bridge_data.plugins.ledger.ledger import ledger_line
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder

NUM_LANES, GLOBAL_BATCHES, MICRO_BATCHES = 8, 50, 8
TOPOLOGIES = [(world_size, num_workers) for world_size in (1, 2, 4, 8) for num_workers in (0, 1, 3)]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is drawn."""

    seed: int
    sizes: tuple[int, ...]
    packing: int | None
    batch_size: int


def global_batches(path: Path, run: Run, world_size: int, num_workers: int) -> tuple[list[list[Any]], str]:
    """All micro-batches of each global batch, from one loader a rank; and the line of the ledger after them."""
    streams, states = [], []
    for rank in range(world_size):
        config = WorkerConfig(rank, world_size, num_workers, seed_offset=run.seed, num_lanes=NUM_LANES)
        dataset = get_train_dataset(
            path,
            worker_config=config,
            batch_size=run.batch_size,
            packing_buffer_size=run.packing,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Encoder(skip_every=7),
        )
        with get_savable_loader(dataset, ledger_path=tempfile.mkdtemp(dir=path.parent)) as loader:
            if num_workers:
                assert loader.wait_for_workers(60)
            count = GLOBAL_BATCHES * MICRO_BATCHES // world_size
            streams.append([batch for _, batch in zip(range(count), loader, strict=False)])
            states.append(loader.save_state_rank())
    order = [streams[slot % world_size][slot // world_size] for slot in range(GLOBAL_BATCHES * MICRO_BATCHES)]
    steps = [order[start : start + MICRO_BATCHES] for start in range(0, len(order), MICRO_BATCHES)]
    return steps, ledger_line(LoaderState.from_dict(merge_states(states)))


def main(max_examples: int) -> None:
    """Compare every topology with one rank that works in its own process."""
    with tempfile.TemporaryDirectory() as name:
        write_texts(Path(name), 8)
        config = WorkerConfig(rank=0, world_size=1, num_workers=1)
        dataset = get_train_dataset(
            name, worker_config=config, batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None
        )
        with get_savable_loader(dataset):
            _compare(max_examples)


def _compare(max_examples: int) -> None:

    @settings(max_examples=max_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.builds(
            Run,
            seed=st.integers(0, 1_000),
            sizes=st.lists(st.integers(8, 300), min_size=1, max_size=3).map(tuple),
            packing=st.sampled_from([None, 16]),
            batch_size=st.integers(1, 4),
        )
    )
    def equal_everywhere(run: Run) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for number, size in enumerate(run.sizes):
                write_texts(folder / f"set-{number}", size)
            weights = {f"set-{number}": 1.0 + number for number in range(len(run.sizes))}
            path = write_blend(folder / "blend.yaml", weights)
            expected = global_batches(path, run, 1, 0)
            for world_size, num_workers in TOPOLOGIES[1:]:
                assert global_batches(path, run, world_size, num_workers) == expected, (world_size, num_workers)
            print(f"equal in {len(TOPOLOGIES)} topologies: {run}")

    equal_everywhere()


if __name__ == "__main__":
    main(int(sys.argv[1]))
