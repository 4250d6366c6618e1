"""Save after every step of a 40-step run; restore each state in a process of its own; compare what follows.

python -m tests.properties.resume_everywhere NUM_WORKERS fork     forks each process from this one (quick)
python -m tests.properties.resume_everywhere NUM_WORKERS execute  executes each, with the default start method
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bridge_data import LaneDataset, WorkerConfig, get_savable_loader, get_train_dataset
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder

STEPS = 40


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


def run(path: Path, num_workers: int, packing: int | None, method: Any, state: dict[str, Any] | None) -> list[Any]:
    """(batch, state after it) to the end of the 40 steps."""
    steps = []
    with get_savable_loader(make_dataset(path, num_workers, packing), start_method=method) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        for batch in loader:
            saved = loader.save_state_rank()
            steps.append(json.loads(json.dumps([batch, saved])))
            if saved["next_slot"] >= STEPS:
                return steps
    raise AssertionError("the data ended")


def in_new_process(how: str, path: Path, num_workers: int, packing: int | None, state: dict[str, Any]) -> list[Any]:
    if how == "execute":
        command = [sys.executable, "-m", "tests.properties.resume_everywhere", "restore"]
        question = json.dumps([str(path), num_workers, packing, state])
        return json.loads(subprocess.run(command, input=question, capture_output=True, text=True, check=True).stdout)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(writing, "w") as answer:
            json.dump(run(path, num_workers, packing, "fork", state), answer)
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


def main(num_workers: int, how: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_texts(Path(name) / "a", 400)
        write_texts(Path(name) / "b", 90)
        path = write_blend(Path(name) / "blend.yaml", {"a": 3, "b": 1})
        for packing in (None, 25):
            whole = run(path, num_workers, packing, "fork" if how == "fork" else "server", None)
            for step in range(STEPS - 1):
                rest = in_new_process(how, path, num_workers, packing, whole[step][1])
                assert rest == whole[step + 1 :], f"packing {packing}, after step {step + 1}"
            print(f"{STEPS - 1} resumes equal, packing {packing}")


if __name__ == "__main__":
    if sys.argv[1] == "restore":
        where, workers, buffer, saved_state = json.load(sys.stdin)
        print(json.dumps(run(Path(where), workers, buffer, "server", saved_state)))
    else:
        main(int(sys.argv[1]), sys.argv[2])
