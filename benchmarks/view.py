"""How quick the page of `bridge-data view` is over a million samples: `python -m benchmarks.view`.

Writes a data set of 1,000,000 texts in 100 tars (1 GB) to a temporary folder, prepares it, and asks a server in another
process: for the first page as it starts, then for pages, searches and figures.
"""

import functools
import http.client
import io
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare, write_dataset_yaml

NUM_SAMPLES, NUM_SHARDS = 1_000_000, 100
ROUNDS = 20

_TEXT = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}, "field_map": {"text": "txt"}}


def write_shards(folder: Path) -> None:
    """Tars with one text a sample, whose keys are spread over the shards."""
    for shard in range(NUM_SHARDS):
        with (folder / f"data-{shard:04d}.tar").open("wb") as file:
            for number in range(shard, NUM_SAMPLES, NUM_SHARDS):
                text = f"text number {number}".encode()
                entry = tarfile.TarInfo(f"{number:08d}.txt")
                entry.size = len(text)
                file.write(entry.tobuf(tarfile.USTAR_FORMAT) + text.ljust(512, b"\0"))
            file.write(bytes(1024))


def asked(port: int, path: str) -> float:
    """Seconds to a page."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200 and b'class="bad"' not in content, content
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder)
        prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
        write_dataset_yaml(folder, _TEXT, "dataset.yaml")
        command = [sys.executable, "-m", "bridge_data.tools.cli", "view", name, "--port", "0"]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert isinstance(server.stdout, io.TextIOBase)
            found = re.search(r":(\d+)/", server.stdout.readline())
            assert found is not None
            print(f"start to listening       {time.perf_counter() - started:8.3f} s")
            port = int(found[1])
            print(f"first page, cold         {asked(port, '/samples'):8.3f} s")
            print(f"first search, cold       {asked(port, '/samples?q=00777'):8.3f} s")
            for what, paths in {
                "a page": [f"/samples?page={1 + 2083 * number}" for number in range(ROUNDS)],
                "a search": [f"/samples?q={number * 49_999:08d}"[:-2] for number in range(ROUNDS)],
                "the blend": ["/blend"] * ROUNDS,
                "histograms": ["/shapes"],
            }.items():
                times = [asked(port, path) for path in paths]
                print(f"{what:24} {statistics.median(times):8.3f} s, at most {max(times):.3f} s")
            server.terminate()


if __name__ == "__main__":
    main()
