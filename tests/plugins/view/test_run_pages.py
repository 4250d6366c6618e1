"""The pages of a run's folder, asked for again and again as the run goes on."""

import os
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge_data import get_savable_loader
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, StateError
from bridge_data.order.state import LoaderState
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import BatchSequence, Site
from bridge_data.plugins.view.shown_run import SavedRun, SavedRunReader, ShownRun
from bridge_data.runs.run_plan import Planner, RunLength
from bridge_data.runs.saved_files import read_states
from tests.plugins.view.conftest import client, keys, plain_run
from tests.plugins.view.live_run import LiveRun
from tests.prepared import write_texts
from tests.runs.plan_parts import PackedWords, measure, rank_dataset


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    """A run that has just begun."""
    return LiveRun(tmp_path / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """A run of 15 steps, saved after 5 and 11 of them."""
    run = LiveRun(tmp_path_factory.mktemp("trained") / "run")
    run.save(5)
    run.save(6)
    run.train(4)
    return run


def states(html: str) -> list[str]:
    return re.findall(r"<td>(iter_\d+)</td>", html)


def test_batches_are_those_of_the_run_from_anywhere(trained: LiveRun) -> None:
    saved = [one.state for one in read_states([trained.folder / "checkpoints"])]
    assert [state.micro_batch_index for state in saved] == [10, 22]
    for sequence in (BatchSequence(trained.dataset(), saved), BatchSequence(trained.dataset())):
        for number in (22, 3, 4, 29, 10, 9, 0, 21, 25):
            shown = [key for row in sequence.get(number).__key__ for key in row.split(",")]
            assert shown == trained.keys[number], number


def test_what_came_before_another_deal_is_not_shown(trained: LiveRun) -> None:
    loader = get_savable_loader(trained.dataset(num_lanes=2))
    loader.restore_state_rank(read_states([trained.folder / "checkpoints"])[0].state.to_dict())
    resharded = LoaderState.from_dict(loader.save_state_rank())
    assert [num_lanes for num_lanes, _ in resharded.generations] == [4, 2]
    sequence = BatchSequence(trained.dataset(num_lanes=2), [resharded])
    assert sequence.first == resharded.micro_batch_index > 0
    with pytest.raises(ConfigError, match=f"batch 0: the first that can be shown is {sequence.first}"):
        sequence.get(0)
    assert len(sequence.get(sequence.first).__key__) == 2


def test_the_page_of_a_run_leads_to_the_samples_of_a_step(trained: LiveRun) -> None:
    page = trained.page()
    assert '<a href="/run">Run</a>' in page.get("/samples").text
    html = page.get("/run").text
    assert 'action="/steps"' in html and page.get("/steps?step=4").headers["location"] == "/steps/4"
    assert keys(page.get("/steps/4").text) == trained.step_keys(4)
    assert "iter_0000005" in html and "Progress of iter_0000011" in html
    assert "a/train" in html and "66.67%" in html
    assert "at most 2,000 are; give --state" in page.get("/steps/1000000").text  # far from a state
    assert page.get(f"/steps/{10**30}").status_code == 404


def test_without_packs_a_step_is_arithmetic(tmp_path: Path) -> None:
    run = plain_run(write_texts(tmp_path / "texts", 60), global_batch_size=8)
    page = client(Site(DataCatalog(tmp_path / "texts", {}), lambda _: run, SavedRun))
    html = page.get("/steps/10000000").text
    assert "Step 10,000,000" in html and len(keys(html)) == 8


def test_without_a_run_there_is_no_page_of_it(page: TestClient) -> None:
    assert [page.get(path).status_code for path in ("/run", "/steps/1")] == [404, 422]
    assert "/run" not in page.get("/samples").text


def test_steps_states_and_ledger_appear_when_the_page_is_asked_for_again(live: LiveRun) -> None:
    page = live.page()
    html = page.get("/run").text
    assert "Nothing is saved yet" in html and '<a href="/run" aria-current="page">Run</a>' in html
    live.save(3)
    html = page.get("/run").text
    assert states(html) == ["iter_0000003"] and "micro-batches up to" in html and ">5</a>" in html
    live.save(2)
    html = page.get("/run").text
    assert states(html) == ["iter_0000003", "iter_0000005"] and ">9</a>" in html
    for step in range(5):
        shown = page.get(f"/steps/{step}").text
        assert keys(shown) == live.step_keys(step) and "processed again" not in shown, "known from the ledger"
    assert "processed again" in page.get("/steps/5").text


def test_an_open_page_is_sent_nothing_until_there_is_something_new(live: LiveRun) -> None:
    live.save(1)
    page = live.page()
    (seen,) = re.findall(r'hx-get="([^"]+)" hx-trigger="every 5s"', page.get("/run").text)
    assert page.get(seen).status_code == 204
    live.save(1)
    html = page.get(seen).text
    assert states(html) == ["iter_0000001", "iter_0000002"] and seen not in html
    assert live.page().get(seen).status_code == 200, "another server counts anew"


def test_what_did_not_change_is_not_read_again(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    live.save(2)
    reader = SavedRunReader(live.folder)
    before, opened = reader.read(), list[str]()
    monkeypatch.setattr("bridge_data.plugins.view.shown_run.found_state", lambda path: opened.append(path.name))
    assert reader.read() is before and opened == []


def test_a_checkpoint_that_is_deleted_replaced_or_not_yet_whole_hides_no_other(live: LiveRun) -> None:
    page = live.page()
    first, second = live.save(2), live.save(2)
    assert states(page.get("/run").text) == [first.name, second.name]
    shutil.rmtree(first)
    assert states(page.get("/run").text) == [second.name]
    file = second / "train_dataloader_dprank000.pt"
    whole = file.read_bytes()
    for content, shown in ((whole[:-9], []), (whole, [second.name])):
        file.write_bytes(content)
        html = page.get("/run").text
        assert states(html) == shown and ("Left out: " in html) == (not shown) and second.name in html
    third = live.save(1)
    shutil.rmtree(second)
    os.replace(third, second)
    assert "<td>10</td>" in page.get("/run").text.replace('<a href="/batches?number=10">10</a>', "10")


def test_a_ledger_that_is_damaged_is_told_and_a_run_is_shown_without_it(live: LiveRun) -> None:
    live.save(2)
    live.save(2)
    page, file = live.page(), live.folder / "ledger/ledger_dprank000.bin"
    whole = file.read_bytes()
    for content, is_damaged in ((whole.replace(b'"sources"', b'"Sources"', 1), True), (whole, False)):
        file.write_bytes(content)
        html, step = page.get("/run").text, page.get("/steps/2").text
        assert ("is damaged, and more come after it" in html) == ("processed again" in step) == is_damaged
        assert len(states(html)) == 2 and keys(step) == live.step_keys(2)


def test_lanes_that_a_later_state_says_are_those_of_the_batches(live: LiveRun) -> None:
    opened: list[int | None] = []

    def open_run(saved: SavedRun) -> ShownRun:
        opened.append(saved.num_lanes)
        return ShownRun(path=str(live.data), dataset=live.dataset(), schedule=BatchSchedule(4, 2), summary="As it is.")

    page = client(Site(DataCatalog(live.data, {}), open_run, SavedRunReader(live.folder).read))
    assert page.get("/batches").status_code == 200
    live.save(2)
    assert page.get("/batches?number=5").status_code == page.get("/batches?number=1").status_code == 200
    assert opened == [None, 4]


def test_a_state_that_is_named_is_followed_too(live: LiveRun) -> None:
    with pytest.raises(StateError, match="holds no data state, and no folders that do"):
        SavedRunReader(states=live.folder / "checkpoints")
    live.save(1)
    reader = SavedRunReader(states=live.folder / "checkpoints")
    live.save(1)
    saved = reader.read()
    assert [one.step for one in saved.states] == [1, 2] and saved.number == 2
    shutil.rmtree(live.folder / "checkpoints")
    saved = reader.read()
    assert saved.states == () and "no such file or folder" in saved.left_out[0]


def test_a_plan_has_the_tables_and_charts_of_the_command(tmp_path: Path) -> None:
    folder, schedule = write_texts(tmp_path / "texts", 60), BatchSchedule(4, 1)
    measure(folder)
    options = {"packing": "planned", "planning_window": 40, "encoder": PackedWords()}
    data = rank_dataset(folder, 0, 1, schedule, assignment="tokens", **options)
    run = ShownRun(path=str(folder), dataset=data, schedule=schedule, summary="")
    page = client(Site(DataCatalog(folder, {}), lambda _: run))
    assert '<a href="/plan">Plan</a>' in page.get("/samples").text
    html = page.get("/plan?steps=7&ranks=2").text
    plan = Planner(rank_dataset(folder, 0, 2, schedule, assignment="tokens", **options), schedule).plan(
        RunLength(steps=7)
    )
    for _, rows in plan.tables():
        for row in rows:
            assert "".join(f"<td>{cell}</td>" for cell in row) in html
    assert all(text in html for _, text in plan.facts())
    assert html.count('class="line"') == 4 and "Loads of 2 ranks in each step, assigned" in html
    assert "not a multiple of" in page.get("/plan?ranks=3").text
    for ranks in (-1, 0, 10**9):
        assert "expected 1 to" in page.get(f"/plan?ranks={ranks}").text
    assert "at least 1" in page.get("/plan?steps=0").text
