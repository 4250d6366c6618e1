"""Faults on demand: what is to happen to a worker at a sample is a file, so that running workers can be told."""

import os
import signal
import threading
from pathlib import Path

from bridge_data.order import SampleRef


class AwkwardError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")


class Faults:
    """Called with each sample. Each planned fault happens once, and never in the process that planned it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._trainer = folder, os.getpid()

    def plan(self, lane: int, index: int, *actions: str) -> None:
        """Have these happen at a sample, one each time that it comes."""
        for number, action in enumerate(actions):
            (self._folder / f"{lane}-{index}-{number}").write_text(action)

    def plan_hang(self, lane: int, index: int) -> Path:
        """Have a worker hang at a sample; the file can be read once it does."""
        os.mkfifo(self._folder / "hanging")
        self.plan(lane, index, "tell and hang")
        return self._folder / "hanging"

    def clear(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()

    def __call__(self, lane: int, ref: SampleRef) -> None:
        if os.getpid() == self._trainer:
            return
        for file in sorted(self._folder.glob(f"{lane}-{ref.index}-*")):
            action = file.read_text()
            file.unlink()
            self._happen(action)

    def _happen(self, action: str) -> None:
        match action:
            case "SIGKILL" | "SIGSEGV":
                os.kill(os.getpid(), getattr(signal, action))
                threading.Event().wait()  # of several threads, this one may go on for a moment
            case "exit":
                os._exit(3)
            case "hang":
                threading.Event().wait()
            case "tell and hang":
                (self._folder / "hanging").write_text("now")
                threading.Event().wait()
            case "ValueError":
                raise ValueError("no such token")
            case "AwkwardError":
                raise AwkwardError("shard_0/7", "is damaged")
