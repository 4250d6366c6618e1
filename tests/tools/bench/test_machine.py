import math
import os
import subprocess
import sys

import pytest

from bridge_data.tools.bench.machine import allowed_cores, idle_cores_s, num_cores, tree_cpu_s

WORK = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def test_descendants_are_counted() -> None:
    before = tree_cpu_s()
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert tree_cpu_s() - before >= 0.15
        process.communicate("\n")


def test_cores() -> None:
    assert 0 < num_cores() <= (os.cpu_count() or 1)
    assert idle_cores_s() >= 0


@pytest.mark.parametrize(("limit", "cores"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5)])
def test_containers_may_have_less(limit: str, cores: float) -> None:
    assert allowed_cores(limit) == cores
