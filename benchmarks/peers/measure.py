"""One measurement of one loader in a process of its own: the command line that all programs of this folder share.

A program hands its `Loader` class to `main`. Prints one line of
JSON with the figures. Nothing here needs more than torch and the standard library, since each program
runs in the environment of its library.

    python PROGRAM convert --workload text --data FOLDER            # makes the library's own format, where it has one
    python PROGRAM run --workload text --data FOLDER --workers 2 --seconds 3 --started MONOTONIC_SECONDS
"""

import argparse
import json
import os
import pickle
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WARM_UP_S, SAVES, CHECKED = 0.7, 5, 64
PACED_WARM_UP_S = 2.0
"""Warm-up with a paced trainer: at its own pace, so that the measurement does not start with empty queues."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Loader:
    """An endless loader of one library for one workload; each program derives one."""

    settings: dict[str, Any]
    """The settings chosen for this library: version, format, decoder, batch size, shuffling, prefetch."""

    def __init__(self, workload: str, data: Path, workers: int) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        """The key of each sample of a batch, with its text or its tensor."""
        return list(zip(batch["key"], batch["tokens"] if "tokens" in batch else batch["value"], strict=True))

    def num_bytes(self, batch: Any) -> int | None:
        """The bytes of its media, where these are measured."""
        return None

    def save(self) -> Any:
        """The state after the last batch; anything that pickle takes. None: the library has no state."""
        return None

    def restore(self, state: Any) -> None:
        """Called before the first batch."""
        raise NotImplementedError("there is no state")

    def wait_ready(self) -> None:
        """Wait until all workers run, if the library can tell; a warm-up follows in any case."""

    def close(self) -> None:
        """Clean up what does not end with the process."""


def main(make: type[Loader], convert: Any = None) -> None:
    """Run the command line of a program; `convert(workload, data)` makes the library's own format."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["convert", "run"])
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0, help="0: the first batch only")
    parser.add_argument("--started", type=float, help="time.monotonic() of whoever started this process")
    parser.add_argument("--state", type=Path, help="where the state is kept")
    parser.add_argument("--restore", action="store_true", help="begin from the state kept there")
    parser.add_argument("--memory", action="store_true", help="also the memory of all processes")
    parser.add_argument(
        "--busy", type=float, default=0.0, help="seconds that the trainer computes before it takes a batch"
    )
    parser.add_argument("--pause-per-sample", type=float, default=0.0, help="the trainer's seconds for each sample")
    arguments = parser.parse_args()
    imported = time.monotonic()
    if arguments.what == "convert":
        if convert is not None:
            convert(arguments.workload, arguments.data)
        return
    started = arguments.started or imported
    figures: dict[str, Any] = {"import_s": imported - started}
    begin = time.monotonic()
    loader = make(arguments.workload, arguments.data, arguments.workers)
    if arguments.restore:
        loader.restore(pickle.loads(arguments.state.read_bytes()))
    batches = iter(loader)
    built = time.monotonic()
    while time.monotonic() < built + arguments.busy:
        pass
    first = next(batches)
    figures["first_batch_s"] = time.monotonic() - begin
    figures["start_s"] = time.monotonic() - started - arguments.busy
    figures["settings"] = loader.settings
    figures["batch_bytes"] = loader.num_bytes(first)
    if arguments.seconds:
        figures |= _throughput(loader, batches, first, arguments)
    if arguments.memory:
        figures["pss_mb"] = sum(_pss_kb(process) for process in tree()) / 1e3
    if arguments.state and not arguments.restore:
        figures |= _saved(loader, arguments.state)
    print(json.dumps(figures), flush=True)
    loader.close()
    # Some libraries leave threads or processes that keep Python from ending; the figures are out.
    sys.stdout.flush()
    end_children()
    os._exit(0)


def _throughput(loader: Loader, batches: Iterator[Any], first: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Samples per second and CPU of all processes, after a warm-up in which every worker delivered."""
    loader.wait_ready()
    seen = [(key, digest(value)) for key, value in loader.describe(first)]
    size = loader.settings["batch_size"]
    pause = arguments.pause_per_sample * size
    warm = time.monotonic() + (PACED_WARM_UP_S if pause else WARM_UP_S)
    drawn, stalls_at_first = 0, 0.0
    while time.monotonic() < warm or drawn < 4 * arguments.workers:
        asked = time.monotonic()
        batch = next(batches)
        stalls_at_first += time.monotonic() - asked
        drawn += 1
        if len(seen) < CHECKED:
            seen += [(key, digest(value)) for key, value in loader.describe(batch)]
        if pause:
            time.sleep(pause)
    del first, batch
    count, stalls, taking, longest = 0, 0.0, 0.0, 0.0
    cpu = cpu_s()
    begin = due = time.monotonic()
    end = begin + arguments.seconds
    while (now := time.monotonic()) < end:
        worked = time.thread_time()
        next(batches)
        count += 1
        if pause:
            took, worked = time.monotonic() - now, time.thread_time() - worked
            stalls, taking, longest = stalls + took - worked, taking + worked, max(longest, took)
            due = max(due + pause, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    wall = time.monotonic() - begin
    cpu = cpu_s() - cpu
    samples = count * size
    figures = {"samples_per_s": samples / wall, "cpu_s_per_1000": 1e3 * cpu / samples, "check": seen[:CHECKED]}
    if not pause:
        return figures
    figures |= {"stalled_at_first_s": stalls_at_first, "stalled_share": stalls / wall}
    return figures | {"taking_share": taking / wall, "longest_wait_s": longest}


def _saved(loader: Loader, file: Path) -> dict[str, Any]:
    """Median time of a save, and the size of the state, which is kept for the restore."""
    times, state = [], None
    for _ in range(SAVES):
        begin = time.monotonic()
        state = loader.save()
        times.append(time.monotonic() - begin)
    if state is None:
        return {}
    file.write_bytes(pickle.dumps(state))
    return {"save_s": statistics.median(times), "state_bytes": file.stat().st_size}


def digest(value: Any) -> list[Any]:
    """A digest of a sample's content: shape, dtype and mean of a tensor, or the text itself."""
    if isinstance(value, str):
        return [value]
    return [list(value.shape), str(value.dtype).removeprefix("torch."), float(value.double().mean())]


def tree() -> list[int]:
    """This process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [os.getpid()]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, [])
    return found


def cpu_s() -> float:
    """CPU seconds so far of this process and its descendants, including reaped ones."""
    own = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in _SELF_AND_ENDED)
    others = [_stat(process) for process in tree() if process != os.getpid()]
    return own + sum(sum(map(int, fields[11:15])) * TICK_S for fields in others if fields)


_SELF_AND_ENDED = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _pss_kb(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def end_children() -> None:
    """End what a library leaves running."""
    for process in tree():
        if process != os.getpid():
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                continue
