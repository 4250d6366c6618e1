"""Training from an object store 20 ms away, at half the rate that local shards give, beside the same from local shards.

The data are the JPEGs of the rates. Our loader runs with two workers: local and unpaced (its rate sets the pace), local
and paced, remote and paced. The server is nanio, behind a proxy in which each request waits.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed import data
from benchmarks.speed.programs import OURS, Figures, run
from benchmarks.speed.rounds import Extent, checked, report

LATENCY_S, WORKERS, SECONDS = 0.02, 2, 6.0


def measure(extent: Extent) -> dict[str, list[Figures]]:
    """The runs; `{"failed": why}` instead of figures that could not be measured."""
    folder = data.make("jpeg", extent.folder, extent.scale)
    data.warm(folder)
    free = run(OURS, "jpeg", folder, WORKERS, extent.seconds)
    if "failed" in free:
        return {OURS: [free]}
    pace = ["--pause-per-sample", str(2 / free["samples_per_s"])]
    local, remote = [], []
    try:
        with served(folder) as variables:
            for _ in range(extent.other_rounds):
                local.append(run(OURS, "jpeg", folder, WORKERS, SECONDS, pace))
                remote.append(run(OURS, "s3", folder, WORKERS, SECONDS, pace, variables))
                for runs in (local, remote):
                    runs[-1]["check"] = checked(runs[-1].get("check", []), folder, "jpeg")
                report("jpeg, paced", WORKERS, OURS, local[-1])
                report("s3", WORKERS, OURS, remote[-1])
    except (ImportError, OSError, RuntimeError) as error:
        remote = [{"failed": f"no object store: {error}"}]
    return {OURS: remote, "local shards": local}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """A data set in a bucket behind a slow connection; the environment in which our program finds it."""
    from tests.object_store import Server, environment, faulty_proxy

    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        shutil.copytree(folder / "tars", root / "bench" / "jpeg", copy_function=os.link)
        server = Server(root)
        server.start()
        stack.callback(server.kill)
        proxy = stack.enter_context(faulty_proxy(server))
        proxy.latency_s = LATENCY_S
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        yield environment(proxy.port) | {"BENCH_S3_URL": "s3://bench/jpeg", "BRIDGE_DATA_CACHE": cache}
