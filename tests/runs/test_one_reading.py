"""One reading of a run: what `check --run`, `plan`, `order` and `view` say of 200 steps is what a DataModule draws."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data import DefaultTaskEncoder
from bridge_data.configs import DataConfig
from bridge_data.loader.checkpoint import load_states, save_states
from bridge_data.order.state import merge_states
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.run_checks import examine
from bridge_data.plugins.view.pages import BatchSequence
from bridge_data.plugins.view.shown_run import SavedRun, SavedRunReader, ShownRun
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.saved_files import read_states
from bridge_data.runs.training_run import TrainingRun
from tests.cli.runner import run_command
from tests.prepared import write_blend, write_texts

STEPS = 200


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """The encoder of the runs here."""


PLAIN = "tests.runs.test_one_reading.Plain"

IN_PYTHON = """
import bridge_data
from bridge_data.configs import DataConfig
from tests.runs.test_one_reading import Plain

def config():
    return DataConfig(path="blend.yaml", task_encoder=Plain(), options={"micro_batch_size": 3, "seed": 5})

def module():
    return bridge_data.EnergonMultiModalDataModule("blend.yaml", task_encoder=Plain(), num_lanes=4, num_workers=0)

def bridge():
    return bridge_data.EnergonDatasetConfig(
        path="blend.yaml", seq_length=64, micro_batch_size=2, num_workers=0, task_encoder=Plain(),
        dataset_kwargs={"seed": 3, "num_lanes": 6})

class Container:
    def __init__(self):
        self.dataset = bridge()
        self.train = type("Train", (), {"global_batch_size": 6, "rampup_batch_size": None, "train_iters": 300})
"""

RUNS: dict[str, tuple[str, list[str], dict[str, Any] | None]] = {
    "data, with the defaults": ("many", [], None),
    "few data, with the defaults": ("few", [], None),
    "a blend, overridden": ("blend.yaml", ["micro_batch_size=4", "num_lanes=4", "seed=7"], None),
    "a YAML, with the defaults": ("run.yaml", [], {"path": "many"}),
    "a YAML with settings": (
        "run.yaml",
        [],
        {"path": "blend.yaml", "micro_batch_size": 2, "global_batch_size": 8, "max_samples_per_sequence": 10},
    ),
    "a YAML with a class, many workers, overridden": (
        "run.yaml",
        ["data.seed=9", "trainer.accumulate_grad_batches=2"],
        {"class_path": "bridge_data.EnergonMultiModalDataModule", "init_args": {"path": "many", "num_workers": 12}},
    ),
    "a YAML that skips steps": (
        "run.yaml",
        [],
        {"path": "many", "global_batch_size": 4, "skip_steps": ["3-5", "40"], "num_lanes": 8},
    ),
    "a YAML with a ramp, and some samples": (
        "run.yaml",
        [],
        {
            "path": "many",
            "micro_batch_size": 2,
            "global_batch_size": 8,
            "rampup_batch_size": [4, 2, 60],
            "where": "txt.bytes > 0",
        },
    ),
    "a Python function": ("my_runs:config", [], None),
    "a DataModule in Python": ("my_runs:module", ["shuffle_buffer_size=40"], None),
    "a config of Megatron-Bridge": ("my_runs:Container", [], None),
    "the folder of a run": ("folder", [], {"path": "blend.yaml", "micro_batch_size": 2, "num_lanes": 4}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "many", 900, per_shard=90)
    write_texts(folder / "few", 5)
    write_texts(folder / "other", 70)
    write_blend(folder / "blend.yaml", {"many": 3, "other": 1})
    (folder / "my_runs.py").write_text(IN_PYTHON)
    return folder


@pytest.fixture(autouse=True)
def here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the data."""
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_runs", raising=False)


def _lanes(config: DataConfig) -> dict[str, int]:
    """Workers beyond 8 bring lanes of their own; here are none."""
    workers = config.run_options.worker
    return {} if workers.num_workers <= 8 else {"num_lanes": workers.num_lanes}


def saved_after(folder: Path, num_steps: int) -> Path:
    """The state of the run in a folder after some steps."""
    loader = DataConfig.read(folder, ["num_workers=0", f"task_encoder={PLAIN}"]).build().train_dataloader()
    for _ in range(num_steps):
        next(loader)
    path = folder / f"iter_{num_steps:07d}"
    save_states(path, merge_states([loader.save_state()]), step=num_steps, world_size=1)
    return path


