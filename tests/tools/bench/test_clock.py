import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bridge_data import TaskEncoder, WorkerConfig, get_train_dataset
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.tools.bench import (
    BETWEEN,
    CPU_EVERY,
    LANE,
    Clock,
    Key,
    Tally,
    allowed_cores,
    idle_cores_s,
    num_cores,
    tree_cpu_s,
)
from tests.prepared import write_blend, write_texts
from tests.tools.bench.encoders import Hashing, OnlyOdd, work_hard

Encoder = TaskEncoder[Any, Any, Any, Any]

WORK = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def opened(path: Path, encoder: Encoder | None = None, **settings: Any) -> LaneDataset:
    return get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, 0),
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
        task_encoder=encoder,
        **{"batch_size": 4, **settings},
    )


def work_of(dataset: LaneDataset, num_batches: int = 3) -> dict[str, tuple[int, set[int | None]]]:
    """How often each thing was done, and for which sources."""
    lane = dataset.observed(Clock).lane(0, dataset.new_state())
    found: dict[str, tuple[int, set[int | None]]] = {}
    for _ in range(num_batches):
        for key, tally in lane.next().batch.tallies.items():
            calls, sources = found.get(key.what, (0, set()))
            found[key.what] = calls + tally.calls, sources | {key.source}
    return found


def test_what_is_inside_is_not_counted_outside() -> None:
    clock = Clock([10, 11])
    clock.begin_batch()
    clock.begin("decode", 11)
    clock.begin("read", 11)
    work_hard()
    clock.end()
    clock.end()
    clock.end_batch()
    tallies = clock.take()
    assert {key: tally.calls for key, tally in tallies.items()} == {
        BETWEEN: 0,
        LANE: 1,
        Key("decode", 1): 1,
        Key("read", 1): 1,
    }
    assert tallies[Key("read", 1)].cpu_ns > 10 * tallies[Key("decode", 1)].cpu_ns


def test_every_moment_is_charged_once() -> None:
    before = time.perf_counter_ns()
    clock = Clock(range(3))
    begun = time.perf_counter_ns()
    taken: list[Tally] = []
    for _ in range(2 * CPU_EVERY):
        clock.begin_batch()
        for source in range(3):
            clock.begin("read", source)
            clock.end()
        done = time.perf_counter_ns()
        clock.end_batch()
        taken += clock.take().values()
    after = time.perf_counter_ns()
    assert done - begun <= sum(tally.wall_ns for tally in taken) <= after - before


def test_a_failure_leaves_it_in_order() -> None:
    clock = Clock()
    for _ in range(2):
        clock.begin_batch()
        with pytest.raises(ValueError, match="no"):
            fail(clock)
        clock.end_batch()
    assert clock.take()[Key("read")].calls == 2
    assert clock.take_delay_ns() >= 0


def fail(clock: Clock) -> None:
    clock.begin("read")
    try:
        raise ValueError("no")
    finally:
        clock.end()


@pytest.mark.parametrize("encoder", [None, Hashing(), OnlyOdd()])
def test_batches_and_states_are_the_same(tmp_path: Path, encoder: Encoder | None) -> None:
    dataset = opened(write_texts(tmp_path, 20), encoder)
    plain, clocked = (made.lane(0, made.new_state()) for made in (dataset, dataset.observed(Clock)))
    for _ in range(12):
        expected, found = plain.next(), clocked.next()
        assert (found.batch.batch.text, found.state) == (expected.batch.text, expected.state)


def test_reading_decoding_and_batching_are_counted(tmp_path: Path) -> None:
    assert work_of(opened(write_texts(tmp_path, 20))) == {
        "between": (0, {None}),
        "order": (3, {None}),
        "read": (12, {0}),
        "decode": (12, {0}),
        "batch": (3, {None}),
    }


def test_hooks_are_counted_by_source(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 20)
    write_texts(tmp_path / "b", 20)
    work = work_of(opened(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 1}), OnlyOdd()))
    assert work["read"] == work["decode"] == work["encode_sample"] == (12, {0, 1})
    assert work["seed encode_sample"] == (12, {None})
    assert work["batch"] == (3, {None})


def test_descendants_are_counted() -> None:
    before = tree_cpu_s()
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert tree_cpu_s() - before >= 0.15
        process.communicate("\n")


def test_cores() -> None:
    assert 0 < num_cores() <= (os.cpu_count() or 1)
    assert idle_cores_s() >= 0


@pytest.mark.parametrize(("limit", "cores"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5)])
def test_containers_may_have_less(limit: str, cores: float) -> None:
    assert allowed_cores(limit) == cores
