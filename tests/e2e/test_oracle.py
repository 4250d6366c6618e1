"""A training run with all that happens to one: samples that are left out, packing, a kill, other numbers of ranks,
another blend. What the oracle and the ledger say of a step is what the step logged."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig
from bridge_data.configs import DataConfig
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.plugins.ledger.verify_command import compare_with_ledger
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.saved_files import read_states
from recipes.demo.__main__ import MODEL
from recipes.demo.compare import read_run
from tests.prepared import CRUDE, write_blend, write_dataset
from tests.recipes.vlm_job import launch
from tests.tiny_models.parts import tiny_tokenizer

NUM_LANES, SAVE_INTERVAL = 4, 6
NUM_COMPARED = 50
"""Steps of each run, drawn at random: 200 of the four runs."""


@dataclasses.dataclass(frozen=True)
class Leg:
    """A part of a run: on how many ranks, until which step, in how many lanes; of which blend; whether it is killed."""

    num_ranks: int
    end: int
    num_lanes: int = NUM_LANES
    blend: str = "first.yaml"
    is_killed: bool = False


LEGS = [
    Leg(1, 14, is_killed=True),  # some steps after the checkpoint at 12, which the next leg repeats
    Leg(2, 24),
    Leg(3, 42, num_lanes=6),  # 3 ranks cannot share 4 lanes: the rest is resharded
    Leg(1, 60, num_lanes=6, blend="second.yaml"),
]


def dialogs(size: int) -> list[dict[str, Any]]:
    """Every fifth has an empty answer, and every seventh is too long: both are left out."""
    words = [0 if number % 5 == 0 else 200 if number % 7 == 0 else 1 + number % 9 for number in range(size)]
    turns = [
        [{"role": "user", "content": f"which colour is {number}?"}, {"role": "assistant", "content": "red " * count}]
        for number, count in enumerate(words)
    ]
    return [{"__key__": f"{number:06d}", "json": json.dumps(turn).encode()} for number, turn in enumerate(turns)]


def write_blends(folder: Path) -> None:
    """Two blends of the same data, with other weights and a further data set in the second."""
    for name, size, per_shard in (("a", 60, 10), ("b", 47, 9), ("c", 30, 10)):
        write_dataset(folder / name, dialogs(size), per_shard=per_shard, definition=CRUDE)
    write_blend(folder / "first.yaml", {"a": 3, "b": 1})
    write_blend(folder / "second.yaml", {"a": 1, "b": 2, "c": 1})


def settings_of(leg: Leg, folder: Path) -> dict[str, Any]:
    """The settings of the data for a leg."""
    policies = {"policies": {"overlong": "skip"}}
    return {
        "path": str(folder / leg.blend),
        "tokenizer": str(folder / "tokenizer"),
        "seq_length": 256,
        "task_encoder": {
            "class_path": "bridge_data.encoders.FamilyTaskEncoder",
            "init_args": {"family": None, "config": policies},
        },
        "packing_buffer_size": 12,
        "global_batch_size": 6,
        "max_samples_per_sequence": 10,
        "num_workers": 0,
        "num_lanes": leg.num_lanes,
        "ledger_path": str(folder / "ledger"),
        "strict_restore": False,
    }


def train(leg: Leg, run: Path, folder: Path) -> None:
    config = run.with_suffix(".yaml")
    config.write_text(json.dumps({"data": settings_of(leg, folder)}))
    options = {"kill_after_step": leg.end} if leg.is_killed else {}
    steps = 60 if leg.is_killed else leg.end  # it would go on
    model = MODEL | {"vocabulary": 384}
    settings = {"train_steps": steps, "save_interval": SAVE_INTERVAL, "lr": 1e-2, "bf16": "false"}
    given = settings | {f"model.{name}": value for name, value in model.items()}
    launch(
        run,
        [str(config), str(run), *(f"--{name}={value}" for name, value in given.items())],
        num_ranks=leg.num_ranks,
        **options,
    )


@pytest.mark.slow
def test_oracle_and_ledger_tell_the_steps_of_a_training_run(tmp_path: Path) -> None:
    write_blends(tmp_path)
    tokenizer = tiny_tokenizer("text")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    logged: dict[int, tuple[tuple[str, ...], ...]] = {}
    first_steps = []
    for number, leg in enumerate(LEGS):
        run = tmp_path / f"leg {number}"
        if number:
            shutil.copytree(
                tmp_path / f"leg {number - 1}", run, ignore=shutil.ignore_patterns("steps_*", "ranks", "*.log")
            )
        train(leg, run, tmp_path)
        steps = {step - 1: batch for step, batch in read_run(run).items()}  # the oracle counts from 0
        first_steps.append(min(steps))
        logged |= {step: batch.keys for step, batch in steps.items()}
    assert first_steps[0] == 0 and first_steps[1] % SAVE_INTERVAL == 0 < first_steps[1] < first_steps[2]
    assert first_steps[2:] == [24, 42]
    assert list(logged) == list(range(LEGS[-1].end))

    states = read_states([run])
    module = DataConfig.read(tmp_path / "leg 3.yaml").build()
    config = WorkerConfig(0, 1, 0, num_lanes=LEGS[-1].num_lanes)
    dataset = module.datasets_provider(config, "train")
    schedule, ledger = module.batch_schedule, RunLedger(tmp_path / "ledger")
    order = RunOrder(dataset, schedule=schedule, states=[one.state for one in states])
    written = RunOrder(dataset, schedule=schedule, states=[one.state for one in states], records=ledger)
    rng = random.Random(0)
    steps_compared = rng.sample(sorted(logged), NUM_COMPARED)
    for step in steps_compared:
        keys = [key for of_batch in logged[step] for key in of_batch]
        told, recorded = order.at(step), written.at(step)
        assert [sample.key for sample in told.samples] == keys, step
        assert [sample.key for sample in recorded.samples] == keys, step
        assert len(told.micro_batches) == len(logged[step])
        assert (not told.assumes_no_skips, recorded.num_replayed) == (True, 0)
    assert order.num_replayed and not written.num_replayed
    for step in steps_compared[:5]:
        one = rng.choice(order.at(step).samples)
        same = [number for number in range(LEGS[-1].end) if (one.source, one.index) in _samples(order, number)]
        for run in (order, written):
            found = run.when(source=one.source, index=one.index, steps=range(LEGS[-1].end))
            assert sorted({sample.step for sample in found}) == same
    left_out = {f"{number:06d}" for number in range(60) if number % 5 == 0 or number % 7 == 0}
    assert not left_out & {key.rpartition("/")[2] for keys in logged.values() for batch in keys for key in batch}
    findings = compare_with_ledger(sorted(states, key=lambda one: one.state.micro_batch_index), ledger)
    assert [finding.why or finding.is_same for finding in findings] == [True] * len(states)


def _samples(order: RunOrder, step: int) -> set[tuple[str, int]]:
    return {(sample.source, sample.index) for sample in order.at(step).samples}
