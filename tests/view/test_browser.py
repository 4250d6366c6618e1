"""The page of `bridge-data view` in a real browser: `make test-view`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridge_data.configs import DataConfig
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.loader.checkpoint import save_states
from bridge_data.plugins.view.charts import write_plan
from bridge_data.runs.run_plan import Planner, RunLength
from recipes.demo.tokenizer import train_tokenizer
from tests.encoders.multimodal_parts import image_processor
from tests.plugins.view.shown_data import PHOTOS
from tests.prepared import write_blend, write_texts
from tests.runs.plan_parts import PackedWords, measure, rank_dataset
from tests.view.conftest import AXE, DESK, PHONE, Browser, picture_folder, serve

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.browser


def keys(browser: Browser) -> list[str]:
    return browser.texts("a.key")


def address(browser: Browser) -> str:
    return browser.driver.current_url.removeprefix(browser.address)


def test_pages_are_turned_by_links_and_by_arrows(browser: Browser) -> None:
    browser.open("/")
    first = keys(browser)
    assert len(first) == 24 and first[0] == "data-0000.tar/photo00000"
    browser.press("\ue014")  # right
    browser.wait(lambda b: "page=2" in address(b))
    assert keys(browser)[0] == "data-0000.tar/photo00024"
    browser.press("\ue012")  # left
    browser.wait(lambda b: "page=1" in address(b))
    assert keys(browser) == first
    browser.find("a[rel=next]")[0].click()
    browser.wait(lambda b: "page=2" in address(b))


def test_a_picture_is_seen(browser: Browser) -> None:
    browser.open("/samples")
    browser.wait(Browser.seen)
    width = browser.driver.execute_script("return document.querySelector('.card img').naturalWidth")
    assert width == 240


def test_j_and_k_go_from_sample_to_sample_and_enter_opens(browser: Browser) -> None:
    browser.open("/samples")
    browser.press("jjjk")
    focused = browser.driver.switch_to.active_element
    assert focused.text == "data-0000.tar/photo00001"
    focused.send_keys("\n")
    browser.wait(lambda b: address(b) == "/sample/0/0/1")
    assert "a picture of coffee, cut at 1" in browser.find("main")[0].text
    assert "uint8 3×" in browser.find("main")[0].text


def test_a_slash_goes_to_the_search_which_finds_while_one_types(browser: Browser) -> None:
    browser.open("/samples")
    first = keys(browser)
    browser.press("/")
    search = browser.driver.switch_to.active_element
    assert search.get_attribute("name") == "q" and search.get_attribute("value") == ""
    search.send_keys("photo0017")
    found = [f"data-{n // 40:04d}.tar/photo{n:05d}" for n in range(170, 180)]
    browser.wait(lambda b: "q=photo0017" in address(b) and keys(b) == found)
    browser.press("\ue003" * 9)  # backspace
    browser.wait(lambda b: "q=photo" not in address(b) and keys(b) == first)


def test_choosing_a_source_shows_its_samples(browser: Browser) -> None:
    browser.open("/samples")
    browser.find("select[name=source] option")[2].click()
    browser.wait(lambda b: keys(b) == [f"data-0000.tar/clip{n:04d}" for n in range(6)])
    assert "source=1" in address(browser)


def test_a_film_plays_and_can_be_wound(browser: Browser) -> None:
    browser.open("/sample/0/1/2")
    play = "const done = arguments[arguments.length - 1], media = document.querySelector(arguments[0]);"
    play += "media.muted = true; media.ontimeupdate = () => media.currentTime > 0.1 && done(media.duration);"
    play += "media.onerror = () => done('failed'); media.play();"
    for kind in ("video", "audio"):
        assert 0.4 < float(browser.driver.execute_async_script(play, kind)) < 1.2
    wind = "const done = arguments[arguments.length - 1], media = document.querySelector('audio');"
    wind += "media.pause(); media.onseeked = () => done(media.currentTime); media.currentTime = 0.3;"
    assert abs(browser.driver.execute_async_script(wind) - 0.3) < 0.05


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", ["/samples", "/samples?source=1", "/sample/0/1/2", "/blend", "/shapes", "/plan"])
def test_pages_fit_a_phone_and_keep_nobody_out(browser: Browser, path: str, dark: bool) -> None:
    if not AXE.exists():
        pytest.skip("there is no axe-core: npm install --prefix .view axe-core")
    for size in (PHONE, DESK):
        browser.resize(size, dark=dark)
        browser.open(path)
        assert browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.serious_faults() == []


@pytest.fixture(scope="module")
def plan_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a run of 16 ranks, as `bridge-data plan --html` writes it."""
    folder = tmp_path_factory.mktemp("plan")
    names = ("interleaved-web-pages", "photos", "a-rather-long-name-of-a-data-set")
    for number, name in enumerate(names):
        measure(write_texts(folder / name, 120 + 90 * number))
    blend = write_blend(folder / "blend.yaml", {name: number + 1 for number, name in enumerate(names)})
    schedule = BatchSchedule(64, 1)
    options = {"packing": "planned", "planning_window": 400, "encoder": PackedWords(), "workers": (0, 64)}
    data = rank_dataset(blend, 0, 16, schedule, assignment="attention", **options)
    write_plan(folder / "plan.html", "blend.yaml", Planner(data, schedule).plan(RunLength(steps=400), exact_steps=300))
    return folder / "plan.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(400, 844), DESK], ids=["phone", "desk"])
