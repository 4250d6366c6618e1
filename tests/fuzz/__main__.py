"""Fuzzing: `python -m tests.fuzz` damages files of every format and reads them; see `targets` for what, `make fuzz`.

Every case is refused by one of our errors, or read right. A raw exception, a message of thousands of characters, a
process that dies, a case of more than 10 s or of more than 1 GiB is a failure: its file is kept in the corpus, under
`TARGET/failures/`, with the traceback beside it, and is read again by every later run. A target that read nothing is a
failure, too.
"""

import argparse
import dataclasses
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MAX_CASE_S = 10.0
MAX_START_S = 120.0
MAX_DEATHS = 20

TARGETS_MODULE = "tests.fuzz.targets"


@dataclasses.dataclass
class Result:
    """What came of a target."""

    name: str
    num_read: int = 0
    num_accepted: int = 0
    slowest_s: float = 0.0
    largest_bytes: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.num_read > 0 and not self.failures


def run_target(
    name: str, corpus: Path, *, seconds: float, num_cases: int, seed: int, module: str = TARGETS_MODULE
) -> Result:
    """Fuzz one target in processes of its own; one that dies or hangs is replaced until the time is over."""
    result = Result(name)
    folder = corpus / name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    deaths = 0
    while deaths < MAX_DEATHS:
        (folder / "current").unlink(missing_ok=True)
        left = {"seconds": max(0.1, end - time.monotonic()), "num_cases": num_cases - result.num_read}
        settings = [{"name": name, "corpus": str(folder), "seed": seed + deaths, "module": module, **left}]
        death = run_child(settings, {name: result})
        if death is None:
            break
        deaths += 1
        if not (folder / "current").exists():  # it did not come to the first case
            result.failures.append(death)
            break
        result.failures.append(f"{death}; kept as {_kept(folder, deaths)}")
        if time.monotonic() >= end or result.num_read >= num_cases:
            break
    return result


def _kept(folder: Path, number: int) -> str:
    """Keep the case during which the process ended."""
    current = folder / "current"
    of_file, _, data = current.read_bytes().partition(b"\n")
    (folder / "deaths").mkdir(exist_ok=True)
    path = folder / "deaths" / f"{of_file.decode()}-{os.getpid()}-{number}.bin"
    path.write_bytes(data)
    return str(path)


def run_child(settings: Sequence[Mapping[str, object]], results: Mapping[str, Result]) -> str | None:
    """Run the targets in `settings` in one process, and add to their results; why it died, None if it did not."""
    command = [sys.executable, "-m", "tests.fuzz.child", json.dumps([*settings])]
    before = {name: dataclasses.replace(result) for name, result in results.items()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        selector = selectors.DefaultSelector()
        selector.register(child.stdout, selectors.EVENT_READ)
        os.set_blocking(child.stdout.fileno(), False)
        rest, limit_s = b"", MAX_START_S
        errors: list[bytes] = []
        reader = _drain(child.stderr, errors)
        while True:
            if not selector.select(limit_s):
                child.kill()
                return f"a case took more than {limit_s:g} s"
            data = child.stdout.read()
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                told = json.loads(line)
                limit_s = MAX_START_S if "done" in told else MAX_CASE_S
                _add(told, results[told["target"]], before[told["target"]])
        code = child.wait()
        reader.join()
    return None if code == 0 else f"the process ended with {code}: {b''.join(errors)[-1500:].decode(errors='replace')}"


def _add(told: dict[str, Any], result: Result, before: Result) -> None:
    """Add what a child tells to the result of its target; `before` is that before the child began."""
    if "failure" in told:
        result.failures.append(f"{told['file']}: {told['failure']}\nkept as {told['path']}")
    elif "read" in told:
        result.num_read = before.num_read + told["read"]
        result.num_accepted = before.num_accepted + told["accepted"]
        result.slowest_s = max(result.slowest_s, told["took_s"])
        result.largest_bytes = max(result.largest_bytes, told["grown"])


def _drain(stream: IO[bytes], into: list[bytes]) -> threading.Thread:
    """A thread that reads a stream to its end."""

    def run() -> None:
        into.extend(iter(lambda: stream.read(4096), b""))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def main() -> int:
    from tests.fuzz.targets import BY_NAME

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="for each target")
    parser.add_argument("--cases", type=int, default=1 << 40, help="for each target, at most")
    parser.add_argument("--targets", default=",".join(BY_NAME), help="their names, separated by commas")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="a folder that is kept")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    names = [name for name in given.targets.split(",") if name]
    if unknown := [name for name in names if name not in BY_NAME]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    print(f"{'target':16} {'read':>8} {'accepted':>8} {'slowest':>9} {'memory':>9}  failures", flush=True)
    results = []
    for name in names:
        result = run_target(name, given.corpus, seconds=given.seconds, num_cases=given.cases, seed=given.seed)
        results.append(result)
        grown = f"{result.largest_bytes >> 20} MiB"
        line = f"{name:16} {result.num_read:8} {result.num_accepted:8} {result.slowest_s:8.2f}s {grown:>9}"
        print(f"{line}  {len(result.failures) or ('' if result.num_read else 'NOTHING READ')}", flush=True)
        for failure in result.failures:
            print("    " + failure.replace("\n", "\n    "), flush=True)
    return 0 if results and all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
