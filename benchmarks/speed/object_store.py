"""Training from an object store beside the same from local shards: 20 ms away at half the rate that local shards give,
and 100 ms away as fast as it can.

The data are the JPEGs of the rates. Our loader runs with two workers, in each round: local and unpaced (its rate sets
the pace), far and unpaced, local and paced, near and paced. The server is nanio. The way to it is a relay that delays
what clients send, and copies bytes: server and relay compute on the same cores as the loader, so what they cost makes
the trainer wait.
"""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed import data
from benchmarks.speed.programs import OURS, Figures, run
from benchmarks.speed.rounds import Extent, Runs, checked, report

NEAR_S, FAR_S, WORKERS, SECONDS = 0.02, 0.1, 2, 6.0


def measure(extent: Extent) -> Runs:
    """The runs; `{"failed": why}` instead of figures that could not be measured."""
    folder = data.make("jpeg", extent.folder, extent.scale)
    data.warm(folder)
    free, far, local, near = runs = [list[Figures]() for _ in range(4)]
    try:
        with served(folder, NEAR_S) as is_near, served(folder, FAR_S) as is_far:
            for _ in range(extent.rounds):
                free.append(run(OURS, "jpeg", folder, WORKERS, extent.seconds))
                if "failed" in free[-1]:
                    return {"s3/2": {OURS: free}}
                far.append(run(OURS, "s3", folder, WORKERS, SECONDS, variables=is_far))
                pace = ["--pause-per-sample", str(2 / free[-1]["samples_per_s"])]
                local.append(run(OURS, "jpeg", folder, WORKERS, SECONDS, pace))
                near.append(run(OURS, "s3", folder, WORKERS, SECONDS, pace, is_near))
                for name, found in zip(("jpeg", "s3, far", "jpeg, paced", "s3, paced"), runs, strict=True):
                    found[-1]["check"] = checked(found[-1].get("check", []), folder, "jpeg")
                    report(name, WORKERS, OURS, found[-1])
    except (ImportError, OSError, RuntimeError) as error:
        near = far = [{"failed": f"no object store: {error}"}]
    return {"s3/2": {OURS: near, "local shards": local}, "far/2": {OURS: far, "local shards": free}}


@contextlib.contextmanager
def served(folder: Path, latency_s: float) -> Iterator[dict[str, str]]:
    """A data set in a bucket that is `latency_s` away; the environment in which our program finds it."""
    from tests.object_store import Server, environment

    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        shutil.copytree(folder / "tars", root / "bench" / "jpeg", copy_function=os.link)
        server = Server(root)
        server.start()
        stack.callback(server.kill)
        port = stack.enter_context(_delayed(server.port, latency_s))
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        yield environment(port) | {"BENCH_S3_URL": "s3://bench/jpeg", "BRIDGE_DATA_CACHE": cache}


@contextlib.contextmanager
def _delayed(port: int, latency_s: float) -> Iterator[int]:
    """A port of this machine that is `latency_s` away from `port`."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        threading.Thread(target=_accept, args=(listener, port, latency_s), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, latency_s: float) -> None:
    with contextlib.suppress(OSError):  # the listener is closed
        while True:
            client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
            for source, target, delay_s in ((client, server, latency_s), (server, client, 0.0)):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_relay, args=(source, target, delay_s), daemon=True).start()


def _relay(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Send what comes from `source` on to `target`, until one of them is closed."""
    memory = memoryview(bytearray(1 << 18))
    with contextlib.suppress(OSError):
        while count := source.recv_into(memory):
            time.sleep(delay_s)
            target.sendall(memory[:count])
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
