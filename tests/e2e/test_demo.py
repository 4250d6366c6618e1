"""`make demo`, as a user starts it. (`.ci/run` runs the demo itself, then the first of these.)"""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


def run_demo(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of the demo in `folder`; no process of it may be left."""
    done = subprocess.run(
        [sys.executable, "-m", "recipes.demo", "--folder", str(folder), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
    assert not left, "processes of the demo were left behind"
    return done.returncode, done.stdout


def rows(printed: str) -> dict[str, list[str]]:
    """The table that was printed, by the name of the run."""
    lines = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
    table = [cells for cells in lines if len(cells) == 6]
    return {name: rest for name, *rest in table[1:]}


@pytest.mark.slow
def test_one_sample_left_out_is_told_in_the_row_of_its_run(tmp_path: Path) -> None:
    status, printed = run_demo(tmp_path, "--steps", "16", "--resumes", "resumed", BRIDGE_DATA_DEMO_SKIP_ONE="1")
    assert status == 1, printed
    table = rows(printed)
    assert list(table) == ["no-kill", "killed", "resumed"], printed
    assert table["killed"][3:] == ["equal", "bit-equal"]
    assert table["resumed"][3] == "DIFFERENT"
    assert table["resumed"][4].startswith("DIFFERENT by")
    assert re.search(r"^resumed: step \d+, micro-batch \d+: keys \[.*\], in the reference \[.*\]$", printed, re.M)
    assert int(re.search(r"with (\d+) samples in packing buffers", printed)[1]) > 0  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_every_run_of_the_demo_sees_the_same_global_batches(tmp_path: Path) -> None:
    status, printed = run_demo(tmp_path)
    assert status == 0, printed
    table = rows(printed)
    assert list(table) == ["no-kill", "killed", "resumed", "on-1-rank", "other-workers"]
    assert all(row[3] == "equal" for name, row in table.items() if name != "no-kill")
    assert [table[name][4] for name in ("killed", "resumed", "other-workers")] == ["bit-equal"] * 3
    assert table["on-1-rank"][4].startswith("within")
