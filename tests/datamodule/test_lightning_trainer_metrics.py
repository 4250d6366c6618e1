"""Lightning's loggers get the metrics of the training loader."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from bridge_data import ConfigError, MetricsCallback
from tests.datamodule.lightning_parts import Recorder, fit, make_trainer
from tests.datamodule.parts import make_module, write_numbers


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


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
    assert [int(row["step"]) for row in rows] == steps
    for row, step in zip(rows, steps, strict=True):
        ahead = int(float(row["data/samples"])) - 2 * 2 * step  # Lightning fetches batches ahead
        assert ahead in (0, 2, 4)
        assert float(row["data/wait_share"]) < 1
    assert len(recorder.trained) == 12


def test_a_loader_of_another_kind_is_refused(path: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, callbacks=[MetricsCallback()])
    other = torch.utils.data.DataLoader([0, 1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="DataLoader, which has no metrics"):
        trainer.fit(Recorder(), other)