@pytest.mark.parametrize("name", RUNS)
def test_commands_say_of_a_run_what_its_datamodule_draws(name: str, tmp_path: Path) -> None:
    source, overrides, data = RUNS[name]
    saved = SavedRun()
    if data is not None:
        folder = tmp_path / (source if source == "folder" else "")
        folder.mkdir(exist_ok=True)
        (folder / "run.yaml").write_text(yaml.safe_dump({"data": data}))
    if source == "folder":
        saved = SavedRun(states=read_states([saved_after(tmp_path / source, 30)]))
    run = TrainingRun.read(source, overrides, states=saved.states)
    steps = [run.schedule.micro_batches(step) for step in range(STEPS)]
    config = DataConfig.read(source, [text for text in overrides if not text.startswith("trainer.")])
    if config.task_encoder is None:
        config = config.overridden([f"task_encoder={PLAIN}"])
    loader = config.with_options(num_workers=0, **_lanes(config)).build().train_dataloader()
    keys = [list(next(loader).__key__) for _ in range(steps[-1].stop)]

    order = RunOrder(run.dataset(), schedule=run.schedule, states=[one.state for one in saved.states])
    samples = [order.at(step).samples for step in range(STEPS)]
    for step, numbers in enumerate(steps):
        told = [[one.key for one in samples[step] if one.micro_batch == number] for number in numbers]
        assert told == [keys[number] for number in numbers], step

    shown = BatchSequence(ShownRun.of(run, Plain(), saved).dataset, [one.state for one in saved.states])
    for number in (0, 1, 2, 9, 41, 150):
        assert list(shown.get(number).__key__) == keys[number]

    printed = run_command("order", source, *overrides, "--step", 7, "--json")
    assert printed.exit_code == 0, printed.output
    assert [one["key"] for one in json.loads(printed.stdout)["samples"]] == [key for n in steps[7] for key in keys[n]]
    planned = json.loads(run_command("plan", source, *overrides, "--run-steps", STEPS, "--json").stdout)
    num_samples = sum(len(keys[number]) for numbers in steps for number in numbers)
    assert planned["run"]["units"] == num_samples
    by_source = Counter(one.source for step in samples for one in step)
    if not run.options.trainer.skip_steps:
        assert planned["run"]["drawn"] == [by_source[one["name"]] for one in planned["sources"]]

    checkup = examine(PlannedRun.read(source, overrides, states=saved.states))
    assert not checkup.stops
    if len(saved.states) == 0:
        lanes = order.num_lanes
        assert {one.geometry.num_lanes for one in checkup.orders} == {lanes}


def test_states_without_a_config_are_settings_too(tmp_path: Path) -> None:
    config = DataConfig(path="many", task_encoder=Plain(), options={"num_workers": 0, "micro_batch_size": 3, "seed": 4})
    loader = config.build().train_dataloader()
    keys = [list(next(loader).__key__) for _ in range(40)]
    save_states(tmp_path / "iter_0000040", merge_states([loader.save_state()]), step=40, world_size=1)
    printed = run_command("order", "many", "--state", tmp_path / "iter_0000040", "--step", 12, "--json")
    assert printed.exit_code == 0, printed.output
    assert [one["key"] for one in json.loads(printed.stdout)["samples"]] == keys[12]
    refused = run_command("order", "many", "seed=5", "--state", tmp_path / "iter_0000040", "--step", 12)
    assert refused.exit_code == 1 and "seed=5: the run had 4" in refused.stderr


def test_a_run_that_went_back_to_skip_steps_is_read_without_the_states_that_it_left(tmp_path: Path) -> None:
    run, keys = tmp_path / "run", []
    for start, stop, options in ((0, 30, {}), (10, 20, {"skip_steps": ["12"]})):
        sizes = {"num_workers": 0, "micro_batch_size": 3, "global_batch_size": 3}
        config = DataConfig(path="many", task_encoder={"class_path": PLAIN}, options=sizes | options).saved_in(run)
        loader = config.build().train_dataloader()
        if start:
            loader.restore_state(load_states(run / f"iter_{start:07d}", step=start))
        for step in range(start, stop):
            keys[step:] = [list(next(loader).__key__)]
            if (step + 1) % 10 == 0:
                state = merge_states([loader.save_state()])
                save_states(run / f"iter_{step + 1:07d}", state, step=step + 1, world_size=1)
                (run / "latest_checkpointed_iteration.txt").write_text(str(step + 1))
    printed = run_command("order", run, "--step", 15, "--json")
    assert printed.exit_code == 0, printed.output
    assert "iter_0000030: is newer than the checkpoint that" in printed.stderr
    assert [one["key"] for one in json.loads(printed.stdout)["samples"]] == keys[15]
    assert "iter_0000030" in SavedRunReader(run).read().left_out[0]
