import json
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.view.loss_log import LossLog, read_losses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"step": 0, "loss": 2.5}\n{"step": 1, "loss": 2.25}\n{"step": 1, "lo', LossLog(((0, 2.5), (1, 2.25)), 0)),
        ('{"iteration": 1, "lm loss": 2.5, "x": [1]}\n[]\n', LossLog(((1, 2.5),), 1)),
        ("step 0: loss 3.5 over 10 tokens\nstep 1: loss 3.25 over 9 tokens\n", LossLog(((0, 3.5), (1, 3.25)), 0)),
        (
            " [2026-01-01] iteration   10/ 500 | consumed samples: 80 | lm loss: 1.25E+00 | loss scale: 1.0 |\n",
            LossLog(((10, 1.25),), 1),
        ),
        ('{"step": 2, "loss": 1}\n{"step": 1, "loss": NaN}\n{"step": 2, "loss": 3}\n', LossLog(((2, 3.0),), 0, (1,))),
        ("step 0: loss 1.5\nstep 1: loss nan over 8 tokens\n", LossLog(((0, 1.5),), 0, (1,))),
        ('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1%s}\n' % ("0" * 400), LossLog(((1, 2.0),), 0, (2,))),
    ],
)
def test_losses_are_read_from_logs(tmp_path: Path, text: str, expected: LossLog) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    assert read_losses(file) == expected


def test_a_csv_of_lightning_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,train_loss,val_loss\n0,0,2.5,\n0,0,,9\n0,1,2.25,\n0,2,nan,\n0,3")
    assert read_losses(file) == LossLog(((0, 2.5), (1, 2.25)), 0, (2,))
    file.write_text("step,train_loss\n0," + "1" * 200_000)
    with pytest.raises(ConfigError, match="field larger than field limit"):
        read_losses(file)


def test_logs_of_all_ranks_are_one(tmp_path: Path) -> None:
    for rank in range(2):
        lines = (json.dumps({"step": step, "loss": step / 2, "rank": rank}) for step in range(3))
        (tmp_path / f"steps_dprank{rank:03d}.jsonl").write_text("\n".join(lines))
    assert read_losses(tmp_path).losses == ((0, 0.0), (1, 0.5), (2, 1.0))


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing\n" * 3 + "step by step\n")
    with pytest.raises(ConfigError, match="no step with a loss in it"):
        read_losses(tmp_path / "log")
    with pytest.raises(ConfigError, match="No such file"):
        read_losses(tmp_path / "none")


def write_events(folder: Path, tag: str, steps: range) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            writer.add_scalar(tag, step / 4, step)
            writer.add_scalar(f"{tag} vs samples", step / 4, step * 512)
    return max(folder.glob("*tfevents*"))


@pytest.mark.processes
def test_events_of_tensorboard_count_from_0_and_those_of_megatron_from_1(tmp_path: Path) -> None:
    for tag, first in (("train_loss", 0), ("lm loss", 1)):
        write_events(tmp_path / tag, tag, range(first, first + 3))
        losses = tuple((step, step / 4) for step in range(first, first + 3))
        assert read_losses(tmp_path / tag) == LossLog(losses, first)


@pytest.mark.processes
def test_of_damaged_events_those_before_the_damage_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = write_events(tmp_path, "loss", range(5))
    content = file.read_bytes()
    for cut in range(40, len(content), 7):
        file.write_bytes(content[:cut])
        try:
            losses = read_losses(file).losses
        except ConfigError as error:
            assert "no step with a loss in it" in str(error)
            losses = ()
        assert losses == tuple((step, step / 4) for step in range(len(losses)))
    file.write_bytes(content[:60] + b"?" + content[61:])
    with pytest.raises(ConfigError, match="no step with a loss in it"):
        read_losses(file)
    assert not caplog.text, "a record that is being written looks the same"
    with file.open("wb") as stream:
        stream.write(content)
        RecordWriter(stream).write(b"\xff of no event")
    assert len(read_losses(file).losses) == 5
    assert f"{file}: is damaged" in caplog.text


def test_a_package_that_events_need_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.out.tfevents.1.host.2.0").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(
        ConfigError, match=r'tfevents.*: reading it needs a package .*pip install "bridge-data\[metrics\]"'
    ):
        read_losses(tmp_path)
