import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bridge_data import DefaultTaskEncoder, SkipSample, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import save_states
from bridge_data.order.state import LoaderState
from bridge_data.samples import Sample, edataclass
from bridge_data.task import stateless
from bridge_data.tools.loss_log import LossLog
from bridge_data.tools.runs import NamedRun, SavedRun, default_run, read_states
from bridge_data.tools.view.catalog import DataCatalog
from bridge_data.tools.view.pages import BatchSequence, Site
from tests.prepared import write_blend, write_texts
from tests.tools.view.conftest import client

NUM_BATCHES = 30


@edataclass
class Texts(Sample):
    """Some texts."""

    texts: list[str]


class Packs(DefaultTaskEncoder):
    """Leaves samples out, and packs the others by two or three."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.text.endswith("7"):
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Texts:
        key = ",".join(sample.__key__ for sample in samples)
        return Texts(__key__=key, texts=[sample.text for sample in samples])


@dataclasses.dataclass
class Trained:
    """A run with a checkpoint folder, and what each of its micro-batches held."""

    blend: Path
    checkpoints: Path
    keys: list[list[str]]

    def dataset(self) -> LaneDataset:
        """What it trains on."""
        return dataset_of(self.blend)


def dataset_of(blend: Path, num_lanes: int = 4) -> LaneDataset:
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=num_lanes)
    return get_train_dataset(
        blend,
        worker_config=workers,
        batch_size=2,
        packing_buffer_size=8,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        task_encoder=Packs(),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run with packs and skips, saved after 9 and 21 micro-batches."""
    folder = tmp_path_factory.mktemp("run")
    for name in "ab":
        write_texts(folder / name, 120, lambda number, name=name: f"{name} {number}")
    blend = write_blend(folder / "blend.yaml", {"a": 2, "b": 1})
    loader = get_savable_loader(dataset_of(blend))
    keys = []
    for number, batch in zip(range(NUM_BATCHES), loader, strict=False):
        keys.append([key for row in batch.__key__ for key in row.split(",")])
        if number in (8, 20):
            target = folder / "checkpoints" / f"iter_{number // 3 + 1:07d}"
            save_states(target, loader.save_state_rank(), step=number // 3 + 1, world_size=1)
    return Trained(blend, folder / "checkpoints", keys)


def test_batches_are_those_of_the_run_from_anywhere(trained: Trained) -> None:
    states = [one.state for one in read_states([trained.checkpoints])]
    assert [state.next_slot for state in states] == [9, 21]
    for sequence in (BatchSequence(trained.dataset(), states), BatchSequence(trained.dataset())):
        for number in (22, 3, 4, 29, 10, 9, 0, 21, 25):
            shown = [key for row in sequence.get(number).__key__ for key in row.split(",")]
            assert shown == trained.keys[number], number


def test_what_came_before_another_deal_is_not_shown(trained: Trained) -> None:
    loader = get_savable_loader(dataset_of(trained.blend, num_lanes=2))
    loader.restore_state_rank(read_states([trained.checkpoints])[0].state.to_dict())
    redealt = LoaderState.from_dict(loader.save_state_rank())
    assert [num_lanes for num_lanes, _ in redealt.generations] == [4, 2]
    sequence = BatchSequence(dataset_of(trained.blend, num_lanes=2), [redealt])
    assert sequence.first == redealt.next_slot > 0
    with pytest.raises(ConfigError, match=f"batch 0: the first that can be shown is {sequence.first}"):
        sequence.get(0)
    assert len(sequence.get(sequence.first).__key__) == 2


@pytest.fixture(scope="module")
def run_page(trained: Trained) -> TestClient:
    """The pages of the run, whose step is three micro-batches, with a log of its losses."""
    run = NamedRun(path=str(trained.blend), dataset=trained.dataset(), schedule=BatchSchedule(6, 2), told="As it was.")
    log = LossLog(tuple((step, 3.0 if step == 4 else 1 / (step + 1)) for step in range(10)), 0)
    saved = SavedRun(states=tuple(read_states([trained.checkpoints])), log=log)
    return client(Site(DataCatalog(trained.blend, {}), lambda _: run, lambda: saved))


def test_from_a_loss_to_its_samples_in_two_clicks(run_page: TestClient, trained: Trained) -> None:
    html = run_page.get("/samples").text
    assert '<a href="/run">Run</a>' in html
    points = re.findall(
        r'<a id="step\d+" href="(/steps/\d+)" aria-label="Step (\d+), loss ([\d.]+)"', run_page.get("/run").text
    )
    assert len(points) == 10
    (peak,) = [address for address, _, loss in points if loss == "3"]
    step = run_page.get(peak).text
    shown = re.findall(r'<a class="key" href="[^"]+">([^<]+)</a>', step)
    assert shown == [key for keys in trained.keys[12:15] for key in keys]
    texts = re.findall(r'<p class="text">([^<]+)</p>', step)
    assert {text[0] for text in texts} == {"a", "b"}


def test_steps_far_from_a_state_are_not_replayed(run_page: TestClient) -> None:
    assert "at most 2,000 are; give --state" in run_page.get("/steps/1000000").text
    assert run_page.get(f"/steps/{10**30}").status_code == 404


def test_without_packs_a_step_is_arithmetic(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 60)
    run = default_run(str(folder), "train", 4, {})
    far = 10**7
    run = dataclasses.replace(run, schedule=BatchSchedule(8, 4))
    saved = SavedRun(log=LossLog(((far + 1, 2.0),), 1))
    page = client(Site(DataCatalog(folder, {}), lambda _: run, lambda: saved))
    assert f'href="/steps/{far}"' in page.get("/run").text
    html = page.get(f"/steps/{far}").text
    assert "Step 10,000,001" in html and html.count('class="key"') == 8 and "numbered from 1" in html


def test_states_and_progress_are_shown(run_page: TestClient) -> None:
    html = run_page.get("/run").text
    assert "iter_0000003" in html and "Progress of iter_0000007" in html
    assert "a/train" in html and "66.67%" in html


def test_without_a_run_there_is_no_page_of_it(page: TestClient) -> None:
    assert page.get("/run").status_code == 404
    assert page.get("/steps/1").status_code == 422
    assert "/run" not in page.get("/samples").text
