"""How many modules a run passes, and that docs/architecture.md names them, and no others.

`python -m tests.test_architecture` prints them, in the order in which a small run first executes code of them.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bridge_data"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

# What a run passes today. Lower a bound when you make the way shorter; do not raise it.
MAX_TO_OPEN = 24
"""Modules from `get_train_dataset`, of a metadataset with two data sets, to its `LaneDataset`."""
MAX_TO_RESTORE = 25
"""Modules from `restore_state_rank` to the first batch after it, without workers."""

CAPTIONED = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}


class Passed:
    """The modules of the package whose code runs within a `with` block; what runs to import a module is left out."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._num_importing = 0

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        if frame.f_code.co_name == "<module>":
            self._num_importing += 1 if event == "call" else -1
        elif event == "call" and self._num_importing == 0:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                self.modules.setdefault(str(path.relative_to(PACKAGE)))


def write_data(folder: Path) -> Path:
    """A metadataset that blends two data sets of captioned JPEGs."""
    from PIL import Image

    from tests.prepared import write_blend, write_dataset

    def sample(number: int) -> dict[str, Any]:
        jpeg = io.BytesIO()
        Image.new("RGB", (40, 30), (number, 0, 0)).save(jpeg, "JPEG")
        return {"__key__": f"{number:06d}", "jpg": jpeg.getvalue(), "txt": f"a red of {number}"}

    for name in ("first", "second"):
        write_dataset(folder / name, map(sample, range(20)), definition=CAPTIONED)
    return write_blend(folder / "blend.yaml", {"first": 2, "second": 1})


def trace(folder: Path) -> dict[str, list[str]]:
    """The modules that are passed by opening a data set, and by restoring a state up to the next batch."""
    from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset

    path = write_data(folder)

    settings: dict[str, Any] = {
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0),
        "batch_size": 2,
        "shuffle_buffer_size": 100,
        "max_samples_per_sequence": 100,
    }

    with Passed() as opening:
        dataset = get_train_dataset(path, **settings)
    loader = get_savable_loader(dataset)
    iterator = iter(loader)
    next(iterator)
    state = loader.save_state_rank()
    expected = next(iterator).__key__

    restored = get_savable_loader(get_train_dataset(path, **settings))
    with Passed() as restoring:
        restored.restore_state_rank(state)
        batch = next(iter(restored))
    assert batch.__key__ == expected
    return {"open": list(opening.modules), "restore": list(restoring.modules)}


@pytest.fixture(scope="module")
def passed() -> dict[str, list[str]]:
    """What `trace` finds in a process of its own, where nothing is cached yet."""
    command = [sys.executable, "-m", "tests.test_architecture"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert all(found.values())
    return found


@pytest.mark.processes
def test_to_open_a_data_set_passes_no_more_modules_than_before(passed: dict[str, list[str]]) -> None:
    assert len(passed["open"]) <= MAX_TO_OPEN, passed["open"]


@pytest.mark.processes
def test_to_restore_a_state_passes_no_more_modules_than_before(passed: dict[str, list[str]]) -> None:
    assert len(passed["restore"]) <= MAX_TO_RESTORE, passed["restore"]


@pytest.mark.processes
@pytest.mark.parametrize("way", ["open", "restore"])
def test_the_page_names_every_module_that_is_passed(passed: dict[str, list[str]], way: str) -> None:
    assert [module for module in passed[way] if f"`{module}`" not in PAGE] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    names = {path.name for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert [name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists() or name in names)] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(json.dumps(trace(Path(made)), indent=1))
