"""Which versions of Python there are is said in four places: they agree."""

import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECK = ROOT / ".ci" / "check_python.py"


def ci_versions() -> list[str]:
    found = re.search(r'^VERSIONS="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_this_python_will_do() -> None:
    assert subprocess.check_output([sys.executable, CHECK], text=True).strip() == platform.python_version()


def test_ci_runs_every_version_that_may_be_installed_on() -> None:
    oldest, newest = (int(version.partition(".")[2]) for version in (ci_versions()[0], ci_versions()[-1]))
    assert ci_versions() == [f"3.{minor}" for minor in range(oldest, newest + 1)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">=3.{oldest},<3.{newest + 1}"
    assert f"OLDEST, NEWEST = (3, {oldest}), (3, {newest})" in CHECK.read_text()
    assert project["tool"]["ruff"]["target-version"] == f"py3{oldest}"


def test_another_python_is_refused_in_one_line() -> None:
    program = f"import sys; sys.version_info = (3, 10, 13); exec(open({str(CHECK)!r}).read())"
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert refused.returncode == 1 and not refused.stdout
    assert re.fullmatch(r".* is Python 3\.10\.13, and bridge_data needs 3\.11 to 3\.13 .*\n", refused.stderr)
