import dataclasses
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bridge_data import TaskEncoder, WorkerConfig, get_train_dataset
from bridge_data.data.shard_set import ShardSet
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.plugins.doctor.bench import BenchConfig, allowed_cores, idle_cores_s, measure, num_cores, tree_cpu_s
from bridge_data.plugins.doctor.clock import BETWEEN, CPU_EVERY, LANE, Clock, Key, Tally
from bridge_data.plugins.doctor.profile import RECEIVE, SEND, Machine, Profile, Trainer, advise, profile, stage_of
from bridge_data.run_options import RunOptions
from bridge_data.task import STAGES
from tests.plugins.doctor.encoders import Cooked, Hashing, OnlyOdd, Packed, work_hard
from tests.plugins.doctor.profiles import made_profile, spent
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts

Encoder = TaskEncoder[Any, Any, Any, Any]

WORK = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def opened(path: Path, encoder: Encoder | None = None) -> LaneDataset:
    order = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
    return get_train_dataset(path, worker_config=WorkerConfig(0, 1, 0), batch_size=4, task_encoder=encoder, **order)


def work_of(dataset: LaneDataset, num_batches: int = 3) -> dict[str, tuple[int, set[int | None]]]:
    """How often each thing was done, and for which sources."""
    lane = dataset.observed(Clock).lane(0, dataset.new_state())
    found: dict[str, tuple[int, set[int | None]]] = {}
    for _ in range(num_batches):
        for key, tally in lane.next().batch.tallies.items():
            calls, sources = found.get(key.what, (0, set()))
            found[key.what] = calls + tally.calls, sources | {key.source}
    return found


def test_what_is_inside_is_not_counted_outside_also_after_a_failure() -> None:
    clock = Clock([10, 11])
    clock.begin_batch()
    clock.begin("decode", 11)
    try:
        clock.begin("read", 11)
        work_hard()
    finally:
        clock.end()
    clock.end()
    clock.end_batch()
    tallies, decode, read = clock.take(), Key("decode", 1), Key("read", 1)
    assert {key: tally.calls for key, tally in tallies.items()} == {BETWEEN: 0, LANE: 1, decode: 1, read: 1}
    assert tallies[read].cpu_ns > 10 * tallies[decode].cpu_ns
    assert clock.take_delay_ns() >= 0


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


@pytest.mark.parametrize("encoder", [None, Hashing(), OnlyOdd()])
def test_batches_and_states_are_the_same(tmp_path: Path, encoder: Encoder | None) -> None:
    dataset = opened(write_texts(tmp_path, 20), encoder)
    plain, clocked = (made.lane(0, made.new_state()) for made in (dataset, dataset.observed(Clock)))
    for _ in range(12):
        expected, found = plain.next(), clocked.next()
        assert (found.batch.batch.text, found.state) == (expected.batch.text, expected.state)


def test_all_work_is_counted_by_kind_and_source(tmp_path: Path) -> None:
    for name in "ab":
        write_texts(tmp_path / name, 20)
    work = work_of(opened(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 1}), OnlyOdd()))
    of_samples = dict.fromkeys(["read", "decode", "encode_sample"], (12, {0, 1}))
    of_batches = {"between": (0, {None})} | dict.fromkeys(["order", "batch", "seed"], (3, {None}))
    assert work == of_samples | of_batches | {"seed encode_sample": (12, {None})}
    whats = [*STAGES, "read", SEND, RECEIVE, LANE.what, *(f"seed {hook}" for hook in STAGES)]
    assert all(stage_of(Key(what)) for what in whats)


def test_cores_and_the_time_of_descendants_are_counted() -> None:
    assert num_cores() > 0 and idle_cores_s() >= 0
    limits = ["max 100000\n", "150000 100000\n"]  # of containers
    assert [allowed_cores(limit) for limit in limits] == [math.inf, 1.5]
    before = tree_cpu_s()
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        assert tree_cpu_s() - before >= 0.15
        process.communicate("\n")


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "few", 10)


