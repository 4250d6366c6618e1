"""A run by its folder, as recipes, a LightningCLI and Megatron leave it."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.errors import ConfigError
from bridge_data.loader.checkpoint import save_states
from bridge_data.tools.loss_log import LossLog, LossReader
from bridge_data.tools.oracle import RunOrder
from bridge_data.tools.runs import SavedRunReader, configured_run, find_run
from bridge_data.tools.view.pages import BatchSequence
from tests.prepared import write_texts

RECIPE = "recipe: llava\ntiny: true\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: a config, two checkpoints, the logs of two ranks, and other files."""
    run = tmp_path_factory.mktemp("runs") / "run"
    data = write_texts(run.parent / "texts", 40)
    loader = get_savable_loader(
        get_train_dataset(
            data,
            worker_config=WorkerConfig(0, 1, 0, num_lanes=2),
            batch_size=2,
            shuffle_buffer_size=8,
            max_samples_per_sequence=8,
        )
    )
    for step, _ in zip(range(1, 5), loader, strict=False):
        if step % 2 == 0:
            save_states(run / f"checkpoints/iter_{step:07d}", loader.save_state_rank(), step=step, world_size=1)
    (run / "checkpoints/iter_0000009.partial").mkdir()
    (run / "checkpoints/iter_0000009.partial/train_dataloader_dprank000.pt").write_bytes(b"half")
    (run / "config.yaml").write_text(RECIPE)
    (run / "blend.yaml").write_text("__class__: MetadatasetV2\nsplits: {}\n")
    (run / "wandb").mkdir()
    (run / "wandb/config.yaml").write_text(RECIPE)
    for rank in range(2):
        lines = (json.dumps({"step": step, "loss": step / 2}) for step in range(3))
        (run / f"steps_dprank{rank:03d}.jsonl").write_text("\n".join(lines))
    (run / "data.jsonl").write_text('{"step": 1, "samples": 3}\n')
    (run / "launcher.log").write_text("step 0: loss 9\n")
    os.mkfifo(run / "pipe.jsonl")
    return run


def test_config_states_and_log_are_found(folder: Path) -> None:
    reader = SavedRunReader(folder)
    assert reader.config == folder / "config.yaml", "not the one in a folder of it, nor the metadataset"
    assert [one.step for one in reader.saved.states] == [2, 4] and reader.saved.left_out == ()
    assert reader.saved.log is not None and reader.saved.log.losses == ((0, 0.0), (1, 0.5), (2, 1.0))


def test_a_damaged_state_is_told_and_hides_no_other(folder: Path) -> None:
    file = folder / "checkpoints/iter_0000002/train_dataloader_dprank000.pt"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-9])
        reader = SavedRunReader(folder)
    finally:
        file.write_bytes(whole)
    assert [one.step for one in reader.saved.states] == [4]
    assert len(reader.saved.left_out) == 1 and "iter_0000002" in reader.saved.left_out[0]


def test_several_configs_are_refused_by_name(tmp_path: Path) -> None:
    for version in range(2):
        (tmp_path / f"version_{version}").mkdir()
        (tmp_path / f"version_{version}/config.yaml").write_text("data: {path: texts}\n")
    with pytest.raises(ConfigError, match=r"several configs, version_0/config\.yaml, version_1/config\.yaml: give one"):
        SavedRunReader(tmp_path)
    assert find_run(tmp_path / "version_1").config == tmp_path / "version_1/config.yaml"


def test_of_several_logs_the_one_that_is_taken_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(RECIPE)
    for version in range(3):
        (tmp_path / f"version_{version}").mkdir()
        (tmp_path / f"version_{version}/metrics.csv").write_text(
            f"step,train_loss\n0,{version}\n" if version else "a\n"
        )
    reader = SavedRunReader(tmp_path)
    assert reader.saved.log == LossLog(((0, 1.0),), 0)
    (line,) = reader.saved.left_out
    taken, other = (tmp_path / f"version_{version}/metrics.csv" for version in (1, 2))
    assert line == f"{other}: another log than {taken}; --log takes it instead"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    with pytest.raises(ConfigError, match=r"has no \.nv-meta.*and no run: no config, saved state, ledger or log"):
        SavedRunReader(tmp_path)


