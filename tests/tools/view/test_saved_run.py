"""A run that goes on while it is looked at: the pages of its folder, asked for again, as it leaves more there."""

import dataclasses
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bridge_data import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.checkpoint import save_states
from bridge_data.tools.runs import NamedRun, SavedRun, SavedRunReader
from bridge_data.tools.view.catalog import DataCatalog
from bridge_data.tools.view.pages import Site
from tests.prepared import write_texts
from tests.tools.view.conftest import client


class Pairs(DefaultTaskEncoder):
    """Packs by two, but those that a run had are told by its ledger alone."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return dataclasses.replace(samples[0], __key__=",".join(sample.__key__ for sample in samples))


class LiveRun:
    """A run in `folder` that goes on step by step, two micro-batches each, and is looked at meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_texts(folder.parent / "texts", 80)
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text("recipe: text_sft\n")
        self.keys: list[list[str]] = []
        self._loader: SavableDataLoader = get_savable_loader(self.dataset(), ledger_path=folder / "ledger")
        self._batches = iter(self._loader)

    def dataset(self) -> LaneDataset:
        """What it trains on."""
        return get_train_dataset(
            self.data,
            worker_config=WorkerConfig(0, 1, 0, num_lanes=4),
            batch_size=2,
            packing_buffer_size=8,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Pairs(),
        )

    def train(self, num_steps: int) -> None:
        """Go on, and log."""
        for _ in range(num_steps):
            step = len(self.keys)
            batches = [next(self._batches) for _ in range(2)]
            self.keys.append([key for batch in batches for row in batch.__key__ for key in row.split(",")])
            with (self.folder / "steps_dprank000.jsonl").open("a") as log:
                log.write(f'{{"step": {step}, "loss": {10 - step}}}\n')

    def save(self) -> Path:
        """Save a checkpoint, which writes the ledger, too."""
        step = len(self.keys)
        folder = self.folder / f"checkpoints/iter_{step:07d}"
        save_states(folder, self._loader.save_state_rank(), step=step, world_size=1)
        return folder

    def page(self) -> TestClient:
        """The pages of its folder, from now on."""
        run = NamedRun(path=str(self.data), dataset=self.dataset(), schedule=BatchSchedule(4, 2), told="As it is.")
        return client(Site(DataCatalog(self.data, {}), lambda _: run, SavedRunReader(self.folder).read))


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    """A run that has just begun."""
    return LiveRun(tmp_path / "run")


def points(html: str) -> list[int]:
    return [int(step) for step in re.findall(r'aria-label="Step (\d+), loss', html)]


def states(html: str) -> list[str]:
    return re.findall(r"<td>(iter_\d+)</td>", html)


def test_steps_states_and_ledger_appear_when_the_page_is_asked_for_again(live: LiveRun) -> None:
    page = live.page()
    html = page.get("/run").text
    assert "Nothing is logged or saved yet" in html and '<a href="/run" aria-current="page">Run</a>' in html
    live.train(3)
    html = page.get("/run").text
    assert points(html) == [0, 1, 2] and states(html) == [] and "Nothing is" not in html
    live.save()
    html = page.get("/run").text
    assert states(html) == ["iter_0000003"] and "micro-batches up to" in html and ">5</a>" in html
    live.train(2)
    live.save()
    html = page.get("/run").text
    assert points(html) == [0, 1, 2, 3, 4] and states(html) == ["iter_0000003", "iter_0000005"] and ">9</a>" in html
    for step, keys in enumerate(live.keys):
        shown = page.get(f"/steps/{step}").text
        assert re.findall(r'<a class="key" href="[^"]+">([^<]+)</a>', shown) == keys, step
        assert "processed again" not in shown, "known from the ledger"
    assert "processed again" in page.get("/steps/5").text


def test_an_open_page_is_sent_nothing_until_there_is_something_new(live: LiveRun) -> None:
    live.train(1)
    page = live.page()
    seen = re.findall(r'hx-get="([^"]+)" hx-trigger="every 5s"', page.get("/run").text)
    assert len(seen) == 1 and page.get(seen[0]).status_code == 204
    live.train(1)
    html = page.get(seen[0]).text
    assert points(html) == [0, 1] and seen[0] not in html
    assert live.page().get(seen[0]).status_code == 200, "another server counts anew"


