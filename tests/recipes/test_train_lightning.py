import json
import re
import sys
from pathlib import Path

import pytest

from recipes.recipe import load_recipe
from recipes.tiny_data import write_tiny_data
from recipes.train import main
from recipes.train_lightning import newest_checkpoint

TINY = ["--recipe", "text_sft", "--tiny"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has the data of tiny recipes."""
    write_tiny_data(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)


def test_the_newest_checkpoint_is_that_of_the_last_step(tmp_path: Path) -> None:
    assert newest_checkpoint(None) is None
    assert newest_checkpoint(str(tmp_path)) is None
    for name in ("step=8.ckpt", "step=12.ckpt", "last.ckpt", "step=99.ckpt.partial"):
        (tmp_path / name).touch()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "step=12.ckpt")


@pytest.mark.processes
def test_samples_are_counted_then_a_checkpoint_is_evaluated_without_training(
    data: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["training.checkpoint_dir=saved", "training.train_steps=null", "training.train_samples=5"]
    assert main([*TINY, *settings, "training.save_interval=1"]) == 0
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().out, re.M) == ["0", "1"], "two samples a step"
    assert newest_checkpoint("saved") == "saved/step=2.ckpt"
    assert main([*TINY, *settings, "training.skip_train=true"]) == 0
    printed = capsys.readouterr().out
    assert "step" not in printed
    assert float(re.findall(r"val_loss\D+([\d.]+)", printed)[0]) > 0


@pytest.mark.processes
def test_loggers_get_the_loss_and_the_metrics_of_the_data(data: None, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = ["metrics={every_steps: 2, loggers: [tensorboard, csv]}", "training.train_steps=4", "log_dir=run"]
    assert main([*TINY, *settings]) == 0
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)", capsys.readouterr().out, re.M)]
    events = EventAccumulator("run/tensorboard")
    events.Reload()
    assert [(e.step, round(e.value, 4)) for e in events.Scalars("train_loss")] == [*enumerate(losses, 1)]
    lines = [json.loads(line) for line in Path("run/data.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    for name in ("samples", "tokens", "wait_share"):
        expected = [(line["step"], pytest.approx(line[name])) for line in lines]
        assert [(e.step, e.value) for e in events.Scalars(f"data/{name}")] == expected
    assert lines[1]["tokens"] > lines[0]["tokens"] > 0
    rows = Path("run/csv/metrics.csv").read_text().splitlines()
    assert "train_loss" in rows[0] and len(rows) == 1 + 4 + 2

    again = load_recipe(Path("run/config.yaml"), [])
    assert again == load_recipe(None, settings, recipe="text_sft", tiny=True)


def test_a_logger_that_is_not_installed_or_has_nowhere_to_write_is_named(
    data: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "metrics.loggers=[wandb]"]) == 2
    assert "metrics.loggers=['wandb']: they write to log_dir, which is null" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    assert main([*TINY, "metrics.loggers=[wandb]", "log_dir=run"]) == 2
    assert "metrics.loggers: wandb needs a package" in capsys.readouterr().err
    assert main([*TINY, "trainer=megatron", "metrics.loggers=[csv]", "log_dir=run"]) == 2
    assert "trainer=megatron has tensorboard alone, and not csv" in capsys.readouterr().err


@pytest.mark.processes
def test_batches_that_no_model_of_transformers_takes_are_refused(
    data: None, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = ["task_encoder=bridge_data.encoders:MultiModalTaskEncoder", "data.path=tiny_data/captions"]
    template = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}"
    config = f'{{patch_size: 4, conversation_template_config: {{chat_template: "{template}"}}}}'
    arguments = [f"encoder.multimodal_sample_config={config}"]
    assert main(["--recipe", "llava", "--tiny", *encoder, *arguments]) == 2
    assert "batches of ImageTextBatch without `model_inputs()`" in capsys.readouterr().err
