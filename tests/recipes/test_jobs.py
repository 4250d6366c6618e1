"""Jobs run in a process of their own, since the reaper ends everything that descends from it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

RANK = """
import json, os, subprocess, sys, time
from pathlib import Path
rank, folder, num_steps = int(os.environ["RANK"]), Path(sys.argv[1]), int(sys.argv[2])
orphan = subprocess.Popen(["sleep", "1000"], start_new_session=True)
(folder / f"orphan{rank}").write_text(str(orphan.pid))
log = (folder / f"steps_dprank{rank:03d}.jsonl").open("a", buffering=1)
for step in range(num_steps):
    log.write(json.dumps({"step": step, "loss": 1.0, "keys": [["k"]]}) + "\\n")
    time.sleep(0.1)
if num_steps == 1:
    sys.exit("this rank has given up")
"""

DRIVER = """
import json, sys
from pathlib import Path
from recipes.demo.jobs import JobFailed, run_job
seen = []
options = json.loads(sys.argv[3])
try:
    run_job("rank", [sys.argv[1], sys.argv[2]], folder=Path(sys.argv[1]), num_ranks=2,
            on_step=lambda line: seen.append(line["step"]), **options)
    outcome = "done"
except JobFailed as error:
    outcome = str(error)
print(json.dumps([seen, outcome]))
"""


FAILING_RANK = """
import os, subprocess, sys, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import record
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
(folder / f"orphan{rank}").write_text("0")


def read(key, depth=20):
    if depth:
        return read(key, depth - 1)
    raise KeyError(f"{key}: no such sample")


@record
def main():
    if rank == 1:
        while not (folder / "has_begun0").exists():  # else rank 0 is ended before it writes anything
            time.sleep(0.01)
        read("photos/17")
    while not list(folder.glob("ranks/*/attempt_0/1/error.json")):
        time.sleep(0.01)
    time.sleep(0.01)
    raise ConnectionError("rank 1 has gone away")


print(*["a line of chatter"] * 1000, sep="\\n", file=sys.stderr, flush=True)
(folder / f"has_begun{rank}").touch()
main()
"""


def drive(folder: Path, num_steps: int, program: str = RANK, **options: object) -> tuple[list[int], str]:
    """Run a job under the launcher; the steps that were seen, and how it ended. No process may be left."""
    (folder / "rank.py").write_text(program)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), str(num_steps), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{root}"},
    )
    assert done.returncode == 0, done.stderr
    orphans = [int(file.read_text()) for file in folder.glob("orphan*")]
    assert orphans
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in orphans if pid):
        assert time.monotonic() < deadline, "the ranks' helpers were left behind"
        time.sleep(0.05)
    seen, outcome = json.loads(done.stdout)
    return seen, outcome


@pytest.mark.parametrize(
    ("num_steps", "options", "ended"),
    [
        (3, {}, "done"),
        (50, {"kill_after_step": 4}, "done"),
        pytest.param(2, {"kill_after_step": 4}, "before it could be killed", marks=pytest.mark.slow),
        pytest.param(500, {"timeout_s": 8}, "not done after", marks=pytest.mark.slow),
    ],
)
def test_a_job_ends_by_itself_or_is_killed_and_leaves_no_process(
    tmp_path: Path, num_steps: int, options: dict[str, Any], ended: str
) -> None:
    seen, outcome = drive(tmp_path, num_steps, **options)
    assert ended in outcome
    assert seen == [*range(len(seen))]
    if ended == "done":
        assert len(seen) == 3 if not options else 5 <= len(seen) < 50


def test_a_failing_job_shows_what_its_first_rank_raised_and_where_the_logs_are(tmp_path: Path) -> None:
    _, outcome = drive(tmp_path, 0, FAILING_RANK)
    first, error, *calls, last = outcome.splitlines()
    assert first == f"{tmp_path.name}: ended with status 1"
    assert error == "  rank 1: KeyError: 'photos/17: no such sample'"
    assert len(calls) <= 7 and calls[-1].endswith("in read") and "rank.py" in calls[-1]
    logs, launcher = re.fullmatch("logs: (.*)/RANK/stderr.log, (.*)", last).groups()  # type: ignore[union-attr]
    assert "chatter" in (Path(logs) / "0" / "stderr.log").read_text() and Path(launcher).is_file()


def test_a_job_that_records_no_error_shows_the_last_words_of_the_rank_that_failed(tmp_path: Path) -> None:
    _, outcome = drive(tmp_path, 1)
    lines = outcome.splitlines()
    assert lines[0] == f"{tmp_path.name}: ended with status 1" and len(lines) <= 10
    assert re.fullmatch(r"  rank [01]: exit code 1 .*", lines[1]) and "  this rank has given up" in lines
