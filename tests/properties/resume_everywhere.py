"""Save after every step of a 40-step run; restore each state in another process; compare the steps that follow, and
the states after them.

python -m tests.properties.resume_everywhere NUM_WORKERS together [EVERY]  restores all in one process, with one server
python -m tests.properties.resume_everywhere NUM_WORKERS each [EVERY]      restores each in a process of its own

EVERY is 1 if it is not given; 4 restores every fourth state.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bridge_data import LaneDataset, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader import SavableDataLoader
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder

STEPS = 40
FOLLOWING = 4
"""Steps that are compared after a restore. What comes after them follows from the state, which is compared, too."""


def make_dataset(path: Path, num_workers: int, packing: int | None) -> LaneDataset:
    return get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=4),
        batch_size=2,
        packing_buffer_size=packing,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        task_encoder=Encoder(skip_every=7, num_parts=2),
    )


def run(path: Path, num_workers: int, packing: int | None, state: dict[str, Any] | None, end: int) -> list[Any]:
    """(batch, state after it) up to step `end`."""
    steps = []
    with get_savable_loader(make_dataset(path, num_workers, packing)) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        if num_workers:
            assert loader.wait_for_workers(60)
        for batch in loader:
            saved = loader.save_state_rank()
            steps.append(json.loads(json.dumps([batch, saved])))
            if saved["micro_batch_index"] >= end:
                return steps
    raise AssertionError("the data ended")


def in_new_process(path: Path, num_workers: int, work: list[tuple[int | None, dict[str, Any]]]) -> list[list[Any]]:
    """What follows each of these states, of data with this packing."""
    command = [sys.executable, "-m", "tests.properties.resume_everywhere", "restore"]
    question = json.dumps([str(path), num_workers, work])
    return json.loads(subprocess.run(command, input=question, capture_output=True, text=True, check=True).stdout)


def main(num_workers: int, how: str, every: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_texts(Path(name) / "a", 400)
        write_texts(Path(name) / "b", 90)
        path = write_blend(Path(name) / "blend.yaml", {"a": 3, "b": 1})
        with open_loader(path, num_workers):
            wholes = {packing: run(path, num_workers, packing, None, STEPS) for packing in (None, 25)}
        work = [(packing, step) for packing in wholes for step in range(1, STEPS, every)]
        states = [(packing, wholes[packing][step - 1][1]) for packing, step in work]
        groups = [states] if how == "together" else [[state] for state in states]
        rests = [rest for group in groups for rest in in_new_process(path, num_workers, group)]
        for (packing, step), rest in zip(work, rests, strict=True):
            assert rest == wholes[packing][step : step + FOLLOWING], f"packing {packing}, after step {step}"
        print(f"{len(rests)} resumes equal")


def open_loader(path: Path, num_workers: int) -> SavableDataLoader:
    """A loader that starts the server of workers which all others share."""
    loader = get_savable_loader(make_dataset(path, num_workers, None))
    assert loader.wait_for_workers(60) or not num_workers
    return loader


if __name__ == "__main__":
    if sys.argv[1] == "restore":
        where, workers, states = json.load(sys.stdin)
        with open_loader(Path(where), workers):
            ends = [min(state["micro_batch_index"] + FOLLOWING, STEPS) for _, state in states]
            found = [
                run(Path(where), workers, packing, state, end)
                for (packing, state), end in zip(states, ends, strict=True)
            ]
            print(json.dumps(found))
    else:
        main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
