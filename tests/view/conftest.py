"""A real browser over a real server: Chromium, driven by selenium."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins.view.shown_data import write_site

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).parents[2]

AXE = ROOT / ".view" / "node_modules" / "axe-core" / "axe.min.js"

DESK, PHONE = (1280, 860), (390, 844)


def missing() -> str | None:
    """What there is not that a browser test needs; None if nothing."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"there is no {program}: apt install chromium chromium-driver"
    if importlib.util.find_spec("selenium") is None:
        return "there is no selenium: pip install selenium"
    return None


class Browser:
    """A window of Chromium at a server."""

    def __init__(self, driver: "Chrome", address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, path: str) -> None:
        """Go to a page, and wait for it."""
        self.driver.get(self.address + path)

    def find(self, selector: str) -> list:
        """The elements that match a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Their texts."""
        return [element.text for element in self.find(selector)]

    def wait(self, condition: object) -> object:
        """Wait until a function of this browser is true; what it returns."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        replaced = [StaleElementReferenceException]  # by htmx, while it was looked at
        return WebDriverWait(self.driver, 20, ignored_exceptions=replaced).until(lambda _: condition(self))

    def press(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Another size of the page in pixels, and another colour scheme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def seen(self) -> bool:
        """Whether all pictures in view have been loaded."""
        script = "return [...document.images].filter(i => i.getBoundingClientRect().top < innerHeight)"
        return bool(self.driver.execute_script(script + ".every(i => i.complete && i.naturalWidth)"))

    def shoot(self, file: Path) -> None:
        """Write what is seen to a PNG of few colours."""
        import io

        from PIL import Image

        self.wait(Browser.seen)
        image = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        image.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)

    def serious_faults(self) -> list[str]:
        """What axe-core finds on the page that is serious or critical."""
        script = AXE.read_text() + "; const done = arguments[arguments.length - 1]; axe.run(document).then(done);"
        found = self.driver.execute_async_script(script)["violations"]
        return [
            f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html']}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]


def serve(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A server, started in `folder`, and its address."""
    command = [sys.executable, "-m", "bridge_data.cli", "view", *arguments, "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    assert server.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
    assert found is not None
    return server, found[0]


@pytest.fixture(scope="session")
def driver() -> "Iterator[Chrome]":
    """Chromium without a window."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--autoplay-policy=no-user-gesture-required",
    ):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as chromium:
        chromium.set_script_timeout(60)
        yield chromium


@pytest.fixture(scope="session")
def photos_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A metadataset of larger photos, and films."""
    return write_site(tmp_path_factory.mktemp("shown"), large=True)


@pytest.fixture(scope="session")
def site(photos_yaml: Path) -> Iterator[str]:
    """The address of its pages."""
    server, address = serve(photos_yaml.parent, photos_yaml.name)
    with server:
        yield address
        server.terminate()


@pytest.fixture
def browser(driver: "Chrome", site: str) -> Browser:
    """A window on the pages of the metadataset."""
    found = Browser(driver, site)
    found.resize(DESK)
    return found


@functools.cache
def picture_folder() -> Path | None:
    """Where the pictures of the docs are written; None unless they are asked for."""
    if not os.environ.get("BRIDGE_DATA_SHOTS"):
        return None
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    return folder
