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
from tests.ranks import run_job

CONTRACTS = (
    "tests/properties/test_machine.py",
    "tests/properties/test_resume.py",
    "tests/test_golden_order.py",
    "tests/order",
    "tests/lanes/test_lane.py",
    "tests/lanes/test_packs.py",
    "tests/loader/test_loader.py",
    "tests/loader/test_lane_pool.py",
    "tests/loader/checkpoint/test_checkpoint_folder.py",
    "tests/loader/checkpoint/test_state_files.py",
)
"""Tests of what the core promises, none of which may need a plug-in."""

QUICK = ("tests/test_golden_order.py", "tests/properties/test_machine.py")
"""Those that `make test` runs here."""

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
    shutil.copytree(PACKAGE, folder / PACKAGE.name)
    shutil.rmtree(folder / PACKAGE.name / "plugins")
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "sitecustomize.py").write_text(SITE)
    with pytest.raises(AssertionError, match=r"No module named 'bridge_data\.plugins'"):
        run(folder, "-c", "import bridge_data.plugins")
    return folder


ALONE = f"""
import importlib.util, os, sys

sys.path.insert(0, os.getcwd())
os.environ["PYTHONPATH"] = os.getcwd()
{SITE}
assert importlib.util.find_spec("bridge_data").origin.startswith(os.getcwd())
assert importlib.util.find_spec("bridge_data.plugins") is None
"""


def run_program(core: Path, program: str, *arguments: str) -> str:
    """What a program prints, run on that package by a process that has imported others already; it must succeed."""
    anew = ["bridge_data", "recipes", "tests"]
    status, printed = run_job("-c", ALONE + program, *arguments, cwd=core, anew=anew)
    assert status == 0, printed[-8_000:]
    return printed


def run(core: Path, *arguments: str) -> str:
    """What `python arguments` prints, run on that package; it must succeed."""
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(core)}
    done = subprocess.run(
        command, cwd=core, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-8_000:]
    return done.stdout


USUAL_JOB_AND_TESTS = """
import pytest
from tests import usual_job

usual_job.main()
sys.exit(pytest.main(["-q", "-x", "-p", "no:xdist", *sys.argv[1:]]))
"""


@pytest.mark.processes
def test_a_usual_job_and_contracts_of_the_core_need_no_plugin(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few histories: all of them run with all plug-ins there, too."""
    monkeypatch.setenv("BRIDGE_DATA_PROFILE", "repeatable")
    monkeypatch.setenv("BRIDGE_DATA_EXAMPLES", "4")
    printed = run_program(core, USUAL_JOB_AND_TESTS, *QUICK)
    assert "usual job: right" in printed and " passed" in printed


OPENS = """
import sys
from bridge_data import WorkerConfig, get_val_dataset
from bridge_data.errors import ConfigError

for path in sys.argv[1:]:
    try:
        get_val_dataset(path, split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=1)
        print("opened")
    except ConfigError as error:
        print("refused:", error)
"""


@pytest.mark.processes
def test_a_list_of_samples_not_to_be_read_is_refused_where_nothing_reads_it(core: Path, tmp_path: Path) -> None:
    whole, listed = (write_texts(tmp_path / name, 20) for name in ("whole", "listed"))
    forget_samples(listed, ["000003"], "asked for")
    first, second = run_program(core, OPENS, str(whole), str(listed)).splitlines()
    assert first == "opened"
    assert second.startswith("refused:") and FORGOTTEN_JSONL in second and "plug-in" in second


LEFT_OUT = "not slow and not peer and not gpu and not machine and not browser and not data"


OPENS_AND_TELLS = f"""{OPENS}
print("imported:", *(name for name in sys.modules if name.startswith("bridge_data.plugins.")))
"""


@pytest.mark.processes
def test_no_plugin_is_imported_for_data_that_need_none(tmp_path: Path) -> None:
    """Nor is one that is there: who reads the way to the first batch meets none."""

    def told() -> str:
        status, output = run_job("-c", OPENS_AND_TELLS, str(data), anew=["bridge_data"])
        assert status == 0, output
        return output

    data = write_texts(tmp_path / "texts", 20)
    assert told().endswith("imported:\n")
    forget_samples(data, ["000003"], "asked for")
    assert "bridge_data.plugins.forget" in told()


@pytest.mark.slow
@pytest.mark.processes
def test_no_contract_of_the_core_needs_a_plugin(core: Path) -> None:
    run(core, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-m", LEFT_OUT, *CONTRACTS)