@pytest.mark.parametrize(
    ("key", "waited", "expected"),
    [
        (Key("read", 0), 0.9, "read takes 80% of the work. Of that, 90% is waiting for the storage: more workers"),
        (Key("read", 0), 0.1, "Larger chunks (max_samples_per_sequence)"),
        (Key("decode", 0), 0.0, "decode takes 80% of the work. Only what the field map names"),
        (Key("encode_sample", 0), 0.1, "encode takes 80% of the work. It is encode_sample: what it recomputes"),
        (Key("cook_crude_sample", 0), 0.8, "It is cook_crude_sample, which waits 80% of that"),
        (
            Key("seed encode_sample"),
            0.0,
            "seed takes 80% of the work. Mark hooks that draw no random numbers as @state",
        ),
        (Key(SEND), 0.0, "transfer takes 80% of the work. A batch costs 400.00 ms there: a larger micro_batch_size"),
        (Key(RECEIVE), 0.0, "transfer takes 80% of the work."),
        (LANE, 0.0, "order takes 80% of the work. That is the fixed cost of handling samples"),
    ],
)
def test_the_greatest_stage_has_its_way_out(few: Path, key: Key, waited: float, expected: str) -> None:
    (sentence,) = advise(made_profile(few, {key: spent(4, waited), Key("batch"): spent(1)}))
    assert expected in sentence


CAPTIONS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}


def test_the_data_set_that_costs_most_is_named(tmp_path: Path, few: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    image = (tmp_path / "image.png").read_bytes()
    write_dataset(tmp_path / "photos", [{"__key__": "0", "png": image, "txt": "a"}], definition=CAPTIONS)
    blend = write_blend(tmp_path / "blend.yaml", {"few": 1, "photos": 1})
    for seconds, told in (
        ((1, 3), "decode takes 100% of the work, most of it for photos/train. If the images are made smaller"),
        ((3, 1), "most of it for few/train. Only what the field map names"),
    ):
        work = {Key("decode", number): spent(taken) for number, taken in enumerate(seconds)}
        (sentence,) = advise(made_profile(blend, work))
        assert told in sentence


def test_data_without_our_index_should_have_it(few: Path) -> None:
    found = made_profile(few, {Key("read", 0): spent(1)})
    (source,) = found.sources
    assert isinstance(source.records, ShardSet)
    records = dataclasses.replace(source.records, index=None)
    found = dataclasses.replace(found, sources=(dataclasses.replace(source, records=records),))
    assert f"`bridge-data prepare {few} --tar-index-only`" in advise(found)[0]


READ = {Key("read", 0): spent(1)}


@pytest.mark.parametrize(
    ("work", "changes", "expected"),
    [
        (
            READ,
            {"trainer": Trainer(seconds=10, waiting_s=0.1, receiving_s=0.1, step_s=9.8), "idle_s": 9},
            ["The data keep up with these steps: the trainer waits 1% of its time, workers work"],
        ),
        (
            READ,
            {"trainer": Trainer(seconds=10, waiting_s=5, receiving_s=0.1, step_s=5)},
            ["The data hold the trainer up: it waits 50% of its time."],
        ),
        (READ, {"num_workers": 0}, ["The trainer does all of this itself"]),
        ({}, {}, []),
    ],
)
def test_who_waits_for_whom(few: Path, work: dict[Key, Tally], changes: dict[str, Any], expected: list[str]) -> None:
    found = advise(made_profile(few, work, **changes))
    assert bool(found) == bool(expected)
    assert all(sentence.startswith(told) for sentence, told in zip(found, expected, strict=False))


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(num_cores=2, used_cores=1.9, idle_cores=0.1, delayed=0.3), "It computes on all 2 cores"),
        (
            Machine(num_cores=8, used_cores=2, idle_cores=5.5, delayed=0),
            "5.5 of 8 cores have nothing to do: try num_workers",
        ),
        (Machine(num_cores=2, used_cores=1, idle_cores=0, delayed=0.4), "40% of the time goes by until a core is fr"),
        (Machine(num_cores=2, used_cores=1, idle_cores=1, delayed=0.4), "try num_workers=3"),
    ],
)
def test_cores_are_counted(few: Path, machine: Machine, expected: str) -> None:
    assert expected in advise(made_profile(few, READ, machine=machine))[-1]