def test_what_did_not_change_is_not_read_again(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    live.train(2)
    live.save()
    reader = SavedRunReader(live.folder)
    before = reader.read()
    opened: list[str] = []
    monkeypatch.setattr("bridge_data.tools.runs._checkpoint", lambda path: opened.append(path.name))
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: opened.append(path.name) or real(path, *how, **more))
    assert reader.read() is before and opened == []
    os.utime(live.folder / "steps_dprank000.jsonl", (1, 1))
    assert reader.read() == before and opened == ["steps_dprank000.jsonl"]


def test_a_checkpoint_that_is_deleted_replaced_or_not_yet_whole_hides_no_other(live: LiveRun) -> None:
    page = live.page()
    first, second = (live.train(2), live.save())[1], (live.train(2), live.save())[1]
    assert states(page.get("/run").text) == [first.name, second.name]
    shutil.rmtree(first)
    assert states(page.get("/run").text) == [second.name]
    file = second / "train_dataloader_dprank000.pt"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    html = page.get("/run").text
    assert states(html) == [] and "Left out: " in html and second.name in html
    file.write_bytes(whole)
    html = page.get("/run").text
    assert states(html) == [second.name] and "Left out: " not in html
    live.train(1)
    third = live.save()
    shutil.rmtree(second)
    os.replace(third, second)
    assert "<td>10</td>" in page.get("/run").text.replace('<a href="/batches?number=10">10</a>', "10")


def test_a_ledger_that_is_damaged_is_told_and_a_run_is_shown_without_it(live: LiveRun) -> None:
    live.train(2)
    live.save()
    live.train(2)
    live.save()
    page, file = live.page(), live.folder / "ledger/ledger_dprank000.bin"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"sources"', b'"Sources"', 1))
    html = page.get("/run").text
    assert "is damaged, and more come after it" in html and len(states(html)) == 2
    assert "processed again" in page.get("/steps/2").text
    file.write_bytes(whole)
    assert "is damaged" not in page.get("/run").text
    assert "processed again" not in page.get("/steps/2").text


def test_lanes_and_sizes_that_a_later_state_says_are_those_of_the_batches(live: LiveRun) -> None:
    opened: list[tuple[int | None, int | None]] = []

    def open_run(saved: SavedRun) -> NamedRun:
        opened.append((saved.num_lanes, saved.num_per_step))
        return NamedRun(path=str(live.data), dataset=live.dataset(), schedule=None, told="As it is.")

    page = client(Site(DataCatalog(live.data, {}), open_run, SavedRunReader(live.folder).read))
    assert page.get("/batches").status_code == 200
    live.train(2)
    live.save()
    assert page.get("/batches?number=5").status_code == page.get("/batches?number=1").status_code == 200
    assert opened == [(None, None), (4, 2)]


def test_a_state_and_a_log_that_are_named_are_followed_too(live: LiveRun) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        SavedRunReader(log=live.folder / "steps_dprank000.jsonl")
    with pytest.raises(StateError, match="holds no data state, and no folders that do"):
        SavedRunReader(states=live.folder / "checkpoints")
    live.train(1)
    live.save()
    reader = SavedRunReader(states=live.folder / "checkpoints", log=live.folder / "steps_dprank000.jsonl")
    live.train(1)
    live.save()
    saved = reader.read()
    assert [one.step for one in saved.states] == [1, 2] and saved.log is not None and len(saved.log.losses) == 2
    assert saved.number == 2
    shutil.rmtree(live.folder / "checkpoints")
    (live.folder / "steps_dprank000.jsonl").unlink()
    saved = reader.read()
    assert saved.states == () and saved.log is None
    assert [line.partition(": ")[2] for line in saved.left_out] == [
        "no such file or folder",
        "cannot be read: No such file or directory",
    ]
