"""Lightning's loggers get the metrics of the training loader."""

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from bridge_data import ConfigError, MetricsCallback
from tests.datamodule.lightning_parts import Recorder, fit, make_trainer
from tests.datamodule.parts import make_module


@pytest.mark.processes
@pytest.mark.parametrize("every_steps", [None, 3])
def test_the_loggers_of_the_trainer_have_the_metrics_of_every_so_many_steps(
    path: Path, tmp_path: Path, every_steps: int | None
) -> None:
    options: dict[str, Any] = {"max_steps": 6, "accumulate_grad_batches": 2, "log_every_n_steps": 2}
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer = make_trainer(tmp_path, logger=logger, callbacks=[MetricsCallback(every_steps)], **options)
    recorder = fit(make_module(path, micro_batch_size=2), trainer)
    logger.save()
    with Path(logger.log_dir, "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["data/samples"]]
    steps = [2, 4, 6] if every_steps is None else [3, 6]
    assert [int(row["step"]) + 1 for row in rows] == steps
    for row, step in zip(rows, steps, strict=True):
        ahead = int(float(row["data/samples"])) - 2 * 2 * step  # Lightning fetches batches ahead
        assert ahead in (0, 2, 4)
        assert float(row["data/wait_share"]) < 1
    assert len(recorder.trained) == 12


_W_AND_B_BLOCK = 32768
_W_AND_B_HEAD = struct.Struct("<IHB")


def offline_records(file: Path) -> Iterator[bytes]:
    """The records of an offline run of W&B: a log of LevelDB after a head of 7 bytes, in blocks that hold no part of a
    head at their end; records come whole (1) or as a first (2), middle (3) and last (4) part."""
    content, at, whole = file.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at < len(content):
        if _W_AND_B_BLOCK - at % _W_AND_B_BLOCK < _W_AND_B_HEAD.size:
            at += _W_AND_B_BLOCK - at % _W_AND_B_BLOCK
        _, length, kind = _W_AND_B_HEAD.unpack_from(content, at)
        at += _W_AND_B_HEAD.size + length
        whole += content[at - length : at]
        if kind in (1, 4):
            yield whole
            whole = b""


@pytest.mark.processes
def test_w_and_b_has_the_metrics_by_step_in_the_file_of_an_offline_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is no dependency: make test-wandb installs it beside")
    from lightning.pytorch.loggers import WandbLogger
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    logger = WandbLogger(project="bridge_data", save_dir=tmp_path)
    trainer = make_trainer(tmp_path, logger=logger, callbacks=[MetricsCallback(3)], max_steps=6)
    fit(make_module(path, micro_batch_size=2), trainer)
    wandb.finish()
    wandb.teardown()  # its process writes the file until then
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for content in offline_records(file):
        record = Record.FromString(content)
        if record.HasField("history"):
            items = record.history.item
            rows.append({one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items})
    rows = [row for row in rows if "data/samples" in row]
    assert [row["trainer/global_step"] for row in rows] == [2, 5]
    assert all(
        row["data/samples"] >= 2 * (row["trainer/global_step"] + 1) and row["data/wait_share"] < 1 for row in rows
    )


def test_a_loader_of_another_kind_is_refused(path: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, callbacks=[MetricsCallback()])
    other = torch.utils.data.DataLoader([0, 1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="DataLoader, which has no metrics"):
        trainer.fit(Recorder(), other)