def config_of(path: Path, **settings: Any) -> BenchConfig:
    """A run of the data at `path` without workers; its own settings, and options of a run."""
    own = {
        name: settings.pop(name) for name in ("task_encoder", "seconds", "num_batches", "step_s") if name in settings
    }
    return BenchConfig(
        path=path,
        options=RunOptions.of(
            **{"micro_batch_size": 16, "max_samples_per_sequence": 100} | {"num_workers": 0} | settings
        ),
        **own,
    )


def greatest(found: Profile) -> str:
    """The stage with the greatest share; they add up."""
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)
    assert all(0 <= stage.waited <= 1 for stage in found.stages)
    return max(found.stages, key=lambda stage: stage.share).name


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 40, lambda number: "x" * 100)


@pytest.mark.parametrize(("length", "num_batches"), [({"num_batches": 4}, 4), ({"seconds": 0.5}, 2)])
def test_a_measured_run_is_as_long_as_asked(texts: Path, length: dict[str, Any], num_batches: int) -> None:
    figures = measure(config_of(path=texts, micro_batch_size=4, step_s=0.3, **length))
    assert (figures.num_batches, figures.num_samples, figures.sample_bytes) == (num_batches, 4 * num_batches, 100)


def test_what_takes_longest_is_found_in_this_process(texts: Path) -> None:
    found = profile(config_of(path=texts, micro_batch_size=4, num_batches=8, task_encoder=Hashing()))
    assert greatest(found) == "encode"
    assert [stage.name for stage in found.stages] == ["read", "decode", "encode", "batch", "order", "transfer"]
    assert (found.num_samples, found.num_batches, found.idle_s, found.busy) == (32, 8, 0, 1)
    assert (found.trainer.waiting_s, found.trainer.step_s) == (0, 0)
    assert found.total_s <= found.trainer.seconds
    assert [source.num_samples for source in found.by_source] == [32]


@pytest.mark.processes
def test_workers_send_what_they_did(texts: Path) -> None:
    sizes = {"num_workers": 2, "micro_batch_size": 4, "num_batches": 8, "step_s": 0.001}
    found = profile(config_of(path=texts, task_encoder=Hashing(), **sizes))
    assert greatest(found) == "encode"
    assert (found.num_samples, found.num_batches, found.num_workers) == (32, 8, 2)
    assert [source.num_samples for source in found.by_source] == [32]
    assert 0 < found.busy <= 1 and found.machine.delayed >= 0
    trainer = found.trainer
    assert min(trainer.step_s, trainer.receiving_s) > 0
    assert trainer.step_s + trainer.receiving_s + trainer.waiting_s <= trainer.seconds * 1.001
    assert set(found.whats("transfer")) == {"transfer send", "transfer receive"}


def test_a_folder_may_be_blended_twice(texts: Path) -> None:
    blend = write_blend(texts.parent / "blend.yaml", {"texts": 1})
    blend.write_text(blend.read_text() + "      - {path: texts, weight: 1}\n")
    found = profile(config_of(path=blend, num_batches=2))
    assert sorted(source.name for source in found.by_source) == ["texts/train", "texts/train (2)"]


def test_cooks_and_packs_are_found(tmp_path: Path, texts: Path) -> None:
    samples = ({"__key__": str(number), "txt": "text"} for number in range(12))
    crude = write_dataset(tmp_path / "crude", samples, definition={"sample_type": CRUDE})
    assert greatest(profile(config_of(path=crude, num_batches=2, task_encoder=Cooked()))) == "cook"
    packed = config_of(path=texts, micro_batch_size=2, packing_buffer_size=16, num_batches=4, task_encoder=Packed())
    assert greatest(profile(packed)) == "pack"
