"""Histograms of tokens: those of the samples that the encoder of the run makes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import DefaultTaskEncoder, WorkerConfig, get_train_dataset, stateless
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import SkipSample
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.plugins.view import charts
from bridge_data.plugins.view.charts import token_lengths
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import Site
from bridge_data.plugins.view.shown_run import ShownRun
from tests.plugins.view.conftest import client
from tests.prepared import write_texts


class Words(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A token for each unit of the number that a sample says; fails on 7, and leaves out 8."""

    @stateless
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        number = int(sample.text)
        if number == 8:
            raise SkipSample("eight")
        return {"__key__": sample.__key__, "tokens": torch.zeros(1 + number if number != 7 else -1)}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("tokens") / "texts", 40)


def opened(path: Path, encoder: DefaultTaskEncoder[Any, Any, Any, Any]) -> LaneDataset:
    workers = WorkerConfig(0, 1, 0, num_lanes=2)
    options: dict[str, Any] = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 8}
    return get_train_dataset(path, worker_config=workers, batch_size=2, task_encoder=encoder, **options)


def test_tokens_are_those_of_encoded_samples_and_failures_are_counted(texts: Path) -> None:
    found = token_lengths(opened(texts, Words()), 0)
    assert sorted(found.lengths) == [1 + number for number in range(40) if number not in (7, 8)]
    assert found.num_failed == 2
    without = token_lengths(opened(texts, DefaultTaskEncoder()), 0)
    assert (without.lengths, without.num_failed, without.basis) == ((), 0, "")


def test_a_slow_encoder_is_stopped_and_what_was_seen_is_told(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MAX_ENCODE_S", -1.0)
    assert token_lengths(opened(texts, Words()), 0).basis == " Tokens: of 1 samples at random, as the run encodes them."


def test_the_page_of_sizes_has_the_tokens_of_a_run(texts: Path) -> None:
    dataset = opened(texts, Words())
    run = ShownRun(path=str(texts), dataset=dataset, schedule=BatchSchedule(1, 1), summary="")
    page = client(Site(DataCatalog(texts, {}), lambda _: run, has_encoder=True))
    html = page.get("/shapes").text
    assert "Length in tokens" in html and "38 values: 1 to 40 tokens" in html
    assert "Tokens: of 38 samples at random, as the run encodes them; its hooks leave out, or fail on, 2 more." in html
    assert "in tokens" not in client(Site(DataCatalog(texts, {}), lambda _: run)).get("/shapes").text
