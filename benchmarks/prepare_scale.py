"""`prepare` of many shards beside Energon's: time, memory, kills, one more shard; and the reading of what it prepared.

    python -m benchmarks.prepare_scale --energon .venv-peers/energon/bin/python

Writes texts of 200 bytes to tars in a temporary folder, 1 GB for the default of 1,000,000. Each command is a process of
its own with two workers. CPU seconds are those of all its processes: they depend less on what else the machine does.
"""

import argparse
import filecmp
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data.prepare.part_encoding import tar_header

SETTINGS = ["--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "2"]
SAMPLES = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
OURS = [sys.executable, "-m", "bridge_data.cli", "prepare"]
KILLS = 20
ROUNDS = 5

RATE = """
import sys, time
from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
options = dict(batch_size=32, shuffle_buffer_size=100, max_samples_per_sequence=100)
batches = iter(get_savable_loader(get_train_dataset(sys.argv[1], worker_config=config, **options)))
for _ in range(300):
    next(batches)
started = time.process_time()
for _ in range(4000):
    next(batches)
print(4000 * 32 / (time.process_time() - started))
"""


class Run(NamedTuple):
    """What a command took: seconds, CPU seconds, and the memory of its largest process."""

    wall_s: float
    cpu_s: float
    peak_mib: float

    def __str__(self) -> str:
        return f"{self.wall_s:8.2f} s {self.cpu_s:8.2f} CPU s {self.peak_mib:8.0f} MiB"


def write_shard(path: Path, first: int, count: int) -> None:
    """Texts number `first` and on."""
    members = []
    for number in range(first, first + count):
        text = (f"text number {number} " * 20)[:200].encode()
        members.append(tar_header(f"{number:08d}.txt", len(text)) + text + bytes(-len(text) % 512))
    path.write_bytes(b"".join(members) + bytes(1024))


def links(source: Path, folder: Path) -> Path:
    """A folder with the same tars, not prepared."""
    folder.mkdir()
    for shard in source.glob("*.tar"):
        os.link(shard, folder / shard.name)
    return folder


def measured(command: Sequence[str]) -> Run:
    """Run a command. Its memory is never less than that of this process, which starts it: so that stays small."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return Run(time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def killed(folder: Path, seconds: float) -> int:
    """Prepare `folder`, and kill that at `KILLS` random moments; how often until it was prepared."""
    rng = random.Random(0)
    for kills in range(KILLS):
        with subprocess.Popen([*OURS, str(folder), *SETTINGS, "--no-progress"], stdout=subprocess.DEVNULL) as run:
            try:
                if run.wait(rng.uniform(0.05, 0.3) * seconds) == 0:
                    return kills
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
    measured([*OURS, str(folder), *SETTINGS, "--no-progress"])
    return KILLS


def are_same(one: Path, other: Path) -> bool:
    """Whether all files of two preparations are equal, and the rows of the databases."""
    metas = [folder / ".nv-meta" for folder in (one, other)]
    names = [sorted(path.name for path in meta.iterdir() if path.suffix != ".sqlite") for meta in metas]
    _, other_files, failed = filecmp.cmpfiles(*metas, names[0], shallow=False)
    offsets = [sorted(path.name for path in folder.glob("*.idx")) for folder in (one, other)]
    _, other_offsets, absent = filecmp.cmpfiles(one, other, offsets[0], shallow=False)
    db = sqlite3.connect(metas[0] / "index.sqlite")
    db.execute("ATTACH ? AS other", (str(metas[1] / "index.sqlite"),))
    differing = 0
    for table in ("samples", "sample_parts"):
        for first, second in (("main", "other"), ("other", "main")):
            rows = f"SELECT * FROM {first}.{table} EXCEPT SELECT * FROM {second}.{table}"
            differing += db.execute(f"SELECT COUNT(*) FROM ({rows})").fetchone()[0]
    is_complete = names[0] == names[1] and offsets[0] == offsets[1] and not (failed or absent)
    return is_complete and not (other_files or other_offsets or differing)


def rate(folder: Path) -> float:
    """Texts a CPU second, in one process."""
    done = subprocess.run([sys.executable, "-c", RATE, str(folder)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--samples", type=int, default=1_000_000)
    arguments.add_argument("--shards", type=int, default=1_000)
    arguments.add_argument("--energon", type=Path, help="The Python of an environment with Megatron-Energon.")
    arguments.add_argument("--folder", type=Path, help="Where the data is written, and removed.")
    given = arguments.parse_args()
    count = given.samples // given.shards
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        for name, samples in (("small", count // 10), ("tars", count)):
            (folder / name).mkdir()
            for shard in range(given.shards):
                write_shard(folder / name / f"data-{shard:05d}.tar", shard * samples, samples)
            run = measured([*OURS, str(links(folder / name, folder / f"ours-{name}")), *SETTINGS, *SAMPLES])
            print(f"{given.shards * samples:>9,} samples, ours          {run}", flush=True)
        ours = folder / "ours-tars"
        if given.energon is not None:
            theirs = links(folder / "tars", folder / "energon")
            command = [str(given.energon.parent / "energon"), "prepare", str(theirs), *SETTINGS, *SAMPLES]
            peer = measured(command)
            print(f"{given.samples:>9,} samples, Energon       {peer}")
            print(
                f"times Energon's speed: {peer.wall_s / run.wall_s:.1f}; by CPU {peer.cpu_s / run.cpu_s:.1f}",
                flush=True,
            )
            rates: dict[str, list[float]] = {"ours": [], "energon": []}
            rate(theirs)  # makes the index
            for _ in range(ROUNDS):
                rates["ours"].append(rate(ours))
                rates["energon"].append(rate(theirs))
            share = statistics.median(b / a for a, b in zip(rates["ours"], rates["energon"], strict=True))
            told = ", ".join(f"{name} {statistics.median(found):,.0f}" for name, found in rates.items())
            print(f"texts a CPU second, by who prepared them: {told}; share {share:.2f}")
        again = links(folder / "tars", folder / "again")
        kills = killed(again, run.wall_s)
        shutil.copy(ours / ".nv-meta/dataset.yaml", again / ".nv-meta")
        print(f"killed {kills} times and resumed: {'equal' if are_same(ours, again) else 'NOT EQUAL'}", flush=True)
        write_shard(ours / f"data-{given.shards:05d}.tar", given.samples, count)
        more = [*OURS, str(ours), *SETTINGS, "--force-overwrite"]
        print(f"one more shard               {measured(more)}")
        print(f"nothing new                  {measured(more)}")


if __name__ == "__main__":
    main()