@pytest.mark.processes
def test_the_folder_of_a_lightning_cli_is_a_run(tmp_path: Path) -> None:
    from lightning.pytorch.cli import LightningCLI

    from bridge_data import EnergonMultiModalDataModule
    from tests.datamodule.lightning_parts import Recorder
    from tests.datamodule.parts import numbers, write_numbers

    class Logging(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("train_loss", 4.0 - batch_idx)
            return super().training_step(batch, batch_idx)

    every_two = {"dirpath": None, "filename": "{step}", "every_n_train_steps": 2, "save_top_k": -1}
    checkpoint = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": every_two}
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}}
    trainer = {
        "accelerator": "cpu",
        "logger": logger,
        "max_steps": 4,
        "callbacks": [checkpoint],
        "log_every_n_steps": 1,
    }
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
    encoder = {"class_path": "bridge_data.DefaultTaskEncoder"}
    data = {"path": str(write_numbers(tmp_path / "numbers")), "task_encoder": encoder, "num_workers": 0, "num_lanes": 2}
    data |= {"micro_batch_size": 2, "global_batch_size": 4, "seed": 3, "shuffle_buffer_size": 8}
    file = tmp_path / "given.yaml"
    file.write_text(json.dumps({"trainer": trainer | {"accumulate_grad_batches": 2}, "data": data}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = LightningCLI(Logging, EnergonMultiModalDataModule, args=["fit", "--config", str(file)])

    reader = SavedRunReader(tmp_path / "lightning_logs/version_0")
    assert reader.saved.left_out == () and [(one.step, one.state.next_slot) for one in reader.saved.states] == [
        (2, 4),
        (4, 8),
    ]
    assert reader.saved.log == LossLog(((0, 3.0), (1, 1.0), (2, -1.0), (3, -3.0)), 0)
    run = configured_run(str(reader.config))
    assert run.schedule is not None and run.schedule.global_batch_size == 4
    sequence = BatchSequence(run.dataset, [one.state for one in reader.saved.states])
    assert [numbers(sequence.get(number)) for number in (7, 0, 4, 1)] == [ran.model.trained[n] for n in (7, 0, 4, 1)]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(json.dumps({"data": data | {"num_lane": 2}}))
    with pytest.raises(ConfigError, match=r"wrong\.yaml: data: .*num_lane"):
        configured_run(str(wrong))


@pytest.mark.processes
@pytest.mark.parametrize("given_size", [4, None])
def test_a_loss_that_lightning_logged_leads_to_the_samples_of_its_step(tmp_path: Path, given_size: int | None) -> None:
    """With gradients accumulated over two batches; `global_batch_size` in the config, or left to the trainer."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    from tests.datamodule.lightning_parts import Recorder, make_trainer, saving
    from tests.datamodule.parts import make_module, numbers, write_numbers

    class Logging(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("train_loss", float(numbers(batch)[-1]))
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            self.log("val_loss", 9.0)

    data: dict[str, Any] = {"path": str(write_numbers(tmp_path / "numbers")), "micro_batch_size": 2, "num_workers": 0}
    data |= {"global_batch_size": given_size, "shuffle_buffer_size": 8, "num_lanes": 2}
    data["task_encoder"] = {"class_path": "bridge_data.DefaultTaskEncoder"}
    (tmp_path / "other.yaml").write_text(json.dumps({"data": data}))
    run = tmp_path / "run"
    loggers = [CSVLogger(run, name="csv", version=0), TensorBoardLogger(run, name="tensorboard", version=0)]
    options = {"max_steps": 9, "limit_train_batches": 8, "limit_val_batches": 1, "accumulate_grad_batches": 2}
    trainer = make_trainer(run, logger=loggers, log_every_n_steps=1, **options, **saving(run))
    module = make_module(data["path"], **{name: data[name] for name in data if name not in ("path", "task_encoder")})
    model = Logging()
    trainer.fit(model, datamodule=module)
    (run / "csv/version_0/config.yaml").write_text(json.dumps({"data": data}))
    (run / "csv/version_1").mkdir()
    (run / "csv/version_1/config.yaml").write_text(json.dumps({"data": data}))

    with pytest.raises(ConfigError, match="several configs"):
        SavedRunReader(run)
    reader = SavedRunReader(run, has_config=True)
    assert reader.saved.left_out == () and [one.step for one in reader.saved.states] == [2, 4, 6, 8]
    losses = tuple((step, float(model.trained[2 * step + 1][-1])) for step in range(9))
    assert reader.saved.log == LossReader(run / "tensorboard/version_0").read() == LossLog(losses, 0)
    assert LossReader(next((run / "tensorboard/version_0").glob("*tfevents*"))).read() == LossLog(losses, 0)

    opened = configured_run(str(tmp_path / "other.yaml"), num_per_step=reader.saved.num_per_step)
    order = RunOrder(opened.dataset, schedule=opened.schedule, states=[one.state for one in reader.saved.states])
    for step, _ in losses:
        keys = [int(sample.key.rpartition("/")[2]) for sample in order.at(step).samples]
        assert keys == [number for batch in model.trained[2 * step : 2 * step + 2] for number in batch]


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
    assert reader.saved.log is not None and reader.saved.log.losses == tuple(
        (step, one.loss) for step, one in steps.items()
    )
    order = RunOrder(run.dataset, schedule=run.schedule, states=[one.state for one in reader.saved.states])
    for step, one in steps.items():
        assert [sample.key for sample in order.at(step).samples] == [key for keys in one.keys for key in keys]
