import dataclasses
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bridge_data import TaskEncoder, WorkerConfig, get_train_dataset
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.shards.prepared import ShardSet
from bridge_data.task import STAGES
from bridge_data.tools.bench import (
    BETWEEN,
    CPU_EVERY,
    LANE,
    RECEIVE,
    SEND,
    BenchConfig,
    Clock,
    Figures,
    Key,
    Machine,
    Profile,
    Tally,
    Trainer,
    advise,
    allowed_cores,
    idle_cores_s,
    measure,
    num_cores,
    profile,
    stage_of,
    tree_cpu_s,
)
from bridge_data.tools.runs import BENCH_OPTIONS
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.bench.encoders import Cooked, Hashing, OnlyOdd, Packed, work_hard
from tests.tools.bench.profiles import made_profile, spent

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


FIGURES = Figures(
    num_samples=200,
    num_batches=10,
    seconds=4.0,
    cpu_s=1.0,
    num_skipped=1,
    sample_bytes=30.0,
    first_batch_s=0.1,
    workers_ready_s=0.2,
    save_s=0.001,
    state_bytes=500,
    restore_s=0.3,
)


@pytest.mark.parametrize("what", [*STAGES, "read", SEND, RECEIVE, LANE.what, *(f"seed {hook}" for hook in STAGES)])
def test_everything_that_is_clocked_has_a_stage(what: str) -> None:
    assert stage_of(Key(what))


CAPTIONS = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"},
}


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
        (Key(SEND), 0.0, "transfer takes 80% of the work. A batch costs 400.00 ms there: a larger batch_size"),
        (Key(RECEIVE), 0.0, "transfer takes 80% of the work."),
        (LANE, 0.0, "order takes 80% of the work. That is the fixed cost of handling samples"),
    ],
)
def test_the_greatest_stage_has_its_way_out(few: Path, key: Key, waited: float, expected: str) -> None:
    (sentence,) = advise(made_profile(few, {key: spent(4, waited), Key("batch"): spent(1)}))
    assert expected in sentence


def test_the_data_set_that_costs_most_is_named(tmp_path: Path, few: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    image = (tmp_path / "image.png").read_bytes()
    write_dataset(tmp_path / "photos", [{"__key__": "0", "png": image, "txt": "a"}], definition=CAPTIONS)
    blend = write_blend(tmp_path / "blend.yaml", {"few": 1, "photos": 1})
    work = {Key("decode", 0): spent(1), Key("decode", 1): spent(3)}
    (sentence,) = advise(made_profile(blend, work))
    assert "decode takes 100% of the work, most of it for photos/train. If the images are made smaller" in sentence
    (sentence,) = advise(made_profile(blend, {Key("decode", 0): spent(3), Key("decode", 1): spent(1)}))
    assert "most of it for few/train. Only what the field map names" in sentence


def test_data_without_our_index_should_have_it(few: Path) -> None:
    found = made_profile(few, {Key("read", 0): spent(1)})
    (source,) = found.sources
    assert isinstance(source.records, ShardSet)
    records = dataclasses.replace(source.records, index=None)
    found = dataclasses.replace(found, sources=(dataclasses.replace(source, records=records),))
    assert f"`bridge-data prepare {few} --tar-index-only`" in advise(found)[0]


def test_who_waits_for_whom(few: Path) -> None:
    work = {Key("read", 0): spent(1)}
    trainer = Trainer(seconds=10, waiting_s=0.1, receiving_s=0.1, step_s=9.8)
    (sentence,) = advise(made_profile(few, work, trainer=trainer, idle_s=9))
    assert "The data keep up with these steps: the trainer waits 1% of its time, workers work" in sentence
    trainer = dataclasses.replace(trainer, waiting_s=5, step_s=5)
    assert (
        advise(made_profile(few, work, trainer=trainer))[0] == "The data hold the trainer up: it waits 50% of its time."
    )
    assert advise(made_profile(few, work, num_workers=0))[0].startswith("The trainer does all of this itself")
    assert advise(made_profile(few, {})) == []


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(num_cores=2, used_cores=1.9, idle_cores=0.1, delayed=0.3), "It computes on all 2 cores"),
        (Machine(num_cores=8, used_cores=2, idle_cores=5.5, delayed=0), "5.5 of 8 cores have nothing to do: try --num"),
        (Machine(num_cores=2, used_cores=1, idle_cores=0, delayed=0.4), "40% of the time goes by until a core is fr"),
        (Machine(num_cores=2, used_cores=1, idle_cores=1, delayed=0.4), "try --num-workers 3"),
    ],
)
def test_cores_are_counted(few: Path, machine: Machine, expected: str) -> None:
    assert expected in advise(made_profile(few, {Key("read", 0): spent(1)}, machine=machine))[-1]


def shares(found: Profile) -> dict[str, float]:
    """The share of each stage; they add up."""
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)
    assert all(0 <= stage.waited <= 1 for stage in found.stages)
    return {stage.name: stage.share for stage in found.stages}