def test_a_plan_fits_a_phone_and_has_no_faults(
    driver: "Chrome", plan_page: Path, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    browser = Browser(driver, plan_page.as_uri())
    browser.resize(size, dark=dark)
    browser.open("")
    assert browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert len(browser.find("svg.chart path.line")) == 4 and len(browser.find("svg.share")) == 3
    assert not AXE.exists() or browser.serious_faults() == []
    browser.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    is_for_docs = size == DESK and not dark
    browser.shoot(((is_for_docs and picture_folder()) or tmp_path) / "view_plan.png")


def test_scripts_of_the_page_do_not_break_its_own_policy(browser: Browser) -> None:
    for path in ("/samples", "/sample/0/1/2", "/blend", "/shapes"):
        browser.open(path)
        browser.wait(Browser.seen)
    assert [entry["message"] for entry in browser.driver.get_log("browser")] == []


# A run


@pytest.fixture(scope="module")
def module_monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def run_browser(driver: "Chrome", photos_yaml: Path, module_monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """A window on the pages of a run: LLaVA in small on the photos, packed, with a checkpoint."""
    folder = photos_yaml.parent
    config = folder / "run" / "config.yaml"
    config.parent.mkdir()
    parts = folder / "parts"
    train_tokenizer([f"a picture of {name}, cut at {number}" for number, name in enumerate(PHOTOS)], parts, 384)
    image_processor().save_pretrained(parts)
    data = {"path": "photos", "tokenizer": "parts", "image_processor": "parts", "seq_length": 256}
    data |= {"micro_batch_size": 2, "global_batch_size": 8, "packing_buffer_size": 24, "num_workers": 0}
    data["multimodal_sample_config"] = {"patch_size": 8}
    config.write_text(json.dumps({"data": data}))
    module_monkeypatch.chdir(folder)
    loader = DataConfig.read(config).build().train_dataloader()
    steps: list[list[str]] = []
    for number in range(4 * 24):
        if number % 4 == 0:
            steps.append([])
        steps[-1] += [key for row in next(loader).__key__ for key in row.split(",")]
        if number == 63:
            save_states(folder / "run/checkpoints/iter_0000016", loader.save_state(), step=16, world_size=1)
    (folder / "steps.json").write_text(json.dumps(steps))
    server, found = serve(folder, "run")
    with server:
        browser = Browser(driver, found)
        browser.resize(DESK)
        yield browser
        server.terminate()


def test_a_run_opens_by_its_name_and_a_step_is_chosen_by_number(run_browser: Browser, photos_yaml: Path) -> None:
    run_browser.open("/")
    assert address(run_browser) == "/run"
    assert run_browser.texts("h1") == ["run"] and run_browser.driver.title.startswith("run ·")
    field = run_browser.find("#step")[0]
    field.clear()
    field.send_keys("9\n")
    run_browser.wait(lambda b: address(b) == "/steps/9")
    assert run_browser.texts("h1") == ["Step 9 · run"]
    assert keys(run_browser) == json.loads((photos_yaml.parent / "steps.json").read_text())[9]
    run_browser.find("a.key")[0].click()
    run_browser.wait(lambda b: address(b).startswith("/sample/0/0/"))


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("path", ["/run", "/steps/9", "/shapes", "/blend", "/batches?number=3"])
def test_tables_of_a_run_scroll_in_their_box(run_browser: Browser, path: str, width: int) -> None:
    run_browser.resize((width, 844))
    run_browser.open(path)
    script = "return [document.documentElement.scrollWidth <= innerWidth, [...document.querySelectorAll('table')]"
    script += ".every(t => t.closest('.scroll').getBoundingClientRect().right <= innerWidth)]"
    assert run_browser.driver.execute_script(script) == [True, True]


def test_a_batch_shows_its_mask_its_packs_and_its_pictures(run_browser: Browser) -> None:
    run_browser.open("/batches?number=65")
    run_browser.wait(Browser.seen)
    learnt = "".join(run_browser.texts("main .tokens mark"))
    assert "picture" in learnt.replace(" ", "") and "<image>" not in learnt
    background = run_browser.find(".tokens mark")[0].value_of_css_property("background-color")
    assert background != run_browser.find(".tokens span")[0].value_of_css_property("background-color")
    assert len(run_browser.find("svg.pack rect")) >= 2 + 2 * 2
    assert len(run_browser.find(".pictures img")) >= 4


@pytest.mark.parametrize("path", ["/batches?number=65", "/run", "/steps/17", "/shapes"])
def test_pages_of_a_run_keep_nobody_out(run_browser: Browser, path: str) -> None:
    if not AXE.exists():
        pytest.skip("there is no axe-core: npm install --prefix .view axe-core")
    for size, dark in ((DESK, False), (PHONE, True)):
        run_browser.resize(size, dark=dark)
        run_browser.open(path)
        assert run_browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert run_browser.serious_faults() == []


def test_pictures_for_the_docs(browser: Browser, run_browser: Browser, tmp_path: Path) -> None:
    """Written to docs/images if they are asked for: SHOTS=1."""
    folder = picture_folder() or tmp_path
    shots = (
        (browser, "/samples", "view_samples", DESK, False),
        (browser, "/blend", "view_blend", (920, 410), False),
        (run_browser, "/batches?number=65", "view_batch", (1100, 860), True),
        (run_browser, "/steps/17", "view_phone", PHONE, True),
    )
    for window, path, name, size, dark in shots:
        window.resize(size, dark=dark)
        window.open(path)
        window.shoot(folder / f"{name}.png")
        assert 5_000 < (folder / f"{name}.png").stat().st_size < 150_000
