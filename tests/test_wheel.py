"""What is installed is the package as it is, whatever was built before."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.mark.processes
def test_a_module_that_was_removed_is_not_in_the_next_wheel(tmp_path: Path) -> None:
    """As by `pip install .` in a clone, which builds in place each time."""
    pytest.importorskip("setuptools", minversion="77", reason="pip brings it for each build")
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "bridge_data" / "storage", clone / "bridge_data" / "storage")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "bridge_data/__init__.py"):
        shutil.copy(ROOT / name, clone / name)

    def modules(wheel: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", BUILD, tmp_path / wheel], cwd=clone, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (made,) = (tmp_path / wheel).glob("*.whl")
        return {name for name in zipfile.ZipFile(made).namelist() if name.endswith(".py")}

    before = modules("first")
    assert "bridge_data/storage/copies.py" in before and not {name for name in before if name.startswith("tests")}
    (clone / "bridge_data/storage/copies.py").unlink()
    assert modules("second") == before - {"bridge_data/storage/copies.py"}
