"""The core stands alone: without the folder of plug-ins, a usual job and the contracts of the core hold."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bridge_data
from bridge_data.data.withheld import FORGOTTEN_JSONL
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.prepared import write_texts

CONTRACTS = (
    *("tests/properties/test_machine.py", "tests/properties/test_resume.py", "tests/test_golden_order.py"),
    *("tests/order", "tests/lanes/test_lane.py", "tests/lanes/test_packs.py"),
    *("tests/loader/test_loader.py", "tests/loader/test_lane_pool.py"),
    *("tests/loader/checkpoint/test_checkpoint_folder.py", "tests/loader/checkpoint/test_state_files.py"),
)
"""Tests of what the core promises, none of which may need a plug-in."""

QUICK = ("tests/test_golden_order.py", "tests/properties/test_machine.py")
"""Those that `make test` runs here; all of them run with all plug-ins there, too."""

SITE = """
import sys

sys.meta_path[:] = [one for one in sys.meta_path if not getattr(one, "__module__", "").startswith("__editable__")]
"""
"""Run by each Python that begins: an editable installation would find the plug-ins of the clone."""

PACKAGE = Path(bridge_data.__file__).parent
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, but for its plug-ins, and the tests."""
    folder = tmp_path_factory.mktemp("core")
    caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=caches)
    shutil.rmtree(folder / PACKAGE.name / "plugins")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=caches)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "sitecustomize.py").write_text(SITE)
    with pytest.raises(AssertionError, match=r"No module named 'bridge_data\.plugins'"):
        run(folder, "-c", "import bridge_data.plugins")
    return folder


def run(core: Path, *arguments: str) -> str:
    """What `python arguments` prints, run on that package; it must succeed."""
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(core)}
    done = subprocess.run(
        command, cwd=core, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-8_000:]
    return done.stdout


@pytest.mark.processes
def test_a_usual_job_needs_no_plugin(core: Path) -> None:
    assert "right" in run(core, "-m", "tests.usual_job")


OPENS = """
import sys
from bridge_data import WorkerConfig, get_val_dataset
from bridge_data.errors import ConfigError

try:
    get_val_dataset(sys.argv[1], split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=1)
except ConfigError as error:
    print("refused:", error)
"""


@pytest.mark.processes
def test_a_list_of_samples_not_to_be_read_is_refused_where_nothing_reads_it(core: Path, tmp_path: Path) -> None:
    data = write_texts(tmp_path / "texts", 20)
    assert run(core, "-c", OPENS, str(data)) == ""
    forget_samples(data, ["000003"], "asked for")
    found = run(core, "-c", OPENS, str(data))
    assert "refused:" in found and FORGOTTEN_JSONL in found and "plug-in" in found


OPENS_AND_TELLS = f"""{OPENS}
print("imported:", *(name for name in sys.modules if name.startswith("bridge_data.plugins.")))
"""


@pytest.mark.processes
def test_no_plugin_is_imported_for_data_that_need_none(tmp_path: Path) -> None:
    """Nor is one that is there: who reads the way to the first batch meets none."""
    data = write_texts(tmp_path / "texts", 20)
    assert run(ROOT, "-c", OPENS_AND_TELLS, str(data)) == "imported:\n"
    forget_samples(data, ["000003"], "asked for")
    assert "bridge_data.plugins.forget" in run(ROOT, "-c", OPENS_AND_TELLS, str(data))


@pytest.mark.processes
@pytest.mark.parametrize("files", [QUICK, pytest.param(CONTRACTS, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_the_contracts_of_the_core_need_no_plugin(core: Path, files: tuple[str, ...]) -> None:
    left_out = "not slow and not peer and not gpu and not machine and not browser and not data"
    run(core, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-m", left_out, *files)
