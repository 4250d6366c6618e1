"""A job killed whole at random moments and resumed on other numbers of ranks emits every sample exactly once."""

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bridge_data import WorkerConfig, get_savable_loader
from bridge_data.loader.checkpoint import load_states
from tests.faults.elastic_job import make_dataset, newest
from tests.prepared import write_blend, write_texts

SIZES = (3_000, 700)
WORLDS = (4, 4, 2, 1, 3, 4, 3, 2, 4, 1, 4)


def launch(folder: Path, run: int, world_size: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    with open(folder / f"out-{run}.txt", "wb") as output:
        return subprocess.Popen(
            [*command, "-m", "tests.faults.elastic_job", str(folder)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"RUN": str(run), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def kill_whole(job: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the job, and see that they are gone."""
    processes = [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    job.wait()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def steps_logged(folder: Path, run: int) -> list[dict[str, object]]:
    """Whole lines of the logs of all ranks of a run; the last one may be torn."""
    lines = []
    for file in folder.glob(f"log-{run}-*.jsonl"):
        text = file.read_text()
        lines += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return lines


def wait_for(condition: object, job: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert job.poll() is None, output.read_text()[-3_000:]
        assert time.monotonic() < deadline, output.read_text()[-3_000:]
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_with_other_numbers_of_ranks_lose_and_repeat_nothing(tmp_path: Path) -> None:
    rng = random.Random(5)
    (tmp_path / "data").mkdir()
    for name, size in zip("ab", SIZES, strict=True):
        write_texts(tmp_path / "data" / name, size)
    write_blend(tmp_path / "data" / "blend.yaml", {"a": 3, "b": 1})
    began: list[int] = []
    for run, world_size in enumerate(WORLDS):
        start = newest(tmp_path)
        began.append(0 if start is None else int(start.name.removeprefix("iter_")))
        job = launch(tmp_path, run, world_size)
        wanted = began[-1] + rng.randrange(12, 40)
        output = tmp_path / f"out-{run}.txt"
        wait_for(lambda: any(int(str(s["step"])) >= wanted for s in steps_logged(tmp_path, run)), job, output)  # noqa: B023
        kill_whole(job)
    end = newest(tmp_path)
    assert end is not None
    kept_until = [*began[1:], int(end.name.removeprefix("iter_"))]
    emitted: collections.Counter[tuple[object, ...]] = collections.Counter()
    for run, last in enumerate(kept_until):
        assert last > began[run], f"run {run} saved nothing"
        for step in steps_logged(tmp_path, run):
            if int(str(step["step"])) <= last:
                emitted.update(tuple(key) for key in step["keys"])  # type: ignore[attr-defined]
    assert max(emitted.values()) == 1
    assert len(emitted) > 1_000
    # Nothing is missing either: go on in one process until the first epoch of both sources is over.
    dataset = make_dataset(tmp_path, WorkerConfig(0, 1, 0))
    expected = {
        (source, 0, index, part)
        for source, size in zip(dataset.source_ids, SIZES, strict=True)
        for index in range(size)
        if index % 7 != 1
        for part in range(2 if index % 5 == 2 else 1)
    }
    with get_savable_loader(dataset) as loader:
        loader.restore_state_rank(load_states(end))
        for batch in loader:
            emitted.update(key for unit in batch for key in unit)
            if expected <= emitted.keys():
                break
            assert len(emitted) < 10 * len(expected)
    assert max(emitted.values()) == 1
