"""The process that reads damaged files: one target, for a time or a number of cases.

Each case is written to `current` in the target's folder of the corpus before it is read, so that one that kills or
hangs the process is there afterwards. A case that fails is kept under `failures/`, one with an outcome that was not
seen before under `seen/`, from where later runs go on. Each line on standard output is a JSON object.
"""

import gc
import hashlib
import importlib
import json
import logging
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import BridgeDataError
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target
from tests.memory import sizes_bytes

MAX_GROWN_BYTES = 1 << 30
MAX_ADDRESS_BYTES = 16 << 30
"""Beyond it an allocation is a MemoryError, which keeps the machine alive."""
MAX_SEEN = 500
MAX_MESSAGE = 20_000

_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+|/\S+")


_told = os.fdopen(os.dup(1), "w")


def tell(**fields: object) -> None:
    print(json.dumps(fields), file=_told, flush=True)


class Cases:
    """The cases of a target, and what came of them."""

    def __init__(self, target: Target, corpus: Path, seed: int) -> None:
        self.target, self.corpus = target, corpus
        self.draw = random.Random(f"{seed} {target.name}")
        for name in ("seen", "failures"):
            (corpus / name).mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
        (self.scratch / "good").mkdir()
        self.files = target.build(self.scratch / "good")
        assert self.files, f"{target.name}: build returns no file to damage"
        self.good = {file: file.read_bytes() for file in self.files}
        self.seen = [(number, path.read_bytes()) for number, path in self._kept()]
        self.signatures: set[str] = set()
        self.num_read = self.num_accepted = self.num_failed = 0
        self.begin = time.monotonic()

    def _kept(self) -> list[tuple[int, Path]]:
        """Cases of earlier runs: the number of the file that they damage, and their path."""
        kept = sorted([*(self.corpus / "seen").iterdir(), *(self.corpus / "failures").glob("*.bin")])
        numbered = [(int(path.name.partition("-")[0]), path) for path in kept]
        return [(number, path) for number, path in numbered if number < len(self.files)]

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def check_good(self) -> None:
        """Good files are read; a target that refuses them would find nothing."""
        for file in self.files:
            self.target.read(file)

    def one(self, number: int, data: bytes) -> None:
        """Read a case: file `number` with the content `data`."""
        file = self.files[number]
        (self.corpus / "current").write_bytes(str(number).encode() + b"\n" + data)
        beside = file.with_name(".fuzzed")
        beside.write_bytes(data)
        beside.replace(file)  # a new file: one that is mapped somewhere must not shrink
        storage.close_files()
        (peak_before, size_before), begin = sizes_bytes(), time.monotonic()
        outcome, failure = "accepted", ""
        try:
            self.target.read(file)
            self.num_accepted += 1
        except BridgeDataError as error:
            outcome = f"{type(error).__name__}: {_VARYING.sub('#', str(error))[:200]}"
            if len(str(error)) > MAX_MESSAGE:
                failure = f"a message of {len(str(error))} characters"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = f"{type(error).__name__} in {traceback.extract_tb(error.__traceback__)[-1].name}"
            failure = "".join(traceback.format_exception(error))[-4000:]
        self.num_read += 1
        took_s, peak = time.monotonic() - begin, sizes_bytes()[0]
        grown = peak - size_before if peak > peak_before else 0
        if grown > MAX_GROWN_BYTES:
            failure, outcome = f"{grown >> 20} MiB more memory\n{failure}", "memory"
            gc.collect()
        if failure:
            self._fail(number, data, outcome, failure)
        elif outcome not in self.signatures:
            self.signatures.add(outcome)
            if len(self.seen) < MAX_SEEN:
                self.seen.append((number, data))
                self._keep("seen", number, data, "")
        tell(
            target=self.target.name,
            read=self.num_read,
            accepted=self.num_accepted,
            failed=self.num_failed,
            took_s=round(took_s, 3),
            grown=grown,
        )

    def _fail(self, number: int, data: bytes, outcome: str, failure: str) -> None:
        self.num_failed += 1
        if outcome not in self.signatures:
            self.signatures.add(outcome)
            path = self._keep("failures", number, data, ".bin")
            path.with_suffix(".txt").write_text(failure)
            tell(target=self.target.name, failure=failure, path=str(path), file=self.files[number].name)

    def _keep(self, folder: str, number: int, data: bytes, suffix: str) -> Path:
        path = self.corpus / folder / f"{number}-{hashlib.blake2b(data, digest_size=8).hexdigest()}{suffix}"
        path.write_bytes(data)
        return path

    def again(self) -> None:
        """Read the cases that earlier runs kept."""
        for number, data in list(self.seen):
            self.one(number, data)
            self._restore(number)

    def new(self) -> None:
        """Read a new case: a good or a kept file, damaged."""
        if self.seen and self.draw.random() < 0.3:
            number, data = self.draw.choice(self.seen)
        else:
            number = self.draw.randrange(len(self.files))
            data = self.good[self.files[number]]
        self.one(number, mutated(data, self.draw))
        self._restore(number)

    def _restore(self, number: int) -> None:
        """Make the folder good again, also where the reader itself wrote to it."""
        for file, content in self.good.items():
            if file == self.files[number] or not file.exists():
                beside = file.with_name(".fuzzed")
                beside.write_bytes(content)
                beside.replace(file)


def run(name: str, module: str, corpus: str, seconds: float, num_cases: int, seed: int) -> None:
    """Read good files of the target `name` of `module`, kept cases and `num_cases` new ones, for `seconds` at most."""
    target = importlib.import_module(module).BY_NAME[name]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    cases = Cases(target, Path(corpus), seed)
    try:
        cases.check_good()
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, resource.RLIM_INFINITY))
        tell(target=name, begun=True)
        end = time.monotonic() + seconds
        cases.again()
        num_cases += cases.num_read
        while cases.num_read < num_cases and time.monotonic() < end:
            cases.new()
        (cases.corpus / "current").unlink(missing_ok=True)
        tell(target=name, done=True)
    finally:
        cases.close()


if __name__ == "__main__":
    os.dup2(2, 1)  # what libraries print is not for the parent
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for settings in json.loads(sys.argv[1]):
        run(**settings)
