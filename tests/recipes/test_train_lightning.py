import re
from pathlib import Path

import pytest

from recipes.tiny_data import write_tiny_data
from recipes.train import main
from recipes.train_lightning import newest_checkpoint

TINY = ["--recipe", "text_sft", "--tiny"]


def test_the_newest_checkpoint_is_that_of_the_last_step(tmp_path: Path) -> None:
    assert newest_checkpoint(None) is None
    assert newest_checkpoint(str(tmp_path)) is None
    for name in ("step=8.ckpt", "step=12.ckpt", "last.ckpt", "step=99.ckpt.partial"):
        (tmp_path / name).touch()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "step=12.ckpt")


@pytest.mark.processes
def test_samples_are_counted_then_a_checkpoint_is_evaluated_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_data(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)
    settings = ["training.checkpoint_dir=saved", "training.train_steps=null", "training.train_samples=5"]
    assert main([*TINY, *settings, "training.save_interval=1"]) == 0
    assert re.findall(r"^step (\d+): loss", capsys.readouterr().out, re.M) == ["0", "1"], "two samples a step"
    assert newest_checkpoint("saved") == "saved/step=2.ckpt"
    assert main([*TINY, *settings, "training.skip_train=true"]) == 0
    printed = capsys.readouterr().out
    assert "step" not in printed
    assert float(re.findall(r"val_loss\D+([\d.]+)", printed)[0]) > 0


@pytest.mark.processes
def test_batches_that_no_model_of_transformers_takes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_data(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)
    encoder = ["task_encoder=bridge_data.encoders:MultiModalTaskEncoder", "data.path=tiny_data/captions"]
    template = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}"
    config = f'{{patch_size: 4, conversation_template_config: {{chat_template: "{template}"}}}}'
    arguments = [f"task_encoder_arguments.multimodal_sample_config={config}"]
    assert main(["--recipe", "llava", "--tiny", *encoder, *arguments]) == 2
    assert "batches of ImageTextBatch without `model_inputs()`" in capsys.readouterr().err
