import os
import re
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.loss_log import LossLog, LossReader


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
    assert LossReader(file).read() == expected


def test_a_csv_of_lightning_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,train_loss,val_loss\n0,0,2.5,\n0,0,,9\n0,1,2.25,\n0,2,nan,\n0,3")
    assert LossReader(file).read() == LossLog(((0, 2.5), (1, 2.25)), 0, (2,))


def test_what_is_no_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    (tmp_path / "log").write_text("nothing\n" * 3 + "step by step\n")
    (tmp_path / "metrics.csv").write_text("step,train_loss\n0," + "1" * 200_000 + "\n")
    (tmp_path / "events").mkdir()
    (tmp_path / "events/events.out.tfevents.1.host.2.0").write_bytes(b"")
    for name, told in (
        ("log", "no step with a loss in it"),
        ("none", "No such file"),
        ("metrics.csv", "field larger than field limit"),
        ("events", r'tfevents.*: reading it needs a package .*pip install "bridge-data\[metrics\]"'),
    ):
        with pytest.raises(ConfigError, match=told):
            LossReader(tmp_path / name).read()


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def num_read() -> int:
    """The bytes that this process has read so far."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


LINES = {
    "log.jsonl": ("", '{{"step": {}, "loss": {}}}\n'),
    "metrics.csv": ("epoch,step,train_loss\n", "0,{},{}\n"),
    "train.log": ("", "step {}: loss {} over 9 tokens\n"),
    "bar.out": ("", "step {}: loss {}\r"),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_appended_are_read_and_those_before_are_not_read_again(tmp_path: Path, name: str) -> None:
    file, (head, line) = tmp_path / name, LINES[name]
    file.write_text(head + "".join(line.format(step, step / 4) for step in range(20_000)))
    reader = LossReader(file)
    losses = reader.read()
    assert len(losses.losses) == 20_000 and reader.read() is losses
    append(file, line.format(20_000, 9.5))
    before = num_read()
    assert reader.read().losses == (*losses.losses, (20_000, 9.5))
    assert num_read() - before < 100_000 < file.stat().st_size


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_half_written_counts_when_it_is_whole(tmp_path: Path, name: str) -> None:
    file, (head, line) = tmp_path / name, LINES[name]
    file.write_text(head + line.format(0, 1.0))
    reader, whole = LossReader(file), line.format(1, 2.75)
    for end in range(len(whole) + 1):
        is_whole = end == len(whole) or whole[:end].endswith("}")
        assert reader.read().losses == (((0, 1.0), (1, 2.75)) if is_whole else ((0, 1.0),)), whole[:end]
        append(file, whole[end : end + 1])


def test_a_log_that_is_cut_replaced_or_rewritten_in_place_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,train_loss\n" + "".join(f"{step},{step}\n" for step in range(1_000)))
    reader = LossReader(file)
    assert len(reader.read().losses) == 1_000
    os.truncate(file, file.read_text().index("\n500,") + 1)
    assert reader.read().losses[-1] == (499, 499.0)
    file.write_text("step,lr,train_loss\n" + "".join(f"{step},0.1,{-step}\n" for step in range(1_000)))
    assert reader.read().losses[-1] == (999, -999.0), "as Lightning does for another column"
    (tmp_path / "new").write_text("step,train_loss\n" + "".join(f"{step},7\n" for step in range(5_000)))
    os.replace(tmp_path / "new", file)
    assert reader.read().losses == tuple((step, 7.0) for step in range(5_000))
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        reader.read()
    file.write_text("step,train_loss\n3,4\n")
    assert reader.read().losses == ((3, 4.0),)


def test_logs_of_all_ranks_are_one_also_of_a_rank_that_begins_later(tmp_path: Path) -> None:
    first, second = (tmp_path / f"steps_dprank00{rank}.jsonl" for rank in range(2))
    append(first, '{"step": 0, "loss": 2}\n')
    reader = LossReader(tmp_path)
    assert reader.read().losses == ((0, 2.0),)
    append(second, '{"step": 0, "loss": 2}\n{"step": 1, "loss": 1}\n')
    assert reader.read().losses == ((0, 2.0), (1, 1.0))
    second.write_text('{"step": 1, "loss": 1}\n')
    first.unlink()
    assert reader.read().losses == ((1, 1.0),)


def known_losses(reader: LossReader) -> tuple[tuple[int, float], ...]:
    """The losses, also if there are none."""
    try:
        return reader.read().losses
    except ConfigError as error:
        assert "no step with a loss in it" in str(error)
        return ()


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
        assert LossReader(tmp_path / tag).read() == LossLog(losses, first)


@pytest.mark.processes
def test_events_that_are_appended_are_read_also_where_a_record_is_half_written(tmp_path: Path) -> None:
    written = write_events(tmp_path / "whole", "loss", range(5))
    content, file = written.read_bytes(), tmp_path / written.name
    file.write_bytes(content[:200])
    reader = LossReader(file)
    for end in range(200, len(content)):
        assert known_losses(reader) == known_losses(LossReader(file))
        with file.open("ab") as stream:
            stream.write(content[end : end + 1])
    assert known_losses(reader) == tuple((step, step / 4) for step in range(5))


@pytest.mark.processes
def test_of_damaged_events_those_before_the_damage_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = write_events(tmp_path, "loss", range(5))
    content = file.read_bytes()
    for cut in range(40, len(content), 7):
        file.write_bytes(content[:cut])
        losses = known_losses(LossReader(file))
        assert losses == tuple((step, step / 4) for step in range(len(losses)))
    file.write_bytes(content[:60] + b"?" + content[61:])
    with pytest.raises(ConfigError, match="no step with a loss in it"):
        LossReader(file).read()
    assert not caplog.text, "a record that is being written looks the same"
    with file.open("wb") as stream:
        stream.write(content)
        RecordWriter(stream).write(b"\xff of no event")
    assert len(LossReader(file).read().losses) == 5
    assert f"{file}: is damaged" in caplog.text
