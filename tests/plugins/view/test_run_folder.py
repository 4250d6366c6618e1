"""A run by its folder, as recipes, a LightningCLI and Megatron leave it; and by its config or module."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.errors import ConfigError
from bridge_data.plugins.view.pages import BatchSequence
from bridge_data.tools.loss_log import LossLog, LossReader
from bridge_data.tools.run_order import RunOrder
from bridge_data.tools.runs import SavedRunReader, configured_run, find_run
from tests.plugins.view.live_run import LiveRun
from tests.prepared import write_texts

RECIPE = "recipe: llava\ntiny: true\n"


def test_config_states_and_log_are_found_among_other_files(tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "run")
    live.save(2)
    (live.folder / "wandb").mkdir()
    (live.folder / "checkpoints/iter_0000009.partial").mkdir()
    for name, content in (
        ("checkpoints/iter_0000009.partial/train_dataloader_dprank000.pt", "half"),
        ("broken.yaml", "a: [\n"),
        ("blend.yaml", "__class__: MetadatasetV2\nsplits: {}\n"),
        ("wandb/config.yaml", RECIPE),
        ("steps_dprank001.jsonl", live.log.read_text()),
        ("data.jsonl", '{"step": 1, "samples": 3}\n'),
        ("launcher.log", "step 0: loss 9\n"),
    ):
        (live.folder / name).write_text(content)
    os.mkfifo(live.folder / "pipe.jsonl")
    reader = SavedRunReader(live.folder)
    assert reader.config == live.folder / "config.yaml", "not the one in a folder of it, nor the metadataset"
    assert [one.step for one in reader.saved.states] == [2] and reader.saved.left_out == ()
    assert reader.saved.log is not None and reader.saved.log.losses == ((0, 50.0), (1, 49.0))


def test_several_configs_are_refused_and_of_several_logs_the_one_that_is_taken_is_told(tmp_path: Path) -> None:
    folders = [tmp_path / f"version_{version}" for version in range(3)]
    for version, folder in enumerate(folders):
        folder.mkdir()
        (folder / "config.yaml").write_text("data: {path: texts}\n")
        (folder / "metrics.csv").write_text(f"step,train_loss\n0,{version}\n" if version else "a\n")
    with pytest.raises(
        ConfigError, match=r"several configs, version_0/config\.yaml, version_1/config\.yaml, .*give one"
    ):
        SavedRunReader(tmp_path)
    assert find_run(folders[1]).config == folders[1] / "config.yaml"
    assert SavedRunReader(tmp_path, has_config=True).config is None
    (tmp_path / "config.yaml").write_text(RECIPE)
    reader = SavedRunReader(tmp_path)
    assert reader.saved.log == LossLog(((0, 1.0),), 0)
    taken, other = (folder / "metrics.csv" for folder in folders[1:])
    assert reader.saved.left_out == (f"{other}: another log than {taken}; --log takes it instead",)


@pytest.mark.processes
@pytest.mark.parametrize("given_size", [4, None])
def test_the_folder_of_a_lightning_cli_is_a_run_whose_losses_lead_to_samples(
    tmp_path: Path, given_size: int | None
) -> None:
    """With gradients accumulated over two batches; `global_batch_size` in the config, or left to the trainer."""
    from lightning.pytorch.cli import LightningCLI

    from bridge_data import EnergonMultiModalDataModule
    from tests.datamodule.lightning_parts import Recorder
    from tests.datamodule.parts import numbers, write_numbers

    class Logging(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("train_loss", float(numbers(batch)[-1]))
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            self.log("val_loss", 9.0)

    every_two = {"dirpath": None, "filename": "{step}", "every_n_train_steps": 2, "save_top_k": -1}
    checkpoint = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": every_two}
    loggers = [
        {"class_path": f"lightning.pytorch.loggers.{kind}", "init_args": {"save_dir": str(tmp_path), "name": kind}}
        for kind in ("CSVLogger", "TensorBoardLogger")
    ]
    trainer = {"accelerator": "cpu", "logger": loggers, "max_steps": 9, "callbacks": [checkpoint]}
    trainer |= {"log_every_n_steps": 1, "accumulate_grad_batches": 2, "limit_train_batches": 8, "limit_val_batches": 1}
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    encoder = {"class_path": "bridge_data.DefaultTaskEncoder"}
    data = {"path": str(write_numbers(tmp_path / "numbers")), "task_encoder": encoder, "num_workers": 0, "num_lanes": 2}
    data |= {"micro_batch_size": 2, "global_batch_size": given_size, "seed": 3, "shuffle_buffer_size": 8}
    file = tmp_path / "given.yaml"
    file.write_text(json.dumps({"trainer": trainer, "data": data}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LightningCLI(Logging, EnergonMultiModalDataModule, args=["fit", "--config", str(file)]).model

    reader = SavedRunReader(tmp_path / "CSVLogger/version_0")
    positions = [(one.step, one.state.micro_batch_index) for one in reader.saved.states]
    assert reader.saved.left_out == () and positions == [(2, 4), (4, 8), (6, 12), (8, 16)]
    losses = tuple((step, float(model.trained[2 * step + 1][-1])) for step in range(9))
    events = tmp_path / "TensorBoardLogger/version_0"
    logs = [LossReader(log).read() for log in (events, next(events.glob("*tfevents*")))]
    assert [reader.saved.log, *logs] == [LossLog(losses, 0)] * 3

    run = configured_run(str(reader.config), num_per_step=reader.saved.num_per_step)
    assert run.schedule is not None and run.schedule.global_batch_size == 4
    states = [one.state for one in reader.saved.states]
    sequence = BatchSequence(run.dataset, states)
    assert [numbers(sequence.get(number)) for number in (7, 0, 4, 1)] == [model.trained[n] for n in (7, 0, 4, 1)]
    order = RunOrder(run.dataset, schedule=run.schedule, states=states)
    for step in range(9):
        found = [int(sample.key.rpartition("/")[2]) for sample in order.at(step).samples]
        assert found == [number for batch in model.trained[2 * step : 2 * step + 2] for number in batch]
    file.write_text(json.dumps({"data": data | {"num_lane": 2}}))
    with pytest.raises(ConfigError, match=r"given\.yaml: data: .*num_lane"):
        configured_run(str(file))


@pytest.mark.slow  # imports transformers, and trains
def test_the_folder_of_a_recipe_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recipes.run_log import read_run
    from recipes.tiny_data import write_tiny_data
    from recipes.train import main

    write_tiny_data(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)
    settings = ["log_dir=run", "training.checkpoint_dir=run/checkpoints", "training.save_interval=2"]
    assert main(["--recipe", "text_sft", "--tiny", *settings, "training.train_steps=4"]) == 0
    reader = SavedRunReader(Path("run"))
    assert reader.saved.left_out == () and [one.step for one in reader.saved.states] == [2, 4]
    run, steps = configured_run(str(reader.config)), read_run(Path("run"))
    assert reader.saved.log is not None
    assert reader.saved.log.losses == tuple((step, one.loss) for step, one in steps.items())
    order = RunOrder(run.dataset, schedule=run.schedule, states=[one.state for one in reader.saved.states])
    for step, one in steps.items():
        assert [sample.key for sample in order.at(step).samples] == [key for keys in one.keys for key in keys]


MODULE = """
from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule

def make(**more):
    return EnergonMultiModalDataModule(
        "texts", micro_batch_size=2, num_workers=0, **{"num_lanes": 4, **more}, seed=3, max_samples_per_sequence=10,
        task_encoder=DefaultTaskEncoder(),
    )

def without_lanes():
    return EnergonMultiModalDataModule("texts", num_workers=0, task_encoder=DefaultTaskEncoder())

def with_sizes():
    return make(global_batch_size=8, rampup_batch_size=[4, 4, 8])

other = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, and a module that makes DataModules."""
    write_texts(tmp_path / "texts", 60)
    (tmp_path / "shown_run.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow  # imports Lightning
def test_batches_are_those_of_the_data_module(folder: Path) -> None:
    import shown_run

    run = configured_run("shown_run:with_sizes")
    sequence = BatchSequence(run.dataset)
    loader = shown_run.with_sizes().train_dataloader()
    for number, batch in zip(range(8), loader, strict=False):
        assert sequence.get(number).__key__ == batch.__key__
    loader.close()
    assert run.path == "texts" and run.schedule is not None
    assert (run.schedule.size_after(0), run.schedule.size_after(1000)) == (4, 8)
    for name, lanes, told in (
        ("with_sizes", {}, 4),
        ("with_sizes", {"num_lanes": 6, "saved_lanes": 9}, 6),
        ("with_sizes", {"saved_lanes": 9}, 4),
        ("without_lanes", {"saved_lanes": 9}, 9),
        ("without_lanes", {}, 8),
    ):
        assert f"for {told} lanes" in configured_run(f"shown_run:{name}", **lanes).summary
    assert configured_run("shown_run:make").schedule is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nothing", "expected the YAML of a recipe or of a LightningCLI, or package.module:name"),
        ("no_such_module_here:make", "no module 'no_such_module_here': it is neither in"),
        ("shown_run:none", "shown_run.py has no none"),
        pytest.param(
            "shown_run:other",
            "shown_run:other: got int, expected an EnergonMultiModalDataModule",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_no_run_is_told(folder: Path, config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured_run(config)
