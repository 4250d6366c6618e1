"""What a run has saved, found in its folder among other files."""

import json
import os
import warnings
from pathlib import Path

import pytest

from bridge_data.configs import config_files
from bridge_data.plugins.view.pages import BatchSequence
from bridge_data.plugins.view.shown_run import SavedRunReader, ShownRun
from bridge_data.runs.run_order import RunOrder
from bridge_data.runs.training_run import TrainingRun
from tests.plugins.view.live_run import LiveRun


def test_config_states_and_ledger_are_found_among_other_files(tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "run")
    live.save(2)
    (live.folder / "wandb").mkdir()
    (live.folder / "checkpoints/iter_0000009.partial").mkdir()
    for name, content in (
        ("checkpoints/iter_0000009.partial/train_dataloader_dprank000.pt", "half"),
        ("broken.yaml", "a: [\n"),
        ("blend.yaml", "__class__: MetadatasetV2\nsplits: {}\n"),
        ("wandb/config.yaml", "data: {path: elsewhere}\n"),
    ):
        (live.folder / name).write_text(content)
    os.mkfifo(live.folder / "pipe.yaml")
    assert config_files(live.folder)[0] == live.folder / "config.yaml", (
        "not the one in a folder of it, nor the metadataset"
    )
    saved = SavedRunReader(live.folder).saved
    assert [one.step for one in saved.states] == [2] and saved.left_out == () and saved.records is not None


@pytest.mark.processes
@pytest.mark.parametrize("given_size", [4, None])
def test_the_folder_of_a_lightning_cli_is_a_run(tmp_path: Path, given_size: int | None) -> None:
    """With gradients accumulated over two batches; `global_batch_size` in the config, or left to the trainer."""
    from lightning.pytorch.cli import LightningCLI

    from bridge_data import EnergonMultiModalDataModule
    from tests.datamodule.lightning_parts import Recorder
    from tests.datamodule.parts import numbers, write_numbers

    every_two = {"dirpath": None, "filename": "{step}", "every_n_train_steps": 2, "save_top_k": -1}
    checkpoint = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": every_two}
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}}
    trainer = {"accelerator": "cpu", "logger": logger, "max_steps": 9, "callbacks": [checkpoint]}
    trainer |= {"accumulate_grad_batches": 2, "limit_train_batches": 8, "limit_val_batches": 1}
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    encoder = {"class_path": "bridge_data.DefaultTaskEncoder"}
    data = {"path": str(write_numbers(tmp_path / "numbers")), "task_encoder": encoder, "num_workers": 0, "num_lanes": 2}
    data |= {"micro_batch_size": 2, "global_batch_size": given_size, "seed": 3, "shuffle_buffer_size": 8}
    file = tmp_path / "given.yaml"
    file.write_text(json.dumps({"trainer": trainer, "data": data}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LightningCLI(Recorder, EnergonMultiModalDataModule, args=["fit", "--config", str(file)]).model

    folder = tmp_path / "lightning_logs/version_0"
    saved = SavedRunReader(folder).saved
    positions = [(one.step, one.state.micro_batch_index) for one in saved.states]
    assert saved.left_out == () and positions == [(2, 4), (4, 8), (6, 12), (8, 16)]
    run = TrainingRun.read(folder, states=saved.states)
    assert (run.schedule.global_batch_size, run.num_accumulated, run.steps) == (4, 2, 9)
    states = [one.state for one in saved.states]
    sequence = BatchSequence(ShownRun.of(run, run.task_encoder(), saved).dataset, states)
    assert [numbers(sequence.get(number)) for number in (7, 0, 4, 1)] == [model.trained[n] for n in (7, 0, 4, 1)]
    order = RunOrder(run.dataset(), schedule=run.schedule, states=states)
    for step in range(9):
        found = [int(sample.key.rpartition("/")[2]) for sample in order.at(step).samples]
        assert found == [number for batch in model.trained[2 * step : 2 * step + 2] for number in batch]