def config_of(path: Path, **settings: Any) -> BenchConfig:
    """A run of the data at `path`; its own settings, and options of a run."""
    own = {
        name: settings.pop(name) for name in ("task_encoder", "seconds", "num_batches", "step_s") if name in settings
    }
    return BenchConfig(path=path, options=BENCH_OPTIONS.with_options(**settings), **own)


def greatest(found: Profile) -> str:
    parts = shares(found)
    return max(parts, key=lambda name: parts[name])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 40)


@pytest.mark.processes
@pytest.mark.parametrize(("length", "total"), [({"num_batches": 4}, 4), ({"seconds": 0.9}, 1)])
def test_progress_is_told_now_and_then(texts: Path, length: dict[str, Any], total: int) -> None:
    told: list[tuple[int, int | None]] = []
    config = config_of(path=texts, num_workers=0, micro_batch_size=4, step_s=0.3, **length)
    measure(config, lambda done, of: told.append((done, of)))
    assert told
    assert {of for _, of in told} == {total}
    assert all(0 <= done <= total for done, _ in told)


def test_the_bytes_of_a_sample(tmp_path: Path) -> None:
    texts = write_texts(tmp_path, 20, lambda number: "x" * 100)
    assert measure(config_of(path=texts, num_workers=0, micro_batch_size=4, num_batches=1)).sample_bytes == 100


def test_what_takes_longest_is_found_in_this_process(texts: Path) -> None:
    config = config_of(path=texts, num_workers=0, micro_batch_size=4, num_batches=8, task_encoder=Hashing())
    found = profile(config)
    assert greatest(found) == "encode"
    assert list(shares(found)) == ["read", "decode", "encode", "batch", "order", "transfer"]
    assert (found.num_samples, found.num_batches, found.idle_s, found.busy) == (32, 8, 0, 1)
    assert (found.trainer.waiting_s, found.trainer.step_s) == (0, 0)
    assert found.total_s <= found.trainer.seconds
    assert [source.num_samples for source in found.by_source] == [32]


@pytest.mark.processes
def test_workers_send_what_they_did(texts: Path) -> None:
    config = config_of(
        path=texts, num_workers=2, micro_batch_size=4, num_batches=8, task_encoder=Hashing(), step_s=0.001
    )
    found = profile(config)
    assert greatest(found) == "encode"
    assert (found.num_samples, found.num_batches, found.num_workers) == (32, 8, 2)
    assert [source.num_samples for source in found.by_source] == [32]
    assert 0 < found.busy <= 1
    trainer = found.trainer
    assert min(trainer.step_s, trainer.receiving_s) > 0
    assert trainer.step_s + trainer.receiving_s + trainer.waiting_s <= trainer.seconds * 1.001
    assert set(found.whats("transfer")) == {"transfer send", "transfer receive"}
    assert found.machine.delayed >= 0


def test_each_data_set_has_its_own(tmp_path: Path) -> None:
    write_texts(tmp_path / "odd", 20, lambda number: "odd")
    write_texts(tmp_path / "even", 20, lambda number: "even")
    blend = write_blend(tmp_path / "blend.yaml", {"even": 3, "odd": 1})
    found = profile(config_of(path=blend, num_workers=0, micro_batch_size=8, num_batches=5, task_encoder=OnlyOdd()))
    odd, even = found.by_source
    assert (odd.name, even.name, odd.number, even.number) == ("odd/train", "even/train", 1, 0)
    assert odd.num_samples + even.num_samples == 40
    assert 0 < odd.num_samples < even.num_samples
    assert list(odd.seconds) == list(even.seconds) == ["read", "decode", "encode"]
    assert odd.seconds["encode"] > even.seconds["encode"]
    assert odd.share + even.share <= 1


def test_a_folder_may_be_blended_twice(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", 20)
    blend = tmp_path / "blend.yaml"
    write_blend(blend, {"texts": 1})
    blend.write_text(blend.read_text() + "      - {path: texts, weight: 1}\n")
    found = profile(config_of(path=blend, num_workers=0, num_batches=2))
    assert sorted(source.name for source in found.by_source) == ["texts/train", "texts/train (2)"]


def test_cooks_and_packs_are_found(tmp_path: Path, texts: Path) -> None:
    crude = write_dataset(
        tmp_path / "crude",
        [{"__key__": str(number), "txt": "text"} for number in range(12)],
        definition={"sample_type": CRUDE},
    )
    assert greatest(profile(config_of(path=crude, num_workers=0, num_batches=2, task_encoder=Cooked()))) == "cook"
    packed = config_of(
        path=texts, num_workers=0, micro_batch_size=2, packing_buffer_size=16, num_batches=4, task_encoder=Packed()
    )
    assert greatest(profile(packed)) == "pack"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 0}, "seconds=0: expected more than 0"),
        ({"seconds": float("nan")}, "seconds=nan: expected more than 0"),
        ({"num_batches": 0}, r"num_batches=0\): expected at least 1"),
        ({"step_s": -1}, "step_s=-1: expected 0 or more"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(path="somewhere", **settings)
